"""x in shared memory as tensor cores want it for one token, its digits on columns of N.

`Thirds`: three bf16 digits that add up to f32, `[chunk, digit, lane t, 4]`. `Blocks`: of every block of 16 or 32
columns two f16 digits of x times a power of two, `[block, digit, lane t, chunk of the block, 4]`, and beside them that
power's inverse. Two digits have 22 bits of the largest of a block. `Integers`: of such blocks three
digits of s8 that add up to an integer of 23 bits, `[128 columns, parity of the block, digit, lane t, 16 bytes]`, and
beside them `[128 columns, lane t]` factors and sums.
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
FACTOR_BYTES = 4  # of a block of f16 digits
INTEGER_BITS = 22  # the largest of a block becomes an integer of so many bits, and a sign
MAGIC = 12582912.0  # 2^23 + 2^22: an integer below 2^22, added to it, is in its low bits
MAGIC_BITS = 0x4B400000
UNIT = 128  # columns whose integers a lane reads together
UNIT_BYTES = 3 * UNIT
QUAD = 4  # lanes


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
        self.b, self.kind, self.threads, self.padded_k = b, kind, threads, padded_k
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
        self.block = kind.x_block
        self.factors_at = 4 * padded_k  # from the beginning

    @staticmethod
    def bytes_of(kind: WeightFormat, padded_k: int) -> int:
        return 4 * padded_k + padded_k // kind.x_block * FACTOR_BYTES

    def begin(self, thread: Reg) -> None:
        b, block, owners = self.b, self.block, self.block // OWN
        index, place = split(b, "stage_block", "stage_place", thread, owners)
        self.to = b.op("mov.u32", "stage_to", self.vector)
        self.factors_to = b.op("add.u32", "factors_to", self.to, self.factors_at)
        b.op("mad.lo.u32", self.factors_to, index, FACTOR_BYTES, self.factors_to)
        b.op("mad.lo.u32", self.to, index, 4 * block, self.to)
        chunk, quad = split(b, "stage_chunk", "stage_quad", place, CHUNK // OWN)
        b.op("mad.lo.u32", self.to, quad, 8 * block // CHUNK, self.to)
        if block > CHUNK:
            b.op("mad.lo.u32", self.to, chunk, 8, self.to)
        self.is_first = b.op("setp.eq.u32", "is_first_of_block", place, 0)
        self.largest = b.reg("block_largest", "f32")
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
        b.note(f"a power of two takes the largest to 2^{UP} at least")
        b.op("mov.b32", self.bits, self.largest)
        b.op("shr.u32", self.bits, self.bits, 23)
        b.op("max.u32", self.bits, self.bits, UP + 2)
        b.op("sub.u32", self.bits, self.bits, UP)
        power_of_two(b, self.down, self.bits)
        b.op("sub.u32", self.bits, 2 * BIAS, self.bits)
        power_of_two(b, self.up, self.bits)
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
        at = load * FACTOR_BYTES * OWN * self.threads // self.block
        b.op("st.shared.f32", self.factors_to[at], self.down, pred=self.keeps)

    def next(self, loads: int) -> None:
        b = self.b
        b.op("add.u32", self.to, self.to, loads * 4 * OWN * self.threads)
        step = loads * FACTOR_BYTES * OWN * self.threads // self.block
        b.op("add.u32", self.factors_to, self.factors_to, step)


class Integers(Digits):
    """See the module."""

    @staticmethod
    def bytes_of(kind: WeightFormat, padded_k: int) -> int:
        return padded_k // UNIT * (UNIT_BYTES + QUAD * factor_bytes(kind))

    def begin(self, thread: Reg) -> None:
        b, kind, block = self.b, self.kind, self.kind.x_block
        self.factors_at = self.padded_k // UNIT * UNIT_BYTES
        self.factor_bytes = factor_bytes(kind)
        unit, column = split(b, "stage_unit", "stage_place", thread, UNIT // OWN)
        self.to = b.op("mov.u32", "stage_to", self.vector)
        self.factors_to = b.op("add.u32", "factors_to", self.to, self.factors_at)
        b.op("mad.lo.u32", self.to, unit, UNIT_BYTES, self.to)
        b.op("mad.lo.u32", self.factors_to, unit, QUAD * self.factor_bytes, self.factors_to)
        index, place = split(b, "block_of_unit", "place_in_block", column, block // OWN)
        group, parity = split(b, "group_of_unit", "block_parity", index, 2)
        chunk, quad = split(b, "stage_chunk", "stage_quad", place, CHUNK // OWN)
        b.op("mad.lo.u32", self.to, parity, UNIT_BYTES // 2, self.to)
        b.op("mad.lo.u32", self.to, quad, 16, self.to)
        b.op("mad.lo.u32", self.to, group, 4 * block // CHUNK, self.to)
        if block > CHUNK:
            b.op("mad.lo.u32", self.to, chunk, 4, self.to)
        b.op("mad.lo.u32", self.factors_to, parity, 2 * self.factor_bytes, self.factors_to)
        if kind.x_sum_factor and not kind.x_sums_each:
            self.sums_to = b.op("mad.lo.u32", "sums_to", group, self.factor_bytes, self.factors_to)
        b.op("mad.lo.u32", self.factors_to, group, 4, self.factors_to)
        self.is_first = b.op("setp.eq.u32", "is_first_of_block", place, 0)
        self.largest, self.total = b.reg("block_largest", "f32"), b.reg("block_sum", "f32")
        self.size, self.bits = b.reg("one_size", "f32"), b.reg("largest_bits", "u32")
        self.up, self.down = b.reg("block_up", "f32"), b.reg("block_down", "f32")
        self.whole = b.array("whole", "b32", 4)
        self.pairs, self.plane = b.array("digit_pairs", "b32", 2), b.reg("staged_digit", "b32")
        self.keeps = b.reg("keeps_factors", "pred")

    def keep(self, values: Sequence[Reg], load: int, pred: Reg) -> None:
        b, kind, block = self.b, self.kind, self.kind.x_block
        distances = (1, 2, 4)[: (block // OWN).bit_length() - 1]
        units = load * OWN * self.threads // UNIT
        b.op("abs.f32", self.largest, values[0])
        for value in values[1:]:
            b.op("abs.f32", self.size, value)
            b.op("max.NaN.f32", self.largest, self.largest, self.size)
        over_lanes(b, "max.NaN.f32", self.largest, distances)
        b.note(f"a power of two takes the largest to 2^{INTEGER_BITS - 1} at least, and below the next")
        b.op("mov.b32", self.bits, self.largest)
        b.op("shr.u32", self.bits, self.bits, 23)
        b.op("max.u32", self.bits, self.bits, INTEGER_BITS + 8)
        b.op("sub.u32", self.bits, self.bits, INTEGER_BITS - 1)
        power_of_two(b, self.down, self.bits)
        b.op("fma.rn.f32", self.down, self.largest, 0.0, self.down, note="a NaN where x is not finite")
        b.op("sub.u32", self.bits, 2 * BIAS, self.bits)
        power_of_two(b, self.up, self.bits)
        b.note("integers in the low bits of 2^23 + 2^22, then digits of a byte, 128 more each")
        for value, whole in zip(values, self.whole, strict=True):
            b.op("fma.rn.f32", value, value, self.up, MAGIC)
            b.op("mov.b32", whole, value)
            b.op("add.u32", whole, whole, 0x808080 - MAGIC_BITS)
        if kind.x_sum_factor:
            self._add(values, distances)
        self._planes(units * UNIT_BYTES, pred)
        b.op("and.pred", self.keeps, pred, self.is_first)
        at = units * QUAD * self.factor_bytes
        for lane, factor in enumerate((256.0, 1 / 256)):
            scaled = b.op("mul.f32", self.size, self.down, factor)
            b.op("st.shared.f32", self.factors_to[at + lane * self.factor_bytes], scaled, pred=self.keeps)
        if kind.x_sum_factor and kind.x_sums_each:
            groups = UNIT // block // 2
            for lane, total in enumerate((self.total, 0.0)):
                to = at + lane * self.factor_bytes + 4 * groups
                b.op("st.shared.f32", self.factors_to[to], total, pred=self.keeps)
        elif kind.x_sum_factor:
            b.op("st.shared.f32", self.sums_to[at + 8], self.total, pred=self.keeps)

    def _add(self, values: Sequence[Reg], distances: Sequence[int]) -> None:
        """The sum of the block as the digits have it, times what the format wants."""
        b, total = self.b, self.total
        for value in values:
            b.op("sub.f32", value, value, MAGIC)
        b.op("add.f32", total, values[0], values[1])
        b.op("add.f32", self.size, values[2], values[3])
        b.op("add.f32", total, total, self.size)
        over_lanes(b, "add.f32", total, distances)
        b.op("mul.f32", total, total, self.down)
        b.op("mul.f32", total, total, self.kind.x_sum_factor)

    def _planes(self, at: int, pred: Reg) -> None:
        """The digits of the four columns, the largest first."""
        b, (first, second, third, fourth) = self.b, self.whole
        for selector, planes in ((0x0062, ((0, 0x5410),)), (0x5140, ((1, 0x7632), (2, 0x5410)))):
            for pair, low, high in ((self.pairs[0], first, second), (self.pairs[1], third, fourth)):
                b.op("prmt.b32", pair, low, high, selector)
            for digit, order in planes:
                b.op("prmt.b32", self.plane, self.pairs[0], self.pairs[1], order)
                b.op("xor.b32", self.plane, self.plane, 0x80808080)
                b.op("st.shared.b32", self.to[at + QUAD * 16 * digit], self.plane, pred=pred)

    def next(self, loads: int) -> None:
        b, units = self.b, loads * OWN * self.threads // UNIT
        b.op("add.u32", self.to, self.to, units * UNIT_BYTES)
        step = units * QUAD * self.factor_bytes
        b.op("add.u32", self.factors_to, self.factors_to, step)
        if self.kind.x_sum_factor and not self.kind.x_sums_each:
            b.op("add.u32", self.sums_to, self.sums_to, step)


def factor_bytes(kind: WeightFormat) -> int:
    """What a lane of a quad reads for 128 columns beside the digits: factors of its blocks of x, and sums."""
    groups = UNIT // kind.x_block // 2
    if not kind.x_sum_factor:
        return 4 * groups
    return 4 * 2 * groups if kind.x_sums_each else 4 * 4


def power_of_two(b: Builder, out: Reg, exponent: Reg) -> None:
    """2 to the power of a biased exponent."""
    bits = convert.scratch(b, "power_bits", "u32")
    b.op("shl.b32", bits, exponent, 23)
    b.op("mov.b32", out, bits)
