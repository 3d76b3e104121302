"""Pages of a batched KV cache: which sequence holds which, on the host and in device memory. Owns no keys or values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxgen.errors import CapacityError
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.stream import Stream

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device

_NONE = -1  # a table entry without a page; kernels write nothing there and read nothing


class PageTable:
    """`table [batch, pages of a sequence]`: page numbers in order, −1 where there is none yet.

    Pages are taken lowest first and given back when a sequence shrinks; `buffer` is the table on the device, brought up
    to date by `upload`. A change that is interrupted leaves pages that are neither held nor free, never both; they are
    free again when they are missed.
    """

    def __init__(self, device: Device, batch: int, max_pages: int, n_pages: int, page_size: int) -> None:
        self.n_pages = n_pages
        self.page_size = page_size
        self.table = np.full((batch, max_pages), _NONE, np.int32)
        self.buffer: Buffer = device.array(self.table)
        self._free = list(range(n_pages - 1, -1, -1))
        self._changed = False

    @property
    def free_pages(self) -> int:
        """Pages that no sequence holds."""
        return len(self._free)

    def pages_of(self, length: int) -> int:
        """Pages that a sequence of this length holds."""
        return -(-length // self.page_size)

    def reserve(self, lengths: dict[int, int]) -> None:
        """Give every slot the pages that its length needs; all of them, or `CapacityError` and none."""
        wanted = {slot: self.pages_of(n) - self._held(slot) for slot, n in lengths.items()}
        missing = sum(max(n, 0) for n in wanted.values())
        if missing > len(self._free):
            self._free = sorted({*range(self.n_pages)} - {*self.table.flat}, reverse=True)
        if missing > len(self._free):
            raise CapacityError(
                f"BatchedKvCache: {missing} pages of {self.page_size} positions are needed and {len(self._free)} of "
                f"{self.n_pages} are free; nothing was changed"
            )
        for slot, count in wanted.items():
            held = self._held(slot)
            for entry in range(held, held + max(count, 0)):
                self._changed = True
                self.table[slot, entry] = self._free.pop()

    def shrink(self, slot: int, length: int) -> None:
        """Give back the pages past a length."""
        keep, held = self.pages_of(length), self._held(slot)
        if held > keep:
            given = [int(p) for p in self.table[slot, keep:held]]
            self._changed = True
            self.table[slot, keep:held] = _NONE
            self._free = sorted([*self._free, *given], reverse=True)

    def upload(self, stream: Stream | None) -> None:
        """Bring the device's table up to date, if it is not."""
        if self._changed:
            self.buffer.copy_from(self.table, stream)
            self._changed = False

    def _held(self, slot: int) -> int:
        return int(np.count_nonzero(self.table[slot] != _NONE))
