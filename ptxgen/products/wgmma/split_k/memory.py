"""Sums of CTAs that share k and are no cluster: as in `cluster.py` each takes some octets of the tile's tokens and adds
up what the others have of these in the order of ranks, but finds it in global memory.

A warp's sums go to the same warp of the CTA that takes them, where a counter says how many have come. All CTAs of the
launch are resident (`Launch.together`), so those that are waited for are running.

Places and counters of even and of odd tiles take turns. A warp that leaves sums of a tile has counted all of the tile
before; the others had read those of the tile before that one by then, and it may leave the next in their place.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder.values import Reg, RegArray
from ptxgen.idioms import convert
from ptxgen.idioms.polls import Polls
from ptxgen.products.wgmma.split_k.cluster import BYTES, VECTOR, Exchange
from ptxgen.products.wgmma.tasks import Tasks

TURNS = 2  # of places: even tiles, and odd ones


class MemoryExchange(Exchange):
    """Fragments `send_sums`, `poll_sums` and `take_sums`."""

    def build(self, tasks: Tasks, sums: Sequence[Sequence[Reg]]) -> list[RegArray]:
        """All fragments; the sums that this CTA finishes."""
        b, at, rank = self.b, self.at, tasks.split_rank
        assert rank is not None
        assert tasks.turn is not None
        split, takers = at.shape.split, at.takers
        with b.fragment("send_sums", "to each CTA its tokens' sums, in global memory"):
            first = b.op("mad.lo.u32", "first_taker", tasks.turn, at.most_turns, tasks.cluster)
            b.op("mul.lo.u32", first, first, takers)
            last = TURNS * at.most_turns * takers - 1
            mine = b.op("add.u32", "own_taker", first, rank)
            b.op("min.u32", mine, mine, last)  # who takes none has no other use of it
            place = b.ld_param("partial_sums", into="sums_place")
            b.op("mad.wide.u32", place, tasks.thread, BYTES, place)
            own = b.op("mad.wide.u32", "own_slot", first, split * self.slot_bytes, place)
            b.op("mad.wide.u32", own, rank, self.slot_bytes, own)
            b.op("mad.wide.u32", place, mine, split * self.slot_bytes, place)
            for taker in range(takers):
                for index in range(self.own):
                    for block, values in enumerate(sums):
                        begin = VECTOR * (taker * self.own + index)
                        offset = taker * split * self.slot_bytes + self._offset(block, index)
                        convert.store_words(b, own, values[begin : begin + VECTOR], offset)
            words = b.ld_param("given", into="counters")
            b.op("mad.wide.u32", words, tasks.warp, 4, words)
            taker_lane = b.op("add.u32", "taker_of_lane", first, tasks.lane)
            b.op("min.u32", taker_lane, taker_lane, last)
            theirs = b.op("mad.wide.u32", "their_counter", taker_lane, 4 * at.warps, words)
            counter = b.op("mad.wide.u32", "own_counter", mine, 4 * at.warps, words)
            tells = b.op("setp.lt.u32", "tells", tasks.lane, takers)
            b.op("bar.warp.sync", -1)
            b.op("red.release.gpu.global.add.u32", theirs[0], 1, pred=tells)
            polls = Polls(b)
            polls.allow()
        with b.fragment("poll_sums", "whether the sums of this CTA's tokens have come"):
            there = b.op("ld.acquire.gpu.global.u32", "came", counter[0])
            if tasks.takes is None:
                b.op("setp.eq.u32", "sums_came", there, split)
            else:
                b.op("setp.eq.or.u32", "sums_came", there, split, ~tasks.takes)
            polls.count()
        with b.fragment("take_sums", "in the order of ranks"):
            taken = self._take(place, tasks.takes, "global")
            b.note("as the tile after next, or the next launch, finds it")
            resets = b.op("setp.eq.u32", "resets", tasks.lane, 0)
            if tasks.takes is not None:
                b.op("and.pred", resets, resets, tasks.takes)
            b.op("bar.warp.sync", -1)
            b.op("st.relaxed.gpu.global.u32", counter[0], 0, pred=resets)
        return taken
