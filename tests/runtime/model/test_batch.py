"""Sequences that join and leave between steps: each has the tokens of decoding it alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import CapacityError, SpecError
from ptxgen.runtime import Model, open_device
from ptxgen.runtime.core.device import Device
from tests.support.models.array_file import ArrayFile
from tests.support.models.families import random_weights, small_spec


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


def model_of(device: Device, family: str = "llama") -> Model:
    spec = small_spec(family)
    return Model(ArrayFile(spec, random_weights(spec)), device, "f32", chunk=8)


@pytest.mark.parametrize(("family", "slots"), [("llama", 32), ("qwen3", 5), ("gemma3_text", 3), ("smollm3", 4)])
def test_sequences_that_join_and_leave_at_random_are_as_if_alone(device: Device, family: str, slots: int) -> None:
    rng = np.random.default_rng(slots)
    model = model_of(device, family)
    batch = model.batch(slots)
    waiting = [rng.integers(0, model.shape.vocab, rng.integers(1, 14)).tolist() for _ in range(slots + 6)]
    wanted = {index: int(rng.integers(1, 9)) for index in range(len(waiting))}
    prompts = dict(enumerate(waiting))
    running: dict[int, Any] = {}
    done: dict[int, Any] = {}
    while len(done) < len(prompts):
        for index in list(prompts):
            if index not in running and index not in done and len(running) < slots and rng.random() < 0.7:
                slot, token = batch.join(prompts[index])
                running[index] = (slot, [token])
        for index, (slot, found) in list(running.items()):
            if len(found) >= wanted[index]:
                batch.leave(slot)
                done[index] = found
                del running[index]
        if running:
            tokens = batch.step()
            for slot, found in running.values():
                found.append(tokens[slot])
    for index, prompt in prompts.items():
        assert model.generate(prompt, len(done[index]))[len(prompt) :] == done[index], index


@pytest.mark.parametrize(("family", "kv_dtype"), [("llama", "f32"), ("gemma3_text", "f16")])
def test_32_sequences_that_join_and_leave_have_the_bits_of_each_alone(
    device: Device, family: str, kv_dtype: str
) -> None:
    """Logits of every step, and tokens, of an invariant batch; alone: in an invariant batch of one slot."""
    spec = small_spec(family)
    model = Model(ArrayFile(spec, random_weights(spec)), device, kv_dtype, chunk=8)
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, model.shape.vocab, rng.integers(1, 10)).tolist() for _ in range(40)]
    wanted = [int(rng.integers(1, 7)) for _ in prompts]
    batch = model.batch(32, invariant=True)
    running: dict[int, int] = {}
    tokens: list[list[int]] = [[] for _ in prompts]
    logits: list[list[bytes]] = [[] for _ in prompts]
    left, most = list(range(len(prompts))), 0
    while left or running:
        while left and len(running) < 32 and rng.random() < 0.97:
            index = left.pop(0)
            slot, token = batch.join(prompts[index])
            running[slot] = index
            tokens[index].append(token)
        most = max(most, len(running))
        found, rows = batch.step(), batch.logits()
        for slot, index in list(running.items()):
            tokens[index].append(found[slot])
            logits[index].append(rows[slot].tobytes())
            if len(logits[index]) == wanted[index]:
                batch.leave(slot)
                del running[slot]
    assert most == 32
    alone = model.batch(1, invariant=True)
    for index, prompt in enumerate(prompts):
        slot, token = alone.join(prompt)
        assert token == tokens[index][0]
        for step in range(wanted[index]):
            assert alone.step()[slot] == tokens[index][step + 1]
            assert alone.logits()[slot].tobytes() == logits[index][step], (index, step)
        alone.leave(slot)
        assert model.generate(prompt, wanted[index] + 1)[len(prompt) :] == tokens[index], index


def test_an_invariant_batch_has_the_same_bits_beside_any_neighbours(device: Device) -> None:
    model = model_of(device)
    batch = model.batch(6, invariant=True)
    batch.join([3, 1, 4])
    batch.step()
    alone = batch.logits()[0].copy()
    batch.leave(0)
    batch.join([3, 1, 4])
    for prompt in ([2, 7], [1], [8, 2, 8, 1, 8]):
        batch.join(prompt)
    batch.step()
    np.testing.assert_array_equal(batch.logits()[0], alone)


def test_sequences_in_pages_take_them_as_they_grow(device: Device) -> None:
    """As if alone, with fewer pages than full sequences need; what a sequence held, another may have after it."""
    model = model_of(device, "smollm3")
    batch = model.batch(3, page_size=16, n_pages=4)
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7], [2, 7], [1, 8, 2, 8]]
    found = {slot: [token] for slot, token in map(batch.join, prompts)}

    def steps(count: int) -> None:
        for _ in range(count):
            for slot, token in batch.step().items():
                found[slot].append(token)

    steps(4)
    pages = batch.cache.pages
    assert pages is not None
    assert pages.free_pages == 0, "the first sequence has grown into a second page"
    with pytest.raises(CapacityError, match="1 pages of 16 positions are needed and 0 of 4 are free; nothing"):
        steps(20)
    batch.leave(0)
    steps(1)
    for slot, prompt in enumerate(prompts):
        assert model.generate(prompt, len(found[slot]))[len(prompt) :] == found[slot], slot


def test_slots_are_taken_and_given_back(device: Device) -> None:
    batch = model_of(device).batch(2)
    with pytest.raises(SpecError, match="no sequence has joined"):
        batch.step()
    assert [batch.join([5])[0], batch.join([6, 7])[0]] == [0, 1]
    with pytest.raises(CapacityError, match="all 2 slots are taken"):
        batch.join([1])
    batch.step()
    assert (batch.active, batch.length(0), batch.length(1)) == ((0, 1), 2, 3)
    batch.leave(0)
    with pytest.raises(SpecError, match="slot 0 holds no sequence"):
        batch.length(0)
    assert batch.join([9])[0] == 0
