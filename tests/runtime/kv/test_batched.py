"""KV caches of several sequences, without attention: slots, pages, copies; the recording driver will do, too."""

from __future__ import annotations

import itertools
import logging
import re

import numpy as np
import pytest

from ptxgen.errors import CapacityError, CudaError, SpecError
from ptxgen.runtime import BatchedKvCache, Device, KvCache, open_device
from tests.support.attention.kv_caches import KINDS, as_float, filled, made
from tests.support.fake_cuda import fake_device


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


def test_dimensions_may_be_numpys_integers(device: Device) -> None:
    batched = BatchedKvCache(made(device), *np.array([2, 16, 5]))
    assert [type(n) for n in (batched.batch, batched.page_size, *batched.buffers(0)["k_cache"].shape)] == [int] * 6
    assert batched.resize(np.int64(3))
    assert type(batched.batch) is int


@pytest.mark.parametrize("page", [0, 16])
def test_a_freed_cache_is_not_changed_in_silence(device: Device, page: int) -> None:
    batched = BatchedKvCache(made(device), 2, page_size=page)
    batched.free()
    for use in (batched.zero, lambda: batched.set_length(0, 3), lambda: batched.rollback(0, 0)):
        with pytest.raises(CudaError, match="was freed; resize it"):
            use()


@pytest.mark.parametrize("page", [0, 16])
def test_a_growth_without_the_memory_changes_nothing(device: Device, page: int) -> None:
    batched = BatchedKvCache(made(device), 2, page_size=page)
    batched.set_length(0, 5)
    where = batched.buffers(0)["k_cache"].pointer
    short = rf"need [\d,]+ bytes, and {device.name} has about [\d,]+ free; about \d+ of them would fit; nothing was"
    with pytest.raises(
        CapacityError, match=rf"BatchedKvCache.resize: caches for 2147483648 sequences of \d+ positions {short}"
    ):
        batched.resize(1 << 31)
    assert (batched.allocated, batched.batch, batched.length(0), batched.generation) == (True, 2, 5, 0)
    assert batched.buffers(0)["k_cache"].pointer == where


@pytest.mark.parametrize("page", [0, 16])
def test_caches_that_do_not_fit_take_no_memory(device: Device, page: int) -> None:
    cache = KvCache(device, 2, 4, 2, 64, 1 << 12)
    used, most = device.memory().used, device.memory().available // cache.nbytes
    with pytest.raises(
        CapacityError, match=rf"^BatchedKvCache: caches for {2 * most} sequences of 4096 .*; about \d+ of them"
    ):
        BatchedKvCache(cache, 2 * most, page_size=page)
    assert device.memory().used == used


def test_growth_counts_the_page_table() -> None:
    device, binding = fake_device()
    batched = BatchedKvCache(made(device), 2, page_size=16, n_pages=4)
    binding.free_bytes = (40 + 10) << 20
    with pytest.raises(CapacityError, match=r"4 pages need .*; fewer sequences would fit"):  # 8 a slot, 16 a layer, 12
        batched.resize(1 << 20)
    assert batched.allocated


@pytest.mark.parametrize(
    ("batch", "given", "would"),
    [
        (6, {"page_size": 16, "n_pages": 9999}, "6 sequences and 9999 pages .*; fewer sequences would"),
        (1, {"page_size": 16, "n_pages": 9999}, "1 sequence and 9999 pages .*; elements of fewer bytes would"),
        (1, {}, "1 sequence of .*; elements of fewer bytes would"),
    ],
)
def test_rings_that_do_not_fit_need_no_pages(batch: int, given: dict[str, int], would: str) -> None:
    device, binding = fake_device()
    cache = KvCache(device, 2, 4, 2, 64, 1 << 12, windows=(512, 512))
    binding.free_bytes = cache.nbytes // 2
    with pytest.raises(CapacityError, match=would):
        BatchedKvCache(cache, batch, **given)


