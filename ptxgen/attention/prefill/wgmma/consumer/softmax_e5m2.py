"""The softmax of a tile whose probabilities become e5m2, with the running maximum. Owns how they do.

The bits of a floating-point number are its logarithm but for a curve within each power of two: so a scaled score plus a
constant, rounded, is the bits of its exponential, and no exponential is computed. With two bits of a mantissa that is
off by 5.5 % (2-norm), with the mean right; the nearest number is by 5.3 %. Source: Schraudolph, "A Fast, Compact
Approximation of the Exponential Function" (1999). e4m3 has a bit more, and half the range: of a row whose first key has
most of the weight it would lose the others.

A tile's bits are made with the maxima of the tiles before, and the largest bits say whether a maximum was too small:
then the tile's maxima are found, and its bits made again. Sums are those of the rounded probabilities: V has elements
that are one, so the product with V has them, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptxgen.attention.prefill.softmax import Score
from ptxgen.attention.prefill.wgmma.consumer.softmax import TileSoftmax
from ptxgen.builder.values import Or, Reg
from ptxgen.idioms.convert import scratch

OF_A_WORD = 4  # codes
STEPS, ONE = 4.0, 60.0  # e5m2's bits from a power of two to the next, and those of 1
TOP = 15.0  # log2 of the largest probability; it ends below 2^16
BELOW = -0.22  # makes the mean of rounded bits, over the power of two that they stand for, one
HALVES = 0x64006400  # 1024, twice, in f16: added to numbers from 0 on it has them, rounded, as the bits behind
TOP_CODES = HALVES + round(ONE + STEPS * TOP) * 0x10001  # with the bits of 2^TOP
LOW_BYTES = 0x6420  # prmt: the bytes 0 and 2 of both


class CodedSoftmax(TileSoftmax):
    """`codes`: of each row the words of its probabilities, four keys each; `sums`: the registers of the rows' sums.

    Fragment `guess` besides: the codes by the maxima there are, and `raised`, whether one of them was too small.
    """

    top, adds_up = TOP, False
    unseen_shift = 1e30  # the codes of the first scores that a row sees are too large

    def __init__(self, *of: Any, codes: Sequence[Sequence[Reg]], sums: Sequence[Reg]) -> None:
        super().__init__(*of, limited=False)
        b, count = self.b, len(codes)
        self.codes, self.total = codes, list(sums)
        self.largest = b.array("largest_codes", "b32", count)
        self.above = [(b.reg(f"low_above{row}", "pred"), b.reg(f"high_above{row}", "pred")) for row in range(count)]

    def clear(self) -> None:
        """The same; part of an open fragment."""
        super().clear()
        self.halves = self.b.op("mov.b32", self.b.reg("halves", "b32"), HALVES)

    def build(self, tile_start: Reg, accumulators: Sequence[Sequence[Reg]]) -> None:
        """The same, and `guess`."""
        super().build(tile_start, accumulators)
        b = self.b
        with b.fragment("guess", "codes by the maxima that there are, and whether one is too small"):
            for row, scores in enumerate(self.scores):
                b.op("mov.b32", self.largest[row], self.halves)
                self._encode(row, scores, self.largest[row])
            for row in range(len(self.scores)):
                self._look_above(row)
            self._vote([low for low, _ in self.above])

    def _look_above(self, row: int) -> None:
        """Whether one of a row's largest codes is beyond the top; part of an open fragment."""
        b, (low, high) = self.b, self.above[row]
        top = b.op("mov.b32", scratch(b, "top_codes", "b32"), TOP_CODES)
        b.op("setp.gt.f16x2", Or(low, high), self.largest[row], top)
        b.op("or.pred", low, low, high)

    def find_raise(self, row: int, raise_: Reg) -> None:
        """By the codes of the row alone, as all its lanes have them; part of an open fragment."""
        self.over_lanes("max.f16x2", self.largest[row], scratch(self.b, "other_codes", "b32"))
        self._look_above(row)
        self.b.op("mov.pred", raise_, self.above[row][0])

    def exponentiate(self, row: int, scores: Sequence[Score], total: Reg) -> None:
        """Scores of a row to the codes of probabilities; after `shifts`, in its fragment."""
        self._encode(row, scores, None)

    def _encode(self, row: int, scores: Sequence[Score], largest: Reg | None) -> None:
        """The words of a row, none of whose codes is below 0; `largest` becomes their maximum, by halves. Scores stay.
        Part of an open fragment."""
        b = self.b
        factor = b.op("mul.f32", scratch(b, "code_factor", "f32"), self.factor_of(row), STEPS)
        shift = b.op("fma.rn.f32", scratch(b, "code_shift", "f32"), self.shift[row], STEPS, ONE + BELOW)
        logs = [scratch(b, f"code_log{i}", "f32") for i in range(OF_A_WORD)]
        halves = [scratch(b, f"code_half{i}", "b32") for i in range(OF_A_WORD // 2)]
        for number, word in enumerate(self.codes[row]):
            for log, score in zip(logs, scores[OF_A_WORD * number :], strict=False):
                b.op("fma.rn.f32", log, score.reg, factor, shift)
            for i, half in enumerate(halves):
                b.op("cvt.rn.relu.f16x2.f32", half, logs[2 * i + 1], logs[2 * i])
                b.op("add.f16x2", half, half, self.halves)
                if largest is not None:
                    b.op("max.f16x2", largest, largest, half)
            b.op("prmt.b32", word, *halves, LOW_BYTES)

    def over_lanes(self, operation: str, value: Reg, other: Reg) -> None:
        """The same of maxima; all lanes have the sums already."""
        if operation.startswith("max"):
            super().over_lanes(operation, value, other)
