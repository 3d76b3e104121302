"""x in shared memory as tensor cores want it for one token, its digits on columns of N.

`Thirds`: three bf16 digits that add up to f32, `[chunk, digit, lane t, 4]`. `Blocks`: of every block of 16 or 32
columns two f16 digits of x times a power of two, `[block, digit, lane t, chunk of the block, 4]`, and beside them that
power's inverse. Two digits have 22 bits of the largest of a block. `Integers`: of such blocks three
digits of s8 that add up to an integer of 23 bits, `[128 columns, parity of the block, digit, lane t, 16 bytes]`, and
beside them `[128 columns, lane t]` factors and sums; of tiles of 64 columns, `[64 columns, …, 8 bytes]`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.dtypes import f16
from ptxgen.idioms import convert
from ptxgen.idioms.division import split
from ptxgen.idioms.reduce import over_lanes
from ptxgen.weights.format import CHUNK, OWN

if TYPE_CHECKING:
    from ptxgen.weights.format import WeightFormat

DIGITS = 3  # of bf16
DIGIT_BYTES = 4 * 2 * OWN  # of a digit of a chunk in shared memory
UP = 14  # the largest of a block becomes at least 2^14
BIAS = 127
FACTOR_BYTES = 4  # of a block of f16 digits
INTEGER_BITS = 22  # the largest of a block becomes an integer of so many bits, and a sign
MAGIC_BITS = 0x4B400000
UNIT = 128  # columns whose integers a lane reads together, at most
QUAD = 4  # lanes


class Digits(ABC):
    """Where a thread puts its columns of x: four for each of `pieces`, which is how far from its first they begin."""

    pieces: Sequence[int] = (0,)

    def __init__(self, b: Builder, kind: WeightFormat, padded_k: int, threads: int) -> None:
        self.b, self.kind, self.threads, self.padded_k = b, kind, threads, padded_k
        self.vector: Shared = b.shared("vector", self.bytes_of(kind, padded_k), dynamic=True)

    @property
    def columns(self) -> int:
        """Columns that a thread takes at a time."""
        return OWN * len(self.pieces)

    @staticmethod
    @abstractmethod
    def bytes_of(kind: WeightFormat, padded_k: int) -> int:
        """Bytes of all columns."""

    @abstractmethod
    def begin(self, group: Reg, quad: Reg) -> None:
        """Where the first columns of a thread go, which is thread `quad` of four that have the same columns."""

    @abstractmethod
    def keep(self, values: Sequence[Reg], load: int, pred: Reg) -> None:
        """The thread's columns, of its load of that number in a pass; `pred`: there are such columns. All threads."""

    @abstractmethod
    def next(self, loads: int) -> None:
        """So many loads of all threads on."""


class Thirds(Digits):
    """Three bf16 digits that add up to f32."""

    @staticmethod
    def bytes_of(kind: WeightFormat, padded_k: int) -> int:
        return 2 * DIGITS * padded_k

    def begin(self, group: Reg, quad: Reg) -> None:
        b = self.b
        self.to = b.op("mov.u32", "stage_to", self.vector)
        b.op("mad.lo.u32", self.to, group, DIGITS * DIGIT_BYTES, self.to)
        b.op("mad.lo.u32", self.to, quad, 2 * OWN, self.to)
        self.stride = DIGITS * DIGIT_BYTES * self.threads // OWN
        self.split = b.array("staged_digit", "b32", 2 * DIGITS)

    def keep(self, values: Sequence[Reg], load: int, pred: Reg) -> None:
        digits = [self.split[2 * i : 2 * i + 2] for i in range(DIGITS)]
        convert.split_digits(self.b, values, digits)
        for i, digit in enumerate(digits):
            offset = load * self.stride + DIGIT_BYTES * i
            convert.store_words(self.b, self.to, digit, offset, space="shared", pred=pred)

    def next(self, loads: int) -> None:
        self.b.op("add.u32", self.to, self.to, loads * self.stride)


