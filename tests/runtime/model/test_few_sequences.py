"""Models of 2 to 64 sequences, and prompts of as many rows, whose products read digits of bytes, of bf16 or of f16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.models.reference import ReferenceModel
from ptxgen.models.step import products, row_forms
from ptxgen.runtime import Model, open_device
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from tests.support.models.array_file import ArrayFile
from tests.support.models.batches import CLOSE, WIDE, has_models_tokens
from tests.support.models.families import N_TOKENS, PROMPT, random_weights, small_spec


@pytest.mark.parametrize("format", ["q4_k", "q6_k"])
def test_a_few_rows_as_digits_of_bytes(device: Device, format: str) -> None:
    """Prompts and batches have the float64 model's tokens; of prompts up to eight rows are exact with "fast", too."""
    spec = small_spec("llama", **WIDE)
    file = ArrayFile(spec, random_weights(spec), format)
    reference = ReferenceModel(spec, file.values())
    model = Model(file, device, "f32", chunk=8)
    ops = model.program("prefill", 8).ops
    assert {"pack_digits", "digit_gemm"} <= {op.spec.kernel_name for op in ops}
    assert not {"gemm", "rms_norm"} & {op.spec.kernel_name for op in ops}
    want = reference.generate(PROMPT, N_TOKENS)
    assert model.generate(PROMPT, N_TOKENS)[len(PROMPT) :] == want
    fast = Model(file, device, "f32", chunk=8, precision="fast", weights=model.weights)
    assert fast.generate(PROMPT, N_TOKENS)[len(PROMPT) :] == want
    batch = Model(file, device, "f32", chunk=1, weights=model.weights).batch(slots=3)
    has_models_tokens(batch, file, 3, N_TOKENS)


@pytest.mark.parametrize(
    ("slots", "mode", "precision", "format"),
    [
        (2, "random", "exact", "bf16"), (3, "check", "exact", "bf16"), (3, "check", "fast", "bf16"),
        (8, "check", "exact", "bf16"), (8, "random", "fast", "bf16"), (9, "random", "exact", "bf16"),
        (3, "check", "exact", "q4_k"), (8, "random", "exact", "q6_k"), (2, "random", "fast", "q5_k"),
        (3, "check", "exact", "int4_g128"), (8, "random", "exact", "q8_0"), (8, "check", "fast", "e4m3_channel"),
        (2, "random", "fast", "int4_g32"), (5, "random", "e4m3", "e4m3_block"),
    ],
)  # fmt: skip
def test_few_sequences_as_bf16_digits(slots: int, mode: str, precision: str, format: str) -> None:
    """Steps of up to eight sequences have five launches a layer, whose products read and leave digits: exact ones have
    the float64 model's tokens, rounded ones its first."""
    spec = small_spec("llama", **WIDE)
    file = ArrayFile(spec, random_weights(spec), format)
    model = Model(file, CpuDevice(mode=mode), "f32", chunk=1, precision=precision)
    batch = model.batch(slots=slots)
    batch.cache.zero()  # rows past a length are loaded early
    kernels = [(op.role, op.spec.kernel_name) for op in batch._step.program.ops if op.layer == 1]
    if slots <= 8:
        products = [(role, "digit_gemm") for role in ("o_proj", "gate_up", "down_proj")]
        assert kernels == [("qkv_append", "digit_qkv_append"), ("attention", "incremental_attention"), *products]
    has_models_tokens(batch, file, slots, N_TOKENS, precision)
    batch.leave(0)  # what a free slot has in its place is written, too
    batch.step()


@pytest.mark.parametrize(
    ("slots", "mode", "format"),
    [
        (9, "check", "int4_g128"), (16, "random", "q8_0"), (17, "check", "e4m3_channel"), (31, "check", "q4_0"),
        (32, "random", "e4m3_block"), (33, "random", "int4_g64"), (12, "random", "q5_0"), (32, "check", "q5_k"),
        (33, "check", "q4_k"),
        *(pytest.param(slots, "cuda", name, marks=pytest.mark.gpu)
          for slots in (9, 16, 17, 31, 32, 33) for name in ("int4_g128", "int4_g32", "q4_0", "q8_0", "e4m3_block")),
        *(pytest.param(slots, "cuda", name, marks=pytest.mark.gpu)
          for slots in (32, 33, 64) for name in ("q4_k", "q5_k", "q6_k")),
    ],
)  # fmt: skip
def test_more_sequences_in_units_of_their_rows(slots: int, mode: str, format: str) -> None:
    """Steps of 9 to 64 exact sequences multiply codes as they are, and have the float64 model's tokens."""
    spec = small_spec("llama", **WIDE | {"num_hidden_layers": 1})
    file = ArrayFile(spec, random_weights(spec), format)
    device = open_device("cuda") if mode == "cuda" else CpuDevice(mode=mode)
    batch = Model(file, device, "f32", chunk=1).batch(slots=slots)
    batch.cache.zero()
    multiply = ("packed_gemm", "packed_qkv_append")
    ops = [op for op in batch._step.program.ops if op.spec.kernel_name in multiply and op.layer == 0]
    assert [op.spec.by_row for op in ops] == [True] * 4
    has_models_tokens(batch, file, slots, 3, "exact")


