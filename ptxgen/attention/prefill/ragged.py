"""Which sequence of a ragged batch a CTA works for: tiles of rows are dealt out over all sequences, on the device.

Every warp finds the same answer, 32 sequences at a time: a lane counts the tiles of one sequence, and a prefix sum over
the lanes tells which of them holds the CTA's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Or, Reg

if TYPE_CHECKING:
    from ptxgen.attention.prefill.rows import Rows

WARP = 32


class Ragged:
    """`enter` and `scan` find the registers `sequence`, `q_start`, `q_len` and `row_tile` of the CTA."""

    def __init__(self, b: Builder, rows: Rows) -> None:
        self.b, self.rows = b, rows
        self.found = b.reg("found", "pred")

    def enter(self, slot: Reg) -> None:
        """Before the loop; `slot` is the CTA's number among the tiles of all sequences; part of an open fragment."""
        b = self.b
        self.slot = slot
        self.lane = b.op("and.b32", b.reg("scan_lane", "u32"), self.rows.thread, WARP - 1)
        self.starts = b.ld_param("q_starts")
        self.count = b.ld_param("n_sequences")
        self.base = b.op("mov.u32", "scan_base", 0)
        b.op("setp.ne.u32", self.found, self.base, 0)
        b.op("setp.gt.s32", "has_sequences", self.count, 0)
        for name in ("q_start", "q_len", "row_tile"):
            b.op("mov.s32", name, 0)
        b.op("mov.u32", "sequence", 0)

    def scan(self) -> None:
        """Fragment `scan`: 32 sequences; repeats while `more_sequences`."""
        b, rows = self.b, self.rows
        with b.fragment("scan"):
            b.note(f"a lane counts one sequence's tiles of {rows.rows} rows")
            mine = b.op("add.u32", "scan_mine", self.base, self.lane)
            b.op("setp.lt.u32", "scan_exists", mine, self.count)
            at = b.op("mad.wide.u32", "starts_at", mine, 4, self.starts)
            for name, offset in (("scan_start", 0), ("scan_end", 4)):
                b.op("mov.s32", name, 0)
                b.op("ld.global.nc.s32", b.registers[name], at[offset], pred=b.registers["scan_exists"])
            length = b.op("sub.s32", "scan_len", b.registers["scan_end"], b.registers["scan_start"])
            b.op("max.s32", length, length, 0)
            tiles = b.op("mul.lo.s32", "scan_tiles", length, rows.group)
            b.op("add.s32", tiles, tiles, rows.rows - 1)
            b.op("div.u32", tiles, tiles, rows.rows)
            through = b.op("mov.b32", b.reg("tiles_through", "s32"), tiles)
            below, has_below = b.reg("tiles_below", "s32"), b.reg("has_below", "pred")
            for distance in (1, 2, 4, 8, 16):
                b.op("shfl.sync.up.b32", Or(below, has_below), through, distance, 0, -1)
                b.op("add.s32", through, through, below, pred=has_below)
            holds = b.op("setp.gt.s32", "scan_holds", through, self.slot)
            holders = b.op("vote.sync.ballot.b32", b.reg("holders", "b32"), holds, -1)
            b.op("setp.ne.u32", self.found, holders, 0)
            b.note("the first sequence whose tiles reach beyond this CTA's; its own are taken from the last")
            first = b.op("brev.b32", b.reg("holder", "b32"), holders)
            b.op("clz.b32", first, first)
            b.op("sub.s32", b.reg("tile_from_end", "s32"), through, self.slot)
            found = {"q_start": "scan_start", "q_len": "scan_len", "sequence": "scan_mine", "row_tile": "tile_from_end"}
            for to, source in found.items():
                b.op("shfl.sync.idx.b32", b.registers[to], b.registers[source], first, 31, -1)
            all_tiles = b.op("shfl.sync.idx.b32", b.reg("all_tiles", "s32"), through, WARP - 1, 31, -1)
            b.op("sub.s32", self.slot, self.slot, all_tiles)
            b.op("add.u32", self.base, self.base, WARP)
            more = b.op("setp.lt.s32", "more_sequences", self.base, self.count)
            b.op("and.pred", more, more, ~self.found)
