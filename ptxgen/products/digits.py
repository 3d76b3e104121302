"""x in shared memory as tensor cores want it for one token, its digits on columns of N.

`Thirds`: three bf16 digits that add up to f32, `[chunk, digit, lane t, 4]`. `Blocks`: of every block of 16 or 32
columns two f16 digits of x times a power of two, `[block, digit, lane t, chunk of the block, 4]`, and beside them that
power's inverse and the sum of x. Two digits have 22 bits of the largest of a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.dtypes import bf16, f16
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import over_lanes
from ptxgen.idioms.threads import split
from ptxgen.weights.format import CHUNK, OWN

if TYPE_CHECKING:
    from ptxgen.weights.format import WeightFormat

DIGITS = 3  # of bf16
DIGIT_BYTES = 4 * 2 * OWN  # of a digit of a chunk in shared memory
UP = 14  # the largest of a block becomes at least 2^14
BIAS = 127


def split_digits(b: Builder, values: Sequence[Reg], digits: Sequence[Sequence[Reg]]) -> None:
    """Four f32 into digits, two registers each: every digit is the nearest bf16 of what those before it leave."""
    back = [convert.scratch(b, f"digit_back{i}", "f32") for i in range(OWN)]
    for index, digit in enumerate(digits):
        convert.pack(b, digit, values, bf16)
        if index + 1 < len(digits):
            convert.unpack(b, back, digit, bf16)
            for value, less in zip(values, back, strict=True):
                b.op("sub.f32", value, value, less)


class Digits(ABC):
    """Where a thread puts four neighbouring columns of x."""

    def __init__(self, b: Builder, kind: WeightFormat, padded_k: int, threads: int) -> None:
        self.b, self.kind, self.threads = b, kind, threads
        self.vector: Shared = b.shared("vector", self.bytes_of(kind, padded_k), dynamic=True)

    @staticmethod
    @abstractmethod
    def bytes_of(kind: WeightFormat, padded_k: int) -> int:
        """Bytes of all columns."""

    @abstractmethod
    def begin(self, thread: Reg) -> None:
        """Where the thread's first four columns go."""

    @abstractmethod
    def keep(self, values: Sequence[Reg], load: int, pred: Reg) -> None:
        """Four columns, of the thread's load of that number in a pass; `pred`: there are such columns. All threads."""

    @abstractmethod
    def next(self, loads: int) -> None:
        """So many loads of all threads on."""


