"""Sums of CTAs that share k and are no cluster: as in `cluster.py` each takes some octets of the tile's tokens and adds
up what the others have of these in the order of ranks, but finds it in global memory.

A warp's sums go to the same warp of the CTA that takes them; its own stay in registers, if there are enough. A counter
of each warp says how many of those that share k have left theirs; who takes no tokens waits for all, too. All CTAs of
the launch are resident (`Launch.together`), so those that are waited for are running.

Places and counters of even and of odd tiles take turns. A warp that leaves sums of a tile has seen all come to the tile
before; they had taken those of the tile before that one by then, and it may leave the next in their place.

Where tiles of the last turn alone are shared, a CTA has one of these at most, and sums take the place of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ptxgen.builder.values import Reg, RegArray
from ptxgen.idioms import convert
from ptxgen.idioms.polls import Polls
from ptxgen.products.wgmma.split_k.cluster import BYTES, VECTOR, Exchange
from ptxgen.products.wgmma.tasks import Tasks

TURNS = 2  # of places: even tiles, and odd ones
# A CTA keeps its own sums in registers where a thread has at most so many in all and keeps at most so many: with more
# ptxas spilled.
MOST_SUMS, MOST_KEPT = 96, 24


class MemoryExchange(Exchange):
    """Fragments `send_sums`, `poll_sums` and `take_sums`."""

    def build(self, tasks: Tasks, sums: Sequence[Sequence[Reg]]) -> Sequence[Sequence[Reg]]:
        """All fragments; the sums that this CTA finishes."""
        b, at = self.b, self.at
        rank = tasks.shared_rank if at.shape.last_split > 1 else tasks.split_rank
        assert rank is not None
        self.rank = rank
        split, takers = self.sharers, at.takers
        with b.fragment("send_sums", "to each CTA its tokens' sums, in global memory"):
            group = tasks.cluster
            if tasks.turn is not None:
                group = b.op("mad.lo.u32", "sharing_group", tasks.turn, at.most_turns, group)
            place = b.ld_param("partial_sums", into="sums_place")
            b.op("mad.wide.u32", place, tasks.thread, BYTES, place)
            b.op("mad.wide.u32", place, group, takers * split * self.slot_bytes, place)
            own = b.op("mad.wide.u32", "own_slot", rank, self.slot_bytes, place)
            self._begin_keeping(tasks.takes)
            for taker in range(takers):
                theirs = self._theirs(taker)
                for index in range(self.own):
                    for block, values in enumerate(sums):
                        begin = VECTOR * (taker * self.own + index)
                        some = values[begin : begin + VECTOR]
                        offset = taker * split * self.slot_bytes + self._offset(block, index)
                        convert.store_words(b, own, some, offset, pred=theirs)
                        if theirs is not None:
                            for mine, value in zip(self._kept(index), some, strict=True):
                                b.op("mov.f32", mine, value, pred=~theirs)
            b.op("mad.wide.u32", place, rank, split * self.slot_bytes, place)
            counter = b.ld_param("given", into="counter")
            b.op("mad.wide.u32", counter, tasks.warp, 4, counter)
            b.op("mad.wide.u32", counter, group, 4 * split * at.warps, counter)
            theirs = b.op("mad.wide.u32", "their_counter", tasks.lane, 4 * at.warps, counter)
            b.op("mad.wide.u32", counter, rank, 4 * at.warps, counter)
            tells = b.op("setp.lt.u32", "tells", tasks.lane, split)
            b.op("bar.warp.sync", -1)
            b.op("red.release.gpu.global.add.u32", theirs[0], 1, pred=tells)
            polls = Polls(b)
            polls.allow()
        with b.fragment("poll_sums", "whether all have come that share k"):
            there = b.op("ld.acquire.gpu.global.u32", "came", counter[0])
            b.op("setp.eq.u32", "sums_came", there, split)
            polls.count()
        with b.fragment("take_sums", "in the order of ranks"):
            taken = self._take(partial(self._load, place, tasks.takes), sums if at.shape.last_split > 1 else ())
            b.note("as the tile after next, or the next launch, finds it")
            resets = b.op("setp.eq.u32", "resets", tasks.lane, 0)
            b.op("bar.warp.sync", -1)
            b.op("st.relaxed.gpu.global.u32", counter[0], 0, pred=resets)
        return taken

    def _begin_keeping(self, takes: Reg | None) -> None:
        """Registers for this CTA's own sums of what it takes; part of an open fragment."""
        b, at = self.b, self.at
        few = at.shape.blocks == 1 and at.tokens // 2 <= MOST_SUMS and VECTOR * self.own <= MOST_KEPT
        self.kept: RegArray | None = None
        if few and at.shape.last_split == 1:
            self.kept = b.array("kept", "f32", VECTOR * self.own)
            convert.clear(b, self.kept)  # as moves are guarded: else it takes registers while the tile is multiplied

    def _kept(self, index: int) -> Sequence[Reg]:
        """This CTA's own sums of an octet, where it keeps them."""
        assert self.kept is not None
        return self.kept[VECTOR * index : VECTOR * (index + 1)]

    def _theirs(self, rank: int) -> Reg | None:
        """Whether sums of this rank are not this CTA's own, where it keeps those; part of an open fragment."""
        if self.kept is None:
            return None
        theirs: Reg = convert.scratch(self.b, "are_theirs", "pred")
        self.b.op("setp.ne.u32", theirs, self.rank, rank)
        return theirs

    def _load(self, place: Reg, takes: Reg | None, values: Sequence[Reg], peer: int, block: int, index: int) -> None:
        """A peer's sums of an octet, this CTA's own from where it keeps them; part of an open fragment."""
        b, loads = self.b, takes
        if self.kept is not None:
            for value, mine in zip(values, self._kept(index), strict=True):
                b.op("mov.f32", value, mine)
            loads = self._theirs(peer)
            if takes is not None:
                b.op("and.pred", loads, loads, takes)
        elif takes is not None:
            convert.clear(b, values)
        convert.load_words(b, values, place, peer * self.slot_bytes + self._offset(block, index), pred=loads)
