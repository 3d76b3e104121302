"""The tokens' units on their way to shared memory: a bulk copy and an mbarrier each; a warp waits for what it reads."""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.builder.values import SINK, Addr, Reg, Shared
from ptxgen.idioms import convert
from ptxgen.products.digits_s8.geometry import BELL, TokenRuns

COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
MOST_TILES = 1 << 20  # of eight tokens


class Units:
    """Fragments `make_bells`, `clear_spare`, `bring_units`, `find_bell` and `poll_unit`."""

    def __init__(self, b: Builder, at: TokenRuns, share: int = 1) -> None:
        self.b, self.at, self.share = b, at, share
        self.vector: Shared = b.shared("vector", at.shared, align=128, dynamic=True)
        self.bells: Shared = b.shared("unit_bells", BELL * at.tiles)
        self.arrived = b.reg("unit_is_here", "pred")

    def make(self, lane: Reg, warp: Reg) -> None:
        """The mbarriers, by one thread: compute-sanitizer's synccheck misses those that lanes make side by side."""
        b, at = self.b, self.at
        with b.fragment("make_bells", "an mbarrier a unit"):
            bell = self.bell = b.op("mov.u32", "own_bell", self.bells)
            b.op("mad.lo.u32", bell, lane, BELL, bell)
            self.copies = b.op("setp.eq.u32", "copies_units", warp, 0)
            makes = b.op("setp.eq.and.u32", "makes_bells", lane, 0, self.copies)
            for tile in range(at.tiles):
                b.op("mbarrier.init.shared::cta.b64", self.bells[BELL * tile], 1, pred=makes)
            b.op("fence.mbarrier_init.release.cluster")

    def clear(self, thread: Reg, rank: Reg | None) -> None:
        """Fragment `clear_spare`: the units that the CTA before has, too, are zero in the last CTA of a cluster."""
        b, at = self.b, self.at
        if not at.spare:
            b.without("clear_spare")
            return
        with b.fragment("clear_spare", "k does not come out even: the last CTA takes x as zero where another has it"):
            is_last = self.is_last = b.op("setp.eq.u32", "has_spare", rank, at.split - 1)
            zeros, clears = b.array("no_digits", "b32", 4), b.reg("clears_digits", "pred")
            convert.clear(b, zeros)
            to = b.op("mov.u32", "clear_to", self.vector)
            b.op("mad.lo.u32", to, thread, 16, to)
            nbytes, reach = at.spare * at.groups * at.unit_bytes, 16 * at.threads
            for begin in range(0, nbytes, reach):
                b.op("setp.lt.and.u32", clears, thread, max(0, nbytes - begin) // 16, is_last)
                convert.store_words(b, to, zeros.regs, begin, space="shared", pred=clears)

    def bring(self, lane: Reg, first_unit: Reg | None, first: Reg, rows: Reg, units: int) -> None:
        """The units of the tokens from `first` on; past the last tile of `rows` that one again. `units`: of a row, of
        which this CTA has those from `first_unit` on."""
        b, at = self.b, self.at
        with b.fragment("bring_units", "this CTA's units of its tokens"):
            source = b.ld_param("x")
            last = b.op("sub.u32", "last_tile", b.op("max.u32", "some_rows", rows, 1), 1)
            b.op("shr.u32", last, last, 3)
            tile, own = b.op("shr.u32", "first_tile_of_cta", first, 3), b.reg("own_tile", "u32")
            to = b.op("mov.u32", "unit_to", self.vector)
            b.op("mad.lo.u32", to, lane, at.groups * at.unit_bytes, to)
            place = b.op("mov.u32", "own_unit", lane)
            if first_unit is not None:
                b.op("add.u32", place, place, first_unit)
            has, index, from_ = b.reg("has_unit", "pred"), b.reg("unit_index", "u32"), b.reg("unit_from", "u64")
            for begin in range(0, at.tiles, 32):
                b.op("add.u32", index, lane, begin)
                b.op("setp.lt.u32", has, index, at.tiles)
                bell = self.bell[BELL * begin]
                if begin < at.spare:
                    self._without(index, has, bell)
                b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, bell, at.groups * at.unit_bytes, pred=has)
                if self.share > 1:
                    self._of_rank(index, has)
                for group in range(at.groups):
                    b.op("add.u32", own, tile, group)
                    b.op("min.u32", own, own, last)
                    b.op("min.u32", own, own, MOST_TILES)
                    b.op("mad.wide.u32", from_, own, units * at.unit_bytes, source)
                    b.op("mad.wide.u32", from_, place, at.unit_bytes, from_)
                    target = to[at.unit_bytes * (at.groups * begin + group)]
                    if self.share > 1:
                        b.op(f"{COPY}.multicast::cluster", target, from_[at.unit_bytes * begin], at.unit_bytes, bell,
                             self.everyone, pred=has)  # fmt: skip
                    else:
                        b.op(COPY, target, from_[at.unit_bytes * begin], at.unit_bytes, bell, pred=has)

    def _of_rank(self, index: Reg, has: Reg) -> None:
        """Units that this CTA brings to all of its cluster."""
        b = self.b
        rank = b.op("mov.u32", convert.scratch(b, "rank_of_units", "u32"), b.special("cluster_ctarank"))
        turn = b.op("and.b32", convert.scratch(b, "unit_of_share", "u32"), index, self.share - 1)
        b.op("setp.eq.and.u32", has, turn, rank, has)
        self.everyone = b.op("mov.b16", convert.scratch(b, "whole_cluster", "b16"), (1 << self.share) - 1)

    def _without(self, index: Reg, has: Reg, bell: Addr) -> None:
        """Units that are zero have come."""
        b = self.b
        spare, other = convert.scratch(b, "is_spare", "pred"), convert.scratch(b, "is_brought", "pred")
        b.op("setp.lt.and.u32", spare, index, self.at.spare, self.is_last)
        b.op("mbarrier.arrive.shared::cta.b64", convert.scratch(b, "arrival", "b64"), bell, pred=spare)
        b.op("not.pred", other, spare)
        b.op("and.pred", has, has, other)

    def poll(self, tile: Reg) -> None:
        """Whether the unit of a tile has come."""
        b = self.b
        with b.fragment("find_bell"):
            self.waited = b.op("mov.u32", "waited_bell", self.bells)
            b.op("mad.lo.u32", self.waited, tile, BELL, self.waited)
        with b.fragment("poll_unit"):
            b.op("mbarrier.try_wait.parity.shared::cta.b64", self.arrived, self.waited[0], 0)
