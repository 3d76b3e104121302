"""How tensor cores multiply a tile with eight tokens on columns of N, whose elements are bf16 digits that add up to
them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import WARP
from ptxgen.products.digits_bf16 import layout
from ptxgen.products.digits_bf16.layout import DIGIT_BYTES, LANE_BYTES, PAIR
from ptxgen.products.digits_s8.columns import MMA_OF_SUMS
from ptxgen.products.mainloop.columns import MMA_BF16, Columns
from ptxgen.weights.e4m3 import E4m3
from ptxgen.weights.format import CHUNK, TILE_ROWS, Piece

if TYPE_CHECKING:
    from ptxgen.products.mainloop.reader import Place
    from ptxgen.products.tokens.digits import Digits
    from ptxgen.weights.format import WeightFormat

CHAINS = {1: 1, 3: 3}  # by digits: sums of products of plain weights that a lane has at a time
PER_LANE = 4  # sums of a lane: rows g and g + 8 by tokens 2t and 2t + 1


class FewColumns(Columns):
    """`digits` of eight tokens, in shared memory at `vector`."""

    def __init__(self, b: Builder, kind: WeightFormat, digits: int, vector: Shared) -> None:
        super().__init__(b, kind)
        self.digits, self.vector = digits, vector
        self.pair_bytes = digits * DIGIT_BYTES

    def begin(self, place: Place, quad: Reg, digits: Digits | None) -> None:
        b = self.b
        base = b.op("mov.u32", "x_base", self.vector)
        b.op("mad.lo.u32", base, place.lane, LANE_BYTES, base)
        self.x_bases, self.x_steps = (base,), (self.kind.tile_k // PAIR * self.pair_bytes,)
        self.digit = b.array("x_digit", "b32", PER_LANE * self.digits)
        self.products = b.array("product", "f32", PER_LANE * self.chains)
        self.totals = b.array("sum", "f32", PER_LANE).regs
        self.zero = b.op("mov.f32", "zero_sum", 0.0)

    @property
    def chains(self) -> int:
        """Sums of products side by side: each waits for its last product, so one is short for three digits."""
        return CHAINS[self.digits]

    def multiply(self, words: Sequence[Reg], at: Sequence[Reg]) -> None:
        b = self.b
        for chunk in range(self.kind.chunks):
            self.add_chunk(words, chunk, at[0], fresh=chunk == 0)
        for i, total in enumerate(self.totals):
            product, *others = reversed(self.products[i::PER_LANE])
            for other in others:  # the small digits first
                b.op("add.f32", product, product, other)
            b.op("add.f32", total, total, product)

    def add_chunk(self, words: Sequence[Reg], chunk: int, at: Reg, *, fresh: bool) -> None:
        """To the sums, which may be `fresh`, a chunk's products; with the first chunk of a pair the digits of both."""
        b, (pair, half) = self.b, divmod(chunk, PAIR // CHUNK)
        if half == 0:
            b.note(f"columns {PAIR * pair} to {PAIR * (pair + 1) - 1} of the tile", after=convert.RUN)
            for digit in range(self.digits):
                own = self.digit[4 * digit : 4 * digit + 4]
                convert.load_words(b, own, at, pair * self.pair_bytes + digit * DIGIT_BYTES, space="shared")
        (a,) = self.kind.fragments(b, words, chunk)
        if fresh:
            self.begun: set[int] = set()
        for digit in reversed(range(self.digits)):
            first, chain = 4 * digit + 2 * half, (digit + self.digits * chunk) % self.chains
            products = self.products[PER_LANE * chain : PER_LANE * (chain + 1)]
            sums = products if chain in self.begun else (self.zero,) * PER_LANE
            b.op(MMA_BF16, tuple(products), tuple(a), tuple(self.digit[first : first + 2]), tuple(sums))
            self.begun.add(chain)

    def add_times(self, values: Sequence[Reg], factors: Sequence[Reg]) -> None:
        """To the totals, values times the factors of their rows, g and g + 8."""
        for i, (total, value) in enumerate(zip(self.totals, values, strict=True)):
            self.b.op("fma.rn.f32", total, value, factors[i // 2], total)

    def publish(self, to: Reg, quad: Reg) -> None:
        """The totals of the warp to `[token, 16]`; `to` is where row g of token 0 is there."""
        b = self.b
        own = b.op("mad.lo.u32", convert.scratch(b, "publish_tokens", "u32"), quad, 2 * 4 * TILE_ROWS, to)
        for i, total in enumerate(self.totals):
            b.op("st.shared.f32", own[4 * (TILE_ROWS * (i % 2) + 8 * (i // 2))], total)


class GroupColumns(FewColumns):
    """The same for weights whose groups of columns have scales: sums of a group's products, times them, are added to
    the totals. Codes in e4m3 leave registers for sums of half a tile, so that more products are under way."""

    @property
    def chains(self) -> int:
        return 1

    def multiply(self, words: Sequence[Reg], at: Sequence[Reg]) -> None:
        b, kind = self.b, self.kind
        chain = kind.scale_chunks // (2 if self.digits > 1 and isinstance(kind, E4m3) else 1)
        for chunk in range(kind.chunks):
            self.add_chunk(words, chunk, at[0], fresh=chunk % chain == 0)
            if (chunk + 1) % chain == 0:
                factors, _ = kind.scales(b, words, chunk + 1 - chain)
                self.add_times(self.products.regs, factors)


class SpanColumns(FewColumns):
    """The same for weights whose spans of columns have integer scales: the sums of a span, times its scale and the
    tile's factor, are added to the totals. Mins are one more product, of sums of x."""

    @property
    def chains(self) -> int:
        return 1

    @property
    def pieces(self) -> Sequence[Piece]:
        return self.kind.few_pieces

    def begin(self, place: Place, quad: Reg, digits: Digits | None) -> None:
        b, kind = self.b, self.kind
        super().begin(place, quad, digits)
        self.x_steps = (layout.unit_bytes(self.digits, sums=True),)
        if kind.has_mins:
            self.sums_before = b.op("mul.lo.u32", "sums_before", place.lane, LANE_BYTES - layout.SUM_BYTES // WARP)
            self.sums_at = b.reg("x_sums_at", "u32")
            self.x_sums, self.offsets = b.array("x_sum", "b32", 2), b.array("offset", "f32", PER_LANE)

    def multiply(self, words: Sequence[Reg], at: Sequence[Reg]) -> None:
        b, kind = self.b, self.kind
        scales, less = kind.tile_scales(b, words)
        if kind.has_mins:
            self._subtract_mins(words, at[0], less)
        for chunk in range(kind.chunks):
            self.add_chunk(words, chunk, at[0], fresh=CHUNK * chunk % kind.span == 0)
            if CHUNK * (chunk + 1) % kind.span == 0:
                self._add_span(words, chunk + 1 - kind.span // CHUNK, scales)

    def _add_span(self, words: Sequence[Reg], chunk: int, scales: Sequence[Reg]) -> None:
        """The sums of the span that begins with a chunk, times its factors: products of an f16 and an integer, exact
        in f32."""
        b = self.b
        factors = self.kind.span_scales(b, words, chunk)
        for factor, scale in zip(factors, scales, strict=True):
            b.op("mul.f32", factor, factor, scale)
        self.add_times(self.products.regs, factors)

    def _subtract_mins(self, words: Sequence[Reg], at: Reg, less: Sequence[Reg]) -> None:
        """The products of the mins with the sums of x, the small ones first."""
        b, a = self.b, tuple(self.kind.offset_fragment(self.b, words))
        b.op("sub.u32", self.sums_at, at, self.sums_before)
        sums: Sequence[Reg] = (self.zero,) * PER_LANE
        for digit in reversed(range(layout.SUM_DIGITS)):
            place = layout.pairs_bytes(self.digits, sums=True) + digit * layout.SUM_BYTES
            convert.load_words(b, self.x_sums, self.sums_at, place, space="shared")
            b.op(MMA_OF_SUMS, tuple(self.offsets), a, tuple(self.x_sums), tuple(sums))
            sums = self.offsets.regs
        self.add_times(self.offsets.regs, less)
