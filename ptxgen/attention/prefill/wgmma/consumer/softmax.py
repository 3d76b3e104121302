"""The softmax of a warpgroup's tile: with the maximum of an item's first tile alone, or with a running one.

bf16 probabilities have float32's range of exponents: relative to the maximum of the first tile they may reach 2^63 and
keep their precision, and sums and accumulators grow alike. So nothing is compared, exchanged or rescaled within the
loop. At the item's end a sum of SAFE or more, or an output that is not finite, sets a flag, and the CTA computes its
items again with the running maximum. That one is also for what may show a row no key of the first tile (a short
window), or more than a factor between q·k and the score.

f16 probabilities end at 65504. Before they become f16, a thread compares its sum of a tile's with LARGE. Where one is
larger, that row's probabilities, and all that was added up, are multiplied by a power of two, the same in all lanes.
Where a probability is beyond float32, the flag is set as above.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptxgen.attention.prefill.softmax import SLACK, Softmax
from ptxgen.attention.prefill.wgmma.variants import folds_scales, plain
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.dot import multiply

SAFE = 1e19  # a sum below it had no overflow: its terms are not negative
LARGE = 2.0**14  # a thread's sum of a tile up to which none of its probabilities is beyond f16
KEPT = 8  # a larger sum becomes 2^8 or more, so that no factor is below float32's normal numbers
MANTISSA, BIAS = 23, 127  # bits of an f32's mantissa, and what its exponent is stored with


class TileSoftmax(Softmax):
    """Fragments of the softmax; `build` makes them all. `limited`: f16 limits probabilities that are relative to the
    maximum of the first tile."""

    def __init__(self, *what: Any, limited: bool) -> None:
        super().__init__(*what)
        self.limited = limited
        self.raised = self.b.reg("raised", "pred")
        self.tile_sum = self.b.array("tile_sum", "f32", len(self.scores)) if limited else ()

    adds_up = True  # threads add up the sums of rows
    unseen_shift = 0.0  # of a row that saw no key

    @property
    def plain(self) -> bool:
        return plain(self.variant)

    @property
    def factor(self) -> float | Reg:
        return self.k_factor if folds_scales(self.variant) else super().factor

    def factor_of(self, row: int) -> float | Reg:
        return self.factors[row] if self.spec.fp8 else self.factor

    def take_scales(self, scales: Sequence[Reg]) -> None:
        """Of the rows of q; part of an open fragment."""
        for scale in scales:
            self.b.op("mul.f32", scale, scale, self.factor)
        self.factors = scales

    def clear(self) -> None:
        """The same, and the factor of the item's scores."""
        super().clear()
        if folds_scales(self.variant):
            self.k_factor = self.b.op("abs.f32", "k_factor", self.rows.k_scale)
            self.b.op("mul.f32", self.k_factor, self.k_factor, self.variant.factor)

    def build(self, tile_start: Reg, accumulators: Sequence[Sequence[Reg]]) -> None:
        """For the tile that begins at key `tile_start`; `accumulators` of each of the thread's rows."""
        b = self.b
        self.vary(tile_start)
        self.mask(tile_start)
        self.tile_maxima(exchanged=True)
        with b.fragment("begin_maxima", "the maximum of the first tile"):
            for limit, largest in zip(self.limit, self.tile_max, strict=True):
                b.op("add.f32", limit, largest, SLACK)
            self.shifts()
        with b.fragment("exponentials", "scores to probabilities, and row sums"):
            self._probabilities()
        self._raise(accumulators)
        if self.limited:
            self._scale_down(accumulators)
        else:
            b.without("look_for_large", "scale_down")

    def _probabilities(self) -> None:
        """Those of all rows, and sums; where f16 limits them, also the tile's alone; part of an open fragment."""
        b = self.b
        for row, scores in enumerate(self.scores):
            if not self.limited:
                self.exponentiate(row, scores, self.total[row])
                continue
            b.op("mov.f32", self.tile_sum[row], 0.0)
            self.exponentiate(row, scores, self.tile_sum[row])
            b.op("add.f32", self.total[row], self.total[row], self.tile_sum[row])

    def _raise(self, accumulators: Sequence[Sequence[Reg]]) -> None:
        """Fragments `raise_sums`, which sets `raised` for the warp, and `rescale`: accumulators follow later, when
        they are at rest."""
        b, count = self.b, len(self.scores)
        factors, raises = b.array("correction", "f32", count), b.array("raises", "pred", count)
        with b.fragment("raise_sums", f"maxima that a score exceeds by 2^{SLACK:g}, and the sums"):
            for row, (limit, largest, raise_, factor, total) in enumerate(
                zip(self.limit, self.tile_max, raises, factors, self.total, strict=True)
            ):
                self.find_raise(row, raise_)
                b.op("mov.f32", factor, limit)
                b.op("add.f32", limit, largest, SLACK, pred=raise_)
                b.op("sub.f32", factor, factor, limit)
                b.op("ex2.approx.ftz.f32", factor, factor)
                b.op("selp.f32", factor, factor, 1.0, raise_)
                if self.adds_up:
                    b.op("mul.f32", total, total, factor)
            self._vote(raises)
            self.shifts()
        with b.fragment("rescale", "accumulators on the scale of the new maxima"):
            for factor, values in zip(factors, accumulators, strict=True):
                multiply(b, values, factor)

    def shifts(self) -> None:
        """What each row's exponents are shifted by: minus its maximum, or 0 if unseen; part of an open fragment."""
        b = self.b
        unseen = scratch(b, "saw_nothing", "pred")
        for limit, shift in zip(self.limit, self.shift, strict=True):
            b.op("setp.eq.f32", unseen, limit, float("-inf"))
            b.op("sub.f32", shift, self.top, limit)
            b.op("selp.f32", shift, self.unseen_shift, shift, unseen)

    def _vote(self, raises: Sequence[Reg]) -> None:
        """Whether some row of the warp raises; part of an open fragment."""
        b = self.b
        any_row = b.op("or.pred", scratch(b, "any_raised", "pred"), *raises)
        b.op("vote.sync.any.pred", self.raised, any_row, -1)

    def find_raise(self, row: int, raise_: Reg) -> None:
        """Whether a row's maximum is raised; part of an open fragment."""
        self.b.op("setp.gt.f32", raise_, self.tile_max[row], self.limit[row])

    def _scale_down(self, accumulators: Sequence[Sequence[Reg]]) -> None:
        """Fragments `look_for_large`, behind `exponentials`, and `scale_down`, when accumulators are at rest: of
        probabilities that are still f32."""
        b, sums = self.b, self.tile_sum
        large = b.array("is_large", "pred", len(sums))
        with b.fragment("look_for_large", "probabilities that f16 may not hold"):
            for each, total in zip(large, sums, strict=True):
                b.op("setp.gt.f32", each, total, LARGE)
            self._vote(large)
        with b.fragment("scale_down", "probabilities, sums and accumulators on the scale of their largest sum"):
            other, exponent = b.reg("other_large", "f32"), b.reg("large_exponent", "s32")
            factor, more = b.reg("large_factor", "f32"), b.reg("large_log", "f32")
            for row, total in enumerate(sums):
                self.over_lanes("max.f32", total, other)
                b.op("setp.gt.f32", large[row], total, LARGE)
                b.op("mov.b32", exponent, total)
                b.op("shr.u32", exponent, exponent, MANTISSA)
                b.op("sub.s32", exponent, exponent, BIAS + KEPT)
                b.op("selp.b32", exponent, exponent, 0, large[row])
                b.op("cvt.rn.f32.s32", more, exponent)
                b.op("add.f32", self.limit[row], self.limit[row], more)
                b.op("sub.s32", exponent, BIAS, exponent)
                b.op("shl.b32", exponent, exponent, MANTISSA)
                b.op("mov.b32", factor, exponent)
                multiply(b, (self.total[row], *(score.reg for score in self.scores[row]), *accumulators[row]), factor)
            self.shifts()
