"""A model decodes on the CPU executor: greedy tokens of every family as the float64 model has them, one launch a token,
prompts in chunks, going back, and no finding in check mode."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen import CapacityError, SpecError
from ptxgen.dtypes import bf16
from ptxgen.kernels import MultiHeadAttention, PackedGemm
from ptxgen.models.memory_plan import MemoryPlan, plan_of
from ptxgen.models.reference import ReferenceModel
from ptxgen.models.step import attention
from ptxgen.models.text import Text
from ptxgen.runtime import Model, Snapshot, open_device
from ptxgen.runtime.core.backend import MemoryUse
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.targets import target
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import (
    CONFIGS,
    N_TOKENS,
    PROMPT,
    expected_tokens,
    llama2c,
    random_weights,
    small_spec,
)
from tests.tools.record.families import RECORD

CHECKPOINT = Path(__file__).parents[4] / "shared" / "models" / "aidreams260K.bin"
RECORDED = dict(np.load(RECORD))
NO_FEW = {32: 0, 16: 0}
CLOSE = {"f32": 3e-5, "f16": 3e-2}  # of logits around 10


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


def file_of(family: str, format: str = "f32") -> ArrayFile:
    spec = small_spec(family)
    return ArrayFile(spec, random_weights(spec), format)


def model_of(device: Device, family: str = "llama", kv_dtype: str = "f32", **options: Any) -> Model:
    return Model(file_of(family), device, kv_dtype, chunk=8, **options)


@pytest.mark.parametrize("kv_dtype", ["f32", "f16"])
@pytest.mark.parametrize("family", CONFIGS)
def test_greedy_tokens_are_those_of_the_float64_model(device: Device, family: str, kv_dtype: str) -> None:
    """With float32 keys and values they are also those of transformers' own classes."""
    model, file = model_of(device, family, kv_dtype), file_of(family)
    reference = ReferenceModel(file.spec, file.values(), kv_dtype)
    logits = [model.forward(token) for token in PROMPT]
    np.testing.assert_allclose(logits, reference.forward(PROMPT), rtol=0, atol=CLOSE[kv_dtype])
    found = [int(np.argmax(logits[-1]))]
    while len(found) < N_TOKENS:
        found.append(model.forward_to_token(found[-1]))
    reference.rollback(0)
    assert found == reference.generate(PROMPT, N_TOKENS)
    if kv_dtype == "f32":
        assert found == RECORDED[f"{family}.tokens"].tolist()


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "smollm3", "olmo2"])
def test_a_prompt_in_chunks_is_a_prompt_token_by_token(device: Device, family: str) -> None:
    model = model_of(device, family)
    for token in PROMPT:
        expected = model.forward(token)
    model.reset()
    token = model.prefill(PROMPT)
    assert (token, model.length) == (int(np.argmax(expected)), len(PROMPT))
    model.rollback(len(PROMPT) - 1)
    np.testing.assert_allclose(model.forward(PROMPT[-1]), expected, rtol=0, atol=CLOSE["f32"])
    assert model.generate(PROMPT, N_TOKENS) == [*PROMPT, *RECORDED[f"{family}.tokens"].tolist()]


def test_biases_of_gate_and_up(device: Device) -> None:
    """In a prompt's chunk and in decode steps."""
    spec = small_spec("llama", mlp_bias=True, num_hidden_layers=1)
    file = ArrayFile(spec, random_weights(spec))
    reference = ReferenceModel(spec, file.values())
    assert Model(file, device, "f32", chunk=4).generate(PROMPT[:4], 4)[4:] == reference.generate(PROMPT[:4], 4)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_bias_of_the_logits(device: Device, family: str) -> None:
    """In a prompt's chunk, in decode steps, before a cap, and in a batch; it is large enough to choose other tokens."""
    spec = dataclasses.replace(small_spec(family, num_hidden_layers=1), head_bias=True)
    weights = random_weights(spec)
    weights["lm_head.bias"] *= 20
    file = ArrayFile(spec, weights)
    reference, model = ReferenceModel(spec, file.values()), Model(file, device, "f32", chunk=4)
    expected = reference.generate(PROMPT[:4], 6)
    assert model.generate(PROMPT[:4], 6)[4:] == expected
    batch = model.batch(2)
    slot, token = batch.join(PROMPT[:4])
    assert [token, *(batch.step()[slot] for _ in range(5))] == expected
    reference.rollback(0)
    model.reset()
    logits = [model.forward(one) for one in PROMPT[:4]]
    np.testing.assert_allclose(logits, reference.forward(PROMPT[:4]), rtol=0, atol=CLOSE["f32"])
    without = ReferenceModel(dataclasses.replace(spec, head_bias=False), weights)
    assert without.generate(PROMPT[:4], 6) != expected


