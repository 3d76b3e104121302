"""`Memory`: places, sizes and counts of allocations, their shadows, and what is said of an address that is in none."""

import numpy as np
import pytest

from ptxgen.errors import ExecutionError
from ptxgen.runtime.cpu.native.layout import MARK_BYTES, SHADOW
from ptxgen.runtime.cpu.run import global_memory
from ptxgen.runtime.cpu.run.global_memory import Allocation, Memory

HERE = 1 << 40  # addresses that are only compared


def fields_of(made):
    """What lies behind the flags of a shadow."""
    assert made._fields is not None
    return made._fields


def known(*places, **given):
    """A memory with adopted (begin, bytes)."""
    memory = Memory(**given)
    for begin, nbytes in places:
        memory.adopt(begin, nbytes, f"at {begin - HERE}")
    return memory


# allocations ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("align", [1, 2, 256, 4096])
@pytest.mark.parametrize("nbytes", [1, 100])
def test_an_allocation_has_256_bytes_of_its_own_on_either_side(nbytes, align):
    memory = Memory()
    begin = memory.allocate(nbytes, align)
    made = memory.find(begin)
    block = made.keep
    assert begin % align == 0
    assert begin - block.ctypes.data >= 256
    assert block.ctypes.data + block.size - (begin + nbytes) >= 256
    assert (block == 0xFF).all(), "NaN"
    assert (made.begin, made.end, made.shadow) == (begin, begin + nbytes, None)


@pytest.mark.parametrize(("nbytes", "align"), [(0, 256), (-1, 256), (8, 0), (8, -1), (8, 3), (8, 384)])
def test_sizes_and_alignments_that_there_are_not(nbytes, align):
    with pytest.raises(ExecutionError, match=rf"≥ 1 and align a power of two \(got {nbytes} and {align}\)"):
        Memory().allocate(nbytes, align)


def test_an_array_is_used_in_place_and_an_empty_one_has_an_address():
    memory, array = Memory(), np.arange(8, dtype=np.uint32)
    assert memory.register(array, "x") == array.ctypes.data
    found = memory.find(array.ctypes.data + 31)
    assert (found.size, found.name, found.read_only, found.keep is array) == (32, "x", False, True)
    assert memory.find(array.ctypes.data + 32) is None
    empty = np.zeros(0, np.uint32)
    assert memory.find(memory.register(empty)).size == 1
    array.flags.writeable = False
    memory.register(array)
    assert memory.find(array.ctypes.data).read_only
    with pytest.raises(ExecutionError, match=r"must be C-contiguous \(got strides \(8,\)\)"):
        memory.register(np.zeros(8, np.uint32)[::2])


def test_bytes_are_counted_and_those_of_others_apart():
    memory = known((HERE, 1000))
    memory.allocate(24)
    assert (memory.allocated, memory.owned) == (1024, 24)


def test_an_adoption_is_taken_back_by_its_size_and_kind():
    memory = known((HERE, 64), (HERE, 32))
    memory.adopt(HERE, 64, "read", read_only=True)
    for nbytes, read_only in ((16, False), (32, True)):
        with pytest.raises(ExecutionError, match=rf"{nbytes} bytes at {HERE:#x} were not adopted"):
            memory.disown(HERE, nbytes, read_only=read_only)
    memory.disown(HERE, 64, read_only=True)
    assert sorted(memory.writable()) == [(HERE, 32), (HERE, 64)]
    memory.disown(HERE, 64)
    assert memory.writable() == [(HERE, 32)]


def test_what_was_allocated_is_freed_before_a_view_of_it():
    memory = Memory()
    begin = memory.allocate(64)
    memory.adopt(begin, 16)
    memory.free(begin)
    assert [(one.size, one.adopted) for one in memory._live] == [(16, True)]
    memory.free(begin)
    with pytest.raises(ExecutionError, match=rf"{begin:#x} is not the begin of a live allocation"):
        memory.free(begin)


def test_the_table_follows_every_change_and_read_only_memory_is_not_writable():
    memory = known((HERE, 64))
    first = memory.table()
    assert memory.table() is first
    memory.adopt(HERE + 128, 64, read_only=True)
    second = memory.table()
    assert second is not first
    numbers = second.fields.view(np.uint64)
    assert numbers.tolist()[3::4] == [2, 1], "readable, writable"
    assert [column.tolist() for column in second._columns[1]] == [[HERE], [HERE + 64], [0]]
    memory.disown(HERE + 128, 64, read_only=True)
    assert memory.table().fields.view(np.uint64).tolist()[3::4] == [1, 1]
    memory.free(HERE)
    assert [column.tolist() for column in memory.table()._columns[0]] == [[0], [0], [0]], "there is always a row"


