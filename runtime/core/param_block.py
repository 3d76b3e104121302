"""The packed parameters of an entry, and where each of them lies."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ptxgen.nodes import Variable

_NUMBERS: Mapping[int, Any] = {4: ctypes.c_uint32, 8: ctypes.c_uint64}
_CODES = {4: "I", 8: "Q"}  # of `struct`


class Slot(NamedTuple):
    """Where one kernel parameter lies in the parameter block, in bytes."""

    offset: int
    size: int


class ParamBlock:
    """The bytes of all parameters of one entry, at their `.param` offsets; packed once, changed in place.

    `address` is where the block starts; `pointers` is the address of an array with one pointer per parameter, as
    cuLaunchKernel takes it.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        size = max((s.offset + s.size for s in self.slots), default=0)
        self._bytes = (ctypes.c_uint64 * (max(-(-size // 8), 1) + 15))()
        self.address = -(-ctypes.addressof(self._bytes) // 128) * 128  # tensor maps must lie at multiples of 64
        self.size = size
        self._pointers = (ctypes.c_void_p * max(len(self.slots), 1))(*(self.address + s.offset for s in self.slots))
        self.pointers = ctypes.addressof(self._pointers)

    def set(self, index: int, value: bytes) -> None:
        """Replace the bytes of one parameter; the size has been checked before."""
        slot = self.slots[index]
        assert len(value) == slot.size, f"parameter {index} has {slot.size} bytes, not {len(value)}"
        ctypes.memmove(self.address + slot.offset, value, slot.size)

    def number(self, index: int) -> Any:
        """One parameter of 4 or 8 bytes as a C number: what its `value` is given is in the next launch, unchecked."""
        slot = self.slots[index]
        return _NUMBERS[slot.size].from_address(self.address + slot.offset)

    def writer(self, indices: Sequence[int]) -> Callable[[Sequence[int]], None]:
        """What writes these parameters of 4 or 8 bytes, given a number for each in this order: those that lie side by
        side together, since time on the host counts. A number of more bytes is a `struct.error`."""
        runs: list[list[int]] = []
        for at in sorted(range(len(indices)), key=lambda at: self.slots[indices[at]].offset):
            slot = self.slots[indices[at]]
            before = self.slots[indices[runs[-1][-1]]] if runs else None
            if before is None or before.offset + before.size != slot.offset:
                runs.append([])
            runs[-1].append(at)
        memory = memoryview(self._bytes).cast("B")
        start = self.address - ctypes.addressof(self._bytes)
        parts = [
            (
                struct.Struct("=" + "".join(_CODES[self.slots[indices[at]].size] for at in run)).pack_into,
                start + self.slots[indices[run[0]]].offset,
                run,
            )
            for run in runs
        ]

        def write(numbers: Sequence[int]) -> None:
            for pack, offset, run in parts:
                pack(memory, offset, *[numbers[at] for at in run])

        return write

    def tobytes(self) -> bytes:
        """The whole block."""
        return ctypes.string_at(self.address, self.size)

    def copy(self) -> ParamBlock:
        """The same values in memory of their own, for a graph that keeps what it captured."""
        twin = ParamBlock(self.slots)
        ctypes.memmove(twin.address, self.address, self.size)
        return twin


def slots_of(params: Iterable[Variable]) -> tuple[Slot, ...]:
    """Where the parameters of an entry lie: each at its alignment, after the one before (PTX ISA, "Parameter State
    Space"); for backends that read the layout from the text.
    """
    slots, end = [], 0
    for param in params:
        element = int(param.type.lstrip(".")[1:]) // 8 * max(param.vector, 1)
        size = element * math.prod(param.dims)
        align = param.align or element
        start = -(-end // align) * align
        slots.append(Slot(start, size))
        end = start + size
    return tuple(slots)
