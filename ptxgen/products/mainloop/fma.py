"""The loop without tensor cores: every lane multiplies the weights it owns with x, in f32, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import over_lanes
from ptxgen.products.geometry.groups import Geometry
from ptxgen.products.mainloop.loop import Inputs, TileLoop
from ptxgen.weights.format import CHUNK, OWN, TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.products.problem.product import Product, Tokens


class FmaLoop(TileLoop):
    """x in shared memory, `[token, padded k]` f32."""

    def __init__(self, b: Builder, spec: Product, at: Geometry, vector: Shared) -> None:
        super().__init__(b, spec, at)
        self.vector = vector

    def begin(self, tokens: Tokens | None, inputs: Inputs | None) -> None:
        b, at = self.b, self.at
        self.x_base = b.op("mov.u32", "x_base", self.vector)
        b.op("mad.lo.u32", self.x_base, self.quad, 4 * OWN, self.x_base)
        self.sums = b.array("sum", "f32", self.spec.parts * 2 * at.tokens).regs
        self.own_x, self.own_weights = b.array("x_own", "f32", at.tokens * OWN), b.array("weight_own", "f32", 2 * OWN)

    def find_x(self) -> None:
        self.x_at = self.b.op("mad.lo.u32", "x_at", self.step, 4 * self.kind.tile_k, self.x_base)

    def multiply(self, part: int) -> None:
        b, at, x = self.b, self.at, self.own_x
        halves, row_bytes = (self.own_weights[:OWN], self.own_weights[OWN:]), 4 * self.spec.padded_k
        for chunk in range(self.kind.chunks):
            b.note(f"columns {CHUNK * chunk} to {CHUNK * (chunk + 1) - 1} of the tile", after=convert.RUN)
            for token in range(at.tokens):
                own = x[OWN * token : OWN * (token + 1)]
                convert.load_words(b, own, self.x_at, 4 * CHUNK * chunk + token * row_bytes, space="shared")
            self.kind.weights(b, self.words, chunk, halves)
            for half, token, j in product((0, 1), range(at.tokens), range(OWN)):
                total = self._sum(part, half, token)
                b.op("fma.rn.f32", total, halves[half][j], x[OWN * token + j], total)

    def _sum(self, part: int, half: int, token: int) -> Reg:
        """The sum of a part, in row g or g + 8, for a token."""
        return self.sums[(part * 2 + half) * self.at.tokens + token]

    def publish(self, at: Reg, offsets: Sequence[int]) -> None:
        b = self.b
        is_writer = b.op("setp.eq.u32", "is_writer", self.quad, 0)
        for (part, offset), token, half in product(enumerate(offsets), range(self.at.tokens), (0, 1)):
            total = self._sum(part, half, token)
            over_lanes(b, "add.f32", total, (1, 2))
            b.op("st.shared.f32", at[offset + 4 * (token * TILE_ROWS + 8 * half)], total, pred=is_writer)
