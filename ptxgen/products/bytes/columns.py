"""How tensor cores multiply a tile with eight tokens, or several times eight, whose values are integers of three bytes.

A span of columns with one scale is added up in s32, digit by digit: the sum of the upper digit times 256, and that of
the next on it, and so on, so that the whole is an exact integer. Mins are one more product, with sums of x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.products.bytes import layout
from ptxgen.products.columns import Columns
from ptxgen.weights.format import TILE_ROWS, ByteCodes, Piece

if TYPE_CHECKING:
    from ptxgen.products.digits import Digits
    from ptxgen.weights.format import WeightFormat

MMA = "mma.sync.aligned.m16n8k{}.row.col.s32.u8.s8.s32"
MMA_OF_MINS = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"
CHUNKS = layout.PAIR // 16  # whose digits are read together
PER_LANE = 4  # sums of a lane: rows g and g + 8 by tokens 2t and 2t + 1


class TokenColumns(Columns):
    """`groups` times eight tokens, whose units lie one after the other in shared memory at `vector`."""

    def __init__(self, b: Builder, kind: WeightFormat, groups: int, vector: object) -> None:
        super().__init__(b, kind)
        assert isinstance(kind, ByteCodes)
        if kind.less and (kind.less != -layout.COUNT_FACTOR or kind.span != 16):
            raise ValueError(
                f"{kind.name}: codes less {kind.less} in spans of {kind.span}: the tokens' sums are others"
            )
        self.codes = kind
        self.groups, self.vector = groups, vector
        self.spans = kind.span // 16  # chunks of a span
        self.has_mins = kind.has_mins

    @staticmethod
    def takes(kind: WeightFormat) -> bool:
        return kind.span > 0 and kind.tile_k == layout.UNIT

    @property
    def pieces(self) -> Sequence[Piece]:
        return self.kind.span_pieces

    def begin(self, lane: Reg, row: Reg, quad: Reg, digits: Digits | None) -> None:
        b = self.b
        vector = b.op("mov.u32", "x_vector", self.vector)
        base = b.op("mad.lo.u32", "x_base", lane, 16, vector)
        powers = b.op("mad.lo.u32", "x_powers_base", quad, 8, vector)
        self.x_bases = (base, powers)
        if self.codes.less:
            self.x_bases = (base, powers, b.op("mad.lo.u32", "x_counts_base", quad, 16, vector))
        self.x_steps = (self.groups * layout.UNIT_BYTES,) * len(self.x_bases)
        self.a, self.digit = b.array("code", "b32", 2 * CHUNKS), b.array("x_digit", "b32", layout.DIGITS * CHUNKS)
        self.totals = b.array("sum", "f32", PER_LANE * self.groups).regs
        self.products = b.array("product", "s32", PER_LANE * CHUNKS // self.spans).regs
        self.zeros = b.array("zero", "s32", PER_LANE)
        self.value = b.reg("span_sum", "f32")
        self.tile = b.array("tile_sum", "f32", PER_LANE * self.groups)
        self.powers = b.array("x_power", "f32", 2)
        convert.clear(b, self.zeros)
        spans = CHUNKS // self.spans
        self.factors = b.array("span_factor", "f32", 2 * spans)
        self.counts = b.array("x_count", "s32", 2 * CHUNKS) if self.codes.less else None
        if self.has_mins:
            self.x_sums = b.array("x_sum", "b32", layout.DIGITS)
            self.offsets, self.no_offset = b.array("offset", "f32", PER_LANE), b.op("mov.f32", "no_offset", 0.0)

    def multiply(self, words: Sequence[Reg], at: Sequence[Reg]) -> None:
        b, kind = self.b, self.codes
        for pair in range(layout.UNIT // layout.PAIR):
            b.note(f"columns {layout.PAIR * pair} to {layout.PAIR * (pair + 1) - 1} of the tile", after=convert.RUN)
            for chunk in range(CHUNKS):
                for half in (0, 1):
                    code = kind.code_bytes(b, words, CHUNKS * pair + chunk, half)
                    b.op("mov.b32", self.a[2 * chunk + half], code)
            for first in range(0, CHUNKS, self.spans):
                index = 2 * (first // self.spans)
                found = kind.span_factors(b, words, CHUNKS * pair + first)
                for own, factor in zip(self.factors[index : index + 2], found, strict=True):
                    b.op("mov.f32", own, factor)
            for group in range(self.groups):
                self._multiply_pair(pair, group, at)
        self._finish(words, at)

    def _multiply_pair(self, pair: int, group: int, at: Sequence[Reg]) -> None:
        b, unit = self.b, layout.UNIT_BYTES * group
        for digit in range(layout.DIGITS):
            own = self.digit[CHUNKS * digit : CHUNKS * (digit + 1)]
            place = unit + pair * layout.PAIR_BYTES + 512 * digit
            convert.load_words(b, own, at[0], place, space="shared")
        if self.counts is not None:
            place = unit + layout.COUNTS_AT + 2 * pair * layout.COUNT_BYTES
            for half in (0, 1):
                own = self.counts[4 * half : 4 * half + 4]
                convert.load_words(b, own, at[2], place + half * layout.COUNT_BYTES, space="shared")
        tile = self.tile[PER_LANE * group : PER_LANE * (group + 1)]
        self._multiply_spans()
        for first in range(0, CHUNKS, self.spans):
            index = first // self.spans
            for i, (product, total) in enumerate(zip(self._sums(first), tile, strict=True)):
                b.op("cvt.rn.f32.s32", self.value, product)
                factor = self.factors[2 * index + i // 2]
                if pair == 0 and first == 0:
                    b.op("mul.f32", total, self.value, factor)
                else:
                    b.op("fma.rn.f32", total, self.value, factor, total)

    def _sums(self, first: int) -> Sequence[Reg]:
        """The sums of the span that begins with chunk `first` of 64 columns."""
        index = PER_LANE * (first // self.spans)
        return self.products[index : index + PER_LANE]

    def _multiply_spans(self) -> None:
        """The integers of the spans of 64 columns, side by side: a product waits for that of the digit before."""
        b, count = self.b, self.spans
        for digit in range(layout.DIGITS):
            for first in range(0, CHUNKS, count):
                a, sums = tuple(self.a[2 * first : 2 * (first + count)]), self._sums(first)
                own = tuple(self.digit[CHUNKS * digit + first : CHUNKS * digit + first + count])
                if digit:
                    self._times_256(sums, first, last=digit + 1 == layout.DIGITS)
                b.op(MMA.format(16 * count), tuple(sums), a, own, tuple(sums if digit else self.zeros))

    def _times_256(self, sums: Sequence[Reg], first: int, *, last: bool) -> None:
        for i, each in enumerate(sums):
            if last and self.counts is not None:
                self.b.op("mad.lo.s32", each, each, 256, self._offset(first, i % 2))
            else:
                self.b.op("shl.b32", each, each, 8)

    def _offset(self, first: int, token: int) -> Reg:
        """What codes that begin at 0 have too much in a span."""
        assert self.counts is not None
        return self.counts[2 * first + token]

    def _finish(self, words: Sequence[Reg], at: Sequence[Reg]) -> None:
        """The tile's sums times the powers of two of x and the tile's factors; the mins."""
        b, kind = self.b, self.codes
        b.note("the tile's sums times its factors", after=convert.RUN)
        scales, mins = kind.tile_factors(b, words)
        a = tuple(kind.min_fragment(b, words)) if self.has_mins else ()
        for group in range(self.groups):
            place = layout.UNIT_BYTES * group
            own = slice(PER_LANE * group, PER_LANE * (group + 1))
            if self.has_mins:
                convert.load_words(b, self.x_sums, at[0], place + layout.SUMS_AT, space="shared")
                sums: Sequence[Reg] = (self.no_offset,) * PER_LANE
                for digit in reversed(self.x_sums):
                    b.op(MMA_OF_MINS, tuple(self.offsets), a, (digit,), tuple(sums))
                    sums = self.offsets.regs
            convert.load_words(b, self.powers, at[1], place + layout.FACTORS_AT, space="shared")
            for i, (value, total) in enumerate(zip(self.tile[own], self.totals[own], strict=True)):
                b.op("mul.f32", value, value, self.powers[i % 2])
                b.op("fma.rn.f32", total, value, scales[i // 2], total)
                if mins:
                    b.op("fma.rn.f32", total, self.offsets[i], mins[i // 2], total)

    def publish(self, to: Reg, quad: Reg) -> None:
        """The totals of the warp to `[token, 16]`; `to` is where row g of token 0 is there."""
        b = self.b
        own = b.op("mad.lo.u32", convert.scratch(b, "publish_tokens", "u32"), quad, 2 * 4 * TILE_ROWS, to)
        for i, total in enumerate(self.totals):
            group, i = divmod(i, PER_LANE)
            token = layout.TOKENS * group + i % 2
            b.op("st.shared.f32", own[4 * (TILE_ROWS * token + 8 * (i // 2))], total)