@pytest.mark.parametrize(
    ("step", "rows", "formats", "options", "takes"),
    [
        ("batch", 8, ("q8_0", "q8_0"), {}, False),
        ("batch", 9, ("q8_0", "q8_0"), {}, True),
        ("prefill", 16, ("q5_0", "q5_0"), {}, True),
        ("batch", 64, ("e4m3_block", "e4m3_block"), {}, True),
        ("batch", 65, ("e4m3_block", "e4m3_block"), {}, True),
        ("batch", 20, ("q8_0", "q8_0"), {"precision": "fast"}, False),
        ("batch", 20, ("q8_0", "q8_0"), {"batch_invariant": True}, False),
        ("batch", 12, ("q6_k", "q5_0"), {}, True),
        ("batch", 12, ("q6_k", "q6_k"), {}, False),
        ("batch", 32, ("q4_k", "q8_0"), {}, True),
        ("batch", 64, ("q4_k", "q8_0"), {}, True),
        ("batch", 65, ("q4_k", "q8_0"), {}, True),
        ("batch", 65, ("q4_k", "f16"), {}, False),
        ("batch", 64, ("q5_k", "q6_k"), {}, True),
        ("prefill", 512, ("q4_k", "q6_k"), {}, True),
        ("prefill", 4096, ("q4_k", "q6_k"), {}, True),
        ("prefill", 512, ("q4_k", "int4_g128"), {}, True),
        ("prefill", 65, ("q4_k", "int4_g64"), {}, True),
        ("prefill", 33, ("q4_k", "q6_k"), {"precision": "fast"}, False),
        ("prefill", 512, ("int4_g128", "int4_g128"), {}, True),
        ("prefill", 512, ("int4_g64", "int4_g64"), {}, True),
        ("prefill", 512, ("q4_1", "q4_1"), {}, False),
    ],
)
def test_which_rows_are_in_units_of_their_own(
    step: str, rows: int, formats: tuple[str, str], options: dict[str, Any], takes: bool
) -> None:
    """By the step, its rows, the formats of q and k and of v, and what is asked for."""
    spec = small_spec("llama", **WIDE, max_position_embeddings=1024)
    given = {"precision": "exact", "batch_invariant": False} | options
    made = products.Products(model=spec, step=step, rows=rows, target="sm_90a", formats={}, programmatic=True, **given)
    assert made.in_units(formats, 256) == takes


@pytest.mark.parametrize(
    ("format", "rows"),
    [("int4_g128", 128), ("q4_k", 128), ("q5_k", 64), ("q8_0", 128), ("q5_0", 128), ("e4m3_block", 128)],
)
@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_prompt_of_many_exact_rows(name: str, format: str, rows: int) -> None:
    """In chunks of prompts, in several tiles of tokens."""
    spec = small_spec("llama", **WIDE, max_position_embeddings=160)
    file = ArrayFile(spec, random_weights(spec), format, {"layers.1.down_proj": "q6_k"} if format == "q4_k" else {})
    model = Model(file, open_device(name), "f32", chunk=rows)
    prompt = np.random.default_rng(0).integers(0, spec.shape.vocab, rows - 31).tolist()
    ops = [op.spec for op in model.program("prefill", rows).ops if op.spec.kernel_name == "packed_gemm"]
    assert ops
    assert all(each.by_row and each.tokens <= 64 for each in ops)
    model.prefill(prompt)
    want = ReferenceModel(spec, file.values()).forward(prompt)[-1]
    found = model.steps.logits.numpy()[0]
    assert np.abs(found - want).max() <= CLOSE["exact"] * np.abs(want).max()


