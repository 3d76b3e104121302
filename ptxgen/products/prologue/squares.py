"""Sums of squares of rows of x in global memory, for a norm whose x is not staged in shared memory: a warp a row."""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import over_warp
from ptxgen.products.geometry.groups import Geometry
from ptxgen.products.mainloop.loop import Inputs, row_of
from ptxgen.products.problem.product import Product, Tokens

FLIGHT = 4  # loads of a lane before it adds


class Squares:
    """Fragments `begin_squares`, `add_squares`, `next_squares`, `keep_squares`; `squares` is `[token]` f32."""

    warps = 1  # partial sums of a token

    def __init__(self, b: Builder, spec: Product, at: Geometry, tokens: Tokens | None) -> None:
        assert tokens is not None
        self.b, self.spec, self.at, self.tokens = b, spec, at, tokens
        self.width = next(v for v in (4, 2, 1) if spec.k % v == 0)
        self.rows = max(1, at.tokens // at.warps)  # of a warp
        self.reach = 32 * self.width * FLIGHT
        self.squares: Shared = b.shared("squares", 4 * at.tokens)

    def build(self, lane: Reg, warp: Reg) -> Inputs:
        """Build the fragments that add up squares of x; the addresses that they load."""
        b, spec, at, width = self.b, self.spec, self.at, self.width
        with b.fragment("begin_squares", "the rows whose squares the warp adds up"):
            norm_weight = b.ld_param("norm_weight")
            source, column = b.ld_param("x"), b.op("mul.lo.u32", "square_column", lane, width)
            pass_at = b.op("mov.u32", "square_pass", 0)
            slot = b.op("mul.lo.u32", "square_token", warp, self.rows)
            self.bases = b.array("square_base", "u64", self.rows)
            for index, base in enumerate(self.bases):
                token = b.op("add.u32", f"square_token{index}", slot, index)
                row = row_of(b, f"square_row{index}", self.tokens, token)
                b.op("mad.wide.u32", base, row, 4 * spec.k, source)
                b.op("mad.wide.u32", base, column, 4, base)
            sums = b.array("square_sum", "f32", self.rows)
            convert.clear(b, sums)
        with b.fragment("add_squares", "add up the squares of a pass of every row"):
            values = b.array("squared", "f32", FLIGHT * width)
            inside = b.array("square_inside", "pred", FLIGHT)
            for number, (base, total) in enumerate(zip(self.bases, sums, strict=True)):
                b.note(f"the warp's row {number}", after=convert.RUN)
                convert.clear(b, values)
                for i in range(FLIGHT):
                    guard = b.op("setp.lt.u32", inside[i], column, max(0, spec.k - 32 * width * i))
                    convert.load_words(b, values[width * i : width * (i + 1)], base, 4 * 32 * width * i, pred=guard)
                for value in values:
                    b.op("fma.rn.f32", total, value, value, total)
        with b.fragment("next_squares", "on to the next pass"):
            b.op("add.u32", column, column, self.reach)
            for base in self.bases:
                b.op("add.u64", base, base, 4 * self.reach)
            b.op("add.u32", pass_at, pass_at, self.reach)
            b.op("setp.lt.u32", "more_squares", pass_at, spec.k)
        with b.fragment("keep_squares", "the sums of squares to shared memory"):
            over_warp(b, "add.f32", sums.regs)
            is_first = b.op("setp.eq.u32", "is_first_lane", lane, 0)
            holds = b.op("setp.lt.and.u32", "holds_square", slot, at.tokens, is_first)
            keep = b.op("mov.u32", "square_slot", self.squares)
            b.op("mad.lo.u32", keep, slot, 4, keep)
            for index, total in enumerate(sums):
                b.op("st.shared.f32", keep[4 * index], total, pred=holds)
        return Inputs(source, norm_weight)
