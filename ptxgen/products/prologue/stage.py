"""Rows of x into shared memory, filled up with zeros; times the norm's weights, and their sums of squares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray, Shared
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import over_warp
from ptxgen.products.geometry.groups import Geometry

if TYPE_CHECKING:
    from ptxgen.products.mainloop.loop import TileLoop
    from ptxgen.products.problem.product import Product, Tokens

MOST_IN_FLIGHT = 8  # loads of x that a thread issues before it waits


class Stage:
    """Fragments `begin_stage`, `stage`, `next_stage` and, with a norm, `sum_squares`; `squares` is `[warp, token]`.

    `vector` is `[token, padded k]` f32.
    """

    def __init__(self, b: Builder, spec: Product, at: Geometry) -> None:
        self.b, self.spec, self.at = b, spec, at
        self.warps = at.warps  # partial sums of a token
        self.width = next(v for v in (4, 2, 1) if spec.k % v == 0)
        self.reach = at.threads * self.width  # columns of one load of all threads
        loads = -(-spec.padded_k // self.reach)
        self.flight = min(loads, max(1, MOST_IN_FLIGHT // at.tokens))
        self.passes = -(-loads // self.flight)
        self.row_bytes = spec.staged_bytes(False)
        self.stride = 4 * self.reach  # bytes that all threads together write for one load
        self.vector: Shared = b.shared("vector", at.tokens * self.row_bytes, dynamic=True)
        self.squares: Shared | None = b.shared("squares", 4 * at.tokens * at.warps) if spec.norm else None

    def build(self, tokens: Tokens | None, loop: TileLoop) -> None:
        """All fragments, after those that `loop` locates its tiles by."""
        b, spec, at, thread = self.b, self.spec, self.at, loop.thread
        with b.fragment("begin_stage", "the thread's first columns of x, and where they go in shared memory"):
            column = b.op("mul.lo.u32", "stage_column", thread, self.width)
            source = b.ld_param("x")
            exists = sums = None
            if tokens is not None:
                wide = b.op("mul.wide.u32", "first_row_offset", tokens.first, 4 * spec.k)
                b.op("add.u64", source, source, wide)
                exists = b.array("row_exists", "pred", at.tokens)
                row = b.reg("row_of_cta", "u32")
                for token in range(at.tokens):
                    b.op("add.u32", row, tokens.first, token)
                    b.op("setp.lt.u32", exists[token], row, tokens.rows)
            norm = b.ld_param("norm_weight") if spec.norm else None
            target = b.op("mov.u32", "stage_to", self.vector)
            b.op("mad.lo.u32", target, column, 4, target)
            if spec.norm:
                sums = b.array("square_sum", "f32", at.tokens)
                convert.clear(b, sums)
        self._stage(column, source, norm, target, exists, sums)
        if self.passes > 1:
            with b.fragment("next_stage"):
                b.op("add.u32", column, column, self.flight * self.reach)
                b.op("add.u32", target, target, self.flight * self.stride)
                b.op("setp.lt.u32", "stage_again", column, spec.padded_k)
        if sums is not None:
            self._sum_squares(loop, sums)
        else:
            b.without("sum_squares")

    def _stage(
        self, column: Reg, source: Reg, norm: Reg | None, target: Reg, exists: RegArray | None, sums: RegArray | None
    ) -> None:
        """`exists`: which rows of x there are, where there are several; `sums`: of squares, a token's each."""
        b, spec, at, width = self.b, self.spec, self.at, self.width
        values = b.array("staged", "f32", self.flight * at.tokens * width)
        factors = b.array("norm_factor", "f32", self.flight * width) if norm is not None else None
        inside, there = b.array("inside_row", "pred", self.flight), b.array("inside_tiles", "pred", self.flight)
        with b.fragment("stage", "a pass of x to shared memory"):
            address = b.op("mad.wide.u32", "stage_from", column, 4, source)
            here, both = b.reg("stage_here", "u32"), b.reg("inside_both", "pred")
            convert.clear(b, values)
            for i in range(self.flight):
                b.op("add.u32", here, column, i * self.reach)
                b.op("setp.lt.u32", inside[i], here, spec.k)
                b.op("setp.lt.u32", there[i], here, spec.padded_k)
                for token in range(at.tokens):
                    guard = inside[i]
                    if exists is not None:
                        guard = b.op("and.pred", both, inside[i], exists[token])
                    words = values[width * (i * at.tokens + token) : width * (i * at.tokens + token + 1)]
                    convert.load_words(b, words, address, 4 * (token * spec.k + i * self.reach), pred=guard)
            if factors is not None:
                norm_at = b.op("mad.wide.u32", "norm_from", column, 4, norm)
                convert.clear(b, factors)
                for i in range(self.flight):
                    words = factors[width * i : width * (i + 1)]
                    convert.load_words(b, words, norm_at, 4 * i * self.reach, space="global.nc", pred=inside[i])
            for i in range(self.flight):
                for token in range(at.tokens):
                    words = values[width * (i * at.tokens + token) : width * (i * at.tokens + token + 1)]
                    if factors is not None and sums is not None:
                        self._normalise(words, factors[width * i : width * (i + 1)], sums[token])
                    to = token * self.row_bytes + i * self.stride
                    convert.store_words(b, target, words, to, space="shared", pred=there[i])

    def _normalise(self, words: tuple[Reg, ...], factors: tuple[Reg, ...], total: Reg) -> None:
        """Squares into the sum, then the factor: the root is taken off the products at the end."""
        b, spec = self.b, self.spec
        scaled = convert.scratch(b, "norm_scaled", "f32")
        for word, factor in zip(words, factors, strict=True):
            b.op("fma.rn.f32", total, word, word, total)
            if spec.norm_offset:
                factor = b.op("add.f32", scaled, factor, spec.norm_offset)
            b.op("mul.f32", word, word, factor)

    def _sum_squares(self, loop: TileLoop, sums: RegArray) -> None:
        b, at = self.b, self.at
        assert self.squares is not None
        with b.fragment("sum_squares", "the warp's sums of squares to shared memory"):
            is_first = b.op("setp.eq.u32", "is_first_lane", loop.lane, 0)
            slot = b.op("mov.u32", "squares_slot", self.squares)
            b.op("mad.lo.u32", slot, loop.warp, 4 * at.tokens, slot)
            for token, total in enumerate(sums):
                over_warp(b, "add.f32", total)
                b.op("st.shared.f32", slot[4 * token], total, pred=is_first)
