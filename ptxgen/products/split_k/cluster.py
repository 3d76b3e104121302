"""Sums of CTAs that share k of the same rows: the first of a cluster is sent the others', and adds them up in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import SINK, Reg
from ptxgen.products.geometry.runs import Runs
from ptxgen.products.split_k.slots import add_in_pairs

if TYPE_CHECKING:
    from ptxgen.products.mainloop.stream import Stream


PUSH = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32"


class Join:
    """Fragments `make_bell`, `send_sums`, `poll_sums` and `take_sums`; a thread has a result, of so many values.

    They lie in the first CTA's shared memory, `[rank - 1, value, result]`, and complete on its mbarrier: a barrier of
    the cluster behind them would take a fence of the GPU.
    """

    def __init__(self, b: Builder, at: Runs, results: int, values: int) -> None:
        self.b, self.at = b, at
        self.row_bytes = 4 * results
        self.rank_bytes = self.row_bytes * values
        self.all_bytes = self.rank_bytes * (at.split - 1)
        self.memory = b.shared("cluster_sums", self.all_bytes)
        self.bell = b.shared("sums_come", 8, 8)

    def find(self, stream: Stream, has_result: Reg) -> Reg:
        """Whether a thread has a result and is of the first CTA, which takes the sums; in an open fragment."""
        takes: Reg = self.b.op("setp.eq.and.u32", "takes_sums", stream.rank, 0, has_result)
        return takes

    def build(self, stream: Stream, result: Reg, values: Sequence[Reg]) -> None:
        """All fragments, for the sums `values` of each result."""
        b, at = self.b, self.at
        with b.fragment("make_bell", "the mbarrier on which sums complete"):
            makes = b.op("setp.eq.u32", "makes_bell", stream.thread, 0)
            b.op("mbarrier.init.shared::cta.b64", self.bell[0], 1, pred=makes)
            b.op("fence.mbarrier_init.release.cluster", pred=makes)
            expects = "mbarrier.arrive.expect_tx.shared::cta.b64"
            b.op(expects, SINK, self.bell[0], self.all_bytes, pred=makes)
        with b.fragment("send_sums", "to the first CTA of the cluster"):
            own = b.op("mov.u32", "cluster_sums_at", self.memory)
            b.op("mad.lo.u32", own, result, 4, own)
            sends = b.op("setp.gt.u32", "sends_sums", stream.rank, 0)
            there = b.op("sub.u32", "their_sums", b.op("max.u32", "rank_from_1", stream.rank, 1), 1)
            b.op("mad.lo.u32", there, there, self.rank_bytes, own)
            b.op("mapa.shared::cluster.u32", there, there, 0)
            bell = b.op("mapa.shared::cluster.u32", "their_bell", self.bell, 0)
            for index, value in enumerate(values):
                b.op(PUSH, there[self.row_bytes * index], value, bell[0], pred=sends)
        with b.fragment("poll_sums", "whether all of them have come"):
            b.op("mbarrier.try_wait.parity.shared::cta.b64", "sums_came", self.bell[0], 0)
        with b.fragment("take_sums", "in the order of ranks"):
            ones = b.array("of_rank", "f32", at.split)
            for index, value in enumerate(values):
                b.op("mov.f32", ones[0], value)
                for rank in range(1, at.split):
                    offset = self.rank_bytes * (rank - 1) + self.row_bytes * index
                    b.op("ld.shared.f32", ones[rank], own[offset])
                b.op("mov.f32", value, add_in_pairs(b, ones.regs))