@pytest.mark.parametrize("most", [0, 1 << 40])
def test_values_in_another_format_append_by_themselves(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """As llama.cpp's mixes have them; larger models' exact rows stay digits of bytes."""
    monkeypatch.setitem(row_forms.SPANS_TO_WEIGHTS, "five", most)
    spec = small_spec("llama", **WIDE)
    mixed = {f"layers.1.{name}": "q6_k" for name in ("v_proj", "down_proj")}
    file = ArrayFile(spec, random_weights(spec), "q4_k", mixed)
    batch = Model(file, CpuDevice(mode="check"), "f32", chunk=1).batch(slots=3)
    batch.cache.zero()
    roles = [op.role for op in batch._step.program.ops if op.layer == 1]
    packed = [f"{role}.digits" for role in ("qkv", "o_proj", "gate_up", "down_proj")]
    assert {"qk_append", "v_append"} <= set(roles) if most else set(packed) <= set(roles)
    assert bool(most) != bool(set(packed) & set(roles))
    has_models_tokens(batch, file, 3, 4)


def test_layers_in_bf16_and_in_k_quants_have_digits_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What attention leaves lies otherwise before each, and so do digits that a product leaves for the other kind."""
    monkeypatch.setitem(row_forms.HALVES_FROM_WEIGHTS, "exact", 0)
    spec = small_spec("llama", **WIDE)
    mixed = {f"layers.1.{name}": "bf16" for name in spec.products()}
    file = ArrayFile(spec, random_weights(spec), "q4_k", mixed)
    batch = Model(file, CpuDevice(mode="check"), "f32", chunk=1).batch(slots=2)
    batch.cache.zero()
    has_models_tokens(batch, file, 2, 4)


def narrow_mixture(slots: int, precision: str, device: Device, kind: str = "q5_0") -> None:
    """A step of sequences of a model 192 wide, as Q4_K_M mixes its types, beside the float64 model."""
    changes = {"hidden_size": 192, "intermediate_size": 512, "head_dim": 32, "num_attention_heads": 6}
    spec = small_spec("qwen2", **changes, num_hidden_layers=2, tie_word_embeddings=True, use_sliding_window=False)
    mixed = {"embed_tokens": "q8_0", "layers.0.v_proj": "q8_0"}
    mixed |= {"layers.0.down_proj": "q6_k", "layers.1.down_proj": "q4_k"} if kind == "q5_0" else {}
    file = ArrayFile(spec, random_weights(spec), kind, mixed)
    batch = Model(file, device, "f32", chunk=1, precision=precision).batch(slots=slots)
    batch.cache.zero()
    ops = [(op.layer, op.role, op.spec.kernel_name) for op in batch._step.program.ops]
    assert {kernel for _, role, kernel in ops if role in ("o_proj", "gate_up", "down_proj")} == {"digit_gemm"}
    assert [role for layer, role, _ in ops if layer == 0 and role.endswith("_append")] == ["qk_append", "v_append"]
    packed = [role for _, role, _ in ops if role.endswith(".digits")]
    between = ["qkv.digits", "down_proj.digits"] * 2 + ["lm_head.digits"]
    assert packed == (between if precision == "exact" and kind == "q5_0" else ["qkv.digits"])
    has_models_tokens(batch, file, slots, 2, precision)


@pytest.mark.parametrize(("slots", "precision"), [(2, "exact"), (8, "exact"), (5, "fast")])
def test_narrow_rows_in_a_mixture_are_digits_in_two_formats(device: Device, slots: int, precision: str) -> None:
    narrow_mixture(slots, precision, device)


@pytest.mark.parametrize(("mode", "kind"), [("check", "q5_0"), ("random", "q5_0"), ("check", "bf16")])
def test_narrow_rows_in_every_order(mode: str, kind: str) -> None:
    narrow_mixture(3, "exact", CpuDevice(mode=mode), kind)


def test_heads_that_are_no_whole_chunks_leave_rows() -> None:
    """Sums beside digits are of 16 columns, which four lanes of attention must have."""
    spec = small_spec("llama", hidden_size=256, intermediate_size=512, head_dim=40, num_attention_heads=32)
    file = ArrayFile(spec, random_weights(spec), "q4_k")
    ops = Model(file, CpuDevice(mode="fast"), "f32", chunk=1).program("batch", 3).ops
    roles = {op.role: op.spec for op in ops if op.layer == 0}
    assert {"o_proj.digits", "o_proj", "gate_up", "down_proj"} <= roles.keys()
    assert [roles[name].halves for name in ("attention", "o_proj", "down_proj")] == [0, False, True]
