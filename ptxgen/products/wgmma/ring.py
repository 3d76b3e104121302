"""A ring of stages in shared memory: one warp brings tiles of weights and of tokens, the others multiply them.

Every stage has two mbarriers: `full`, which its bytes complete, and `empty`, at which every multiplying warp arrives
once its products have read it. Lane i of the copying warp brings record i of the CTA, the lane after them the tokens:
each source is contiguous from stage to stage. Where tokens have scales for each block, a lane between brings these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import SINK, Reg
from ptxgen.idioms.convert import scratch
from ptxgen.products.wgmma import tokens as packed
from ptxgen.products.wgmma.geometry import SWIZZLE, Geometry

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct
    from ptxgen.products.wgmma.tasks import Tasks

MULTICAST = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
BELL = 16  # bytes of an mbarrier (8), and room to the next


class Ring:
    """Shared memory, mbarriers, and where the copying and the multiplying warps stand in the ring."""

    def __init__(self, b: Builder, at: Geometry) -> None:
        self.b, self.at = b, at
        self.memory = b.shared("ring", at.shared, align=SWIZZLE, dynamic=True)
        self.full_bells = b.shared("stage_full", BELL * at.stages)
        self.empty_bells = b.shared("stage_empty", BELL * at.stages)
        self.offset, self.parity = b.reg("stage_offset", "u32"), b.reg("stage_parity", "u32")
        self.full, self.empty = b.reg("full_bell", "u32"), b.reg("empty_bell", "u32")
        self.is_full, self.is_empty = b.reg("is_full", "pred"), b.reg("is_empty", "pred")

    def make(self, thread: Reg) -> None:
        """The mbarriers, by one thread: compute-sanitizer's synccheck misses those that lanes make side by side."""
        b, at = self.b, self.at
        first = b.op("setp.eq.u32", "makes_bells", thread, 0)
        for stage in range(at.stages):
            b.op("mbarrier.init.shared::cta.b64", self.full_bells[BELL * stage], 1, pred=first)
            releases = at.warps * at.shape.share
            b.op("mbarrier.init.shared::cta.b64", self.empty_bells[BELL * stage], releases, pred=first)
        b.op("fence.mbarrier_init.release.cluster")

    def begin(self, *, copies: bool) -> None:
        """At the first stage, which is empty."""
        b = self.b
        b.op("mov.u32", self.offset, 0)
        b.op("mov.u32", self.parity, 1 if copies else 0)
        b.op("mov.u32", self.full, self.full_bells)
        b.op("mov.u32", self.empty, self.empty_bells)

    def skip(self, stages: int, pred: Reg | None) -> None:
        """From the first stage on past so many."""
        b, at = self.b, self.at
        if stages == at.stages:
            b.op("xor.b32", self.parity, self.parity, 1, pred=pred)
            return
        b.op("mov.u32", self.offset, stages * at.stage_bytes, pred=pred)
        b.op("add.u32", self.full, self.full, BELL * stages, pred=pred)
        b.op("add.u32", self.empty, self.empty, BELL * stages, pred=pred)

    def turn(self) -> None:
        """On to the next stage; behind the last, to the first with the other parity."""
        b, at = self.b, self.at
        b.op("add.u32", self.offset, self.offset, at.stage_bytes)
        b.op("add.u32", self.full, self.full, BELL)
        b.op("add.u32", self.empty, self.empty, BELL)
        wraps = b.op("setp.eq.u32", scratch(b, "ring_wraps", "pred"), self.offset, at.stages * at.stage_bytes)
        b.op("mov.u32", self.offset, 0, pred=wraps)
        b.op("mov.u32", self.full, self.full_bells, pred=wraps)
        b.op("mov.u32", self.empty, self.empty_bells, pred=wraps)
        b.op("xor.b32", self.parity, self.parity, 1, pred=wraps)


@dataclass
class Source:
    """What a lane brings of every stage: a record of weights, a part of the tokens, or the tokens' scales.

    `size`: bytes of a copy; `step`: from a stage's to the next one's in global memory; `place`: in the first stage;
    `copies`: whether the lane brings something to its own CTA; `for_tokens`, `for_scales`, `for_all`: whether that is
    tokens, scales, or tokens for every CTA of `every`.
    """

    size: Reg
    step: Reg
    place: Reg
    copies: Reg
    for_tokens: Reg
    x: Reg
    for_scales: Reg | None = None
    x_scales: Reg | None = None
    for_all: Reg | None = None
    every: Reg | None = None


