"""The largest of what threads, then warps, then CTAs hold, as an ordered key above the complement of an index.

The lowest index wins among equals. CTAs meet in `best` and `arrivals`, workspaces that begin as zeros and are left so.
"""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.sampling.order import largest_of_warp


class Best:
    """Fragments `reduce_warp`, `publish`, `reduce_cta`, and where several CTAs meet `arrive` and `collect`, for the
    part `parts/best.ptx.j2`. `key` and `low` are the thread's, and in the first thread of the last CTA the result."""

    def __init__(self, b: Builder, key: Reg, low: Reg, thread: Reg, warps: int) -> None:
        self.b, self.key, self.low, self.thread, self.warps = b, key, low, thread, warps

    def over_cta(self) -> None:
        """Fragments `publish` and `reduce_cta`, after the warps have reduced."""
        b, best, low, thread = self.b, self.key, self.low, self.thread
        with b.fragment("publish", "the first lane of every warp writes its best to shared memory"):
            slots = b.shared("warp_best", 8 * self.warps)
            lane = b.op("and.b32", "lane", thread, 31)
            is_lane0 = b.op("setp.eq.u32", "is_lane0", lane, 0)
            slot = b.op("mov.u32", "slot", slots)
            mine = b.op("shr.u32", "slot_offset", thread, 5)
            b.op("mad.lo.u32", mine, mine, 8, slot)
            b.op("st.shared.v2.b32", mine[0], (low, best), pred=is_lane0)
            b.op("setp.lt.u32", "in_first_warp", thread, 32)
        with b.fragment("reduce_cta", "the first warp reads the bests of all warps"):
            has_slot = b.op("setp.lt.u32", "has_slot", thread, self.warps)
            b.op("mad.lo.u32", slot, thread, 8, slot)
            b.op("mov.u32", best, 0)
            b.op("mov.b32", low, 0)
            b.op("ld.shared.v2.b32", (low, best), slot[0], pred=has_slot)
            largest_of_warp(b, best, low)
            b.op("setp.eq.u32", "is_first", thread, 0)

    def over_ctas(self, ctas: int, row: Reg | None = None) -> None:
        """Fragments `arrive` and `collect`: the maximum over CTAs, and who is the last of them; `row` of a grid of
        rows."""
        b, best, low = self.b, self.key, self.low
        if ctas == 1:
            b.without("arrive", "collect")
            return
        with b.fragment("arrive", f"the CTA's best into the {'row' if row else 'grid'}'s, and which CTA is the last"):
            packed = b.op("mov.b64", "packed", (low, best))
            row_best, arrivals = b.ld_param("best"), b.ld_param("arrivals")
            if row is not None:
                b.op("mad.wide.u32", row_best, row, 8, row_best)
                b.op("mad.wide.u32", arrivals, row, 4, arrivals)
            b.op("red.relaxed.gpu.global.max.u64", row_best[0], packed)
            b.note(f"counts to {'splits' if row else 'CTAs'} - 1 and then back to 0; acq_rel: all maxima before it are "
                   "seen by the last")  # fmt: skip
            order = b.op("atom.acq_rel.gpu.global.inc.u32", "order", arrivals[0], ctas - 1)
            b.op("setp.eq.u32", "is_last", order, ctas - 1)
        with b.fragment("collect"):
            b.op("atom.relaxed.gpu.global.exch.b64", packed, row_best[0], 0)
            b.op("mov.b64", (low, best), packed)
