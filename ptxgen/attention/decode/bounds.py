"""Which positions of a tile are visible: what both main loops ask first."""

from __future__ import annotations

from ptxgen.attention.decode.contract import Task
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch


def tile_bounds(b: Builder, task: Task, tile: int, left: Reg, edge: Reg) -> None:
    """`left` = positions from the tile's first to the length; `edge`: whether some of its `tile` positions are hidden.
    With a window, `tile_hidden` are those before it."""
    b.op("mad.lo.s32", left, task.tile, -tile, task.length)
    b.op("setp.lt.s32", edge, left, tile)
    if task.start is not None:
        hidden = scratch(b, "tile_hidden", "s32")
        b.op("mad.lo.s32", hidden, task.tile, -tile, task.start)
        b.op("setp.gt.or.s32", edge, hidden, 0, edge)
