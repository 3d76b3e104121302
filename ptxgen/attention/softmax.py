"""What softmaxes share that work in the log2 domain: its unit, and the soft cap of their scores."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg

LOG2E = math.log2(math.e)


def soften(b: Builder, scores: Iterable[Reg], cap: float, factor: float | None = None) -> None:
    """Every score x becomes cap · tanh(x / cap) in units of log2. A score times `factor` is 2 · log2(e) · x / cap; with
    None it is so already.

    cap · tanh(y) = cap − 2 · cap / (1 + e^2y); tanh.approx is good to 2⁻¹¹ only.
    """
    in_log2 = cap * LOG2E
    for score in scores:
        if factor is not None:
            b.op("mul.f32", score, score, factor)
        b.op("ex2.approx.ftz.f32", score, score)
        b.op("add.f32", score, score, 1.0)
        b.op("rcp.approx.ftz.f32", score, score)
        b.op("fma.rn.f32", score, score, -2 * in_log2, in_log2)
