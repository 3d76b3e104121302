"""Sums of CTAs that share k: each takes some octets of the tile's tokens, is sent the others' sums of these, and adds
all up in the order of ranks.

Sums travel as they lie in registers: 16 bytes of a thread for each octet, to the same thread of the CTA that takes it.
The bytes that come complete an mbarrier, `sent`. Where there is no room for sums beside the ring they lie in its place;
then a CTA's warps tell all others when they have read theirs, at an mbarrier `ready`, and each sends when it has heard
of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import SINK, Reg, RegArray, Shared
from ptxgen.idioms import convert
from ptxgen.products.wgmma.geometry import OCTET, Geometry, slots
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.tasks import Tasks

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

VECTOR = 4  # sums that a lane has of an octet
BYTES = 4 * VECTOR
MOST_TAKEN = 64  # sums that a thread has asked for at once
PUSH = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"


class Exchange:
    """Fragments `tell_ready`, `poll_ready`, `send_sums`, `poll_sent` and `take_sums`."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring) -> None:
        self.b, self.spec, self.at, self.ring = b, spec, at, ring
        self.own, self.last = at.out_tokens // OCTET, at.last_tokens // OCTET  # octets of a CTA, and of the last
        self.row_bytes = BYTES * 32 * at.warps  # of an octet, all threads
        self.slot_bytes = at.shape.blocks * self.own * self.row_bytes
        self.slots = slots(at.shape.split)
        self.sent = b.shared("sums_sent", 8, 8)
        self.ready = None if at.apart else b.shared("sums_ready", 8, 8)

    def make(self, tasks: Tasks) -> None:
        """The mbarriers, by one thread; a part of a fragment that makes others, too."""
        b, at = self.b, self.at
        makes = b.op("setp.eq.u32", "makes_sums_bells", tasks.thread, 0)
        b.op("mbarrier.init.shared::cta.b64", self.sent[0], 1, pred=makes)
        if self.ready is not None:
            b.op("mbarrier.init.shared::cta.b64", self.ready[0], at.warps * at.shape.split, pred=makes)
        total: Reg | int = (at.shape.split - 1) * self.slot_bytes
        to_come = convert.scratch(b, "bytes_to_come", "u32")
        if self.last < self.own:
            last = (at.shape.split - 1) * self.slot_bytes // self.own * self.last
            is_last = b.op("setp.eq.u32", "is_last_taker", tasks.split_rank, at.takers - 1)
            total = b.op("selp.u32", to_come, last, total, is_last)
        if tasks.takes is not None:
            total = b.op("selp.u32", to_come, total, 0, tasks.takes)
        b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, self.sent[0], total, pred=makes)

    def build(self, tasks: Tasks, sums: Sequence[Sequence[Reg]]) -> Sequence[Sequence[Reg]]:
        """All fragments, for these sums of the tile's tokens; the sums that this CTA finishes."""
        b, at, rank = self.b, self.at, tasks.split_rank
        assert rank is not None
        if self.ready is None:
            b.without("tell_ready", "poll_ready")
        else:
            self._meet(self.ready, tasks)
        with b.fragment("poll_sent"):
            is_sent = b.reg("is_sent", "pred")
            b.op("mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64", is_sent, self.sent[0], 0)
        with b.fragment("send_sums", "to each CTA its tokens' sums"):
            place = b.op("mov.u32", "sums_place", self.ring.memory)
            if at.apart:
                b.op("add.u32", place, place, at.sums_at)
            b.op("mad.lo.u32", place, tasks.thread, BYTES, place)
            own = place
            if self.slots > 1:
                own = b.op("mad.lo.u32", "own_slot", rank, self.slot_bytes, place)
            there, bell = b.reg("their_slot", "u32"), b.reg("their_sent_bell", "u32")
            mine, other = b.reg("is_own", "pred") if self.slots > 1 else None, b.reg("is_others", "pred")
            for taker in range(at.takers):
                b.op("setp.ne.u32", other, rank, taker)
                if mine is not None:
                    b.op("setp.eq.u32", mine, rank, taker)
                their_rank = self._rank(tasks, taker)
                b.op("mapa.shared::cluster.u32", there, own, their_rank)
                b.op("mov.u32", bell, self.sent)
                b.op("mapa.shared::cluster.u32", bell, bell, their_rank)
                for index in range(self.last if taker == at.takers - 1 else self.own):
                    for block, values in enumerate(sums):
                        first, offset = VECTOR * (taker * self.own + index), self._offset(block, index)
                        four = tuple(values[first : first + VECTOR])
                        b.op(PUSH, there[offset], four, bell[0], pred=other)
                        if mine is not None:
                            b.op("st.shared.v4.f32", own[offset], four, pred=mine)
        if self.slots == 1:
            return self._take_other(tasks, place, sums)
        taken = [b.array(f"whole{block}_", "f32", VECTOR * self.own) for block in range(at.shape.blocks)]
        with b.fragment("take_sums", "in the order of ranks"):
            self._take(taken, place, tasks)
        return taken

    def _meet(self, ready: Shared, tasks: Tasks) -> None:
        """Fragments `tell_ready` and `poll_ready`."""
        b = self.b
        with b.fragment("tell_ready", "lane i tells CTA i that this warp reads its ring no more"):
            tells = b.op("setp.lt.u32", "tells_ready", tasks.lane, self.at.shape.split)
            bell = b.op("mov.u32", "ready_bell", ready)
            b.op("mapa.shared::cluster.u32", bell, bell, self._rank(tasks, tasks.lane), pred=tells)
            b.op("mbarrier.arrive.release.cluster.shared::cluster.b64", SINK, bell[0], pred=tells)
        with b.fragment("poll_ready"):
            is_ready = b.reg("is_ready", "pred")
            b.op("mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64", is_ready, ready[0], 0)

    def _rank(self, tasks: Tasks, which: Reg | int) -> Reg | int:
        """The rank in the cluster of one of the CTAs that share k, of the same rows."""
        if tasks.share_rank is None:
            return which
        rank = convert.scratch(self.b, "their_rank", "u32")
        if isinstance(which, int):
            self.b.op("add.u32", rank, tasks.share_rank, which * self.at.shape.share)
        else:
            self.b.op("mad.lo.u32", rank, which, self.at.shape.share, tasks.share_rank)
        return rank

    def _offset(self, block: int, index: int) -> int:
        return (block * self.own + index) * self.row_bytes

    def _guards(self, tasks: Tasks) -> list[Reg | None]:
        """Of each octet of a CTA, whether this one has it; None: every one has."""
        takes, takes_all = tasks.takes, tasks.takes
        if self.last < self.own:
            takes_all = self.b.op("setp.ne.u32", "takes_all", tasks.split_rank, self.at.takers - 1)
            if takes is not None:
                self.b.op("and.pred", takes_all, takes_all, takes)
        return [takes] * self.last + [takes_all] * (self.own - self.last)

    def _take_other(self, tasks: Tasks, place: Reg, sums: Sequence[Sequence[Reg]]) -> list[Sequence[Reg]]:
        """Of two CTAs: the other's to this one's, in the registers of the first octets."""
        b, half = self.b, VECTOR * self.own
        batch = MOST_TAKEN // VECTOR
        with b.fragment("take_sums", "the other's to this CTA's"):
            guards = self._guards(tasks)
            second = b.op("setp.eq.u32", "is_second", tasks.split_rank, 1) if self.at.takers > 1 else None
            items = [(block, index) for block in range(len(sums)) for index in range(self.own)]
            got = b.array("got", "f32", VECTOR * min(batch, len(items)))
            for first in range(0, len(items), batch):
                some = items[first : first + batch]
                for number, (block, index) in enumerate(some):
                    four = got[VECTOR * number : VECTOR * (number + 1)]
                    if guards[index] is not None:
                        convert.clear(b, four)
                    offset = self._offset(block, index)
                    convert.load_words(b, four, place, offset, space="shared", pred=guards[index])
                for number, (block, index) in enumerate(some):
                    for i, more in enumerate(got[VECTOR * number : VECTOR * (number + 1)], VECTOR * index):
                        value = sums[block][i]
                        if second is not None and index < self.last:
                            b.op("selp.f32", value, sums[block][half + i], value, second)
                        b.op("add.f32", value, value, more)
        return [values[:half] for values in sums]

    def _take(self, taken: Sequence[RegArray], place: Reg, tasks: Tasks) -> None:
        b, split = self.b, self.at.shape.split
        guards = self._guards(tasks)
        items = [(block, index) for block in range(len(taken)) for index in range(self.own)]
        batch = max(1, MOST_TAKEN // (VECTOR * split))
        got = b.array("got", "f32", VECTOR * (split - 1) * min(batch, len(items)))
        for first in range(0, len(items), batch):
            some = items[first : first + batch]
            parts = []  # of each item, by rank
            for number, (block, index) in enumerate(some):
                of_ranks = [taken[block][VECTOR * index : VECTOR * (index + 1)]]
                begin = VECTOR * (split - 1) * number
                of_ranks += [got[begin + VECTOR * peer : begin + VECTOR * (peer + 1)] for peer in range(split - 1)]
                for peer, values in enumerate(of_ranks):
                    if guards[index] is not None:
                        convert.clear(b, values)
                    offset = peer * self.slot_bytes + self._offset(block, index)
                    convert.load_words(b, values, place, offset, space="shared", pred=guards[index])
                parts.append(of_ranks)
            for total, *others in parts:
                for values in others:
                    for value, more in zip(total, values, strict=True):
                        b.op("add.f32", value, value, more)
