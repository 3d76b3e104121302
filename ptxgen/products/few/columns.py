"""How tensor cores multiply a tile with eight tokens on columns of N, whose elements are bf16 digits that add up to
them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.products.columns import MMA_BF16, Columns
from ptxgen.products.few.layout import DIGIT_BYTES, LANE_BYTES, PAIR
from ptxgen.weights.format import CHUNK, TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.products.digits import Digits
    from ptxgen.products.reader import Place
    from ptxgen.weights.format import WeightFormat

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
        self.products, self.totals = b.array("product", "f32", PER_LANE), b.array("sum", "f32", PER_LANE).regs
        self.zero = b.op("mov.f32", "zero_sum", 0.0)

    def multiply(self, words: Sequence[Reg], at: Sequence[Reg]) -> None:
        b = self.b
        sums: Sequence[Reg] = (self.zero,) * PER_LANE
        for pair in range(self.kind.tile_k // PAIR):
            b.note(f"columns {PAIR * pair} to {PAIR * (pair + 1) - 1} of the tile", after=convert.RUN)
            for digit in range(self.digits):
                own = self.digit[4 * digit : 4 * digit + 4]
                convert.load_words(b, own, at[0], pair * self.pair_bytes + digit * DIGIT_BYTES, space="shared")
            for half in range(PAIR // CHUNK):
                (a,) = self.kind.fragments(b, words, PAIR // CHUNK * pair + half)
                for digit in reversed(range(self.digits)):
                    first = 4 * digit + 2 * half
                    b.op(MMA_BF16, tuple(self.products), tuple(a), tuple(self.digit[first : first + 2]), tuple(sums))
                    sums = self.products.regs
        for total, product in zip(self.totals, self.products, strict=True):
            b.op("add.f32", total, total, product)

    def publish(self, to: Reg, quad: Reg) -> None:
        """The totals of the warp to `[token, 16]`; `to` is where row g of token 0 is there."""
        b = self.b
        own = b.op("mad.lo.u32", convert.scratch(b, "publish_tokens", "u32"), quad, 2 * 4 * TILE_ROWS, to)
        for i, total in enumerate(self.totals):
            b.op("st.shared.f32", own[4 * (TILE_ROWS * (i % 2) + 8 * (i // 2))], total)
