"""Sums of CTAs that share k: each takes some octets of the tile's tokens, is sent the others' sums of these, and adds
all up in the order of ranks. Clusters that share k have one tile each.

Sums travel as they lie in registers: 16 bytes of a thread for each octet, to the same thread of the CTA that takes it.
They lie where its ring was; so nothing is sent before every CTA of the cluster has read its own, and the cluster meets
behind it, which takes a fence of the GPU. Where they have a place `apart`, they complete on an mbarrier of the CTA that
takes them (PTX ISA: st.async), and all that is waited for before is that every CTA has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.products.wgmma.tiling.geometry import OCTET, Geometry

VECTOR = 4  # sums that a lane has of an octet
BYTES = 4 * VECTOR
PUSH = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
MOST_TAKEN = 64  # sums that a thread has asked for at once

Load = Callable[[Sequence[Reg], int, int, int], None]  # into registers: a peer's sums of a block's octet


class Exchange:
    """What CTAs that share k have in common, a cluster or not: where sums lie, and how they are added up."""

    def __init__(self, b: Builder, at: Geometry) -> None:
        self.b, self.at = b, at
        self.own, self.sharers = at.shared_tokens // OCTET, at.shape.sharers
        self.row_bytes = BYTES * 32 * at.warps  # of an octet, all threads
        self.slot_bytes = at.shape.blocks * self.own * self.row_bytes

    def _offset(self, block: int, index: int) -> int:
        return (block * self.own + index) * self.row_bytes

    def _take(self, load: Load, into: Sequence[Sequence[Reg]] = ()) -> Sequence[Sequence[Reg]]:
        """The sums of this CTA's tokens, of all that share k, in new registers or the first of `into`; part of an open
        fragment."""
        b, split = self.b, self.sharers
        taken = into or [b.array(f"whole{block}_", "f32", VECTOR * self.own) for block in range(self.at.shape.blocks)]
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
                    load(values, peer, block, index)
                parts.append(of_ranks)
            for total, *others in parts:
                for values in others:
                    for value, more in zip(total, values, strict=True):
                        b.op("add.f32", value, value, more)
        return taken


class ClusterExchange(Exchange):
    """Fragments `send_sums`, behind which the cluster meets, and `take_sums`."""

    def __init__(self, b: Builder, at: Geometry, ring: Ring) -> None:
        super().__init__(b, at)
        self.ring = ring

    def build(self, tasks: Tasks, sums: Sequence[Sequence[Reg]]) -> Sequence[Sequence[Reg]]:
        """Both fragments; the sums that this CTA finishes."""
        b, at, rank = self.b, self.at, tasks.split_rank
        assert rank is not None
        with b.fragment("send_sums", "to each CTA its tokens' sums, where its ring was"):
            place = b.op("mov.u32", "sums_place", self.ring.memory)
            if at.apart:
                b.op("add.u32", place, place, at.sums_at)
                their_bell = b.reg("their_sums_bell", "u32")
            b.op("mad.lo.u32", place, tasks.thread, BYTES, place)
            own = b.op("mad.lo.u32", "own_slot", rank, self.slot_bytes, place)
            there = b.reg("their_slot", "u32")
            for taker in range(at.takers):
                taker_rank = self._rank(tasks, taker)
                b.op("mapa.shared::cluster.u32", there, own, taker_rank)
                if at.apart:
                    b.op("mapa.shared::cluster.u32", their_bell, self.ring.sums_bell, taker_rank)
                for index in range(self.own):
                    for block, values in enumerate(sums):
                        first = VECTOR * (taker * self.own + index)
                        to = there[self._offset(block, index)]
                        some = tuple(values[first : first + VECTOR])
                        if at.apart:
                            b.op(PUSH, to, some, their_bell[0])
                        else:
                            b.op("st.shared::cluster.v4.f32", to, some)
        if at.apart:
            with b.fragment("poll_sums", "whether the sums of this CTA's tokens have come"):
                b.op("mbarrier.try_wait.parity.shared::cta.b64", "sums_came", self.ring.sums_bell[0], 0)
        with b.fragment("take_sums", "in the order of ranks"):
            return self._take(partial(self._load, place, tasks.takes))

    def _load(self, place: Reg, takes: Reg | None, values: Sequence[Reg], peer: int, block: int, index: int) -> None:
        """A peer's sums of an octet; part of an open fragment."""
        if takes is not None:
            convert.clear(self.b, values)
        at = place[peer * self.slot_bytes + self._offset(block, index)]
        self.b.op("ld.shared.v4.f32", tuple(values), at, pred=takes)

    def _rank(self, tasks: Tasks, taker: int) -> Reg | int:
        """The rank in the cluster of the CTA that takes some tokens, among those of the same rows."""
        if tasks.share_rank is None:
            return taker
        rank = convert.scratch(self.b, "their_rank", "u32")
        self.b.op("add.u32", rank, tasks.share_rank, taker * self.at.shape.share)
        return rank
