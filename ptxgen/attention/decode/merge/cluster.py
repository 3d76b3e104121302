"""Merging the CTAs of a cluster (sm_90): each pushes its partials to the rank that owns a slice of the output.

A pushed slice completes on the mbarrier of the rank that receives it (PTX ISA: st.async). The barrier of the cluster is
split: arrive when the mbarrier is ready, wait behind the first loads, long before the first push.
"""

from __future__ import annotations

from ptxgen.attention.decode.merge.cta import Elements, Partial, combine, partials
from ptxgen.builder import Builder
from ptxgen.builder.values import SINK, Reg

_PUSH = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"


class Exchange:
    """The inbox of a rank: from every rank of the cluster a slice of elements, and all heads' maxima and sums."""

    def __init__(self, b: Builder, elements: Elements, size: int) -> None:
        self.b, self.elements, self.size = b, elements, size
        self.slice = -(-elements.count // (size * elements.together)) * elements.together  # that one rank owns
        self.inbox = b.shared("inbox", 16 * self.slice * size)
        self.statistics = b.shared("inbox_statistics", 8 * elements.heads * size)
        self.ready = b.shared("inbox_ready", 8, 8)
        self.rank = b.reg("cluster_rank", "u32")
        self.first = b.reg("slice_first", "u32")
        self.end = b.reg("slice_end", "u32")

    def prepare(self) -> None:
        """Rank and slice of this CTA; thread 0 makes the mbarrier, which waits for the bytes of all pushes to come."""
        b = self.b
        b.op("mov.u32", self.rank, b.special("cluster_ctarank"))
        b.op("mul.lo.u32", self.first, self.rank, self.slice)
        b.op("add.u32", self.end, self.first, self.slice)
        b.op("min.u32", self.first, self.first, self.elements.count)
        b.op("min.u32", self.end, self.end, self.elements.count)
        bytes_to_come = b.op("sub.u32", "inbox_bytes", self.end, self.first)
        b.op("mad.lo.u32", bytes_to_come, bytes_to_come, 16 * self.size, 8 * self.elements.heads * self.size)
        leader = b.op("setp.eq.u32", "inbox_leader", self.elements.thread, 0)
        b.op("mbarrier.init.shared::cta.b64", self.ready[0], 1, pred=leader)
        b.op("fence.mbarrier_init.release.cluster", pred=leader)
        b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, self.ready[0], bytes_to_come, pred=leader)

    def push(self, part: Partial) -> None:
        """Send the current element to the rank that owns it; with a head's first chunks its maximum and sum to all."""
        b, element = self.b, self.elements
        owner = b.op("div.u32", "push_rank", element.element, self.slice)
        place = b.op("mov.u32", "push_place", self.inbox)
        slot = b.op("mad.lo.s32", "push_slot", owner, -self.slice, element.element)
        b.op("mad.lo.u32", slot, self.rank, self.slice, slot)
        b.op("mad.lo.u32", place, slot, 16, place)
        mbarrier = b.op("mov.u32", "push_bell", self.ready)
        remote_mbarrier = b.op("mapa.shared::cluster.u32", "push_remote_bell", mbarrier, owner)
        b.op("mapa.shared::cluster.u32", place, place, owner)
        b.op(f"{_PUSH}.v4.f32", place[0], part.values, remote_mbarrier[0])
        b.note("chunk i of a head carries the head's maximum and sum to rank i")
        shares = b.op("setp.lt.u32", "push_shares", element.chunk, self.size)
        b.op("mov.u32", place, self.statistics)
        b.op("mad.lo.u32", slot, self.rank, element.heads, element.head)
        b.op("mad.lo.u32", place, slot, 8, place)
        b.op("mapa.shared::cluster.u32", place, place, element.chunk, pred=shares)
        b.op("mapa.shared::cluster.u32", remote_mbarrier, mbarrier, element.chunk, pred=shares)
        b.op(f"{_PUSH}.v2.f32", place[0], (part.maximum, part.total), remote_mbarrier[0], pred=shares)

    def poll(self) -> Reg:
        """Try once whether everything has come."""
        b = self.b
        done = b.reg("inbox_full", "pred")
        b.op("mbarrier.try_wait.parity.shared::cta.b64", done, self.ready[0], 0)
        return done

    def start(self) -> None:
        """The thread's first element of this rank's slice."""
        b = self.b
        mine = b.op("add.u32", "slice_mine", self.first, self.elements.thread)
        self.elements.start(mine, self.end)

    def merge(self, into: Partial) -> None:
        """Merge what all ranks sent for the current element."""
        b, element = self.b, self.elements
        place = b.op("mov.u32", "inbox_place", self.inbox)
        slot = b.op("sub.u32", "inbox_slot", element.element, self.first)
        b.op("mad.lo.u32", place, slot, 16, place)
        statistics = b.op("mov.u32", "inbox_head", self.statistics)
        b.op("mad.lo.u32", statistics, element.head, 8, statistics)
        parts = partials(b, "rank", self.size)
        b.note(f"ranks 0 to {self.size - 1}")
        for rank, part in enumerate(parts):
            b.op("ld.shared.v2.f32", (part.maximum, part.total), statistics[8 * rank * element.heads])
            b.op("ld.shared.v4.f32", part.values, place[16 * rank * self.slice])
        combine(b, into, parts, "the ranks' partials")
