"""The softmax of a loop over tiles of keys with a running maximum, which is rarely raised.

A thread compares its own scores with its rows' limits. Lanes exchange maxima only where some score of the warp is above
its limit; after a row's first tiles that is rare.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.attention.prefill.softmax import SLACK, Softmax
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.dot import multiply


class RunningSoftmax(Softmax):
    """What exponents are shifted by changes with the maximum alone, and stays in registers."""

    def clear(self) -> None:
        """The same, and no shift yet."""
        super().clear()
        for shift in self.shift:
            self.b.op("mov.f32", shift, 0.0)

    def raise_maxima(self, accumulators: Sequence[Sequence[Reg]]) -> None:
        """Fragments `tile_maxima`; `look_for_raise`, which sets `raised` for the warp; and `rescale`.

        A row's result depends on its own scores only, whatever the other rows of the warp do.
        """
        b = self.b
        self.tile_maxima(exchanged=False)
        with b.fragment("look_for_raise"):
            b.note(f"a maximum is raised when a score exceeds it by 2^{SLACK:g}")
            some = scratch(b, "any_raised", "pred")
            for row, (limit, largest) in enumerate(zip(self.limit, self.tile_max, strict=True)):
                if row == 0:
                    b.op("setp.gt.f32", some, largest, limit)
                else:
                    b.op("setp.gt.or.f32", some, largest, limit, some)
            b.op("vote.sync.any.pred", "raised", some, -1)
        with b.fragment("rescale", "new maxima; sums and accumulators on their scale"):
            self.exchange_maxima()
            old, factor, raises = b.reg("old_shift", "f32"), b.reg("correction", "f32"), b.reg("raises", "pred")
            for row, (limit, largest, shift) in enumerate(zip(self.limit, self.tile_max, self.shift, strict=True)):
                b.op("setp.gt.f32", raises, largest, limit)
                b.op("sub.f32", old, SLACK, limit)
                b.op("add.f32", limit, largest, SLACK, pred=raises)
                b.op("sub.f32", shift, SLACK, limit, pred=raises)
                b.op("sub.f32", factor, shift, old)
                b.op("ex2.approx.ftz.f32", factor, factor)
                b.op("selp.f32", factor, factor, 1.0, raises)
                multiply(b, (self.total[row], *accumulators[row]), factor)
