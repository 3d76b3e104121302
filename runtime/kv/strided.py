"""Evenly spaced blocks of a buffer (the first positions of every head), moved in one strided copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxgen.errors import SpecError
from ptxgen.runtime.core.backend import Copy
from ptxgen.runtime.core.memory.buffer import Buffer, check_writable


@dataclass(frozen=True, slots=True)
class Blocks:
    """`count` blocks of `width` bytes, `pitch` bytes apart, from `offset` bytes into `buffer`; bounds are checked."""

    buffer: Buffer
    offset: int
    width: int
    count: int
    pitch: int

    def __post_init__(self) -> None:
        end = self.offset + (self.count - 1) * self.pitch + self.width if self.count and self.width else self.offset
        if self.offset < 0 or end > self.buffer.nbytes or self.width > self.pitch:
            raise SpecError(f"Blocks: must lie within {self.buffer.nbytes} bytes of {self.buffer!r} (got {self})")

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks together."""
        return self.width * self.count

    def read(self, out: np.ndarray, stream: object = None) -> np.ndarray:
        """Fill a contiguous host array of as many bytes; complete on return unless it is page-locked."""
        self._check_host(out)
        check_writable("Blocks.read", out)
        if self.nbytes:
            copy = Copy("out", out.ctypes.data, self._start, self.width, self.count, self.width, self.pitch)
            where = self.buffer.device._given(stream)
            self.buffer._copy(copy, where, keep=out)
            if where is not None and not where.capturing and not self.buffer.device._is_pinned(out):
                where.synchronize()
        return out

    def write(self, source: np.ndarray, stream: object = None) -> None:
        """Overwrite from a contiguous host array of as many bytes."""
        self._check_host(source)
        if self.nbytes:
            copy = Copy("in", self._start, source.ctypes.data, self.width, self.count, self.pitch, self.width)
            self.buffer._copy(copy, self.buffer.device._given(stream), keep=source)

    def move_to(self, other: Blocks, stream: object = None) -> None:
        """Copy to blocks of the same number and width on the same device."""
        if (self.width, self.count) != (other.width, other.count) or self.buffer.device is not other.buffer.device:
            raise SpecError(f"Blocks.move_to: must be {self.count} blocks of {self.width} bytes (got {other})")
        if self.nbytes:
            copy = Copy("on", other._start, self._start, self.width, self.count, other.pitch, self.pitch)
            other.buffer._copy(copy, self.buffer.device._given(stream), self.buffer)

    @property
    def _start(self) -> int:
        return self.buffer.pointer + self.offset

    def _check_host(self, array: np.ndarray) -> None:
        if array.nbytes != self.nbytes or not array.flags.c_contiguous:
            raise SpecError(f"Blocks: host array must be {self.nbytes} contiguous bytes (got {array.nbytes})")
