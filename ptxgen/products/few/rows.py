"""x of eight tokens into shared memory as bf16 digits; times the norm's weights, and the sums of its squares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import over_lanes
from ptxgen.products.digits import split_digits
from ptxgen.products.few.columns import LANE_BYTES
from ptxgen.products.few.geometry import DIGIT_BYTES, PAIR, TOKENS, FewRuns
from ptxgen.weights.format import CHUNK, OWN

if TYPE_CHECKING:
    from ptxgen.kernels.gemm import Gemm
    from ptxgen.products.product import Tokens
    from ptxgen.products.stream import Stream

MOST_IN_FLIGHT = 4  # pairs of chunks that a warp asks for before it waits
LINE = 32  # columns of a line of the L2
HALVES = PAIR // CHUNK


class FewRows:
    """Fragments `norm_early`, `begin_stage`, `stage`, `next_stage` and, with a norm, `sum_squares`; `squares` is
    `[token, warp]`, a token's in whole 16 bytes."""

    def __init__(self, b: Builder, spec: Gemm, at: FewRuns, vector: Shared) -> None:
        self.b, self.spec, self.at, self.vector = b, spec, at, vector
        loads = -(-at.pairs // at.warps)
        self.flight = min(loads, MOST_IN_FLIGHT)
        self.passes = -(-loads // self.flight)
        self.square_bytes = 16 * -(-at.warps // 4)
        self.squares: Shared | None = b.shared("squares", TOKENS * self.square_bytes, align=16) if spec.norm else None

    def request_norm(self, thread: Reg) -> None:
        """Fragment `norm_early`: the norm's weights come to the L2, whose loads wait for x."""
        b, spec = self.b, self.spec
        if not spec.norm:
            b.without("norm_early")
            return
        with b.fragment("norm_early", "the norm's weights are constant: they come to the L2 before x is waited for"):
            norm = self.norm = b.ld_param("norm_weight")
            line = b.op("mul.lo.u32", "norm_line", thread, LINE)
            inside, at = b.reg("norm_inside", "pred"), b.op("mad.wide.u32", "norm_line_at", line, 4, norm)
            for first in range(0, spec.k, LINE * self.at.threads):
                b.op("setp.lt.u32", inside, line, spec.k - first)
                b.op("prefetch.global.L2", at[4 * first], pred=inside)

    def build(self, stream: Stream, tokens: Tokens) -> None:
        """Everything else: a warp takes every pair of chunks whose number is its own, and a lane those of its token."""
        b, spec, at = self.b, self.spec, self.at
        with b.fragment("begin_stage", "the lane's token and first columns of x, and where they go in shared memory"):
            pair = self.pair = b.op("mov.u32", "stage_pair", stream.warp)
            column = b.op("mul.lo.u32", "stage_column", pair, PAIR)
            b.op("mad.lo.u32", column, stream.quad, OWN, column)
            if stream.first_of_rank is not None:
                b.op("mad.lo.u32", column, stream.first_of_rank, spec.kind.tile_k, column)
            row = b.op("add.u32", "stage_row", tokens.first, stream.row)
            self.exists = b.op("setp.lt.u32", "row_exists", row, tokens.rows)
            self.source = b.op("mad.wide.u32", "stage_from", row, 4 * spec.k, b.ld_param("x"))
            b.op("mad.wide.u32", self.source, column, 4, self.source)
            if spec.norm:
                self.norm_at = b.op("mad.wide.u32", "norm_from", column, 4, self.norm)
                self.total = b.op("mov.f32", "square_sum", 0.0)
            self.to = b.op("mov.u32", "stage_to", self.vector)
            b.op("mad.lo.u32", self.to, pair, at.digits * DIGIT_BYTES, self.to)
            b.op("mad.lo.u32", self.to, stream.lane, LANE_BYTES, self.to)
        self._stage()
        if self.passes > 1:
            with b.fragment("next_stage", "on to the next columns"):
                step = self.flight * at.warps
                b.op("add.u32", pair, pair, step)
                b.op("add.u64", self.source, self.source, 4 * PAIR * step)
                if spec.norm:
                    b.op("add.u64", self.norm_at, self.norm_at, 4 * PAIR * step)
                b.op("add.u32", self.to, self.to, at.digits * DIGIT_BYTES * step)
                b.op("setp.lt.u32", "stage_again", pair, at.pairs)
        if self.squares is None:
            b.without("sum_squares")
            return
        with b.fragment("sum_squares", "the warp's sums of squares to shared memory"):
            over_lanes(b, "add.f32", self.total, (1, 2))
            is_first = b.op("setp.eq.u32", "is_first_lane", stream.quad, 0)
            slot = b.op("mov.u32", "squares_slot", self.squares)
            b.op("mad.lo.u32", slot, stream.row, self.square_bytes, slot)
            b.op("mad.lo.u32", slot, stream.warp, 4, slot)
            b.op("st.shared.f32", slot[0], self.total, pred=is_first)

    def _stage(self) -> None:
        """Fragment `stage`: the loads of a pass, and what becomes of them."""
        b, spec, at = self.b, self.spec, self.at
        count = OWN * HALVES
        values = b.array("staged", "f32", self.flight * count)
        factors = b.array("norm_factor", "f32", self.flight * count) if spec.norm else None
        split = b.array("staged_digit", "b32", 4 * at.digits)
        inside, there = b.reg("inside_row", "pred"), b.reg("inside_pairs", "pred")
        with b.fragment("stage", "a pass of x to shared memory"):
            convert.clear(b, values)
            if factors is not None:
                convert.clear(b, factors)
            for i in range(self.flight):
                b.op("setp.lt.u32", there, self.pair, max(0, at.pairs - i * at.warps))
                b.op("and.pred", inside, there, self.exists)
                for half in range(HALVES):
                    first, offset = count * i + OWN * half, 4 * (PAIR * at.warps * i + CHUNK * half)
                    convert.load_words(b, values[first : first + OWN], self.source, offset, pred=inside)
                    if factors is not None:
                        own = factors[first : first + OWN]
                        convert.load_words(b, own, self.norm_at, offset, space="global.nc", pred=there)
            for i in range(self.flight):
                own = values[count * i : count * (i + 1)]
                if factors is not None:
                    self._normalise(own, factors[count * i : count * (i + 1)])
                for half in range(HALVES):
                    digits = [split[4 * digit + 2 * half : 4 * digit + 2 * half + 2] for digit in range(at.digits)]
                    split_digits(b, own[OWN * half : OWN * (half + 1)], digits)
                b.op("setp.lt.u32", there, self.pair, max(0, at.pairs - i * at.warps))
                for digit in range(at.digits):
                    place = (i * at.warps * at.digits + digit) * DIGIT_BYTES
                    words = split[4 * digit : 4 * digit + 4]
                    convert.store_words(b, self.to, words, place, space="shared", pred=there)

    def _normalise(self, values: tuple[Reg, ...], factors: tuple[Reg, ...]) -> None:
        """Squares into the sum, then the factor: the root is taken off the products at the end."""
        b, spec = self.b, self.spec
        for value, factor in zip(values, factors, strict=True):
            b.op("fma.rn.f32", self.total, value, value, self.total)
            if spec.norm_offset:
                b.op("add.f32", factor, factor, spec.norm_offset)
            b.op("mul.f32", value, value, factor)