@pytest.mark.parametrize("format", ["f16", "bf16", "q8_0", "q4_0"])
def test_weights_of_other_formats(device: Device, format: str) -> None:
    file = file_of("llama", format)
    model, reference = Model(file, device, "f32", chunk=8), ReferenceModel(file.spec, file.values())
    assert model.generate(PROMPT, N_TOKENS)[len(PROMPT) :] == reference.generate(PROMPT, N_TOKENS)


@pytest.mark.parametrize("biased", [False, True])
def test_gate_and_up_that_cannot_be_one_matrix(device: Device, biased: bool) -> None:
    """Of two formats, or not of whole records with biases: decode steps, a prompt's chunk, a batch, and a layer where
    they can."""
    spec = small_spec("llama", num_hidden_layers=2, intermediate_size=90 if biased else 96, mlp_bias=biased)
    formats = {} if biased else {"layers.1.up_proj": "q8_0"}
    file = ArrayFile(spec, random_weights(spec), "f16", formats)
    model, want = Model(file, device, "f32", chunk=8), ReferenceModel(spec, file.values()).generate(PROMPT, N_TOKENS)
    assert [op.role for op in model.program("decode").ops if op.layer == 1][-4:] == [
        "gate_proj", "up_proj", "activation", "down_proj",
    ]  # fmt: skip
    assert model.generate(PROMPT, N_TOKENS)[len(PROMPT) :] == want
    batch = model.batch(3)
    slot, token = batch.join(PROMPT)
    assert [token, *(batch.step()[slot] for _ in range(N_TOKENS - 1))] == want


@pytest.mark.parametrize("kv_dtype", ["f32", "f16"])
def test_a_trained_checkpoint_gives_its_tokens(device: Device, kv_dtype: str) -> None:
    if not CHECKPOINT.exists():
        pytest.skip(f"needs {CHECKPOINT.name}, which is not part of the project")
    model = Model(ArrayFile(*llama2c(CHECKPOINT)), device, kv_dtype)
    expected = expected_tokens(CHECKPOINT.with_suffix(".expected.json"))
    assert model.generate([1], 127)[1:] == expected


