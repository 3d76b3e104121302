"""An error at any copy of a change of caches: the lengths and pages before it, or none where rows were written over."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ptxgen.errors import CapacityError
from ptxgen.runtime import BatchedKvCache, Device, open_device
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.kv.pages import PageTable
from tests.support.attention.kv_caches import filled, made
from tests.support.fake_cuda import fake_device

MOST = 100  # more copies than any of these changes makes


@pytest.fixture(params=["fake", "cpu"])
def device(request: pytest.FixtureRequest) -> Device:
    return fake_device()[0] if request.param == "fake" else open_device("cpu")


class Breaks:
    """Lets each copy and fill of a change raise in its turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        for name in ("_copy", "fill"):
            self._count(monkeypatch, name)

    def _count(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        whole = getattr(Buffer, name)

        def counted(buffer: Buffer, *given: object, **named: object) -> object:
            self.left -= 1
            if self.left == -1:
                raise KeyboardInterrupt
            return whole(buffer, *given, **named)

        monkeypatch.setattr(Buffer, name, counted)

    def of(self, prepare: Callable[[], object], change: Callable[[], object]) -> Iterator[int]:
        """The number of each copy of the change, when it has just been interrupted there; at last it has been made."""
        for at in range(MOST):
            prepare()
            self.left = at
            try:
                change()
            except KeyboardInterrupt:
                yield at
                continue
            finally:
                self.left = -1
            assert at, "nothing was interrupted"
            return
        raise AssertionError("it has no end")


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Breaks:
    return Breaks(monkeypatch)


def state(batched: BatchedKvCache) -> tuple[list[int], int]:
    """Lengths of the slots, and free pages."""
    free = batched.pages.free_pages if batched.pages is not None else 0
    return [batched.length(slot) for slot in range(batched.batch)], free


def three(device: Device, page: int, told: bool) -> tuple[BatchedKvCache, Callable[[], None]]:
    """A cache of three slots, and what makes them hold 20, 5 and 40 positions; `told`: the device knows of them."""
    batched = BatchedKvCache(made(device), 3, page_size=page)

    def prepare() -> None:
        batched.reset()
        for slot, length in enumerate((20, 5, 40)):
            batched.set_length(slot, length)
        if told:
            batched.step()

    return batched, prepare


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("layer", [None, 1])
def test_a_sequence_that_is_copied_into_a_slot(
    device: Device, breaks: Breaks, page: int, told: bool, layer: int | None
) -> None:
    """Nothing of what the slot held counts where a row may have been copied over it."""
    cache = made(device)
    written = filled(cache, (37, 33))
    batched, prepare = three(device, page, told)
    prepare()
    before, free = state(batched)
    pages_of_slot = -(-before[1] // 16) if page else 0
    found = []
    for _ in breaks.of(prepare, lambda: batched.scatter_from(cache, 1, 33, layer=layer)):
        now = state(batched)
        assert now in ((before, free), ([before[0], 0, before[2]], free + pages_of_slot))
        found.append(now[0][1])
    assert found == sorted(found, reverse=True)
    assert found[-1] == 0
    assert (found[0] > 0) is told, "copies to the device's positions come first"
    assert batched.length(1) == 33
    assert np.array_equal(batched.peek(1, "k", 1, 32, 1), written[1]["k_cache"][1, 32])


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize(
    "change",
    [
        lambda batched: batched.set_length(1, 0),
        lambda batched: batched.set_length(1, 33),
        lambda batched: batched.rollback(2, 3),
        lambda batched: batched.resize(1),
        lambda batched: batched.reset(),
        lambda batched: batched.step([0, 2]),
    ],
    ids=["emptied", "lengthened", "rolled back", "resized", "reset", "step"],
)
def test_lengths_and_pages_are_those_before(
    device: Device, breaks: Breaks, page: int, change: Callable[[BatchedKvCache], object]
) -> None:
    batched, prepare = three(device, page, told=True)
    prepare()
    before = state(batched)

    def again() -> None:
        batched.resize(3)
        prepare()

    for _ in breaks.of(again, lambda: change(batched)):
        assert state(batched) == before
    assert state(batched) != before


def test_a_slot_that_the_device_was_half_told_of_is_told_again(device: Device, breaks: Breaks) -> None:
    batched, prepare = three(device, 0, told=True)
    for _ in breaks.of(prepare, lambda: batched.set_length(1, 0)):
        batched.set_length(1, 0)
        assert batched.positions.numpy().tolist() == [20, -1, 40]
        assert batched.lengths.numpy().tolist() == [21, 0, 41]


def test_a_snapshot_that_is_put_back(device: Device, breaks: Breaks) -> None:
    """Some layers would hold one sequence, and others another."""
    other, cache = made(device), made(device)
    filled(other, (9, 9), seed=1)
    snapshot = other.snapshot()
    for _ in breaks.of(lambda: filled(cache, (37, 33)), lambda: cache.restore(snapshot)):
        assert [cache.length(layer) for layer in range(2)] == [0, 0]
    assert [cache.length(layer) for layer in range(2)] == [9, 9]


def test_pages_that_an_interruption_left_to_nobody_are_free_again(device: Device) -> None:
    table = PageTable(device, 2, 4, 4, 16)
    table.reserve({0: 33})
    table._free.remove(3)  # as if stopped between the table's line and this one
    table.reserve({1: 16})
    assert sorted(table.table[table.table >= 0].tolist()) == [0, 1, 2, 3]
    with pytest.raises(CapacityError, match="1 pages of 16 positions are needed and 0 of 4 are free"):
        table.reserve({1: 17})
