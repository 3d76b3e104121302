"""Tiles of rows that one warpgroup alone has (`last_tiles`): the others pass them.

They lie behind the whole tiles, so that the last turn of CTAs, where whole tiles would be few, ends sooner. Warps that
pass give every stage back as soon as it is full: a stage is empty when all have done so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.products.wgmma.multiply import Multiplier
from ptxgen.products.wgmma.shape import MOST_ROWS_FIRST

if TYPE_CHECKING:
    from ptxgen.products.wgmma.geometry import Geometry
    from ptxgen.products.wgmma.product import PackedProduct


def refusal(spec: PackedProduct, at: Geometry) -> Iterator[str]:
    """Why a product has no such tiles, if it has none."""
    shape, records = at.shape, spec.parts * spec.kind.records(spec.n)
    whole, left = divmod(records - shape.last * at.unit_records, at.records * shape.share)
    if spec.tokens <= MOST_ROWS_FIRST or shape.groups == 1 or shape.split > 1 or spec.stream or spec.promotes:
        reason = "is for more than 64 tokens and several warpgroups, and not with split, stream or scales of blocks"
    elif whole < 1 or left or shape.last % shape.share:
        reason = "what rows are left must be whole tiles, of which there is one at least"
    else:
        return
    yield f"last_tiles: {reason} (got {shape.last}; nearest: 0)"


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