class Copier:
    """Fragments `begin_copies`, `early_weights`, `early_tokens`, `find_sources`, `poll_empty`, `copy`: the copying
    warp."""

    is_first: Reg | None = None  # whether the tile is the one whose weights were asked for early
    goes: Reg | None = None  # whether they were, where that is not so of all CTAs

    def __init__(
        self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring, early: int, has_tile: Reg | None
    ) -> None:
        """`early`: stages whose weights are asked for before there are tokens; `has_tile`: whether the CTA has any,
        where that is known by then."""
        self.b, self.spec, self.at, self.ring, self.early, self.has_tile = b, spec, at, ring, early, has_tile

    def build(self, tasks: Tasks) -> None:
        """All fragments."""
        b, at, ring = self.b, self.at, self.ring
        self.tasks = tasks
        self._declare()
        self.source, target = b.reg("copy_from", "u64"), b.reg("copy_to", "u32")
        self.total = at.token_bytes + at.records * at.tile_bytes + at.scale_bytes  # of a stage
        with b.fragment("begin_copies", "what this lane copies: a record of weights, or the tokens"):
            ring.begin(copies=True)
            self._begin()
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
        with b.fragment("find_sources", "where the tile's weights and tokens begin"):
            self._find_sources()
            left = b.op("mov.u32", "copied_steps", tasks.steps)
            more = b.op("setp.ne.u32", "copies_more", left, 0)
            if self.is_first is not None:
                self._bring_tokens(self.is_first)
                b.op("sub.u32", left, left, self.early, pred=self.is_first)
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
        raise NotImplementedError

    def _early_tokens(self) -> None:
        """The tokens, and scales, of these stages, where the first tile is known by then."""
        raise NotImplementedError

    def _find_sources(self) -> None:
        """Where the first stage's bytes begin."""
        raise NotImplementedError

    def _bring_tokens(self, is_first: Reg) -> None:
        """The tokens, and scales, of the stages whose weights are on their way."""
        raise NotImplementedError

    def _bring_stage(self, target: Reg) -> None:
        """Copies to the ring's stage, and on to the next."""
        raise NotImplementedError

    def _every(self) -> Reg:
        """The mask of the CTAs that share the tokens."""
        b, tasks, share = self.b, self.tasks, self.at.shape.share
        every = b.op("mov.u16", "every_cta", (1 << share) - 1)
        if tasks.split_rank is not None:
            shift = b.op("mul.lo.u32", "first_of_cluster", tasks.split_rank, share)
            b.op("shl.b16", every, every, shift)
        return every


