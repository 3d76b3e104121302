"""The root of the mean square of every token, from the sums of squares that the product before has left: a norm that
is divided out of results."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import WARP, over_warp
from ptxgen.products.digits_s8.layout import TOKENS
from ptxgen.products.problem.product import Tokens
from ptxgen.weights.format import TILE_ROWS

VECTOR = 4  # sums that a lane loads at once


class Roots:
    """Fragment `read_squares`; `roots` is `[token]` f32, 1 / sqrt(mean + eps), there behind the next barrier."""

    def __init__(self, b: Builder, k: int, eps: float, warps: int) -> None:
        self.b, self.k, self.eps, self.warps = b, k, eps, warps
        self.roots: Shared = b.shared("roots", 4 * TOKENS)

    def build(self, lane: Reg, warp: Reg, tokens: Tokens) -> None:
        """A warp has a token, or several in turn."""
        b, count = self.b, self.k // TILE_ROWS
        loads = -(-count // (WARP * VECTOR))
        with b.fragment("read_squares", "add up the tokens' sums of squares, a warp a token"):
            squares = b.array("token_square", "f32", VECTOR * loads)
            source = b.ld_param("squares")
            column = b.op("mul.lo.u32", "square_column", lane, VECTOR)
            token, row = b.reg("root_token", "u32"), b.reg("root_row", "u32")
            there, at, total = b.reg("square_there", "pred"), b.reg("square_at", "u64"), b.reg("square_total", "f32")
            to, leads = b.op("mov.u32", "roots_at", self.roots), b.reg("keeps_root", "pred")
            b.op("mad.lo.u32", to, warp, 4, to)
            for first in range(0, TOKENS, self.warps):
                b.op("add.u32", token, warp, first)
                b.op("add.u32", row, tokens.first, token)
                b.op("min.u32", row, row, tokens.rows)
                b.op("mad.wide.u32", at, row, 4 * count, source)
                b.op("mad.wide.u32", at, column, 4, at)
                convert.clear(b, squares)
                for i in range(loads):
                    b.op("setp.lt.u32", there, row, tokens.rows)
                    b.op("setp.lt.and.u32", there, token, TOKENS, there)
                    b.op("setp.lt.and.u32", there, column, max(0, count - WARP * VECTOR * i), there)
                    own = squares[VECTOR * i : VECTOR * (i + 1)]
                    convert.load_words(b, own, at, 4 * WARP * VECTOR * i, pred=there)
                b.op("mov.f32", total, squares[0])
                for square in squares[1:]:
                    b.op("add.f32", total, total, square)
                over_warp(b, "add.f32", total)
                b.op("fma.rn.f32", total, total, 1.0 / self.k, self.eps)
                b.op("sqrt.rn.f32", total, total)
                b.op("rcp.rn.f32", total, total)
                b.op("setp.lt.u32", leads, token, TOKENS)
                b.op("setp.eq.and.u32", leads, lane, 0, leads)
                b.op("st.shared.f32", to[4 * first], total, pred=leads)

    def times(self, values: Sequence[Reg], token: Reg | None) -> None:
        """Results of a token times its root; part of an open fragment."""
        b = self.b
        assert token is not None
        at = b.op("mov.u32", "root_at", self.roots)
        b.op("mad.lo.u32", at, token, 4, at)
        root = b.op("ld.shared.f32", "root", at[0])
        for value in values:
            b.op("mul.f32", value, value, root)
