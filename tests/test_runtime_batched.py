"""KV caches of several sequences, without attention: slots, pages, copies; the recording driver will do, too."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest

from ptxgen.errors import CapacityError, CudaError, SpecError
from ptxgen.runtime import BatchedKvCache, Device, open_device
from tests.fake_cuda import fake_device
from tests.kv_caches import KINDS, as_float, filled, made


@pytest.fixture(params=["fake", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    """No kernel runs here, so that a driver that only copies will do."""
    return fake_device()[0] if request.param == "fake" else open_device(request.param)


@pytest.mark.parametrize(("kind", "page"), list(itertools.product(KINDS, (0, 16))))
def test_scatter_copies_the_filled_positions_of_every_head(device: Device, kind: str, page: int) -> None:
    cache = made(device, kind)
    written = filled(cache, (37, 33))
    batched = BatchedKvCache(cache, 3, page_size=page)
    batched.zero()
    batched.scatter_from(cache, 1, 33)
    assert [batched.length(slot) for slot in range(3)] == [0, 33, 0]
    for layer, which in itertools.product((0, 1), "kv"):
        expected = as_float(written[layer], which)
        for head, position in itertools.product((0, 1), (0, 15, 16, 32)):
            assert np.array_equal(batched.peek(layer, which, 1, position, head), expected[head, position])
    if page == 0:
        rest = batched.buffers(0)["k_cache"].numpy()
        assert not rest[0].astype(np.float32).any(), "other slots"
        assert not rest[1, :, 33:].astype(np.float32).any(), "later positions"


def test_scatter_of_one_layer_and_of_nothing(device: Device) -> None:
    cache = made(device)
    written = filled(cache, (37, 33))
    batched = BatchedKvCache(cache, 2)
    batched.zero()
    batched.scatter_from(cache, 0, 0)
    assert batched.length(0) == 0
    batched.scatter_from(cache, 0, 35, layer=0)
    assert np.array_equal(batched.peek(0, "k", 0, 34, 1), written[0]["k_cache"][1, 34])
    assert not batched.buffers(1)["k_cache"].numpy().any()


def test_scatter_checks_slot_length_and_dimensions(device: Device) -> None:
    cache = made(device)
    filled(cache, (37, 33))
    batched = BatchedKvCache(cache, 2)
    for slot in (-1, 2):
        with pytest.raises(SpecError, match=rf"slot must be within 0 … 1 \(got {slot}\)"):
            batched.scatter_from(cache, slot, 3)
    for length in (-1, 34):
        with pytest.raises(SpecError, match=rf"seq_len must be within 0 … 33 \(got {length}\)"):
            batched.scatter_from(cache, 0, length)
    with pytest.raises(SpecError, match="must have the same dimensions"):
        batched.scatter_from(made(device, head_dim=48), 0, 0)


def test_only_growth_changes_addresses_and_says_so(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    batched = BatchedKvCache(made(device), 4)
    where = batched.buffers(0)["k_cache"].pointer
    lengths = batched.lengths.pointer
    assert batched.resize(2) is False
    assert batched.buffers(0)["k_cache"].shape == (2, 2, 48, 40)
    assert batched.resize(4) is False
    assert (batched.buffers(0)["k_cache"].pointer, batched.lengths.pointer) == (where, lengths)
    old = batched.buffers(0)["k_cache"]
    with caplog.at_level(logging.INFO, "ptxgen.runtime"):
        assert batched.resize(6) is True
    assert "graphs of the old addresses are invalid" in caplog.text
    assert batched.generation == 1
    with pytest.raises(CudaError, match="was freed"):
        _ = old.pointer
    with pytest.raises(SpecError, match=r"batch: must be an int ≥ 1 \(got 0\)"):
        batched.resize(0)


def test_pointers_are_where_sequences_begin(device: Device) -> None:
    batched = BatchedKvCache(made(device), 3)
    listed = batched.pointers(1, "v")
    buffer = batched.buffers(1)["v_cache"]
    assert listed.numpy().tolist() == [buffer[i].pointer for i in range(3)]
    assert batched.pointers(1, "v").pointer == listed.pointer, "one buffer per layer and kind"
    with pytest.raises(SpecError, match="no contiguous sequences"):
        BatchedKvCache(made(device), 3, page_size=16).pointers(0, "k")


def test_a_step_counts_and_tells_the_device(device: Device) -> None:
    batched = BatchedKvCache(made(device), 3)
    batched.set_length(0, 5)
    batched.set_length(2, 47)
    batched.step([0, 2])
    assert batched.positions.numpy().tolist() == [5, -1, 47]
    assert batched.lengths.numpy().tolist() == [6, 0, 48]
    with pytest.raises(CapacityError, match="slot 2 holds all 48 positions; nothing was changed"):
        batched.step()
    assert [batched.length(slot) for slot in range(3)] == [6, 0, 48]
    batched.rollback(2, 3)
    batched.step()
    assert batched.positions.numpy().tolist() == [6, 0, 3]


def test_pages_are_taken_and_given_back(device: Device) -> None:
    batched = BatchedKvCache(made(device), 3, page_size=16, n_pages=4)
    assert batched.pages is not None
    for _ in range(17):
        batched.step([1])
    batched.step([0])
    assert batched.buffers(0)["page_table"].numpy().tolist() == [[2, -1, -1], [0, 1, -1], [-1, -1, -1]]
    assert batched.pages.free_pages == 1
    batched.set_length(2, 16)
    said = "2 pages of 16 positions are needed and 0 of 4 are free; nothing was changed"
    with pytest.raises(CapacityError, match=said):
        batched.set_length(0, 48)
    with pytest.raises(CapacityError, match=r"1 pages"):
        batched.step([2])
    assert batched.length(2) == 16
    batched.rollback(1, 16)
    assert batched.pages.free_pages == 1
    batched.reset()
    assert batched.pages.free_pages == 4
    batched.step([2])
    assert batched.buffers(0)["page_table"].numpy().tolist() == [[-1, -1, -1], [-1, -1, -1], [0, -1, -1]]


def test_page_size_is_checked(device: Device) -> None:
    for wrong in (8, 24):
        with pytest.raises(SpecError, match=rf"a power of two from 16 on, or 0 \(got {wrong}\)"):
            BatchedKvCache(made(device), 2, page_size=wrong)
    with pytest.raises(SpecError, match="needs a page_size"):
        BatchedKvCache(made(device), 2, n_pages=4)