class LaneCopier(Copier):
    """The copying warp where each lane brings a record, one the tokens and one their scales; records past the last are
    the last."""

    def _declare(self) -> None:
        self.size = self.b.reg("copy_bytes", "u32")

    def _begin(self) -> None:
        self.of = self._of_lane(self.size)

    def _of_lane(self, size: Reg) -> Source:
        """What this lane copies, how much of it, and to where in a stage."""
        b, at, lane, share = self.b, self.at, self.tasks.lane, self.at.shape.share
        scaled = self.spec.by_block
        copies = b.op("setp.le.u32", "copies", lane, at.records + scaled)
        for_tokens = b.op("setp.eq.u32", "copies_tokens", lane, at.records + scaled)
        self.leads = b.op("setp.eq.u32", "leads", lane, 0)
        b.op("selp.u32", size, at.token_bytes // share, at.tile_bytes, for_tokens)
        step = size if share == 1 else b.op("selp.u32", "copy_step", at.token_bytes, at.tile_bytes, for_tokens)
        for_scales = x_scales = None
        if scaled:  # its place is that of a record after the last
            for_scales = b.op("setp.eq.u32", "copies_scales", lane, at.records)
            b.op("selp.u32", size, at.scale_bytes, size, for_scales)
            if share > 1:
                b.op("selp.u32", step, at.scale_bytes, step, for_scales)
            x_scales = b.ld_param("x_scales")
        place = b.op("mov.u32", "copy_place", self.ring.memory)
        own = b.op("mad.lo.u32", "record_place", lane, at.tile_bytes, place)
        b.op("add.u32", own, own, at.token_bytes)
        for_all, every = self._of_all(place, copies, for_tokens) if share > 1 else (None, None)
        b.op("selp.u32", place, place, own, for_tokens)
        x = b.ld_param("x")
        return Source(size, step, place, copies, for_tokens, x, for_scales, x_scales, for_all, every)

    def _of_all(self, place: Reg, copies: Reg, for_tokens: Reg) -> tuple[Reg, Reg]:
        """A CTA's part of the tokens goes to all that share them: whether this lane brings it, and the CTAs' mask."""
        b, at, tasks, share = self.b, self.at, self.tasks, self.at.shape.share
        own_part = b.op("mul.lo.u32", "own_part", tasks.share_rank, at.token_bytes // share)
        b.op("add.u32", place, place, own_part)
        for_all = b.op("and.pred", "copies_for_all", copies, for_tokens)
        b.op("setp.lt.u32", copies, tasks.lane, at.records + self.spec.by_block)
        return for_all, self._every()

    def _bring_early(self) -> None:
        b, at, ring, early, steps = self.b, self.at, self.ring, self.early, self.tasks.steps
        if self.has_tile is not None:
            self._find_sources()
        else:
            self._find_record()
            if self.tasks.first_step is not None:
                b.op("mad.wide.u32", self.source, self.tasks.first_step, at.tile_bytes, self.source)
        leads, goes = self.leads, self.has_tile
        if goes is not None and isinstance(steps, Reg):
            goes = b.op("setp.ge.and.u32", "is_long", steps, early, goes)
        if goes is not None:
            leads = b.op("and.pred", "leads_early", leads, goes)
        for stage in range(early):
            bell = ring.full_bells[BELL * stage]
            b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, bell, self.total, pred=leads)
        has_record = b.op("setp.lt.u32", "has_record", self.tasks.lane, at.records)
        if goes is not None:
            b.op("and.pred", has_record, has_record, goes)
        self._bring_each(at.tile_bytes, has_record)
        self.goes = goes
        ring.skip(early, goes if self.spec.stream else None)
        if goes is not None and self.spec.stream:
            self.is_first = b.op("and.pred", "is_first_tile", goes, goes)
        else:
            self.is_first = b.op("setp.eq.u32", "is_first_tile", 0, 0)

    def _find_sources(self) -> None:
        of = self.of
        b, spec, at, tasks, source = self.b, self.spec, self.at, self.tasks, self.source
        share = at.shape.share
        self._find_record()
        of_tile = packed.blocks(spec.k, spec.x_dtype) * spec.digits * at.tokens * packed.ROW_BYTES
        tokens_at = b.op("mad.wide.u32", scratch(b, "tokens_at", "u64"), tasks.token_tile, of_tile, of.x)
        if share > 1:
            b.op("mad.wide.u32", tokens_at, tasks.share_rank, at.token_bytes // share, tokens_at)
        b.op("selp.b64", source, tokens_at, source, of.for_tokens)
        if of.for_scales is not None:
            scales_of_tile = packed.blocks(spec.k, spec.x_dtype) * at.tokens * packed.SCALE_BYTES
            b.op("mad.wide.u32", tokens_at, tasks.token_tile, scales_of_tile, of.x_scales)
            b.op("selp.b64", source, tokens_at, source, of.for_scales)
        if tasks.first_step is not None:
            b.op("mad.wide.u32", source, tasks.first_step, of.step, source)

    def _early_tokens(self) -> None:
        assert self.goes is not None
        self._first_tokens(self.goes)

    def _bring_tokens(self, is_first: Reg) -> None:
        b, of = self.b, self.of
        if self.has_tile is None:
            b.note("the tokens of the stages whose weights are on their way")
            self._first_tokens(is_first)
        done = b.op("mul.wide.u32", "early_bytes", of.step, self.early)
        b.op("add.u64", self.source, self.source, done, pred=is_first)

    def _first_tokens(self, pred: Reg) -> None:
        """Those, and their scales, of the stages whose weights are on their way."""
        b, at, of = self.b, self.at, self.of
        brings = b.op("and.pred", "brings_tokens", pred, of.for_tokens)
        self._bring_each(at.token_bytes, brings, of.every)
        if of.for_scales is not None:
            brings = b.op("and.pred", "brings_scales", pred, of.for_scales)
            self._bring_each(at.scale_bytes, brings)

    def _bring_each(self, bytes: int, pred: Reg, every: Reg | None = None) -> None:
        """A copy to each of the first stages, of sources so many bytes apart; to `every` CTA where that is said."""
        of = self.of
        opcode, to = (COPY, ()) if every is None else (MULTICAST, (every,))
        for stage in range(self.early):
            place, bell = of.place[stage * self.at.stage_bytes], self.ring.full_bells[BELL * stage]
            self.b.op(opcode, place, self.source[stage * bytes], of.size, bell, *to, pred=pred)

    def _bring_stage(self, target: Reg) -> None:
        b, ring, source, of = self.b, self.ring, self.source, self.of
        b.op("bar.warp.sync", -1, note="no lane falls a phase behind")
        b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, ring.full[0], self.total, pred=self.leads)
        b.op("add.u32", target, of.place, ring.offset)
        b.op(COPY, target[0], source[0], of.size, ring.full[0], pred=of.copies)
        if of.for_all is not None:
            b.op(MULTICAST, target[0], source[0], of.size, ring.full[0], of.every, pred=of.for_all)
        step = b.op("cvt.u64.u32", "copy_advance", of.step)
        b.op("add.u64", source, source, step)
        ring.turn()

    def _find_record(self) -> None:
        """Where this lane's record begins."""
        b, spec, tasks = self.b, self.spec, self.tasks
        record = b.op("mad.lo.u32", scratch(b, "copied_record", "u32"), tasks.group, self.at.records, tasks.lane)
        b.op("min.u32", record, record, spec.parts * spec.kind.records(spec.n) - 1)
        b.op("mad.wide.u32", self.source, record, spec.kind.record_bytes(spec.k), tasks.weight)
