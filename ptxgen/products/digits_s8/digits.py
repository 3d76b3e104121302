"""Rows of x into units of bytes: a thread has 16 columns of a row, four of each chunk of 64 columns."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import over_lanes
from ptxgen.products.digits_s8 import layout
from ptxgen.products.tokens.digits import BIAS, MAGIC_BITS, transpose

CHUNKS = 4  # of a thread, whose columns are four of each
OWN = 4 * CHUNKS
LANES = layout.UNIT // OWN  # of a unit
QUAD = (1, 2)  # distances of the lanes that share chunks
OFFSET = 0x808080  # makes digits of a byte unsigned


class UnitDigits:
    """What becomes of the 16 values of a thread: `keep`."""

    unit_bytes = layout.UNIT_BYTES

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.largest, self.size = b.reg("unit_largest", "f32"), b.reg("one_size", "f32")
        self.bits = b.reg("largest_bits", "u32")
        self.up, self.down = b.reg("unit_up", "f32"), b.reg("unit_down", "f32")
        self.whole, self.pairs = b.array("whole", "b32", 4), b.array("digit_pairs", "b32", 2)
        self.planes = b.array("staged_digit", "b32", layout.DIGITS * CHUNKS)
        self.counts, self.count = b.array("chunk_count", "s32", CHUNKS), b.reg("digit_count", "s32")

    def begin(self, pair: Reg, quad: Reg, token: Reg, unit: Reg) -> None:
        """Where the parts of the thread's columns go, those of 64 columns `pair` of a unit at `unit`."""
        b = self.b
        lane = b.op("mad.lo.u32", "unit_lane", token, 4, quad)
        place = b.op("mul.lo.u32", "digits_place", pair, layout.PAIR_BYTES)
        b.op("mad.lo.u32", place, lane, 16, place)
        self.digits_to = b.op("mad.wide.u32", "digits_to", place, 1, unit)
        sums = b.op("mul.lo.u32", "sums_place", lane, 8)
        b.op("mad.lo.u32", sums, b.op("and.b32", "pair_parity", pair, 1), 4, sums)
        b.op("mad.lo.u32", sums, b.op("shr.u32", "pair_half", pair, 1), 2, sums)
        self.sums_to = b.op("mad.wide.u32", "sums_to", sums, 1, unit)
        self.quad = quad
        self.factor_to = b.op("mad.wide.u32", "factor_to", token, 4, unit)
        first = b.op("or.b32", "place_in_unit", pair, quad)
        self.has_factor = b.op("setp.eq.u32", "has_factor", first, 0)

    def keep(self, values: Sequence[Reg]) -> None:
        """The digits of the thread's values, the sums of its chunks, the unit's factor. All lanes of whole units."""
        b = self.b
        self._scale(values)
        b.note("integers in the low bits of 2^23 + 2^22, then digits of a byte, 128 more each")
        for chunk in range(CHUNKS):
            for value, whole in zip(values[4 * chunk : 4 * chunk + 4], self.whole, strict=True):
                b.op("fma.rn.f32", value, value, self.up, convert.ROUNDS)
                b.op("mov.b32", whole, value)
                b.op("add.u32", whole, whole, OFFSET - MAGIC_BITS)
            planes = [self.planes[CHUNKS * digit + chunk] for digit in range(layout.DIGITS)]
            transpose(b, self.whole, self.pairs, planes)
            total = self.counts[chunk]
            for digit, plane in enumerate(planes):
                if digit:
                    b.op("dp4a.s32.s32", self.count, plane, 0x01010101, 0)
                    b.op("mad.lo.s32", total, total, 256, self.count)
                else:
                    b.op("dp4a.s32.s32", total, plane, 0x01010101, 0)
        for digit in range(layout.DIGITS):
            own = self.planes[CHUNKS * digit : CHUNKS * (digit + 1)]
            convert.store_words(b, self.digits_to, own, 512 * digit)
        over_lanes(b, "add.s32", self.counts.regs, QUAD)
        b.op("st.global.f32", self.factor_to[layout.FACTORS_AT], self.down, pred=self.has_factor)
        self._keep_sum()

    def _scale(self, values: Sequence[Reg]) -> None:
        """The power of two that makes the unit's largest an integer of 22 bits, and its inverse."""
        b = self.b
        b.op("abs.f32", self.largest, values[0])
        for value in values[1:]:
            b.op("abs.f32", self.size, value)
            b.op("max.NaN.f32", self.largest, self.largest, self.size)
        over_lanes(b, "max.NaN.f32", self.largest, (8, 4, 2, 1))
        b.note("a power of two takes the largest to 2^21 at least, and below 2^22 even when it is rounded")
        b.op("mov.b32", self.bits, self.largest)
        b.op("add.u32", self.bits, self.bits, 2)
        b.op("shr.u32", self.bits, self.bits, 23)
        b.op("max.u32", self.bits, self.bits, layout.BITS + 1)
        b.op("sub.u32", self.bits, self.bits, layout.BITS - 1)
        power = b.op("shl.b32", "power_bits", self.bits, 23)
        b.op("mov.b32", self.down, power)
        b.op("sub.u32", self.bits, 2 * BIAS, self.bits)
        b.op("shl.b32", power, self.bits, 23)
        b.op("mov.b32", self.up, power)
        b.op("fma.rn.f32", self.down, self.largest, 0.0, self.down, note="a NaN where x is not finite")

    def _keep_sum(self) -> None:
        """The sum of x over the lane's chunk, as three bf16 digits: lane t of a quad has that of chunk t."""
        b = self.b
        own, mine = self.counts[0], b.reg("is_own_chunk", "pred")
        for chunk in range(1, CHUNKS):
            b.op("setp.eq.u32", mine, self.quad, chunk)
            b.op("selp.b32", own, self.counts[chunk], own, mine)
        total, back = b.op("cvt.rn.f32.s32", "chunk_sum", own), b.reg("sum_back", "f32")
        b.op("mul.f32", total, total, self.down)
        digit, bits = b.reg("sum_digit", "b32"), b.reg("sum_bits", "b32")
        for index in range(layout.DIGITS):
            b.op("cvt.rn.bf16x2.f32", digit, total, total)
            b.op("st.global.b16", self.sums_to[layout.SUMS_AT + layout.SUM_BYTES * index], digit)
            if index + 1 < layout.DIGITS:
                b.op("shl.b32", bits, digit, 16)
                b.op("mov.b32", back, bits)
                b.op("sub.f32", total, total, back)
