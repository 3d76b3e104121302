"""Prompts of every length: a step has more rows than it takes positions, which are the last of them. What the other
rows compute leaves no trace: neither in logits nor in the cache."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.models.reference import ReferenceModel
from ptxgen.models.step import attention
from ptxgen.models.step.prompt_steps import apart_from, step_rows, steps_of
from ptxgen.runtime import Model, open_device
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec

CLOSE = 3e-5  # of logits around 10
BF16 = {"layers.0.o_proj": "bf16", "norm": "f32", "layers.0.mlp_norm": "f32"}
Q4_K = BF16 | {"layers.0.q_proj": "q4_k"}
LENGTHS = (1, 2, 3, 5, 8, 9, 13, 15, 16, 17, 21, 32, 35)


@pytest.fixture(params=["few", "many"])
def attended(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a step's queries are attended: few of them each by itself, or as many are."""
    if request.param == "many":
        monkeypatch.setattr(attention, "FEW_QUERIES", {32: 0, 16: 0})
    return str(request.param)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


def file_of(family: str, format: str = "f32") -> ArrayFile:
    spec = small_spec(family)
    return ArrayFile(spec, random_weights(spec), format)


def prompt_of(model: Model, count: int) -> list[int]:
    """So many random tokens."""
    return np.random.default_rng(count).integers(0, model.shape.vocab, count).tolist()


def rows_of(model: Model, layer: int) -> dict[str, np.ndarray]:
    """The bytes of a layer's cache, `[heads, rows, …]`."""
    found = {}
    for name, buffer in model.steps.cache.buffers(layer).items():
        array = buffer.numpy()
        found[name] = array.view(np.uint8).reshape(*array.shape[:2], -1)
    return found