class Thirds(Digits):
    """See the module."""

    @staticmethod
    def bytes_of(kind: WeightFormat, padded_k: int) -> int:
        return 2 * DIGITS * padded_k

    def begin(self, thread: Reg) -> None:
        b = self.b
        self.to = b.op("mov.u32", "stage_to", self.vector)
        chunk, quad = split(b, "stage_chunk", "stage_quad", thread, CHUNK // OWN)
        b.op("mad.lo.u32", self.to, chunk, DIGITS * DIGIT_BYTES, self.to)
        b.op("mad.lo.u32", self.to, quad, 2 * OWN, self.to)
        self.stride = DIGITS * DIGIT_BYTES * self.threads // OWN
        self.split = b.array("staged_digit", "b32", 2 * DIGITS)

    def keep(self, values: Sequence[Reg], load: int, pred: Reg) -> None:
        digits = [self.split[2 * i : 2 * i + 2] for i in range(DIGITS)]
        split_digits(self.b, values, digits)
        for i, digit in enumerate(digits):
            offset = load * self.stride + DIGIT_BYTES * i
            convert.store_words(self.b, self.to, digit, offset, space="shared", pred=pred)

    def next(self, loads: int) -> None:
        self.b.op("add.u32", self.to, self.to, loads * self.stride)


class Blocks(Digits):
    """See the module."""

    def __init__(self, b: Builder, kind: WeightFormat, padded_k: int, threads: int) -> None:
        super().__init__(b, kind, padded_k, threads)
        self.block, self.sums = kind.x_block, bool(kind.x_sum_factor)
        self.factors_at = 4 * padded_k  # from the beginning
        self.factor_bytes = 8 if self.sums else 4

    @staticmethod
    def bytes_of(kind: WeightFormat, padded_k: int) -> int:
        return 4 * padded_k + padded_k // kind.x_block * (8 if kind.x_sum_factor else 4)

    def begin(self, thread: Reg) -> None:
        b, block, owners = self.b, self.block, self.block // OWN
        index, place = split(b, "stage_block", "stage_place", thread, owners)
        self.to = b.op("mov.u32", "stage_to", self.vector)
        self.factors_to = b.op("add.u32", "factors_to", self.to, self.factors_at)
        b.op("mad.lo.u32", self.factors_to, index, self.factor_bytes, self.factors_to)
        b.op("mad.lo.u32", self.to, index, 4 * block, self.to)
        chunk, quad = split(b, "stage_chunk", "stage_quad", place, CHUNK // OWN)
        b.op("mad.lo.u32", self.to, quad, 8 * block // CHUNK, self.to)
        if block > CHUNK:
            b.op("mad.lo.u32", self.to, chunk, 8, self.to)
        self.is_first = b.op("setp.eq.u32", "is_first_of_block", place, 0)
        self.largest, self.total = b.reg("block_largest", "f32"), b.reg("block_sum", "f32")
        self.size, self.bits = b.reg("one_size", "f32"), b.reg("largest_bits", "u32")
        self.up, self.down = b.reg("block_up", "f32"), b.reg("block_down", "f32")
        self.words, self.back = b.array("staged_digit", "b32", 4), b.array("digit_back", "f32", 4)
        self.keeps = b.reg("keeps_factors", "pred")

    def keep(self, values: Sequence[Reg], load: int, pred: Reg) -> None:
        b, distances = self.b, (1, 2, 4)[: (self.block // OWN).bit_length() - 1]
        b.op("abs.f32", self.largest, values[0])
        for value in values[1:]:
            b.op("abs.f32", self.size, value)
            b.op("max.f32", self.largest, self.largest, self.size)
        over_lanes(b, "max.f32", self.largest, distances)
        if self.sums:
            self._add(values, distances)
        b.note(f"a power of two takes the largest to 2^{UP} at least")
        b.op("mov.b32", self.bits, self.largest)
        b.op("shr.u32", self.bits, self.bits, 23)
        b.op("max.u32", self.bits, self.bits, UP + 2)
        b.op("sub.u32", self.bits, self.bits, UP)
        self._power(self.down)
        b.op("sub.u32", self.bits, 2 * BIAS, self.bits)
        self._power(self.up)
        for value in values:
            b.op("mul.f32", value, value, self.up)
        a = (0, 2, 1, 3) if self.kind.evens else (0, 1, 2, 3)
        ordered = [values[i] for i in a]
        upper, lower = self.words[:2], self.words[2:]
        convert.pack(b, upper, ordered, f16)
        convert.unpack(b, self.back.regs, upper, f16)
        for value, less in zip(ordered, self.back, strict=True):
            b.op("sub.f32", value, value, less)
        convert.pack(b, lower, ordered, f16)
        at = load * 4 * OWN * self.threads
        for i, digit in enumerate((upper, lower)):
            convert.store_words(b, self.to, digit, at + 2 * self.block * i, space="shared", pred=pred)
        b.op("and.pred", self.keeps, pred, self.is_first)
        at = load * self.factor_bytes * OWN * self.threads // self.block
        kept = (self.down, self.total) if self.sums else (self.down,)
        convert.store_words(b, self.factors_to, kept, at, space="shared", pred=self.keeps)

    def _add(self, values: Sequence[Reg], distances: Sequence[int]) -> None:
        """The sum of the block, times what the format wants."""
        b = self.b
        b.op("add.f32", self.total, values[0], values[1])
        b.op("add.f32", self.size, values[2], values[3])
        b.op("add.f32", self.total, self.total, self.size)
        over_lanes(b, "add.f32", self.total, distances)
        b.op("mul.f32", self.total, self.total, self.kind.x_sum_factor)

    def _power(self, out: Reg) -> None:
        """2 to the power of `bits`, which are biased."""
        bits = convert.scratch(self.b, "power_bits", "u32")
        self.b.op("shl.b32", bits, self.bits, 23)
        self.b.op("mov.b32", out, bits)

    def next(self, loads: int) -> None:
        b = self.b
        b.op("add.u32", self.to, self.to, loads * 4 * OWN * self.threads)
        step = loads * self.factor_bytes * OWN * self.threads // self.block
        b.op("add.u32", self.factors_to, self.factors_to, step)
