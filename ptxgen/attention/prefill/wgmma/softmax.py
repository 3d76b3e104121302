"""The softmax of a warpgroup's tile: with the maximum of an item's first tile alone, or with a running one.

bf16 probabilities have float32's range of exponents: relative to the maximum of the first tile they may reach 2^63 and
keep their precision, and sums and accumulators grow alike. So nothing is compared, exchanged or rescaled within the
loop. At the item's end a sum of SAFE or more, or an output that is not finite, sets a flag, and the CTA computes its
items again with the running maximum. That one is for f16 too, whose probabilities end at 65504, and for what may show
a row no key of the first tile (a window), or more than a factor between q·k and the score.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.attention.prefill.softmax import SLACK, Softmax
from ptxgen.attention.prefill.wgmma.variants import folds_scales, plain
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch

SAFE = 1e19  # a sum below it had no overflow: its terms are not negative


class TileSoftmax(Softmax):
    """Fragments of the softmax; `build` makes them all."""

    adds_up = True  # threads add up the sums of rows

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
        self.tile_maxima()
        with b.fragment("begin_maxima", "the maximum of the first tile"):
            for limit, largest in zip(self.limit, self.tile_max, strict=True):
                b.op("add.f32", limit, largest, SLACK)
            self.shifts()
        with b.fragment("exponentials", "scores to probabilities, and row sums"):
            for row, scores in enumerate(self.scores):
                self.exponentiate(row, scores)
        self._raise(accumulators)

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
            any_row = b.op("or.pred", scratch(b, "any_raised", "pred"), *raises)
            b.op("vote.sync.any.pred", "raised", any_row, -1)
            self.shifts()
        with b.fragment("rescale", "accumulators on the scale of the new maxima"):
            for factor, values in zip(factors, accumulators, strict=True):
                for value in values:
                    b.op("mul.f32", value, value, factor)

    def find_raise(self, row: int, raise_: Reg) -> None:
        """Whether a row's maximum is raised; part of an open fragment."""
        self.b.op("setp.gt.f32", raise_, self.tile_max[row], self.limit[row])
