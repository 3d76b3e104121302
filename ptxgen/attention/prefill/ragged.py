"""Which sequence of a ragged batch a CTA works for: tiles of rows are dealt out over all sequences, on the device.

Every warp finds the same answer, 32 sequences at a time: a lane counts the tiles of one sequence, and a prefix sum over
the lanes tells which of them holds the CTA's.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.builder import Builder
from ptxgen.builder.values import Or, Reg
from ptxgen.idioms.division import divide

WARP = 32


@dataclass(frozen=True)
class Found:
    """Registers: whether a sequence holds the CTA's tile, which, its first token, how many, and the tile's number."""

    holds: Reg
    sequence: Reg
    q_start: Reg
    q_len: Reg
    row_tile: Reg


class Ragged:
    """`enter` and `scan` fill `found`, for tiles of `rows` rows of which a token has `group`."""

    def __init__(self, b: Builder, thread: Reg, rows: int, group: int) -> None:
        self.b, self.thread, self.rows, self.group = b, thread, rows, group
        self._holds = b.reg("found", "pred")

    def enter(self, slot: Reg) -> None:
        """Before the loop; `slot` is the CTA's number among the tiles of all sequences; part of an open fragment."""
        b = self.b
        self.slot = slot
        self.lane = b.op("and.b32", b.reg("scan_lane", "u32"), self.thread, WARP - 1)
        self.starts = b.ld_param("q_starts")
        self.count = b.ld_param("n_sequences")
        self.base = b.op("mov.u32", "scan_base", 0)
        b.op("setp.ne.u32", self._holds, self.base, 0)
        b.op("setp.gt.s32", "has_sequences", self.count, 0)
        start, length, tile = (b.op("mov.s32", name, 0) for name in ("q_start", "q_len", "row_tile"))
        self.found = Found(self._holds, b.op("mov.u32", "sequence", 0), start, length, tile)

    def scan(self) -> None:
        """Fragment `scan`: 32 sequences; repeats while `more_sequences`."""
        b, found = self.b, self.found
        with b.fragment("scan"):
            b.note(f"a lane counts one sequence's tiles of {self.rows} rows")
            mine = b.op("add.u32", "scan_mine", self.base, self.lane)
            exists = b.op("setp.lt.u32", "scan_exists", mine, self.count)
            at = b.op("mad.wide.u32", "starts_at", mine, 4, self.starts)
            ends = []
            for name, offset in (("scan_start", 0), ("scan_end", 4)):
                ends.append(b.op("mov.s32", name, 0))
                b.op("ld.global.nc.s32", ends[-1], at[offset], pred=exists)
            start, end = ends
            length = b.op("sub.s32", "scan_len", end, start)
            b.op("max.s32", length, length, 0)
            tiles = b.op("mul.lo.s32", "scan_tiles", length, self.group)
            b.op("add.s32", tiles, tiles, self.rows - 1)
            divide(b, "scan_tiles", tiles, self.rows)
            through = b.op("mov.b32", b.reg("tiles_through", "s32"), tiles)
            below, has_below = b.reg("tiles_below", "s32"), b.reg("has_below", "pred")
            for distance in (1, 2, 4, 8, 16):
                b.op("shfl.sync.up.b32", Or(below, has_below), through, distance, 0, -1)
                b.op("add.s32", through, through, below, pred=has_below)
            holds = b.op("setp.gt.s32", "scan_holds", through, self.slot)
            holders = b.op("vote.sync.ballot.b32", b.reg("holders", "b32"), holds, -1)
            b.op("setp.ne.u32", self._holds, holders, 0)
            b.note("the first sequence whose tiles reach beyond this CTA's; its own are taken from the last")
            first = b.op("brev.b32", b.reg("holder", "b32"), holders)
            b.op("clz.b32", first, first)
            from_end = b.op("sub.s32", b.reg("tile_from_end", "s32"), through, self.slot)
            answers = (found.q_start, found.q_len, found.sequence, found.row_tile)
            for to, source in zip(answers, (start, length, mine, from_end), strict=True):
                b.op("shfl.sync.idx.b32", to, source, first, 31, -1)
            all_tiles = b.op("shfl.sync.idx.b32", b.reg("all_tiles", "s32"), through, WARP - 1, 31, -1)
            b.op("sub.s32", self.slot, self.slot, all_tiles)
            b.op("add.u32", self.base, self.base, WARP)
            more = b.op("setp.lt.s32", "more_sequences", self.base, self.count)
            b.op("and.pred", more, more, ~self._holds)
