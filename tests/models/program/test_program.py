"""A step as data: what is refused, what a family's Program holds, where scratch memory lies, what a model takes."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.dtypes import f32, s32
from ptxgen.kernels import Advance, PackedGemm
from ptxgen.models.arena import ALIGN, lives, plan_arena
from ptxgen.models.memory_plan import memory_plan, positions_at_once, scratch_of_fewer_rows
from ptxgen.models.program import Op, Program, Ref, Tensor
from ptxgen.models.step.decode import STEPS, step_program
from ptxgen.models.step.prompt_steps import step_rows
from ptxgen.targets import target
from ptxgen.weights import weight_format
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import CONFIGS, random_weights, small_spec

COUNTERS = {"position": Tensor("position", s32, (1,), "state"), "length": Tensor("length", s32, (1,), "state")}
ADVANCE = Op(Advance(max_len=64), {name: Ref(name) for name in COUNTERS}, {"rows": 1}, role="advance")


def changed(op: Op = ADVANCE, **tensors: Tensor) -> Program:
    return Program(COUNTERS | tensors, (op,))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: changed(position=Tensor("position", f32, (1,), "state")), "position must be a tensor of s32"),
        (lambda: changed(position=Tensor("position", s32, (2,), "state")), r"position must have shape \[1\] \(got"),
        (lambda: changed(position=Tensor("position", s32, (1,), "scratch")), "position is read before it is written"),
        (lambda: changed(position=Tensor("position", s32, (1,), "input")), "position is a input and cannot be written"),
        (lambda: changed(position=Tensor("position", s32, (1,), "memory")), "one of weight, state, input, output"),
        (lambda: changed(more=Tensor("more", s32, (1,), "state")), "more: no op uses it"),
        (
            lambda: changed(dataclasses.replace(ADVANCE, tensors={"position": Ref("position")})),
            "takes position, length",
        ),
        (lambda: changed(dataclasses.replace(ADVANCE, tensors={**ADVANCE.tensors, "length": Ref("length", 4)})),
         r"length must lie within length \(got 4 of 4 from 4\)"),
        (lambda: changed(dataclasses.replace(ADVANCE, tensors={**ADVANCE.tensors, "length": Ref("length", 2)}),
                         length=Tensor("length", s32, (2,), "state")), "length must be aligned to 4 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_program_is_refused(make: object, reason: str) -> None:
    changed()
    with pytest.raises(SpecError, match=reason):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_has_every_step(family: str, step: str) -> None:
    spec = small_spec(family)
    program = step_program(spec, "q8_0", step, rows=1 if step == "decode" else 4, kv_dtype="f16")
    files = {part.name: part.rows for tensor in program.of_kind("weight") for part in tensor.parts}
    plain = dataclasses.replace(spec, block=dataclasses.replace(spec.block, fused=False))
    assert files == {name: shape[0] for name, shape in plain.tensors().items()}
    caches = [t.name for t in program.of_kind("state") if t.name.endswith("_cache")]
    assert len(caches) == 2 * spec.shape.n_layers
    assert program.tensors["logits"].shape == (4 if step == "batch" else 1, spec.shape.vocab)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_every_family_of_a_real_width_has_steps_of_several_rows(family: str, precision: str) -> None:
    """Products of 2^24 weights and more go ways of their own."""
    spec = small_spec(family, hidden_size=2048, intermediate_size=8192, head_dim=128)
    for step, rows in (("batch", 2), ("batch", 8), ("batch", 16), ("batch", 32), ("prefill", 100)):
        for weights in ("bf16", "q4_k"):
            program = step_program(
                spec, weights, step, rows=rows, target="sm_90a", programmatic=True, precision=precision
            )
            roles = [op.role for op in program.ops]
            assert roles.count("down_proj") == spec.shape.n_layers


def test_a_decode_step_takes_few_kernels() -> None:
    for family in CONFIGS:
        program = step_program(small_spec(family), "f16", target="sm_90", programmatic=True)
        assert len(program.specs()) <= 20, family


def test_one_product_takes_q_k_and_v_and_its_thirds_serve_many_rows() -> None:
    spec = small_spec("qwen2")
    one, many = step_program(spec, "f16"), step_program(spec, "f16", "prefill", rows=8)
    assert one.tensors["layers.0.qkv"] == many.tensors["layers.0.qkv"]
    assert [op.role for op in one.ops[1:3]] == ["qkv_append", "attention"]
    thirds = [op.tensors["weight"] for op in many.ops if op.role in ("q_proj", "k_proj", "v_proj")][:3]
    bytes_of = lambda rows: weight_format("f16").nbytes(rows, spec.dim)  # noqa: E731
    assert thirds == [Ref("layers.0.qkv", bytes_of(rows)) for rows in (0, spec.q_width, spec.q_width + spec.kv_width)]


def test_matrices_of_several_formats_stay_apart() -> None:
    spec = small_spec("llama")
    formats = dict.fromkeys(spec.tensors(), "f16") | {"layers.1.v_proj": "q8_0"}
    program = step_program(spec, formats)
    assert program.tensors["layers.1.v_proj"].format == "q8_0"
    assert {"layers.0.qkv", "layers.1.qk"} <= program.tensors.keys()
    assert [op.role for op in program.ops if op.layer == 1][:2] == ["qkv_append", "attention"]
    apart = step_program(spec, formats | {"layers.1.k_proj": "q4_0"})
    assert [op.role for op in apart.ops if op.layer == 1][:4] == ["q_proj", "k_proj", "v_proj", "rope_append"]
    gate = step_program(spec, formats | {"layers.0.up_proj": "q8_0"})
    assert [op.role for op in gate.ops if op.layer == 0][-4:] == ["gate_proj", "up_proj", "activation", "down_proj"]
    with pytest.raises(SpecError, match=r"layers\.2\.down_proj: is not in the file"):
        step_program(spec, {name: kind for name, kind in formats.items() if name != "layers.2.down_proj"})


def test_what_is_not_covered_is_said() -> None:
    with pytest.raises(SpecError, match="page_size needs a batch with pages and without rings"):
        step_program(small_spec("llama"), "f16", page_size=16)
    with pytest.raises(SpecError, match="step must be one of decode, batch, prefill"):
        step_program(small_spec("llama"), "f16", "train")
    with pytest.raises(SpecError, match="rows must be 1 to decode"):
        step_program(small_spec("llama"), "f16", rows=2)
    with pytest.raises(SpecError, match="choice 'none' is of a prompt's rows"):
        step_program(small_spec("llama"), "f16", choice="none")


@pytest.mark.parametrize("family", CONFIGS)
def test_no_two_tensors_share_scratch_memory_while_both_live(family: str) -> None:
    for step, rows, choice in (("decode", 1, "greedy"), ("prefill", 8, "greedy"), ("prefill", 8, "none")):
        program = step_program(small_spec(family), "f16", step, rows=rows, choice=choice)
        arena, alive = plan_arena(program), lives(program)
        for one in alive:
            assert arena.offsets[one.name] % ALIGN == 0
            assert arena.offsets[one.name] + one.nbytes <= arena.nbytes
            for other in alive:
                if one.name < other.name and one.first <= other.last and other.first <= one.last:
                    a, b = arena.offsets[one.name], arena.offsets[other.name]
                    assert a + one.nbytes <= b or b + other.nbytes <= a, (one, other)
        assert arena.needed == arena.nbytes, (family, step)  # nothing is lost between them


def test_memory_is_what_the_formats_need() -> None:
    file = ArrayFile(small_spec("llama"), random_weights(small_spec("llama")), "q8_0")
    plan, spec = memory_plan(file, "f16", chunk=8), file.spec
    matrices = [shape for shape in spec.tensors().values() if len(shape) == 2]
    assert plan.formats["q8_0"] == sum(weight_format("q8_0").nbytes(*shape) for shape in matrices)
    assert plan.formats[""] == 4 * sum(shape[0] for shape in spec.tensors().values() if len(shape) == 1)
    assert plan.cache == 2 * spec.shape.n_layers * spec.kv_width * spec.shape.max_len * 2
    assert plan.total == plan.weights + plan.cache + plan.scratch + plan.other
    most = spec.shape.max_len
    assert memory_plan(file, chunk=512) == memory_plan(file, chunk=most), "a step takes no more than the context"
    assert [positions_at_once(512, n) for n in (1, 63, most, 512, 4096)] == [1, 32, most, 512, 512]


def test_memory_does_for_steps_of_fewer_rows_that_are_widened() -> None:
    """64 rows of this shape are, 512 are not, as most of their keys are behind no query."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 320, "head_dim": 40}
    spec = small_spec("llama", **heads, num_hidden_layers=1, max_position_embeddings=512)
    needs, more = {}, {}
    for rows in sorted({step_rows(count) for count in range(17, 513)}):
        program = step_program(spec, "bf16", "prefill", rows=rows, kv_dtype="e4m3", target="sm_90a", precision="fast")
        needs[rows] = plan_arena(program).nbytes
        more[rows] = scratch_of_fewer_rows(program, target("sm_90a"), 512)
    assert more[512] > 0
    for chunk, need in needs.items():
        assert max(other for rows, other in needs.items() if rows <= chunk) <= need + more[chunk], chunk


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_memory_does_for_steps_of_fewer_rows_that_share_keys(precision: str) -> None:
    """1024 rows of this shape share no keys, fewer do."""
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "head_dim": 128}
    spec = small_spec("llama", **heads, num_hidden_layers=1, max_position_embeddings=8192)
    how = {"kv_dtype": "f16", "target": "sm_90a", "precision": precision}
    programs = {
        rows: step_program(spec, "bf16", "prefill", rows=rows, **how)
        for rows in sorted({step_rows(count) for count in range(1, 1025)})
    }
    needs = {rows: plan_arena(program).nbytes for rows, program in programs.items()}
    records = {rows: scratch_of_fewer_rows(each, target("sm_90a"), 8192) for rows, each in programs.items()}
    most = {chunk: max(need for rows, need in needs.items() if rows <= chunk) for chunk in needs}
    assert all(most[chunk] <= needs[chunk] + records[chunk] for chunk in needs)
    assert any(most[chunk] > needs[chunk] for chunk in needs), "without records some chunk's memory would not do"
    assert not records[64], "it has them"
    assert not scratch_of_fewer_rows(programs[1024], target("sm_90a"), 512), "too few keys"
    lean = step_program(spec, "bf16", "prefill", rows=64, **how, attention_scratch=False)
    assert plan_arena(lean).nbytes < needs[64] - records[1024] // 2


def test_a_value_is_plain_data() -> None:
    program = step_program(small_spec("llama"), "f16")
    again = step_program(small_spec("llama"), "f16")
    assert program == again
    assert json.dumps([tensor.shape for tensor in program.tensors.values()])
    assert np.prod(program.tensors["tokens"].shape) == 1


def test_down_reads_tiles_whose_tokens_suit_it() -> None:
    """64 tokens are the fastest for gate and up alone, with 128 down takes less."""
    wide = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    spec = small_spec("llama", head_dim=128, num_hidden_layers=2, **wide)
    program = step_program(spec, "bf16", "prefill", rows=96, kv_dtype="f16", target="sm_90a", precision="fast")
    alone = PackedGemm.best(
        96, n=14336, k=4096, weights="bf16", gated=True, packed_out=True, activation="silu", precision="fast"
    )
    assert alone.tokens == 64
    of_layer = {op.role: op.spec for op in program.ops if op.layer == 0}
    for role in ("gate_up", "down_proj"):
        spec_of_role = of_layer[role]
        assert isinstance(spec_of_role, PackedGemm)
        assert spec_of_role.tokens == 128
