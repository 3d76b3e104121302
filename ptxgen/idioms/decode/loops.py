"""The main loops there are, and which of them runs an attention."""

from __future__ import annotations

from typing import cast

from ptxgen.idioms.decode import mma
from ptxgen.idioms.decode.contract import Attention, LoopShape, MainLoop
from ptxgen.targets import Target


def _available() -> tuple[MainLoop, ...]:
    found = [cast(MainLoop, mma)]
    try:
        from ptxgen.idioms.decode import simt

        found.append(cast(MainLoop, simt))
    except ImportError:
        pass
    return tuple(found)


LOOPS: tuple[MainLoop, ...] = _available()


def choose(
    attention: Attention, target: Target, warps: int = 8, stages: int = 0
) -> tuple[MainLoop, LoopShape] | None:
    """The first loop that can run it, and how with at most so many warps and stages; None when no loop can."""
    for loop in LOOPS:
        shape = loop.shape(attention, target, warps, stages)
        if shape is not None:
            return loop, shape
    return None
