"""How tensor cores multiply a tile with eight tokens, or several times eight, whose values are integers of three bytes.

Digits are multiplied one by one with the codes of a span of columns, and each sum, times the span's integer scale, is
added to the tile's in s32: below 2^31 for all formats. So a tile is exact. What codes are off by, and mins, are one
more product, of sums of x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.products.digits_s8 import layout
from ptxgen.products.mainloop.columns import Columns
from ptxgen.weights.format import TILE_ROWS, Piece

if TYPE_CHECKING:
    from ptxgen.products.mainloop.reader import Place
    from ptxgen.products.tokens.digits import Digits
    from ptxgen.weights.format import WeightFormat

MMA = "mma.sync.aligned.m16n8k{}.row.col.s32.u8.s8.s32"
MMA_OF_SUMS = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
CHUNKS = layout.PAIR // 16  # whose digits are read together
PER_LANE = 4  # sums of a lane: rows g and g + 8 by tokens 2t and 2t + 1


class TokenColumns(Columns):
    """`groups` times eight tokens, whose units lie one after the other in shared memory at `vector`."""

    def __init__(self, b: Builder, kind: WeightFormat, groups: int, vector: Shared) -> None:
        super().__init__(b, kind)
        self.groups, self.vector = groups, vector
        self.spans = kind.span // 16  # chunks of a span

    @staticmethod
    def takes(kind: WeightFormat) -> bool:
        return kind.span > 0 and kind.tile_k == layout.UNIT

    @property
    def pieces(self) -> Sequence[Piece]:
        return self.kind.span_pieces

    def begin(self, place: Place, quad: Reg, digits: Digits | None) -> None:
        b = self.b
        vector = b.op("mov.u32", "x_vector", self.vector)
        self.x_bases = tuple(
            b.op("mad.lo.u32", f"x_{name}_base", by, nbytes, vector)
            for name, by, nbytes in (("digits", place.lane, 16), ("sums", place.lane, 8), ("powers", quad, 8))
        )
        self.x_steps = (self.groups * layout.UNIT_BYTES,) * 3
        self.a, self.digit = b.array("code", "b32", 2 * CHUNKS), b.array("x_digit", "b32", layout.DIGITS * CHUNKS)
        self.totals = b.array("sum", "f32", PER_LANE * self.groups).regs
        self.products = b.array("product", "s32", PER_LANE * layout.DIGITS)
        self.zeros = b.array("zero", "s32", PER_LANE)
        convert.clear(b, self.zeros)
        self.tile = b.array("tile_sum", "s32", layout.DIGITS * PER_LANE * self.groups)
        self.factors = b.array("span_factor", "s32", 2 * CHUNKS // self.spans)
        self.parts = b.array("digit_sum", "f32", layout.DIGITS)
        self.powers, self.x_sums = b.array("x_power", "f32", 2), b.array("x_sum", "b32", 2)
        self.offsets, self.no_offset = b.array("offset", "f32", PER_LANE), b.op("mov.f32", "no_offset", 0.0)

    def multiply(self, words: Sequence[Reg], at: Sequence[Reg]) -> None:
        b, kind = self.b, self.kind
        for pair in range(layout.UNIT // layout.PAIR):
            b.note(f"columns {layout.PAIR * pair} to {layout.PAIR * (pair + 1) - 1} of the tile", after=convert.RUN)
            for chunk in range(0, CHUNKS, 2):
                codes = kind.byte_fragment(b, words, CHUNKS * pair + chunk)
                for own, code in zip(self.a[2 * chunk : 2 * chunk + 4], codes, strict=True):
                    b.op("mov.b32", own, code)
            for first in range(0, CHUNKS, self.spans):
                index = 2 * (first // self.spans)
                found = kind.span_factors(b, words, CHUNKS * pair + first)
                for own, factor in zip(self.factors[index : index + 2], found, strict=True):
                    b.op("mov.b32", own, factor)
            for group in range(self.groups):
                self._multiply_pair(pair, group, at)
        self._finish(words, at)

    def _multiply_pair(self, pair: int, group: int, at: Sequence[Reg]) -> None:
        b, count = self.b, self.spans
        place = layout.UNIT_BYTES * group + pair * layout.PAIR_BYTES
        for digit in range(layout.DIGITS):
            own = self.digit[CHUNKS * digit : CHUNKS * (digit + 1)]
            convert.load_words(b, own, at[0], place + 512 * digit, space="shared")
        b.note(f"{8 * group} to {8 * group + 7} of the tokens", after=2 * convert.RUN)
        for first in range(0, CHUNKS, count):
            a = tuple(self.a[2 * first : 2 * (first + count)])
            for digit in range(layout.DIGITS):
                sums = self.products[PER_LANE * digit : PER_LANE * (digit + 1)]
                own = self.digit[CHUNKS * digit + first : CHUNKS * digit + first + count]
                b.op(MMA.format(16 * count), tuple(sums), a, tuple(own), tuple(self.zeros))
            self._scale(first // count, group, fresh=pair == 0 and first == 0)

    def _scale(self, span: int, group: int, *, fresh: bool) -> None:
        """A span's sums times its scale, to the tile's."""
        for digit in range(layout.DIGITS):
            for i, total in enumerate(self._of_tile(group, digit)):
                product, factor = self.products[PER_LANE * digit + i], self.factors[2 * span + i // 2]
                if fresh:
                    self.b.op("mul.lo.s32", total, product, factor)
                else:
                    self.b.op("mad.lo.s32", total, product, factor, total)

    def _of_tile(self, group: int, digit: int) -> Sequence[Reg]:
        """The tile's sums of a digit of a group of tokens."""
        first = PER_LANE * (layout.DIGITS * group + digit)
        return self.tile[first : first + PER_LANE]

    def _finish(self, words: Sequence[Reg], at: Sequence[Reg]) -> None:
        """The tile's sums times the powers of two of x and the tile's factors, with what is subtracted."""
        b, kind = self.b, self.kind
        b.note("the tile's sums times its factors", after=convert.RUN)
        scales, less = kind.tile_factors(b, words)
        a = tuple(kind.offset_fragment(b, words))
        for group in range(self.groups):
            place = layout.UNIT_BYTES * group
            self._offsets(a, at[1], place + layout.SUMS_AT)
            convert.load_words(b, self.powers, at[2], place + layout.FACTORS_AT, space="shared")
            for i, total in enumerate(self.totals[PER_LANE * group : PER_LANE * (group + 1)]):
                for digit, part in enumerate(self.parts):
                    b.op("cvt.rn.f32.s32", part, self._of_tile(group, digit)[i])
                value, *lower = self.parts
                for part in lower:
                    b.op("fma.rn.f32", value, value, 256.0, part)
                b.op("mul.f32", value, value, self.powers[i % 2])
                b.op("fma.rn.f32", total, value, scales[i // 2], total)
                b.op("fma.rn.f32", total, self.offsets[i], less[i // 2], total)

    def _offsets(self, a: tuple[Reg, ...], at: Reg, place: int) -> None:
        """The products of `offset_fragment` with the sums of x, the small ones first."""
        sums: Sequence[Reg] = (self.no_offset,) * PER_LANE
        for digit in reversed(range(layout.DIGITS)):
            convert.load_words(self.b, self.x_sums, at, place + layout.SUM_BYTES * digit, space="shared")
            self.b.op(MMA_OF_SUMS, tuple(self.offsets), a, tuple(self.x_sums), tuple(sums))
            sums = self.offsets.regs

    def publish(self, to: Reg, quad: Reg) -> None:
        """The totals of the warp to `[token, 16]`; `to` is where row g of token 0 is there."""
        b = self.b
        own = b.op("mad.lo.u32", convert.scratch(b, "publish_tokens", "u32"), quad, 2 * 4 * TILE_ROWS, to)
        for index, total in enumerate(self.totals):
            group, i = divmod(index, PER_LANE)
            token = layout.TOKENS * group + i % 2
            b.op("st.shared.f32", own[4 * (TILE_ROWS * token + 8 * (i // 2))], total)
