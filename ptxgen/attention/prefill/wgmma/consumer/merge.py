"""What consumers leave of a part of the keys, and its merge: warps by themselves, each with a counter of its own."""

from __future__ import annotations

from ptxgen.attention.prefill.merge import Merge
from ptxgen.attention.prefill.wgmma.consumer.loop import Consumer
from ptxgen.attention.prefill.wgmma.ring import WARPS
from ptxgen.attention.prefill.wgmma.tile import shares_of
from ptxgen.idioms.convert import scratch


def merged(consumer: Consumer) -> None:
    """Fragments `all_keys` and `leave_part`, and the pieces of the merge."""
    b, shares = consumer.b, shares_of(consumer.spec)
    merge = Merge(b, shares, consumer.items.part, consumer.softmax, consumer.rows, consumer.acc)
    with b.fragment("all_keys", "a warp of the only part with keys has seen all of them"):
        merge.begin()
    with b.fragment("leave_part", "what this warp has of its rows, and whether all other parts are there"):
        warp = b.op("mad.lo.u32", scratch(b, "warp_of_cta", "u32"), consumer.group, WARPS, consumer.warp)
        merge.leave(warp, consumer.lane)
        b.op("bar.warp.sync", -1)
        before = merge.draw(shares.warps, warp, consumer.is_first_lane)
        b.op("shfl.sync.idx.b32", before, before, 0, 31, -1)
        merge.see(before)
        b.op("bar.warp.sync", -1, note="what other warps left is there for all lanes")
    b.without("draw_part", "see_parts")
    merge.build()
