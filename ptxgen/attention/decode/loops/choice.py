"""The main loops there are, and which of them runs an attention."""

from __future__ import annotations

from typing import cast

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.contract import LoopShape, MainLoop, problem_rules
from ptxgen.attention.decode.loops.mma import loop as mma
from ptxgen.attention.decode.loops.simt import loop as simt
from ptxgen.targets import Target

LOOPS: tuple[MainLoop, ...] = (cast(MainLoop, mma), cast(MainLoop, simt))


def choose(attention: Attention, target: Target, warps: int = 8, stages: int = 0) -> tuple[MainLoop, LoopShape] | str:
    """The first loop that can run it, and how with at most so many warps and stages; the reasons when none can."""
    reasons = list(problem_rules(attention.problem))
    if reasons:
        return reasons[0]
    for loop in LOOPS:
        shape = loop.shape(attention, target, warps, stages)
        if not isinstance(shape, str):
            return loop, shape
        reasons.append(shape)
    return "; ".join(reversed(reasons))