# where an address lies ------------------------------------------------------------------------------------------------
def test_a_view_may_lie_inside_and_end_before_what_it_is_of():
    memory = known((HERE, 100), (HERE + 10, 20))
    assert memory.find(HERE + 15).name == "at 10"
    assert memory.find(HERE + 29).name == "at 10"
    assert memory.find(HERE + 30).name == "at 0"
    assert memory.find(HERE + 99).name == "at 0"
    assert memory.find(HERE + 100) is None
    assert memory.find(HERE - 1) is None


def test_behind_an_allocation_nothing_before_it_is_looked_at():
    memory = known((HERE, 1 << 20))
    memory._insert(Allocation(HERE + 64, HERE + 96, "own"))
    assert memory.find(HERE + 100) is None


@pytest.mark.parametrize(("address", "said"), [
    (0, "a null pointer"), (1, "a null pointer and 1 bytes"), (65535, "a null pointer and 65535 bytes"),
    (65536, "far from every allocation"),
    (HERE - 4, f"begins 4 bytes before 'at 0' [{HERE:#x}, +64 bytes)"),
    (HERE + 60, f"ends 4 bytes past the end of 'at 0' [{HERE:#x}, +64 bytes)"),
    (HERE + 64, f"ends 8 bytes past the end of 'at 0' [{HERE:#x}, +64 bytes)"),
    (HERE + 56 + (1 << 20), f"ends {1 << 20} bytes past the end of 'at 0' [{HERE:#x}, +64 bytes)"),
    (HERE + 57 + (1 << 20), "far from every allocation"),
    (HERE - (1 << 20), f"begins {1 << 20} bytes before 'at 0' [{HERE:#x}, +64 bytes)"),
    (HERE - (1 << 20) - 1, "far from every allocation"),
])  # fmt: skip
def test_an_address_is_explained_by_what_it_misses_by_least(address, said):
    assert known((HERE, 64)).explain(address, 8) == said.replace("'", "")


def test_a_large_allocation_is_near_as_far_as_it_is_long():
    size = 1 << 22
    memory = known((HERE, size))
    assert "past the end" in memory.explain(HERE + 2 * size - 8, 8)
    assert memory.explain(HERE + 2 * size - 7, 8) == "far from every allocation"


def test_of_two_neighbours_the_nearer_is_named():
    memory = known((HERE, 64), (HERE + 1024, 64))
    assert "past the end of at 0" in memory.explain(HERE + 100, 4)
    assert "before at 1024" in memory.explain(HERE + 1000, 4)
    assert memory.nearest(HERE + 1100, 4).name == "at 1024"
    assert Memory().explain(HERE, 4) == "no allocation is live"
    assert Allocation(16, 32, "").describe() == "allocation [0x10, +16 bytes)"


def test_freed_memory_is_named_and_the_last_256_are_remembered():
    memory = known(*((HERE + 64 * n, 64) for n in range(258)))
    for n in range(257):
        memory.free(HERE + 64 * n)
    assert "freed memory" not in memory.explain(HERE, 4)
    assert memory.explain(HERE + 64, 4) == f"freed memory: byte 0 of at 64 [{HERE + 64:#x}, +64 bytes)"
    assert memory.explain(HERE + 127, 4).startswith("freed memory: byte 63 of at 64")
    memory.adopt(HERE + 64, 8, "again")
    assert memory.explain(HERE + 64, 4).startswith("ends"), "live memory is not freed memory"
    assert memory.explain(HERE + 72, 4).startswith("freed memory: byte 8 of at 64")


@pytest.mark.parametrize("nbytes", [8, 512, 100_000])
def test_in_check_mode_freed_memory_is_given_to_no_new_allocation(nbytes):
    memory = Memory(track=True)
    gone = memory.allocate(nbytes, name="gone")
    memory.free(gone)
    again = [memory.allocate(nbytes) for _ in range(50)]
    assert all(abs(one - gone) >= nbytes for one in again)
    assert memory.explain(gone, 4).startswith("freed memory: byte 0 of gone")


