"""The model that is shipped: greedy tokens of the float64 model on every device, its memory, a token in check mode."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from ptxgen.models.arena import plan_arena
from ptxgen.models.files import open_model
from ptxgen.models.packing import formats_of
from ptxgen.models.reference import ReferenceModel
from ptxgen.models.step.decode import step_program
from ptxgen.runtime import Model
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.model.weights import load_weights

SHIPPED = Path(__file__).parents[3] / "examples" / "models"
PROMPT, COUNT = "In the beginning", 24


def reference_tokens(path: Path, kv_dtype: str | None = None) -> tuple[list[int], list[int]]:
    """A prompt, and what the float64 model says after it."""
    file = open_model(path, 128)
    prompt = [int(token) for token in file.text().encode(PROMPT)]
    model = ReferenceModel(file.spec, {name: file.values(name) for name in file.tensors}, kv_dtype)
    return prompt, model.generate(prompt, COUNT)


@pytest.mark.parametrize("kv_dtype", ["f32", "f16"])
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_greedy_tokens_are_those_of_the_float64_model(device: Device, kind: str, kv_dtype: str) -> None:
    path = SHIPPED / f"kjv-{kind}.gguf"
    prompt, expected = reference_tokens(path)
    model = Model.load(path, device, kv_dtype, max_len=128)
    assert model.generate(prompt, COUNT)[len(prompt) :] == expected


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_a_token_in_check_mode_has_no_finding(kind: str) -> None:
    model = Model.load(SHIPPED / f"kjv-{kind}.gguf", CpuDevice("check"), "f16", max_len=64, chunk=4)
    assert model.forward_to_token(model.prefill([1, 2, 3, 4])) >= 0


@pytest.mark.parametrize(("kind", "block_bytes"), [("f16", 32 * 2), ("q8_0", 2 + 32)])
def test_memory_is_within_2_percent_of_what_the_formats_need(kind: str, block_bytes: int) -> None:
    """Weights without padding, the cache, and the scratch memory that lives at once in a step."""
    model = Model.load(SHIPPED / f"kjv-{kind}.gguf", CpuDevice(), "f16")
    shapes = model.spec.tensors().values()
    weights = sum(block_bytes * s[0] * s[1] // 32 if len(s) == 2 else 4 * s[0] for s in shapes)
    held = sum(b.nbytes for b in model.steps.weights.values())
    assert weights <= held <= 1.001 * weights
    arena = max(plan_arena(p).needed for p in (model.program(), model.program("prefill", model.chunk)))
    need = weights + model.cache.nbytes + arena
    assert need <= held + model.cache.nbytes + model.steps.arena.nbytes <= 1.02 * need


def test_a_text_ends_at_a_stop_string() -> None:
    """The file's own tokenizer says what the tokens are."""
    model = Model.load(SHIPPED / "kjv-q8_0.gguf", CpuDevice(), "f16", max_len=128)
    text = model.source.text()
    prompt = [int(token) for token in text.encode(PROMPT)]
    whole = text.decode(list(model.tokens(prompt, 40)))
    for stop in ("LORD", "saying,\n", "of the w"):
        assert stop in whole
        found = list(model.tokens(prompt, 40, stop=["absent", stop]))
        said = text.decode(found)
        assert stop in said
        assert stop not in text.decode(found[:-1])
        assert whole.startswith(said)


@pytest.mark.gpu
def test_replayed_tokens_are_those_of_launches_one_by_one(gpu: Device) -> None:
    path = SHIPPED / "kjv-q8_0.gguf"
    prompt = [1, 2, 3, 4, 5]
    graph = Model.load(path, gpu, "f16").generate(prompt, 64)
    assert Model.load(path, gpu, "f16", deterministic=True).generate(prompt, 64) == graph


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_weights_are_never_twice_in_memory(kind: str) -> None:
    """Beside the mapped file and what the device holds, loading takes a few copies of the tensor that is packed."""
    source, device = open_model(SHIPPED / f"kjv-{kind}.gguf", 64), CpuDevice()
    program = step_program(source.spec, formats_of(source), target="sm_90")
    load_weights(device, program, source)  # modules that are imported when first used
    beside: list[int] = []

    def progress(done: int, total: int) -> None:
        now, peak = tracemalloc.get_traced_memory()  # the executor's memory is the process's, and in both
        beside.append(peak - now)
        tracemalloc.reset_peak()

    tracemalloc.start()
    held = load_weights(device, program, source, progress)
    tracemalloc.stop()
    largest = max(tensor.nbytes for tensor in program.of_kind("weight"))
    whole = sum(buffer.nbytes for buffer in held.values())
    assert len(beside) == len(held) > 20
    assert max(beside) <= 3 * largest < whole
