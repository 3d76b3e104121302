"""The warp that copies weights and tokens of every stage into the ring: what is the same however it does so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Addr, Reg
from ptxgen.idioms.convert import scratch
from ptxgen.products.wgmma.ring import BELL, Ring
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.products.wgmma.tiling.geometry import Geometry

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

MULTICAST = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
HINT = ".L2::cache_hint"


class Copier:
    """Fragments `begin_copies`, `early_weights`, `early_tokens`, `drop_tokens`, `poll_early`, `find_sources`,
    `poll_empty`, `copy`: the copying warp."""

    is_first: Reg | None = None  # whether weights of this tile were asked for early; None: there is no other
    goes: Reg | None = None  # whether they were, where that is not so of all CTAs

    def __init__(
        self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring, early: int, has_tile: Reg | None
    ) -> None:
        """`early`: stages whose weights are asked for before there are tokens; `has_tile`: whether the CTA has any,
        where that is known by then."""
        self.b, self.spec, self.at, self.ring, self.early, self.has_tile = b, spec, at, ring, early, has_tile

    def build(self, tasks: Tasks) -> None:
        """Build the fragments of the warp that copies, from its first copies to the ring's end."""
        b, at, ring = self.b, self.at, self.ring
        self.tasks = tasks
        self._declare()
        self.policy = b.reg("weights_policy", "b64") if self.spec.evict_first else None
        self.source, target = b.reg("copy_from", "u64"), b.reg("copy_to", "u32")
        self.total = at.token_bytes + at.records * at.tile_bytes  # of a stage
        self.total += 0 if at.factored else at.scale_bytes
        self.coming = b.reg("stage_bytes", "u32") if at.shape.last else self.total  # of a stage of the tile
        with b.fragment("begin_copies", "what this lane copies: a record of weights, or the tokens"):
            ring.begin(copies=True)
            self._begin()
            if self.policy is not None:
                self._begin_policy(self.policy)
        if self.early:
            with b.fragment("early_weights", "weights are constant: the first are on their way before the tokens are"):
                self._bring_early()
        else:
            b.without("early_weights")
        if self.early and self.has_tile is not None:
            with b.fragment("early_tokens", "the tokens of the stages whose weights are on their way"):
                self._early_tokens()
        else:
            b.without("early_tokens")
        if self.early and self.has_tile is None:
            self._drop_early()
            b.expose(lacks_tile=~tasks.has_tile)
        else:
            b.without("drop_tokens", "poll_early")
            b.expose(lacks_tile=None)
        with b.fragment("find_sources", "where the tile's weights and tokens begin"):
            self._find()
            left = b.op("mov.u32", "copied_steps", tasks.steps)
            more = b.op("setp.ne.u32", "copies_more", left, 0)
            if self.early:
                self._bring_tokens(self.is_first)
                b.op("sub.u32", left, left, self.early, pred=self.is_first)
                if self.is_first is not None:
                    b.op("setp.ne.u32", self.is_first, 0, 0)
                b.op("setp.ne.u32", more, left, 0)
        with b.fragment("poll_empty"):
            b.op("mbarrier.try_wait.parity.shared::cta.b64", ring.is_empty, ring.empty[0], ring.parity)
        with b.fragment("copy", "bring a stage"):
            self._bring_stage(target)
            b.op("sub.u32", left, left, 1)
            b.op("setp.ne.u32", more, left, 0)

    def _declare(self) -> None:
        """Registers that come first."""

    def _begin(self) -> None:
        """What is the same for all tiles."""
        raise NotImplementedError

    def _bring_early(self) -> None:
        """Weights of the first stages, and nothing where a tile has fewer stages."""
        b, ring, tasks = self.b, self.ring, self.tasks
        if self.has_tile is not None:
            self._find()
        else:
            self._find_record()
            if tasks.first_step is not None:
                b.op("mad.wide.u32", self.source, tasks.first_step, self.at.tile_bytes, self.source)
        goes = self.has_tile
        if goes is not None and isinstance(tasks.steps, Reg):
            goes = b.op("setp.ge.and.u32", "is_long", tasks.steps, self.early, goes)
        self._early_records(goes)
        self.goes = goes
        ring.skip(self.early, goes if self.spec.stream else None)
        if goes is not None and self.spec.stream:
            self.is_first = b.op("and.pred", "is_first_tile", goes, goes)
        elif not self.at.one_tile:
            self.is_first = b.op("setp.eq.u32", "is_first_tile", 0, 0)

    def _drop_early(self) -> None:
        """Fragments `drop_tokens`, `poll_early`: a CTA that turns out to have no tile waits for the weights that it
        asked for, since shared memory must outlive copies to it; the tokens' bytes count as there."""
        b, bells = self.b, [self.ring.full_bells[BELL * stage] for stage in range(self.early)]
        with b.fragment("drop_tokens", "no tile: nothing but the weights comes"):
            leads = self._leads()
            for bell in bells:
                b.op("mbarrier.complete_tx.relaxed.cta.shared::cta.b64", bell,
                     self.total - self.at.records * self.at.tile_bytes, pred=leads)  # fmt: skip
        with b.fragment("poll_early", "whether all of them are there"):
            there = b.op("mbarrier.try_wait.parity.shared::cta.b64", "weights_came", bells[0], 0)
            for bell in bells[1:]:
                next_one = b.op("mbarrier.try_wait.parity.shared::cta.b64", scratch(b, "next_came", "pred"), bell, 0)
                b.op("and.pred", there, there, next_one)

    def _early_records(self, goes: Reg | None) -> None:
        """The weights of these stages, by a CTA for which `goes` holds."""
        raise NotImplementedError

    def _leads(self) -> Reg:
        """Whether this lane speaks for the warp."""
        raise NotImplementedError

    def _find_record(self) -> None:
        """Where the first record begins."""
        raise NotImplementedError

    def _early_tokens(self) -> None:
        """The tokens, and scales, of these stages, where the first tile is known by then."""
        raise NotImplementedError

    def _find(self) -> None:
        """Where the first stage's bytes begin, and how many a stage has."""
        at, is_last = self.at, self.tasks.is_last
        self._find_sources()
        if is_last is not None:
            fewer = self.total - (at.records - at.shape.unit_records) * at.tile_bytes
            self.b.op("selp.b32", self.coming, fewer, self.total, is_last)

    def _find_sources(self) -> None:
        """Where the first stage's bytes begin."""
        raise NotImplementedError

    def _bring_tokens(self, is_first: Reg | None) -> None:
        """The tokens, and scales, of the stages whose weights are on their way."""
        raise NotImplementedError

    def _bring_stage(self, target: Reg) -> None:
        """Copies to the ring's stage, and on to the next."""
        raise NotImplementedError

    def _begin_policy(self, policy: Reg) -> None:
        """The policy of this lane's copies of weights."""
        self.b.op("createpolicy.fractional.L2::evict_first.b64", policy, 1.0)

    def _copy(self, to: Addr, from_: Addr, size: Reg | int, bell: Addr, pred: Reg) -> None:
        """A copy to this CTA alone, with the lane's policy where there is one."""
        if self.policy is None:
            self.b.op(COPY, to, from_, size, bell, pred=pred)
        else:
            self.b.op(COPY + HINT, to, from_, size, bell, self.policy, pred=pred)

    def _every(self) -> Reg:
        """The mask of the CTAs that share the tokens."""
        b, tasks, share = self.b, self.tasks, self.at.shape.share
        every: Reg = b.op("mov.u16", "every_cta", (1 << share) - 1)
        if tasks.split_rank is not None:
            shift = b.op("mul.lo.u32", "first_of_cluster", tasks.split_rank, share)
            b.op("shl.b16", every, every, shift)
        return every
