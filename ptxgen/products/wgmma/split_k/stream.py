"""Sums of a tile whose k several CTAs have: who has its first part adds up those of the others, in the order of k.

A CTA that begins within a tile leaves that part's sums in memory and a word that says so: a place of its own, since it
does so at most once, with its first tile. Who has the first part of a tile does that last, when the others mostly have.
All CTAs of the launch are resident (`Launch.together`), so the CTA that another waits for is running, and its first
tile needs no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.polls import Polls
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.products.wgmma.tiling.geometry import Geometry

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

VECTOR = 4  # sums of 16 bytes
IN_FLIGHT = 12  # of these that a thread has asked for at once


class Streams:
    """Fragments `begin_parts`, `find_part`, `give_sums`, `begin_taking`, `poll_given`, `take_sums`."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, tasks: Tasks) -> None:
        self.b, self.spec, self.at, self.tasks = b, spec, at, tasks

    def build(self, sums: Sequence[Sequence[Reg]]) -> None:
        """All fragments, for these accumulators."""
        b, at, tasks = self.b, self.at, self.tasks
        every = [value for of_block in sums for value in of_block]
        quads = [every[first : first + VECTOR] for first in range(0, len(every), VECTOR)]
        threads = 32 * at.warps
        slot_bytes = 4 * VECTOR * len(quads) * threads
        with b.fragment("begin_parts", "where this thread's part of a CTA's sums lies"):
            if at.crowded:
                tasks.find_cluster()
            sums_at = b.ld_param("partial_sums")
            b.op("mad.wide.u32", sums_at, tasks.thread, 4 * VECTOR, sums_at)
            words = b.ld_param("given")
            b.op("mad.wide.u32", words, tasks.warp, 4, words)
            tells = b.op("setp.eq.u32", "tells", tasks.lane, 0)
            place, word = b.reg("partial_at", "u64"), b.reg("given_at", "u64")
            other, slot = b.reg("other_cluster", "u32"), b.reg("slot", "u32")
        with b.fragment("find_part", "whether the tile begins before this part of it, or goes on after it"):
            b.op("setp.ne.u32", "gives", tasks.first_step, 0)
            b.op("setp.lt.u32", "takes", tasks.steps, at.steps)
        with b.fragment("give_sums", "the sums of this part for who has the tile's first"):
            self._find_slot(slot, tasks.cluster, place, word, sums_at, words, slot_bytes)
            for index, quad in enumerate(quads):
                convert.store_words(b, place, quad, 4 * VECTOR * threads * index)
            b.op("bar.warp.sync", -1)
            b.op("st.release.gpu.global.u32", word[0], 1, pred=tells)
        with b.fragment("begin_taking", "the next cluster has the next part"):
            b.op("mov.u32", other, tasks.cluster)
            tile_end = b.op("mad.lo.u32", "tile_end", tasks.tile, at.steps, at.steps)
            polls = Polls(b)
        with b.fragment("find_given"):
            b.op("add.u32", other, other, 1)
            b.op("min.u32", other, other, at.most_turns - 1)
            self._find_slot(slot, other, place, word, sums_at, words, slot_bytes)
            polls.allow()
        with b.fragment("poll_given"):
            there = b.op("ld.acquire.gpu.global.u32", "is_there", word[0])
            b.op("setp.ne.u32", "is_given", there, 0)
            polls.count()
        with b.fragment("take_sums", "in the order of k"):
            taken = b.array("taken_sum", "f32", VECTOR * min(IN_FLIGHT, len(quads)))
            for first in range(0, len(quads), IN_FLIGHT):
                some = quads[first : first + IN_FLIGHT]
                got = [taken[VECTOR * i : VECTOR * (i + 1)] for i in range(len(some))]
                for index, values in enumerate(got):
                    convert.load_words(b, values, place, 4 * VECTOR * threads * (first + index))
                for quad, values in zip(some, got, strict=True):
                    for total, value in zip(quad, values, strict=True):
                        b.op("add.f32", total, total, value)
            b.note("as the next launch finds it")
            b.op("bar.warp.sync", -1)
            b.op("st.global.u32", word[0], 0, pred=tells)
            end, after = b.reg("their_end", "u32"), b.op("add.u32", "after_other", other, 1)
            tasks.find_end(end, after)
            b.op("setp.lt.u32", "takes_more", end, tile_end)

    def _find_slot(
        self, slot: Reg, cluster: Reg, place: Reg, word: Reg, sums_at: Reg, words: Reg, slot_bytes: int
    ) -> None:
        """Where a cluster's CTA of this one's rank leaves its sums."""
        b, at, rank = self.b, self.at, self.tasks.share_rank
        if rank is None:
            b.op("mov.u32", slot, cluster)
        else:
            b.op("mad.lo.u32", slot, cluster, at.shape.share, rank)
        b.op("mad.wide.u32", place, slot, slot_bytes, sums_at)
        b.op("mad.wide.u32", word, slot, 4 * at.warps, words)