@pytest.mark.parametrize(
    ("given", "would"),
    [({}, "about 3 of them"), ({"page_size": 16}, "about 3 of them"), ({"page_size": 16, "n_pages": 9999}, "n_pages=")],
)
def test_the_error_says_what_would_fit(given: dict[str, int], would: str) -> None:
    device, binding = fake_device()
    cache = KvCache(device, 2, 4, 2, 64, 1 << 12)
    binding.free_bytes = 7 * cache.nbytes // 2
    with pytest.raises(CapacityError, match=f"{would}") as refused:
        BatchedKvCache(cache, 6, **given)
    if "n_pages" in given:
        fitting = int(re.search(r"n_pages=(\d+)", str(refused.value))[1])  # type: ignore[index]
        BatchedKvCache(cache, 6, page_size=16, n_pages=fitting)
        with pytest.raises(CapacityError):
            BatchedKvCache(cache, 6, page_size=16, n_pages=fitting + 1)


def test_not_even_one_sequence_fits() -> None:
    device, binding = fake_device()
    cache = KvCache(device, 2, 4, 2, 64, 1 << 12)
    binding.free_bytes = cache.nbytes // 2
    with pytest.raises(
        CapacityError, match=r"caches for 1 sequence of 4096 positions need .*; a smaller max_len would fit"
    ):
        BatchedKvCache(cache, 1)


def test_a_growth_whose_memory_others_take_leaves_a_free_cache() -> None:
    device, binding = fake_device()
    batched = BatchedKvCache(made(device), 2)
    batched.set_length(0, 5)
    binding.fail["cuMemAllocAsync"] = [0, 2]
    with pytest.raises(CudaError, match="out of memory"):
        batched.resize(3)
    assert (batched.allocated, batched.batch, batched.length(0)) == (False, 2, 0)
    assert batched.resize(2) is True
    assert batched.buffers(0)["k_cache"].shape[0] == 2


def test_a_smaller_batch_empties_the_slots_out_of_use(device: Device) -> None:
    batched = BatchedKvCache(made(device), 3, page_size=16, n_pages=3)
    assert batched.pages is not None
    batched.step()
    batched.resize(1)
    assert batched.pages.free_pages == 2
    batched.set_length(0, 48)
    batched.resize(3)
    assert [batched.length(slot) for slot in range(3)] == [48, 0, 0]
    with pytest.raises(SpecError, match=r"slot must be within 0 … 2 \(got 3\)"):
        batched.length(3)


@pytest.mark.parametrize("page", [0, 16])
def test_positions_are_minus_one_until_a_step_says_where(device: Device, page: int) -> None:
    cache = made(device)
    filled(cache)
    batched = BatchedKvCache(cache, 3, page_size=page)
    assert batched.positions.numpy().tolist() == [-1, -1, -1]
    changes = {
        "set_length": lambda: batched.set_length(1, 0),
        "rollback": lambda: batched.rollback(1, 0),
        "scatter_from": lambda: batched.scatter_from(cache, 1, 5),
    }
    for name, change in changes.items():
        batched.reset()
        batched.step()
        assert batched.positions.numpy().tolist() == [0, 0, 0]
        change()
        assert batched.positions.numpy().tolist() == [0, -1, 0], name
        assert batched.lengths.numpy().tolist() == [1, 0, 1], name
    batched.reset()
    assert batched.positions.numpy().tolist() == [-1, -1, -1]


def test_a_step_that_the_device_did_not_hear_of_does_not_count() -> None:
    device, binding = fake_device()
    batched = BatchedKvCache(made(device), 2)
    binding.fail["cuMemcpyHtoDAsync"] = [2]
    with pytest.raises(CudaError, match="cuMemcpyHtoDAsync"):
        batched.step()
    assert [batched.length(slot) for slot in range(2)] == [0, 0]
    batched.set_length(1, 0)
    assert batched.positions.numpy()[1] == -1, "as if the device had heard of it"
    batched.step()
    assert batched.positions.numpy().tolist() == [0, 0]
    batched.free()
    with pytest.raises(CudaError, match="was freed"):
        batched.step()
    assert batched.length(0) == 0


