"""Which positions of a tile are visible: the one place that both main loops ask."""

from __future__ import annotations

from ptxgen.attention.decode.contract import Task
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch


class Bounds:
    """Of the current tile of `tile` positions: `left`, positions from its first to the length; `edge`, whether some of
    its own are hidden."""

    def __init__(self, b: Builder, task: Task, tile: int) -> None:
        self.b, self.task, self.tile = b, task, tile
        self.left, self.edge = b.reg("tile_left", "s32"), b.reg("tile_edge", "pred")
        self._hidden: Reg | None = None  # with a window: positions before it

    def find(self) -> None:
        """For the tile that the task is at; part of an open fragment."""
        b, task, tile = self.b, self.task, self.tile
        b.op("mad.lo.s32", self.left, task.tile, -tile, task.length)
        b.op("setp.lt.s32", self.edge, self.left, tile)
        if task.start is not None:
            self._hidden = scratch(b, "tile_hidden", "s32")
            b.op("mad.lo.s32", self._hidden, task.tile, -tile, task.start)
            b.op("setp.gt.or.s32", self.edge, self._hidden, 0, self.edge)

    def visible(self, name: str, place: Reg) -> Reg:
        """Whether the position at `place` of the tile is, in the predicate of that name; after `find`."""
        visible = scratch(self.b, name, "pred")
        self.b.op("setp.lt.s32", visible, place, self.left)
        if self._hidden is not None:
            self.b.op("setp.ge.and.s32", visible, place, self._hidden, visible)
        return visible