def test_rows_of_a_step() -> None:
    """Few sizes, none with more than a half of its rows to spare, or beyond 64 more than 63 or an eighth."""
    for wrong in (0, 3, 4.0, "8"):
        with pytest.raises(SpecError, match=r"Model.chunk: must be a power of two"):
            Model(file_of("llama"), CpuDevice(), chunk=wrong)
    halves, codes = apart_from("fast", BF16), apart_from("exact", Q4_K)
    assert list(steps_of(21, 8, halves)) == [(8, 0, 8), (8, 8, 8), (8, 16, 5)]
    assert list(steps_of(300, 512, halves)) == [(320, 0, 300)]
    assert list(steps_of(513, 512, halves)) == [(512, 0, 512), (1, 512, 1)]
    assert list(steps_of(33, 512, halves)) == [(64, 0, 33)]
    assert list(steps_of(33, 512, codes)) == [(32, 0, 32), (1, 32, 1)]
    assert list(steps_of(40, 512, codes)) == [(32, 0, 32), (8, 32, 8)]
    assert list(steps_of(41, 512, codes)) == [(64, 0, 41)]
    assert list(steps_of(96, 512, codes)) == [(64, 0, 64), (32, 64, 32)]
    assert list(steps_of(97, 512, codes)) == [(128, 0, 97)]
    assert list(steps_of(160, 512, halves)) == [(192, 0, 160)]
    assert list(steps_of(513 + 260, 512, codes)) == [(512, 0, 512), (256, 512, 256), (8, 768, 5)]
    assert [apart_from("fast", Q4_K), apart_from("exact", BF16)] == [128, 128]
    sizes = [step_rows(count) for count in range(1, 4097)]
    assert all(small <= large for small, large in pairwise(sizes))
    assert len(set(sizes)) == 38
    for count, rows in enumerate(sizes, 1):
        assert count <= rows < (2 * count if count <= 64 else count + max(64, -(-count // 8)))
    for most in (1, 16, 512):
        for count in range(1, 400):
            steps = list(steps_of(count, most, 1 << (count % 9)))
            assert [at for _, at, _ in steps] == [sum(taken for _, _, taken in steps[:i]) for i in range(len(steps))]
            assert sum(taken for _, _, taken in steps) == count
            assert all(taken <= rows <= most for rows, _, taken in steps)
            assert all(taken == rows for rows, _, taken in steps[:-1])


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3", "olmo2", "mistral"])
def test_prompts_of_every_length_are_those_of_the_float64_model(device: Device, family: str, attended: str) -> None:
    """From an empty sequence on, and behind another prompt."""
    file = file_of(family)
    model, reference = Model(file, device, "f32", chunk=16), ReferenceModel(file.spec, file.values())
    kernels = {op.spec.kernel_name for op in model.program("prefill", 16).ops if op.role == "attention"}
    assert kernels == {"incremental_attention" if attended == "few" else "multi_head_attention"}
    for length in LENGTHS:
        prompt = prompt_of(model, length)
        token = model.prefill(prompt, 0)
        reference.rollback(0)
        want = reference.forward(prompt)[-1]
        np.testing.assert_allclose(model.steps.logits.numpy()[0], want, rtol=0, atol=CLOSE)
        assert (token, model.length) == (int(np.argmax(want)), length)
        more = prompt_of(model, 11)
        model.prefill(more)
        want = reference.forward(more)[-1]
        np.testing.assert_allclose(model.steps.logits.numpy()[0], want, rtol=0, atol=CLOSE)
        np.testing.assert_allclose(model.forward(3), reference.forward([3])[-1], rtol=0, atol=CLOSE)


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "e4m3", "s8"])
def test_no_other_row_of_the_cache_changes(device: Device, kv_dtype: str) -> None:
    """Those before the prompt keep their bytes, and those behind it what they had."""
    model = Model(file_of("llama"), device, kv_dtype, chunk=16)
    model.prefill(prompt_of(model, 19))
    for length in (1, 3, 11, 16, 21):
        before = [rows_of(model, layer) for layer in range(model.shape.n_layers)]
        model.prefill(prompt_of(model, length), 19)
        for layer, old in enumerate(before):
            for name, new in rows_of(model, layer).items():
                np.testing.assert_array_equal(new[:, :19], old[name][:, :19])
                np.testing.assert_array_equal(new[:, 19 + length :], old[name][:, 19 + length :])
                if length > 1:  # another prompt's rows
                    assert (new[:, 19 : 19 + length] != old[name][:, 19 : 19 + length]).any()


@pytest.mark.usefixtures("attended")
def test_a_prompt_may_end_with_the_cache(device: Device) -> None:
    """A step has more rows than there is room for."""
    file = file_of("llama")
    model, reference = Model(file, device, "f32", chunk=16), ReferenceModel(file.spec, file.values())
    room = model.shape.max_len
    whole = prompt_of(model, room)
    for last in (3, 9):
        model.prefill(whole[: room - last], 0)
        model.prefill(whole[room - last :])
        assert model.length == room
        reference.rollback(0)
        np.testing.assert_allclose(model.steps.logits.numpy()[0], reference.forward(whole)[-1], rtol=0, atol=CLOSE)


def test_a_prompt_gives_the_same_bits_again(device: Device) -> None:
    """Whatever lay in scratch memory and in the cache behind it."""
    model = Model(file_of("llama", "bf16"), device, "f16", chunk=64, precision="fast")
    prompt, found = prompt_of(model, 45), []
    for before in (0, 64, 7):
        model.reset()
        if before:
            model.prefill(prompt_of(model, before))
        model.prefill(prompt, 0)
        found.append(model.steps.logits.numpy()[0].tobytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.usefixtures("attended")
def test_no_finding_in_prompts_of_odd_lengths(mode: str) -> None:
    """Races, uninitialised memory and bounds; CTAs and warps in any order."""
    for family, rings in (("llama", False), ("gemma2", True)):
        file = file_of(family)
        model = Model(file, CpuDevice(mode=mode), "f16", chunk=8, rings=rings)
        reference = ReferenceModel(file.spec, file.values(), "f16")
        for length in (5, 3, 11):
            prompt = prompt_of(model, length)
            token = model.prefill(prompt)
            assert token == int(np.argmax(reference.forward(prompt)[-1]))


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_few_positions_behind_many_share_keys(device: Device, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """CTAs do, in both precisions: on mma.sync and on wgmma. Logits are those without that but for rounding."""
    monkeypatch.setattr("ptxgen.models.step.row_forms.PACKED_FROM", {"exact": 2, "fast": 2})
    spec = small_spec("llama", max_position_embeddings=2048)
    file = ArrayFile(spec, random_weights(spec), "bf16")

    def logits(shares: bool) -> np.ndarray:
        model = Model(file, device, "f16", chunk=64, precision=precision)
        attends = [op.spec for op in model.program("prefill", 64).ops if op.role == "attention"]
        assert [one.split_keys for one in attends] == [shares] * spec.shape.n_layers
        assert {one.q_dtype.name for one in attends} == {"f32" if precision == "exact" else "f16"}
        for layer in range(spec.shape.n_layers):
            for number, buffer in enumerate(model.steps.cache.buffers(layer).values()):
                drawn = np.random.default_rng([layer, number]).standard_normal(buffer.shape)
                buffer.copy_from(drawn.astype(buffer.dtype.numpy))
        model._length = 1900
        model.prefill(prompt_of(model, 40))
        return model.steps.logits.numpy()[0].copy()

    shared = logits(True)
    monkeypatch.setattr("ptxgen.attention.prefill.parts.SPARED", 1 << 20)
    alone = logits(False)
    assert np.linalg.norm(shared - alone) < (1e-3 if precision == "exact" else 2e-2) * np.linalg.norm(alone)
