"""Global memory as the executor sees it: live allocations of host memory, for bounds checks and error texts."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ptxgen.errors import ExecutionError
from ptxgen.runtime.cpu.native.fork_safety import renewed_in_children
from ptxgen.runtime.cpu.native.layout import MARK_BYTES, SHADOW

_GUARD = 256  # bytes before and after an allocation that no allocation ever uses
_NULL = 1 << 16  # no host puts memory below
_NEAR = 1 << 20
_FIRST_LAUNCH, _MOST_LAUNCHES = 3, 255
_REMEMBERED = 256  # freed allocations kept for error texts
_WITHHELD = 64 << 20  # bytes of the latest of them that check mode gives to no new allocation


@dataclass(slots=True)
class Allocation:
    """Live bytes [begin, end). `shadow` (check mode) has one byte per byte: 0 for never written, 1 for written, above 2
    the number of the launch that wrote it. Behind it in memory, at the next multiple of 64, lie `SHADOW`'s fields and
    for every 4 bytes a stamp of 8 that says who wrote them (`check/global_races.py`)."""

    begin: int
    end: int
    name: str
    read_only: bool = False
    shadow: np.ndarray | None = None
    keep: object = field(default=None, repr=False)
    adopted: bool = False
    _fields: np.ndarray | None = field(default=None, repr=False)
    _marks: np.ndarray | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.end - self.begin

    def shadowed(self, initialised: bool) -> Allocation:
        """The same with a shadow."""
        behind = -(-self.size // 64) * 64
        whole = np.zeros(behind + SHADOW["_end"] + 8 * -(-self.size // 4), np.uint8)
        self.shadow, self._fields = whole[: self.size], whole[behind : behind + SHADOW["_end"]]
        if initialised:
            self.mark(0, self.size, 1)
        return self

    def mark(self, offset: int, nbytes: int, flags: np.ndarray | int) -> None:
        """The host has written these bytes: all of them (1), or as much as their source was."""
        if self.shadow is not None and self._fields is not None:
            self.shadow[offset : offset + nbytes] = flags
            if nbytes == self.size and (isinstance(flags, int) or flags.all()):
                self._fields[SHADOW["complete"]] = 1

    def mark_launch(self, offset: int, nbytes: int, number: int) -> None:
        """Launch `number` has written these bytes."""
        if self.shadow is not None and self._fields is not None:
            part = self.shadow[offset : offset + nbytes]
            part[part != 0] = number  # what nothing has written stays so
            self._fields[SHADOW["launch"]] = number

    def forget_launches(self) -> None:
        """What launches have written is just written."""
        if self.shadow is not None and self._fields is not None:
            np.minimum(self.shadow, 1, out=self.shadow)
            self._fields[SHADOW["launch"]] = self._fields[SHADOW["reads"]] = 0
            self._marks = None

    def follow_reads(self, number: int) -> None:
        """Launch `number` marks who reads these bytes, as it may write them, too."""
        if self._fields is not None:
            if self._marks is None:
                self._marks = np.zeros(MARK_BYTES * -(-self.size // 4), np.uint8)
                self._fields[SHADOW["marks"] : SHADOW["marks"] + 8].view(np.uint64)[0] = self._marks.ctypes.data
            self._fields[SHADOW["reads"]] = number

    def describe(self) -> str:
        """`'q' [0x7f00…, +4096 bytes)`."""
        return f"{self.name or 'allocation'} [{self.begin:#x}, +{self.size} bytes)"


class Table:
    """The allocations as native code searches them. `fields` is `LAUNCH`'s `readable` and `writable`."""

    def __init__(self, live: list[Allocation]) -> None:
        self._columns = [_columns(live), _columns([a for a in live if not a.read_only])]
        numbers = [[*(column.ctypes.data for column in one), len(one[0])] for one in self._columns]
        self.fields = np.array(numbers, np.uint64).reshape(-1).view(np.uint8)