def test_of_freed_memory_check_mode_keeps_what_fits_of_the_latest_64_mib(monkeypatch):
    assert global_memory._WITHHELD == 64 << 20
    monkeypatch.setattr(global_memory, "_WITHHELD", 64 << 10)
    memory, kib = Memory(track=True), 1 << 10
    memory.adopt(HERE, 8, "a variable", keep="its block")
    for begin in [HERE, *(memory.allocate(size * kib) for size in (40, 1, 33, 65, 30, 1))]:
        memory.free(begin)
    held = [(one.size // kib, one.keep is not None) for one in memory._freed]
    assert held == [(0, False), (40, False), (1, False), (33, True), (65, False), (30, True), (1, True)]
    fast = Memory()
    fast.free(fast.allocate(8))
    assert fast._freed[0].keep is None


# shadows --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1, 4, 5, 63, 64, 65, 1000])
def test_a_shadow_has_a_flag_a_byte_then_its_fields_then_a_stamp_a_word(size):
    made = Allocation(HERE, HERE + size, "x").shadowed(False)
    whole = made.shadow.base
    behind = made._fields.ctypes.data - made.shadow.ctypes.data
    assert made.shadow.size == size
    assert behind == (size + 63) // 64 * 64
    assert made._fields.size == SHADOW["_end"]
    assert whole.size == behind + SHADOW["_end"] + 8 * ((size + 3) // 4)
    assert not whole.any()


def test_what_is_written_in_full_is_complete():
    made = Allocation(HERE, HERE + 8, "x").shadowed(False)
    made.mark(0, 7, 1)
    assert not fields_of(made)[SHADOW["complete"]]
    made.mark(0, 8, np.array([1] * 7 + [0], np.uint8))
    assert not fields_of(made)[SHADOW["complete"]]
    assert made.shadow.tolist() == [1] * 7 + [0]
    made.mark(0, 8, np.ones(8, np.uint8))
    assert fields_of(made)[SHADOW["complete"]] == 1
    other = Allocation(HERE, HERE + 8, "x").shadowed(True)
    assert other.shadow.tolist() == [1] * 8
    assert fields_of(other)[SHADOW["complete"]] == 1
    plain = Allocation(HERE, HERE + 8, "x")
    plain.mark(0, 8, 1)
    plain.forget_launches()
    plain.follow_reads(3)
    assert (plain.shadow, plain._fields, plain._marks) == (None, None, None)


def test_what_launches_have_written_is_just_written_when_numbers_come_round():
    memory = Memory(track=True)
    begin = memory.allocate(5)
    made = memory.find(begin)
    assert [memory.begin_launch() for _ in range(253)] == [*range(3, 256)]
    np.copyto(made.shadow, [0, 1, 3, 200, 255], casting="unsafe")
    made.follow_reads(255)
    fields_of(made)[SHADOW["launch"]] = 255
    assert fields_of(made)[SHADOW["reads"]] == 255
    assert made._marks.size == MARK_BYTES * 2
    assert fields_of(made)[SHADOW["marks"] : SHADOW["marks"] + 8].view(np.uint64)[0] == made._marks.ctypes.data
    marks = made._marks
    made.follow_reads(254)
    assert made._marks is marks, "kept until numbers come round"
    assert memory.begin_launch() == 3
    assert made.shadow.tolist() == [0, 1, 1, 1, 1]
    assert (fields_of(made)[SHADOW["launch"]], fields_of(made)[SHADOW["reads"]], made._marks) == (0, 0, None)


def test_reads_are_followed_where_a_launch_may_write():
    memory = Memory(track=True)
    first, second = memory.allocate(64), memory.allocate(64)

    def followed():
        return [int(fields_of(memory.find(begin))[SHADOW["reads"]]) for begin in (first, second)]

    memory.follow_reads([first + 64, second - 1], 7)
    assert followed() == [0, 0]
    memory.follow_reads([first], 8)
    assert followed() == [8, 0]
    memory.follow_reads([second + 63], 9)
    assert followed() == [8, 9]
    memory.follow_reads(None, 10)
    assert followed() == [10, 10]
    memory.follow_reads([], 11)
    assert followed() == [10, 10]


def test_what_the_host_writes_or_copies_from_elsewhere_is_written():
    memory = Memory(track=True)
    target, array = memory.allocate(16), np.zeros(16, np.uint8)
    memory.copied(target, array.ctypes.data, 4)  # of what is not known here
    memory.register(array)
    memory.copied(target + 4, array.ctypes.data, 4)
    memory.written(target + 12, 2)
    assert memory.find(target).shadow.tolist() == [1] * 8 + [0] * 4 + [1] * 2 + [0] * 2
    np.put(memory.find(target).shadow, 12, 9)
    other = memory.allocate(16)
    memory.copied(other, target + 8, 8)
    assert memory.find(other).shadow.tolist() == [0] * 4 + [1] * 2 + [0] * 10
    memory.written(HERE, 4)
    memory.copied(HERE, target, 4)
    memory.copied(array.ctypes.data, target, 4)  # has no shadow


def test_every_change_is_made_under_the_lock():
    memory = Memory(track=True)

    class Watched(list):
        def insert(self, *given):
            assert memory._lock.locked(), "changed without the lock"
            super().insert(*given)

        def pop(self, *given):
            assert memory._lock.locked(), "changed without the lock"
            return super().pop(*given)

        def __delitem__(self, place):
            assert memory._lock.locked(), "changed without the lock"
            super().__delitem__(place)

        def __iter__(self):
            assert memory._lock.locked(), "looked at without the lock"
            return super().__iter__()

    memory._live = Watched()
    begin = memory.allocate(64)
    memory.adopt(begin, 64)
    memory.adopt(HERE, 8, keep="a")
    memory.adopt(HERE, 8, keep="b")
    memory.writable()
    memory.follow_reads(None, 3)
    memory.disown(begin, 64)
    memory.table()
    memory.free(begin)
    memory._launches = 255
    assert memory.begin_launch() == 3
    assert not memory._lock.locked()