def test_positions_pages_and_slots_are_whole_numbers(device: Device) -> None:
    batched = BatchedKvCache(made(device), 2, page_size=16)
    batched.step()
    wrong = {
        r"slot must be an int within 0 … 1 \(got 0.5\)": lambda: batched.length(0.5),
        r"set_length: must be an int within 0 … 48 \(got 2.7\)": lambda: batched.set_length(0, 2.7),
        r"rollback: position must be an int ≥ 0 \(got 0.5\)": lambda: batched.rollback(0, 0.5),
        r"step: slots must be several ints \(got 1\)": lambda: batched.step(1),
        r"slot must be an int within 0 … 1 \(got 1.0\)": lambda: batched.step([0, 1.0]),
        r"n_pages: must be an int ≥ 1 \(got 0\)": lambda: BatchedKvCache(made(device), 2, page_size=16, n_pages=0),
        r"or 0 \(got 16.0\)": lambda: BatchedKvCache(made(device), 2, page_size=16.0),
    }
    for says, use in wrong.items():
        with pytest.raises(SpecError, match=says):
            use()
    assert [batched.length(slot) for slot in (0, 1)] == [1, 1]


# copies from a single cache ---------------------------------------------------------------------------------------
def test_scatter_brings_the_page_table_to_the_device(device: Device) -> None:
    cache = made(device)
    filled(cache, (37, 33))
    batched = BatchedKvCache(cache, 3, page_size=16)
    batched.scatter_from(cache, 1, 33)
    assert batched.buffers(0)["page_table"].numpy().tolist() == [[-1] * 3, [0, 1, 2], [-1] * 3]


@pytest.mark.parametrize("kind", ["f16", "s8"])
def test_scatter_into_runs_of_pages_and_single_ones(device: Device, kind: str) -> None:
    """Long runs go head by head, and what they leave page by page."""
    cache = made(device, kind, max_len=200)
    written = filled(cache, (190, 190))
    batched = BatchedKvCache(cache, 3, page_size=16)
    for slot, length in ((0, 32), (1, 16), (0, 0)):
        batched.set_length(slot, length)
    assert batched.pages is not None
    batched.scatter_from(cache, 2, 190)
    pages = batched.pages.table[2][:12].tolist()
    assert pages == [0, 1, *range(3, 13)], "two runs"
    for layer, which, head in itertools.product((0, 1), "kv", (0, 1)):
        expected = as_float(written[layer], which)[head, :190]
        got = np.stack([batched.peek(layer, which, 2, position, head) for position in range(190)])
        assert np.array_equal(got, expected)


@pytest.mark.parametrize(("length", "copies"), [(190, 2 * 2 + 1), (17, 1 + 1), (16, 1)])
def test_scatter_takes_the_fewer_copies(length: int, copies: int) -> None:
    """Two runs of pages and two heads, or page by page; and one more for the part of a page that is left."""
    device, binding = fake_device()
    cache = made(device, max_len=200)
    filled(cache, (190, 190))
    batched = BatchedKvCache(cache, 3, page_size=16)
    for slot, held in ((0, 32), (1, 16), (0, 0)):
        batched.set_length(slot, held)
    binding.log.clear()
    batched.scatter_from(cache, 2, length, stream=device.stream())
    moved = [name for name in binding.log if name in ("cuMemcpy2DAsync", "cuMemcpyDtoDAsync")]
    assert len(moved) == copies * 4, "K and V of two layers"


@pytest.mark.parametrize("page", [0, 16])
def test_scatter_waits_once_and_on_a_stream_not_at_all(page: int) -> None:
    device, binding = fake_device()
    cache = made(device)
    filled(cache, (48, 48))
    batched = BatchedKvCache(cache, 2, page_size=page)
    for stream, waits in ((device.stream(), 0), (None, 1)):
        batched.step()
        binding.log.clear()
        batched.scatter_from(cache, 0, 41, stream=stream)
        assert binding.log.count("cuStreamSynchronize") == waits


def test_scatter_without_a_stream_comes_after_all_work_on_the_source() -> None:
    device, binding = fake_device()
    cache = made(device)
    filled(cache, (48, 48))
    batched = BatchedKvCache(cache, 2)
    cache.k(1).zero(device.stream())
    binding.log.clear()
    batched.scatter_from(cache, 0, 41)
    calls = [name for name in binding.log if name in ("cuStreamWaitEvent", "cuMemcpy2DAsync")]
    assert calls[0] == "cuStreamWaitEvent"
    assert calls.count("cuMemcpy2DAsync") == 4, "one per layer and buffer"
