"""Values into units of bf16 digits: 16 columns of a row a thread, four of each chunk, or four columns of a head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import bf16
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import over_lanes
from ptxgen.products.digits_bf16 import layout
from ptxgen.products.digits_s8 import layout as s8_layout
from ptxgen.products.digits_s8.digits import QUAD
from ptxgen.products.digits_s8.layout import TOKENS
from ptxgen.products.tokens.attention_output import Elements
from ptxgen.weights.format import CHUNK, OWN

if TYPE_CHECKING:
    from ptxgen.attention.decode.contract import Task
    from ptxgen.attention.decode.place import Place


class HalfDigits:
    """What becomes of the 16 values of a thread: `keep`; units of 256 columns are four of `layout`, or with `sums`
    one."""

    def __init__(self, b: Builder, digits: int, *, sums: bool = False) -> None:
        self.b, self.digits, self.sums = b, digits, sums
        units = s8_layout.UNIT // layout.columns(sums=sums)
        self.unit_bytes = units * layout.unit_bytes(digits, sums=sums)
        self.split = b.array("staged_digit", "b32", 4 * digits)

    def begin(self, pair: Reg, quad: Reg, token: Reg, unit: Reg) -> None:
        """Where the parts of the thread's columns go, those of 64 columns `pair` of a unit at `unit`."""
        b = self.b
        lane = b.op("mad.lo.u32", "unit_lane", token, 4, quad)
        place = b.op("mul.lo.u32", "digits_place", pair, layout.unit_bytes(self.digits))
        b.op("mad.lo.u32", place, lane, layout.LANE_BYTES, place)
        self.to = b.op("mad.wide.u32", "digits_to", place, 1, unit)
        if self.sums:
            self.quad = quad
            sums = b.op("mul.lo.u32", "sums_place", lane, layout.SUM_BYTES // TOKENS // OWN)
            part = b.op("and.b32", "pair_parity", pair, 1)
            b.op("mad.lo.u32", sums, part, 4, sums)
            b.op("mad.lo.u32", sums, b.op("shr.u32", "pair_half", pair, 1), 2, sums)
            self.sums_to = b.op("mad.wide.u32", "sums_to", sums, 1, unit)
            self.totals = b.array("chunk_total", "f32", layout.UNIT // CHUNK)

    def keep(self, values: Sequence[Reg]) -> None:
        """The digits of the thread's values, and the sums of its chunks. All lanes of whole units."""
        if self.sums:
            self._keep_sums(values)
        for pair in range(layout.UNIT // layout.PAIR):
            for half in (0, 1):
                first = OWN * (2 * pair + half)
                digits = [self.split[4 * i + 2 * half : 4 * i + 2 * half + 2] for i in range(self.digits)]
                convert.split_digits(self.b, values[first : first + OWN], digits)
            for i in range(self.digits):
                place = (self.digits * pair + i) * layout.DIGIT_BYTES
                convert.store_words(self.b, self.to, self.split[4 * i : 4 * i + 4], place)

    def _keep_sums(self, values: Sequence[Reg]) -> None:
        """Lane t of a quad has the sum of chunk t."""
        b = self.b
        for chunk, total in enumerate(self.totals):
            b.op("mov.f32", total, add_digits(b, values[OWN * chunk : OWN * (chunk + 1)], self.digits))
        over_lanes(b, "add.f32", self.totals.regs, QUAD)
        total, mine = self.totals[0], b.reg("is_own_chunk", "pred")
        for chunk in range(1, len(self.totals)):
            b.op("setp.eq.u32", mine, self.quad, chunk)
            b.op("selp.f32", total, self.totals[chunk], total, mine)
        store_sum(b, self.sums_to, self.digits, total)


def add_digits(b: Builder, values: Sequence[Reg], digits: int) -> Reg:
    """The sum of four values as so many digits have them."""
    if digits == 1:
        words = convert.scratch_array(b, "rounded_word", "b32", 2).regs
        convert.pack(b, words, values, bf16)
        values = convert.scratch_array(b, "rounded", "f32", OWN).regs
        convert.unpack(b, values, words, bf16)
    total, other = convert.scratch(b, "sum_of_two", "f32"), convert.scratch(b, "sum_of_others", "f32")
    b.op("add.f32", total, values[0], values[1])
    b.op("add.f32", other, values[2], values[3])
    b.op("add.f32", total, total, other)
    return total


def store_sum(b: Builder, at: Reg, digits: int, total: Reg, pred: Reg | None = None) -> None:
    """The digits of a chunk's sum, which is lost, where `at` is in the first digit of a unit without what is before."""
    word, back = convert.scratch(b, "sum_word", "b32"), convert.scratch_array(b, "sum_back", "f32", 2).regs
    for digit in range(layout.SUM_DIGITS):
        convert.pack(b, (word,), (total, total), bf16)
        place = layout.pairs_bytes(digits, sums=True) + digit * layout.SUM_BYTES
        b.op("st.global.b16", at[place], word, pred=pred)
        if digit + 1 < layout.SUM_DIGITS:
            convert.unpack(b, back, (word,), bf16)
            b.op("sub.f32", total, total, back[0])


class ElementDigits(Elements):
    """Rows as digits that DigitGemm reads. With `sums` four lanes have a chunk."""

    column = "digit_column"

    def __init__(
        self, digits: int, sums: bool, n_heads: int, head_dim: int, b: Builder, out: Reg, where: Place, task: Task
    ) -> None:  # fmt: skip
        self.sums = sums
        super().__init__(digits, TOKENS, n_heads, head_dim, b, out, where, task)

    def begin(self, tile: Reg, token: Reg) -> None:
        b, out = self.b, self.out
        units = self.width // layout.columns(sums=self.sums)
        b.op("mad.wide.u32", out, tile, units * layout.unit_bytes(self.digits, sums=self.sums), out)
        if self.sums:
            self.sums_of_token = b.op("mad.wide.u32", "sums_of_token", token, layout.SUM_BYTES // TOKENS, out)
            lane = b.op("mov.u32", "quad_lane", b.special("laneid"))
            self.first_of_quad = b.op("setp.eq.u32", "first_of_quad", b.op("and.b32", "lane_of_quad", lane, 3), 0)
            self.quad = b.op("shl.b32", "quad_mask", 0xF, b.op("and.b32", lane, lane, 28))
        b.op("mad.wide.u32", out, token, 4 * layout.LANE_BYTES, out)

    def places(self, column: Reg, values: tuple[Reg, ...], exists: Reg | None) -> Sequence[Reg]:
        b = self.b
        place, part = b.op("shr.u32", "digit_place", column, layout.PAIR.bit_length() - 1), b.reg("digit_part", "u32")
        b.op("mul.lo.u32", place, place, self.digits * layout.DIGIT_BYTES)
        for start, parts, nbytes in ((CHUNK, layout.PAIR // CHUNK, 2 * OWN), (OWN, CHUNK // OWN, layout.LANE_BYTES)):
            b.op("bfe.u32", part, column, start.bit_length() - 1, parts.bit_length() - 1)
            b.op("mad.lo.u32", place, part, nbytes, place)
        if self.sums:
            self._keep_sum(column, values, place, exists)
        return [b.op("mad.wide.u32", "digits_to", place, 1, self.out)]

    def store(self, places: Sequence[Reg], digit: int, words: Sequence[Reg], exists: Reg | None) -> None:
        (to,) = places
        convert.store_words(self.b, to, words, digit * layout.DIGIT_BYTES, pred=exists)

    def _keep_sum(self, column: Reg, values: tuple[Reg, ...], place: Reg, exists: Reg | None) -> None:
        """The sum of the quad's columns, and where digits are, between whose units the sums lie. Elements end with a
        quad, so that all of its lanes are here."""
        b = self.b
        unit, part = b.op("shr.u32", "sums_unit", column, layout.WIDE_UNIT.bit_length() - 1), b.reg("sums_part", "u32")
        b.op("mad.lo.u32", place, unit, layout.SUM_DIGITS * layout.SUM_BYTES, place)
        sums = b.op("mul.lo.u32", "sums_place", unit, layout.unit_bytes(self.digits, sums=True))
        for start, bits, nbytes in layout.SUM_PLACES:
            b.op("bfe.u32", part, column, start, bits)
            b.op("mad.lo.u32", sums, part, nbytes, sums)
        to = b.op("mad.wide.u32", "sums_to", sums, 1, self.sums_of_token)
        total, other = add_digits(b, values, self.digits), b.reg("quad_other", "f32")
        for distance in QUAD:
            b.op("shfl.sync.bfly.b32", other, total, distance, 31, self.quad)
            b.op("add.f32", total, total, other)
        writes = self.first_of_quad
        if exists is not None:
            writes = b.op("and.pred", "writes_sum", exists, writes)
        store_sum(b, to, self.digits, total, writes)