class InBlocks(Digits):
    """Digits of blocks with a power of two. A long x has both chunks of a block in one thread, which is less work; a
    short one in two, which takes less time."""

    def __init__(self, b: Builder, kind: WeightFormat, padded_k: int, threads: int) -> None:
        self.block = kind.x_block
        both = self.block > CHUNK and padded_k > 2 * OWN * threads
        self.pieces = (0, CHUNK) if both else (0,)
        self.apart = self.block > CHUNK and not both  # chunks of a block
        self.distances = (1, 2, 4) if self.apart else (1, 2)  # between the lanes of a block
        super().__init__(b, kind, padded_k, threads)

    def _locate(self, group: Reg, quad: Reg) -> tuple[Reg, Reg | None]:
        """The block of a thread, and its chunk where chunks are apart."""
        b = self.b
        self.is_first = b.op("setp.eq.u32", "is_first_of_block", quad, 0)
        if not self.apart:
            return group, None
        block, chunk = split(b, "stage_block", "stage_chunk", group, 2)
        b.op("setp.eq.and.u32", self.is_first, chunk, 0, self.is_first)
        return block, chunk

    def _declare(self) -> None:
        b = self.b
        self.largest, self.size = b.reg("block_largest", "f32"), b.reg("one_size", "f32")
        self.bits = b.reg("largest_bits", "u32")
        self.up, self.down = b.reg("block_up", "f32"), b.reg("block_down", "f32")
        self.keeps = b.reg("keeps_factors", "pred")

    def _scale(self, values: Sequence[Reg], least: int, most: str = "max") -> None:
        """`up`, the power of two that takes the block's largest to 2^least at least, and `down`, its inverse."""
        b = self.b
        b.op("abs.f32", self.largest, values[0])
        for value in values[1:]:
            b.op("abs.f32", self.size, value)
            b.op(f"{most}.f32", self.largest, self.largest, self.size)
        over_lanes(b, f"{most}.f32", self.largest, self.distances)
        b.note(f"a power of two takes the largest to 2^{least} at least")
        b.op("mov.b32", self.bits, self.largest)
        b.op("shr.u32", self.bits, self.bits, 23)
        b.op("max.u32", self.bits, self.bits, least + 2)
        b.op("sub.u32", self.bits, self.bits, least)
        self._power(self.down)
        b.op("sub.u32", self.bits, 2 * BIAS, self.bits)
        self._power(self.up)

    def _power(self, out: Reg) -> None:
        """2 to the power of `bits`, which are biased."""
        bits = convert.scratch(self.b, "power_bits", "u32")
        self.b.op("shl.b32", bits, self.bits, 23)
        self.b.op("mov.b32", out, bits)