def test_a_token_is_one_graph_launch_and_one_copy_of_4_bytes(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # copies that can be counted
        patch.setattr(device, "_prepared_copy", lambda one, stream: lambda: device._copy(one, stream, ()))
        model = model_of(device)
    token = model.prefill(PROMPT)
    token = model.forward_to_token(token)
    calls: list[object] = []
    graph, copy = model.steps.decode.graph._launch, device._copy
    monkeypatch.setattr(model.steps.decode.graph, "_launch", lambda stream: (calls.append("graph"), graph(stream)))
    counted = lambda one, *rest: (calls.append((one.direction, one.width)), copy(one, *rest))  # noqa: E731
    monkeypatch.setattr(device, "_copy", counted)
    for _ in range(3):
        calls.clear()
        token = model.forward_to_token(token)
        assert calls == ["graph", ("out", 4)]


def test_the_host_may_say_another_token_or_position(device: Device) -> None:
    model = model_of(device)
    first = [model.forward(token) for token in PROMPT]
    again = model.forward(PROMPT[4], 4)  # what lay from there on is forgotten
    np.testing.assert_array_equal(again, first[4])
    assert model.length == 5
    assert model.forward_to_token(PROMPT[5]) == int(np.argmax(first[5]))
    with pytest.raises(SpecError, match="Model: position must be within 0 … 6 \\(got 7\\)"):
        model.forward(1, 7)
    with pytest.raises(SpecError, match="Model: token must be within 0 … 130"):
        model.forward_to_token(131)


def following(model: Model, token: int, count: int) -> list[int]:
    """The tokens after one."""
    found = []
    for _ in range(count):
        found.append(token := model.forward_to_token(token))
    return found


def test_rollback_snapshot_and_restore_go_back(device: Device, tmp_path: Path) -> None:
    model = model_of(device, kv_dtype="f16")
    token = model.prefill(PROMPT)
    model.snapshot().save(tmp_path / "prompt.npz")
    held = Snapshot.load(tmp_path / "prompt.npz")
    assert held.tokens is not None
    assert held.tokens.tolist() == list(PROMPT)
    expected = following(model, token, 4)
    model.rollback(len(PROMPT))
    assert following(model, token, 4) == expected
    model.reset()
    model.prefill(PROMPT[::-1])
    model.restore(held)
    assert following(model, token, 4) == expected
    with pytest.raises(SpecError, match=r"Model.restore: must have 12 tokens \(got 2\)"):
        model.restore(dataclasses.replace(held, tokens=held.tokens[:2]))


def test_a_deterministic_model_chooses_on_the_host(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_DETERMINISTIC", "1")
    model = model_of(device)
    assert model.deterministic
    assert model.generate(PROMPT, N_TOKENS)[len(PROMPT) :] == RECORDED["llama.tokens"].tolist()
    assert model.steps.decode._graph is None


def test_a_stop_string_that_begins_with_a_space_is_seen_at_once(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of its own begins without the space of its first piece, one that goes on after a prompt has it."""
    model, first = model_of(device), RECORDED["llama.tokens"].tolist()[0]
    text = Text([b" w%d." % n for n in range(model.shape.vocab)], lambda said: [], space_prefix=True)
    monkeypatch.setattr(type(model.source), "text", lambda source: text, raising=False)
    assert text.decode([first]) == f"w{first}."
    assert list(model.tokens(PROMPT, 20, stop=f" w{first}.")) == [first]


def test_generation_stops(device: Device) -> None:
    model, recorded = model_of(device), RECORDED["llama.tokens"].tolist()
    assert list(model.tokens(PROMPT, 20, stop_ids=[recorded[5]])) == recorded[: recorded.index(recorded[5])]
    words = lambda ids: " ".join(map(str, ids))  # noqa: E731
    stopped = list(model.tokens(PROMPT, 20, stop=[str(recorded[3])], decode=words))
    assert stopped == recorded[: 1 + [str(recorded[3]) in str(t) for t in recorded].index(True)]
    assert list(model.tokens(PROMPT, 20, stop=f"{recorded[0]} {recorded[1]}", decode=words)) == recorded[:2]
    with pytest.raises(SpecError, match="stop strings must not be empty"):
        next(model.tokens(PROMPT, 20, stop=["", "a"], decode=words))
    for wrong in ({"stop": None}, {"stop": [1]}, {"stop_ids": "a"}, {"stop_ids": [1.5]}, {"sampling": "greedy"}):
        with pytest.raises(SpecError, match=f"{next(iter(wrong))}: must be a"):
            next(model.tokens(PROMPT, 20, decode=words, **wrong))
    assert list(model.tokens(PROMPT, 20, stop_ids=recorded[0])) == []
    whole = list(model.tokens(PROMPT))  # until the cache is full
    assert (len(whole), model.length) == (model.shape.max_len - len(PROMPT) + 1, model.shape.max_len)
    with pytest.raises(CapacityError, match="has all 64 positions"):
        model.forward_to_token(whole[-1])
    with pytest.raises(CapacityError, match="65 tokens from position 0 on do not fit 64; nothing was changed"):
        model.generate([1] * 65, 1)


def test_generation_is_an_iterator_where_that_is_asked_for(device: Device) -> None:
    """A token is decoded when the next one is asked for, not before."""
    model = model_of(device)
    whole = model.generate(PROMPT, 6)
    stream = model.generate(PROMPT, 6, stream=True)
    assert [next(stream) for _ in range(len(PROMPT) + 2)] == whole[: len(PROMPT) + 2]
    assert model.length == len(PROMPT) + 1
    assert list(stream) == whole[len(PROMPT) + 2 :]


def test_a_prompt_goes_on_where_the_sequence_is(device: Device) -> None:
    model = model_of(device)
    model.prefill(PROMPT[:5])
    recorded = RECORDED["llama.tokens"].tolist()
    assert list(model.tokens(PROMPT[5:], 3, keep=True)) == recorded[:3]
    assert model.length == len(PROMPT) + 2  # the last token given is not in it yet
    assert list(model.tokens(recorded[2:3], 3, keep=True)) == recorded[3:6]


def test_one_token_in_check_mode_has_no_finding() -> None:
    """Races, barriers, uninitialised memory and bounds, in every kernel of a step and of a chunk."""
    for family in ("llama", "gemma2", "qwen3"):
        model = Model(file_of(family), CpuDevice("check"), "f16", chunk=4)
        token = model.prefill(PROMPT[:5])
        assert 0 <= model.forward_to_token(token) < model.shape.vocab


def test_rows_that_no_token_asks_for_end_with_their_keys(device: Device) -> None:
    """Of a chunk that others follow nothing is computed behind the last layer's keys and values, of a prompt's end one
    row behind its attention; tokens are those of the float64 model, however the prompt is cut."""
    for family in ("llama", "gemma2", "qwen3", "olmo2"):
        file = file_of(family)
        want = ReferenceModel(file.spec, file.values()).generate(PROMPT, 2)
        for chunk in (1, 2, 4, 8):
            model = Model(file, device, "f32", chunk=chunk)
            assert model.generate(PROMPT, 2)[len(PROMPT) :] == want
        last = file.spec.shape.n_layers - 1
        begins, ends = (model.program("prefill", 8, choice=choice) for choice in ("none", "greedy"))
        roles = [op.role for op in begins.ops if op.layer in (last, -1)]
        assert "attention" not in roles
        assert roles[-1] in ("rope_append", "append")
        behind = [op for op in ends.ops if op.layer == last][roles.index(roles[-1]) :]
        assert [op.sizes.get("rows", 1) for op in behind if op.role in ("o_proj", "gate_up", "down_proj")] == [1, 1, 1]


def test_attention_from_host_caches(device: Device) -> None:
    rng = np.random.default_rng(3)
    for family, layer in (("llama", 0), ("mistral", 1), ("gemma2", 0)):
        model = model_of(device, family)
        spec, n = model.spec, 11
        widths = (spec.q_width, spec.kv_width, spec.kv_width)
        q, *kv = (rng.standard_normal((n, width)).astype(np.float32) for width in widths)
        found = model.attention_with_cache(q[-1], kv[0][:-1], kv[1][:-1], kv[0][-1], kv[1][-1], layer)
        heads = [part.reshape(n, -1, spec.shape.head_dim).astype(np.float64) for part in (q, *kv)]
        reference = ReferenceModel(spec, file_of(family).values())
        expected = reference._attend(heads[0][-1:], heads[1], heads[2], n - 1, spec.layer(layer).window)
        np.testing.assert_allclose(found, expected.ravel(), rtol=0, atol=1e-5)
        with pytest.raises(SpecError, match="k_cache and k must be"):
            model.attention_with_cache(q[-1], kv[0][:, 1:], kv[1], kv[0][-1], kv[1][-1])
        with pytest.raises(SpecError, match=r"layer: must be from 0 to 2 \(got 3\)"):
            model.attention_with_cache(q[-1], kv[0][:-1], kv[1][:-1], kv[0][-1], kv[1][-1], 3)


@pytest.mark.parametrize(
    ("family", "format"),
    [("llama", "bf16"), ("qwen2", "q8_0"), ("phi3", "f16"), ("qwen3", "f16"), ("olmo2", "q4_0"), ("smollm3", "f16")],
)
def test_rows_that_wgmma_multiplies(device: Device, monkeypatch: pytest.MonkeyPatch, family: str, format: str) -> None:
    """Exact: the float64 model's tokens; fast: its logits within what bf16 leaves."""
    monkeypatch.setattr("ptxgen.models.step.row_forms.PACKED_FROM", {"exact": 2, "fast": 2})
    file = file_of(family, format)
    reference = ReferenceModel(file.spec, file.values())
    exact = Model(file, device, "f32", chunk=8)
    kernels = {op.spec.kernel_name for op in exact.program("prefill", 8).ops}
    assert {"pack_tokens", "packed_gemm"} <= kernels
    assert exact.generate(PROMPT, N_TOKENS)[len(PROMPT) :] == reference.generate(PROMPT, N_TOKENS)
    reference.rollback(0)
    fast = Model(file, device, "f16", chunk=8, precision="fast", weights=exact.weights)
    fast.prefill(PROMPT)
    want = reference.forward(PROMPT)[-1]
    assert 1e-5 < np.linalg.norm(fast.steps.logits.numpy()[0] - want) / np.linalg.norm(want) < 0.03


@pytest.mark.parametrize("kv_dtype", ["e4m3", "s8"])
def test_prompts_over_a_cache_of_8_bits(device: Device, monkeypatch: pytest.MonkeyPatch, kv_dtype: str) -> None:
    """Queries have 16 bits, and keys and values, too, in memory of one layer for all layers, where there is room for it
    and it is faster; what comes out is the same to the bit."""
    monkeypatch.setattr("ptxgen.models.step.row_forms.PACKED_FROM", {"exact": 2, "fast": 2})
    monkeypatch.setattr(attention, "FEW_QUERIES", NO_FEW)  # as longer prompts are attended
    file, options = file_of("llama", "bf16"), {"chunk": 8, "precision": "fast"}

    def prompt(widened: bool) -> tuple[np.ndarray, MemoryPlan]:
        model = Model(file, device, kv_dtype, **options)
        program = model.program("prefill", 8)
        attention = [op.spec for op in program.ops if op.role == "attention"]
        assert all(isinstance(spec, MultiHeadAttention) and spec.q_dtype == bf16 for spec in attention)
        assert [spec.widened for spec in attention] == [widened] * file.spec.shape.n_layers
        assert sum(tensor.name.endswith(".widening") for tensor in program.of_kind("state")) == widened
        model.prefill(PROMPT)
        return model.steps.logits.numpy()[0], plan_of(model.program(), program)

    on_the_way, lean = prompt(False)  # a few tokens
    monkeypatch.setattr("ptxgen.kernels.multi_head_attention.is_worth_it", lambda *_: True)
    widened, plan = prompt(True)
    assert 0 <= plan.scratch - lean.scratch <= 4 * file.spec.kv_width * file.spec.shape.max_len
    assert plan.total > lean.total
    monkeypatch.setattr(type(device), "memory", lambda _: MemoryUse(plan.total - 1, plan.total, 0, 0))
    again, _ = prompt(False)
    assert np.array_equal(on_the_way, widened)
    assert np.array_equal(on_the_way, again)
    want = ReferenceModel(file.spec, file.values()).forward(PROMPT)[-1]
    assert np.linalg.norm(widened - want) / np.linalg.norm(want) < 0.1


@pytest.mark.parametrize(("format", "group"), [("e4m3", 0), ("e4m3_channel", 0), ("e4m3_block", 128)])
def test_rows_in_e4m3(device: Device, format: str, group: int) -> None:
    """Logits are those of the float64 model whose inputs of matrices in e4m3 are rounded so, rather than those of the
    model that rounds none. In one layer, before one in bf16 of which only the last row goes through the whole: what is
    a little apart in one is rounded to other numbers in the next.

    The executor's sums are exact, and few inputs are rounded otherwise. Tensor cores keep some 14 bits of a sum, which
    sends one input in some hundred to the neighbouring number, and each moves these logits by about 1.6 %: on a GPU
    they are held to be nearer to the one model than to the other (an H200: 2.2 and 6.9 %, for blocks 3.7 and 6.3 %).
    """
    sizes = {"hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 8, "num_key_value_heads": 4}
    spec = small_spec("llama", **sizes, num_hidden_layers=2)
    inside = {f"layers.0.{name}": format for name in spec.products()}
    file = ArrayFile(spec, random_weights(spec), "bf16", inside)
    model = Model(file, device, "f32", chunk=16, precision="e4m3")
    prompt = [*PROMPT, *PROMPT][:16]
    model.prefill(prompt)
    got = model.steps.logits.numpy()[0]
    first = [op.spec for op in model.program("prefill", 16).ops if op.layer == 0]
    assert {spec.x_dtype.name for spec in first if isinstance(spec, PackedGemm)} == {"e4m3"}
    want = ReferenceModel(file.spec, file.values(), e4m3=dict.fromkeys(inside, group)).forward(prompt)[-1]
    plain = ReferenceModel(file.spec, file.values()).forward(prompt)[-1]
    apart = [np.linalg.norm(got - each) / np.linalg.norm(each) for each in (want, plain)]
    assert apart[0] < (0.02 if device.kind == "cpu" else 0.7 * apart[1]), apart
    assert 0.02 < apart[1] < 0.2, apart


def test_rows_too_long_for_shared_memory_go_through_the_kernel_of_several() -> None:
    """Of GPUs with 99 KB of it, as of a 32B model on sm_89: 27648 columns."""
    device = CpuDevice(mode="random")
    device.target = target("sm_89")
    spec = small_spec("llama", intermediate_size=27648, num_hidden_layers=1, max_position_embeddings=32)
    file = ArrayFile(spec, random_weights(spec), "q8_0")
    model = Model(file, device, "f32", chunk=4)
    kernels = {op.role: op.spec.kernel_name for op in model.program("decode").ops}
    assert (kernels["down_proj"], kernels["gate_up"]) == ("gemm", "gemv")
    assert model.generate(PROMPT[:5], 3)[5:] == ReferenceModel(spec, file.values()).generate(PROMPT[:5], 3)


def test_attention_finds_a_query_of_every_free_slot() -> None:
    """Of a launch that rotates and appends, too: attention loads queries before it knows lengths."""
    spec = small_spec("gemma2", num_hidden_layers=1)
    model = Model(ArrayFile(spec, random_weights(spec), "bf16"), CpuDevice(mode="check"), "f32", chunk=1)
    batch = model.batch(slots=3)
    assert "rope_kv_append" in {op.spec.kernel_name for op in batch._step.program.ops}
    batch.cache.zero()  # rows past a length are loaded early
    batch.join(PROMPT)
    assert list(batch.step()) == [0]


def test_a_gate_whose_rows_go_packed_into_the_next_product(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.models.step.row_forms.PACKED_FROM", {"exact": 2, "fast": 2})
    spec = small_spec("llama", intermediate_size=256, num_hidden_layers=2)  # of the last, one row alone goes there
    file = ArrayFile(spec, random_weights(spec), "bf16")
    model, reference = Model(file, device, "f32", chunk=16), ReferenceModel(spec, file.values())
    model.cache.zero()  # rows past a length are loaded early, which initcheck reports where they were never written
    roles = [op.role for op in model.program("prefill", 16).ops]
    assert "gate_up.pack" in roles
    assert "down_proj.pack" not in roles
    prompt = [*PROMPT, *PROMPT][:16]
    assert model.generate(prompt, 4)[16:] == reference.generate(prompt, 4)


def test_a_short_chunk_may_need_more_scratch_memory_than_the_longest(device: Device) -> None:
    """Products of 16 rows whose CTAs share k leave sums for each other, those of 128 rows none."""
    spec = small_spec("llama", hidden_size=192, intermediate_size=256, max_position_embeddings=192)
    file = ArrayFile(spec, random_weights(spec), "q8_0")
    model = Model(file, device, "f32", chunk=128)
    prompt = [index % spec.shape.vocab for index in range(17)]
    assert model.generate(prompt, 3)[len(prompt) :] == ReferenceModel(file.spec, file.values()).generate(prompt, 3)