class Memory:
    """What kernels may touch. `track` gives every `allocate` a shadow of which bytes were written (check mode), and
    withholds freed bytes from new allocations for a while, so that a use of them is not taken for one of those.

    Thread-safe; a launch sees the allocations that were live when it began.
    """

    def __init__(self, *, track: bool = False) -> None:
        self.track = track
        self._live: list[Allocation] = []  # by begin
        self._begins: list[int] = []
        self._freed: list[Allocation] = []
        self._table: Table | None = None
        self._launches = _FIRST_LAUNCH - 1
        self.renew_lock()
        renewed_in_children(self)

    def renew_lock(self) -> None:
        """Take a free lock: another thread may have held the old one when the process was forked."""
        self._lock = threading.Lock()

    def allocate(self, nbytes: int, align: int = 256, name: str = "", *, initialised: bool = False) -> int:
        """Address of fresh bytes, filled with 0xFF (NaN in every float type) so that reading them shows."""
        if nbytes < 1 or align < 1 or align & (align - 1):
            raise ExecutionError(
                f"Memory.allocate: nbytes must be ≥ 1 and align a power of two (got {nbytes} and {align})"
            )
        block = np.full(nbytes + 2 * _GUARD + align, 0xFF, np.uint8)
        begin = (block.ctypes.data + _GUARD + align - 1) & -align
        made = Allocation(begin, begin + nbytes, name, keep=block)
        self._insert(made.shadowed(initialised) if self.track else made)
        return begin

    def register(self, array: np.ndarray, name: str = "") -> int:
        """Let kernels use a host array in place; returns its address. The array is kept alive until `free`."""
        if not array.flags.c_contiguous:
            raise ExecutionError(f"Memory.register: the array must be C-contiguous (got strides {array.strides})")
        begin = int(array.ctypes.data)
        self.adopt(begin, max(array.nbytes, 1), name, keep=array, read_only=not array.flags.writeable)
        return begin

    def adopt(self, begin: int, nbytes: int, name: str = "", *, keep: object = None, read_only: bool = False) -> None:
        """Let kernels use memory that others own. With `keep`, adopting an address again replaces it; without, every
        adoption counts, also of memory that is live already, until its `disown`.
        """
        with self._lock:
            for place in self._at(begin):
                if keep is not None and self._live[place].adopted and self._live[place].keep is not None:
                    del self._live[place], self._begins[place]
                    break
        self._insert(Allocation(begin, begin + nbytes, name, read_only, keep=keep, adopted=True))

    def disown(self, begin: int, nbytes: int, *, read_only: bool = False) -> None:
        """Take back one such adoption of these bytes."""
        with self._lock:
            for place in self._at(begin):
                one = self._live[place]
                if one.adopted and (one.size, one.read_only) == (nbytes, read_only):
                    del self._live[place], self._begins[place]
                    self._table = None
                    return
        raise ExecutionError(f"Memory.disown: {nbytes} bytes at {begin:#x} were not adopted")

    def _at(self, begin: int) -> range:
        """Places of the allocations that begin at an address."""
        return range(bisect.bisect_left(self._begins, begin), bisect.bisect_right(self._begins, begin))

    def _insert(self, allocation: Allocation) -> None:
        with self._lock:
            place = bisect.bisect_right(self._begins, allocation.begin)
            self._live.insert(place, allocation)
            self._begins.insert(place, allocation.begin)
            self._table = None

    def free(self, begin: int) -> None:
        """The allocation that begins there may not be used any more; a kernel that does so is told its name."""
        with self._lock:
            places = sorted(self._at(begin), key=lambda at: self._live[at].adopted)
            if not places:
                raise ExecutionError(f"Memory.free: {begin:#x} is not the begin of a live allocation")
            place = places[0]
            gone = self._live.pop(place)
            del self._begins[place]
            kept = gone.keep if self.track and not gone.adopted else None
            self._freed = [*self._freed[1 - _REMEMBERED :], Allocation(gone.begin, gone.end, gone.name, keep=kept)]
            self._withhold()
            self._table = None

    def _withhold(self) -> None:
        """Keep the memory of the latest freed allocations that fit, and give back the rest."""
        left = _WITHHELD
        for gone in reversed(self._freed):
            if gone.size > left:
                gone.keep = None
            elif gone.keep is not None:
                left -= gone.size

    def begin_launch(self) -> int:
        """The number of a launch in check mode, by which bytes know who wrote them; numbers come round again."""
        with self._lock:
            self._launches += 1
            if self._launches > _MOST_LAUNCHES:
                self._launches = _FIRST_LAUNCH
                for allocation in self._live:
                    allocation.forget_launches()
            return self._launches

    def launch_that_writes(self, places: Iterable[tuple[int, int]]) -> int:
        """The number of a launch that writes (address, bytes) and does nothing else: in check mode, what is there
        stays there."""
        number = self.begin_launch()
        with self._lock:
            for address, nbytes in places:
                for live in self._live:
                    if live.begin <= address < live.end:
                        live.mark_launch(address - live.begin, nbytes, number)
        return number

    def follow_reads(self, addresses: Sequence[int] | None, number: int) -> None:
        """Launch `number` may write where these addresses lie (None: anywhere)."""
        with self._lock:
            for live in self._live:
                if addresses is None or any(live.begin <= address < live.end for address in addresses):
                    live.follow_reads(number)

    def writable(self) -> list[tuple[int, int]]:
        """(begin, bytes) of what kernels may write now."""
        with self._lock:
            return [(one.begin, one.size) for one in self._live if not one.read_only]

    def written(self, begin: int, nbytes: int) -> None:
        """The host has written these bytes: they count as initialised."""
        found = self.find(begin)
        if found is not None:
            found.mark(begin - found.begin, nbytes, 1)

    def copied(self, dst: int, src: int, nbytes: int) -> None:
        """The host has copied bytes from one place to another: they stay as initialised as they were."""
        to, source = self.find(dst), self.find(src)
        if to is None or to.shadow is None:
            return
        flags: np.ndarray | int = 1
        if source is not None and source.shadow is not None:
            flags = np.minimum(source.shadow[src - source.begin :][:nbytes], 1)
        to.mark(dst - to.begin, nbytes, flags)

    @property
    def allocated(self) -> int:
        """Bytes in live allocations."""
        return sum(a.size for a in self._live)

    @property
    def owned(self) -> int:
        """Bytes in live allocations that were made here: without arrays of others, and variables of modules."""
        return sum(a.size for a in self._live if not a.adopted)

    def find(self, address: int) -> Allocation | None:
        """The live allocation that holds an address."""
        with self._lock:
            for place in range(bisect.bisect_right(self._begins, address) - 1, -1, -1):
                if address < self._live[place].end:
                    return self._live[place]  # not always the nearest: an adopted view may lie inside an allocation
                if not self._live[place].adopted:
                    break  # what is not adopted overlaps nothing
        return None

    def nearest(self, address: int, nbytes: int) -> Allocation | None:
        """The live allocation that an access misses by least, if not by more than it and `_NEAR` are long."""
        with self._lock:
            place = bisect.bisect_right(self._begins, address) - 1
            near = [self._live[p] for p in (place, place + 1) if 0 <= p < len(self._live)]
        missed = [(max(a.begin - address, address + nbytes - a.end, 0), a) for a in near]
        missed = [(distance, a) for distance, a in missed if distance <= max(a.size, _NEAR)]
        return min(missed, key=lambda pair: pair[0])[1] if missed else None

    def explain(self, address: int, nbytes: int) -> str:
        """Where an address lies relative to the nearest allocation, live or freed."""
        for gone in reversed(self._freed):
            if gone.begin <= address < gone.end and self.find(address) is None:
                return f"freed memory: byte {address - gone.begin} of {gone.describe()}"
        if not self._live:
            return "no allocation is live"
        if address < _NULL:
            return f"a null pointer and {address} bytes" if address else "a null pointer"
        nearest = self.nearest(address, nbytes)
        if nearest is None:
            return "far from every allocation"
        if address < nearest.begin:
            return f"begins {nearest.begin - address} bytes before {nearest.describe()}"
        return f"ends {address + nbytes - nearest.end} bytes past the end of {nearest.describe()}"

    def table(self) -> Table:
        """The live allocations; the same object until the next change."""
        with self._lock:
            if self._table is None:
                self._table = Table(self._live)
            return self._table


def _columns(live: list[Allocation]) -> list[np.ndarray]:
    """Begins, ends and shadows, sorted."""
    return [np.array(column, np.uint64) for column in zip(*_disjoint(live), strict=True)]


def _disjoint(live: list[Allocation]) -> list[tuple[int, int, int]]:
    """(begin, end, address of the shadow or 0) of the runs that are in any allocation; there is always a row."""
    rows: list[tuple[int, int, int]] = []
    for allocation in live:
        if rows and allocation.begin < rows[-1][1]:  # views of one array
            begin, end, shadow = rows[-1]
            rows[-1] = (begin, max(end, allocation.end), shadow if allocation.end <= end else 0)
        else:
            shadow = 0 if allocation.shadow is None else int(allocation.shadow.ctypes.data)
            rows.append((allocation.begin, allocation.end, shadow))
    return rows or [(0, 0, 0)]
