"""Small tiles of rows, which one warpgroup multiplies alone (`last_tiles`): the other warpgroups skip them.

They come after the whole tiles, so that the last round of CTAs, which would have few whole tiles, ends sooner. Warps
that skip a tile release every stage as soon as it is full: a stage is empty when all warps have released it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.products.wgmma.mainloop.multiplier import Multiplier

if TYPE_CHECKING:
    from ptxgen.products.wgmma.tiling.geometry import Geometry


class Passing:
    """Fragments `begin_passing` and `pass_stage`; the predicate `passes_more`."""

    def __init__(self, b: Builder, at: Geometry, multiplier: Multiplier) -> None:
        self.b, self.at, self.multiplier = b, at, multiplier

    def build(self) -> None:
        """Build both."""
        b, of = self.b, self.multiplier
        with b.fragment("begin_passing", "the tile has no rows of this warpgroup"):
            left = b.op("mov.u32", "passed_steps", self.at.steps)
        with b.fragment("pass_stage", "others multiply it"):
            b.op("bar.warp.sync", -1, note="no lane falls a phase behind")
            b.op("mov.u32", of.released, of.ring.empty)
            of.arrive(of.arrives)
            of.ring.turn()
            b.op("sub.u32", left, left, 1)
            b.op("setp.ne.u32", "passes_more", left, 0)