class Blocks(InBlocks):
    """Two f16 digits of x times a power of two of each block."""

    @staticmethod
    def bytes_of(kind: WeightFormat, padded_k: int) -> int:
        return 4 * padded_k + padded_k // kind.x_block * FACTOR_BYTES

    def begin(self, group: Reg, quad: Reg) -> None:
        b = self.b
        group, chunk = self._locate(group, quad)
        self.factors_at = 4 * self.padded_k  # from the beginning
        self.to = b.op("mov.u32", "stage_to", self.vector)
        self.factors_to = b.op("add.u32", "factors_to", self.to, self.factors_at)
        b.op("mad.lo.u32", self.factors_to, group, FACTOR_BYTES, self.factors_to)
        b.op("mad.lo.u32", self.to, group, 4 * self.block, self.to)
        b.op("mad.lo.u32", self.to, quad, self.block // 2, self.to)
        if chunk is not None:
            b.op("mad.lo.u32", self.to, chunk, 2 * OWN, self.to)
        self._declare()
        self.words = b.array("staged_digit", "b32", self.columns)
        self.back = b.array("digit_back", "f32", OWN)

    def keep(self, values: Sequence[Reg], load: int, pred: Reg) -> None:
        b, half = self.b, self.columns // 2
        self._scale(values, UP)
        for piece in range(len(self.pieces)):
            own = values[OWN * piece : OWN * (piece + 1)]
            upper, lower = (self.words[half * i + 2 * piece : half * i + 2 * piece + 2] for i in (0, 1))
            for value in own:
                b.op("mul.f32", value, value, self.up)
            convert.pack(b, upper, own, f16)
            convert.unpack(b, self.back.regs, upper, f16)
            for value, less in zip(own, self.back, strict=True):
                b.op("sub.f32", value, value, less)
            convert.pack(b, lower, own, f16)
        at = load * 4 * self.columns * self.threads
        for i in (0, 1):
            digit = self.words[half * i : half * (i + 1)]
            convert.store_words(b, self.to, digit, at + 2 * self.block * i, space="shared", pred=pred)
        b.op("and.pred", self.keeps, pred, self.is_first)
        b.op("st.shared.f32", self.factors_to[load * self._factors], self.down, pred=self.keeps)

    def next(self, loads: int) -> None:
        b = self.b
        b.op("add.u32", self.to, self.to, loads * 4 * self.columns * self.threads)
        b.op("add.u32", self.factors_to, self.factors_to, loads * self._factors)

    @property
    def _factors(self) -> int:
        """Bytes of factors of a load of all threads."""
        return FACTOR_BYTES * self.columns * self.threads // self.block


class Integers(InBlocks):
    """Three digits of s8 that add up to an integer of 23 bits, with factors and sums of each block."""

    @staticmethod
    def bytes_of(kind: WeightFormat, padded_k: int) -> int:
        unit = unit_of(kind)
        return padded_k // unit * (DIGITS * unit + QUAD * factor_bytes(kind))

    def begin(self, group: Reg, quad: Reg) -> None:
        b, kind = self.b, self.kind
        self.unit = unit_of(kind)
        self.unit_bytes, lane_bytes = DIGITS * self.unit, self.unit // 2 // QUAD
        self.digit_bytes = QUAD * lane_bytes
        self.factors_at = self.padded_k // self.unit * self.unit_bytes
        self.factor_bytes = factor_bytes(kind)
        group, chunk = self._locate(group, quad)
        unit, index = split(b, "stage_unit", "block_of_unit", group, self.unit // self.block)
        pair, parity = split(b, "pair_of_unit", "block_parity", index, 2)
        self.to = b.op("mov.u32", "stage_to", self.vector)
        self.factors_to = b.op("add.u32", "factors_to", self.to, self.factors_at)
        b.op("mad.lo.u32", self.to, unit, self.unit_bytes, self.to)
        b.op("mad.lo.u32", self.to, parity, self.unit_bytes // 2, self.to)
        b.op("mad.lo.u32", self.to, quad, lane_bytes, self.to)
        b.op("mad.lo.u32", self.to, pair, 4 * self.block // CHUNK, self.to)
        if chunk is not None:
            b.op("mad.lo.u32", self.to, chunk, 4, self.to)
        b.op("mad.lo.u32", self.factors_to, unit, QUAD * self.factor_bytes, self.factors_to)
        b.op("mad.lo.u32", self.factors_to, parity, 2 * self.factor_bytes, self.factors_to)
        if self._half_of_sums:
            self.sums_to = b.op("mad.lo.u32", "sums_to", pair, self.factor_bytes, self.factors_to)
        b.op("mad.lo.u32", self.factors_to, pair, 4, self.factors_to)
        self._declare()
        self.whole = b.array("whole", "b32", OWN)
        self.pairs, self.planes = b.array("digit_pairs", "b32", 2), b.array("staged_digit", "b32", 3 * len(self.pieces))
        if kind.x_sum_factor:
            self.counts, self.total = b.array("digit_count", "s32", 3), b.reg("block_sum", "f32")

    @property
    def _half_of_sums(self) -> bool:
        return bool(self.kind.x_sum_factor) and not self.kind.x_sums_each

    def keep(self, values: Sequence[Reg], load: int, pred: Reg) -> None:
        b, kind, pieces = self.b, self.kind, len(self.pieces)
        units = load * self.columns * self.threads // self.unit
        self._scale(values, INTEGER_BITS - 1, "max.NaN")
        b.op("fma.rn.f32", self.down, self.largest, 0.0, self.down, note="a NaN where x is not finite")
        b.note("integers in the low bits of 2^23 + 2^22, then digits of a byte, 128 more each")
        for piece in range(pieces):
            for value, whole in zip(values[OWN * piece : OWN * (piece + 1)], self.whole, strict=True):
                b.op("fma.rn.f32", value, value, self.up, convert.ROUNDS)
                b.op("mov.b32", whole, value)
                b.op("add.u32", whole, whole, 0x808080 - MAGIC_BITS)
            transpose(b, self.whole, self.pairs, [self.planes[pieces * digit + piece] for digit in range(3)])
        if kind.x_sum_factor:
            self._add()
        for digit in range(3):
            plane = self.planes[pieces * digit : pieces * (digit + 1)]
            at = units * self.unit_bytes + self.digit_bytes * digit
            convert.store_words(b, self.to, plane, at, space="shared", pred=pred)
        b.op("and.pred", self.keeps, pred, self.is_first)
        at = units * QUAD * self.factor_bytes
        for lane, factor in enumerate((256.0, 1 / 256)):
            scaled = b.op("mul.f32", self.size, self.down, factor)
            b.op("st.shared.f32", self.factors_to[at + lane * self.factor_bytes], scaled, pred=self.keeps)
        if self._half_of_sums:
            b.op("st.shared.f32", self.sums_to[at + 8], self.total, pred=self.keeps)
        elif kind.x_sum_factor:
            for lane, total in enumerate((self.total, 0.0)):
                to = at + lane * self.factor_bytes + 4 * (self.unit // self.block // 2)
                b.op("st.shared.f32", self.factors_to[to], total, pred=self.keeps)

    def _add(self) -> None:
        """The sum of the block as the digits have it, times what the format wants."""
        b, pieces = self.b, len(self.pieces)
        for digit, count in enumerate(self.counts):
            for piece, plane in enumerate(self.planes[pieces * digit : pieces * (digit + 1)]):
                b.op("dp4a.s32.s32", count, plane, 0x01010101, count if piece else 0)
        total, lower, least = self.counts
        b.op("mad.lo.s32", total, total, 256, lower)
        b.op("mad.lo.s32", total, total, 256, least)
        over_lanes(b, "add.s32", total, self.distances)
        b.op("cvt.rn.f32.s32", self.total, total)
        b.op("mul.f32", self.total, self.total, self.down)
        b.op("mul.f32", self.total, self.total, self.kind.x_sum_factor)

    def next(self, loads: int) -> None:
        b, units = self.b, loads * self.columns * self.threads // self.unit
        b.op("add.u32", self.to, self.to, units * self.unit_bytes)
        step = units * QUAD * self.factor_bytes
        b.op("add.u32", self.factors_to, self.factors_to, step)
        if self._half_of_sums:
            b.op("add.u32", self.sums_to, self.sums_to, step)


def digits_of(kind: WeightFormat) -> type[Digits]:
    """How x is prepared for a format."""
    if kind.name == "bf16":
        return Thirds
    return Integers if kind.byte_type else Blocks


def transpose(b: Builder, whole: Sequence[Reg], pairs: Sequence[Reg], planes: Sequence[Reg]) -> None:
    """The digits of four integers, 128 more each, as signed bytes, the largest first; `pairs`: two registers."""
    first, second, third, fourth = whole
    for selector, wanted in ((0x0062, ((0, 0x5410),)), (0x5140, ((1, 0x7632), (2, 0x5410)))):
        for pair, low, high in ((pairs[0], first, second), (pairs[1], third, fourth)):
            b.op("prmt.b32", pair, low, high, selector)
        for digit, order in wanted:
            b.op("prmt.b32", planes[digit], pairs[0], pairs[1], order)
            b.op("xor.b32", planes[digit], planes[digit], 0x80808080)


def unit_of(kind: WeightFormat) -> int:
    """Columns whose integers a lane reads together."""
    return min(UNIT, kind.tile_k)


def factor_bytes(kind: WeightFormat) -> int:
    """What a lane of a quad reads for a unit beside the digits: factors of its blocks of x, and sums."""
    groups = unit_of(kind) // kind.x_block // 2
    if not kind.x_sum_factor:
        return 4 * groups
    return 4 * 2 * groups if kind.x_sums_each else 4 * 4
