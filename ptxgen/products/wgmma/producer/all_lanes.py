"""The copying warp where each lane brings something: lane i record i of the CTA, the lane after them the tokens.

Each source is contiguous from stage to stage. Where tokens have scales for each block, a lane between brings these. It
is for matrices whose last CTA does not have all its records: those past the last are the last.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.builder.values import SINK, Reg
from ptxgen.idioms.convert import scratch
from ptxgen.products.wgmma.producer.copier import MULTICAST, Copier
from ptxgen.products.wgmma.ring import BELL
from ptxgen.products.wgmma.tokens import layout


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


class LaneCopier(Copier):
    """The copying warp where each lane brings a record, one the tokens and one their scales; records past the last are
    the last."""

    def _declare(self) -> None:
        self.size = self.b.reg("copy_bytes", "u32")
        self.brings: Reg | None = None  # whether the lane's record, if it has one, is in the tile, where not all are

    def _begin(self) -> None:
        self.of = self._of_lane(self.size)
        if self.at.shape.last:
            self.brings = self.b.reg("brings", "pred")

    def _begin_policy(self, policy: Reg) -> None:
        """Weights', or, of a lane that copies something else, the usual one."""
        b = self.b
        super()._begin_policy(policy)
        usual = b.op("createpolicy.fractional.L2::evict_normal.b64", "usual_policy", 1.0)
        has_weights = b.op("setp.lt.u32", scratch(b, "has_weights", "pred"), self.tasks.lane, self.at.records)
        b.op("selp.b64", policy, policy, usual, has_weights)

    def _of_lane(self, size: Reg) -> Source:
        """What this lane copies, how much of it, and to where in a stage."""
        b, at, lane, share = self.b, self.at, self.tasks.lane, self.at.shape.share
        scaled = bool(self.spec.beside)
        copies = b.op("setp.le.u32", "copies", lane, at.records + scaled)
        for_tokens = b.op("setp.eq.u32", "copies_tokens", lane, at.records + scaled)
        self.leads: Reg = b.op("setp.eq.u32", "leads", lane, 0)
        b.op("selp.u32", size, at.token_bytes // share, at.tile_bytes, for_tokens)
        step = size if share == 1 else b.op("selp.u32", "copy_step", at.token_bytes, at.tile_bytes, for_tokens)
        for_scales = x_scales = None
        if scaled:  # its place is that of a record after the last
            for_scales = b.op("setp.eq.u32", "copies_scales", lane, at.records)
            b.op("selp.u32", size, at.scale_bytes, size, for_scales)
            if share > 1:
                b.op("selp.u32", step, at.scale_bytes, step, for_scales)
            x_scales = b.ld_param(self.spec.beside)
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
        b.op("setp.lt.u32", copies, tasks.lane, at.records + bool(self.spec.beside))
        return for_all, self._every()

    def _leads(self) -> Reg:
        return self.leads

    def _early_records(self, goes: Reg | None) -> None:
        b, at, leads = self.b, self.at, self.leads
        if goes is not None:
            leads = b.op("and.pred", "leads_early", leads, goes)
        for stage in range(self.early):
            bell = self.ring.full_bells[BELL * stage]
            b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, bell, self.coming, pred=leads)
        has_record = b.op("setp.lt.u32", "has_record", self.tasks.lane, at.records)
        for each in (goes, self.brings):
            if each is not None:
                b.op("and.pred", has_record, has_record, each)
        self._bring_each(at.tile_bytes, has_record)

    def _find_sources(self) -> None:
        of = self.of
        b, spec, at, tasks, source = self.b, self.spec, self.at, self.tasks, self.source
        share = at.shape.share
        self._find_record()
        of_tile = layout.blocks(spec.k, spec.x_dtype) * spec.digits * at.tokens * layout.ROW_BYTES
        tokens_at = b.op("mad.wide.u32", scratch(b, "tokens_at", "u64"), tasks.token_tile, of_tile, of.x)
        if share > 1:
            b.op("mad.wide.u32", tokens_at, tasks.share_rank, at.token_bytes // share, tokens_at)
        b.op("selp.b64", source, tokens_at, source, of.for_tokens)
        if of.for_scales is not None:
            scales_of_tile = layout.blocks(spec.k) * layout.COLUMNS // spec.kind.tile_k * at.tokens * spec.beside_bytes
            b.op("mad.wide.u32", tokens_at, tasks.token_tile, scales_of_tile, of.x_scales)
            b.op("selp.b64", source, tokens_at, source, of.for_scales)
        if tasks.first_step is not None:
            b.op("mad.wide.u32", source, tasks.first_step, of.step, source)

    def _early_tokens(self) -> None:
        assert self.goes is not None
        self._first_tokens(self.goes)

    def _bring_tokens(self, is_first: Reg | None) -> None:
        b, of = self.b, self.of
        if self.has_tile is None:
            b.note("the tokens of the stages whose weights are on their way")
            self._first_tokens(is_first)
        done = b.op("mul.wide.u32", "early_bytes", of.step, self.early)
        b.op("add.u64", self.source, self.source, done, pred=is_first)

    def _first_tokens(self, pred: Reg | None) -> None:
        """Those, and their scales, of the stages whose weights are on their way."""
        at, of = self.at, self.of
        self._bring_each(at.token_bytes, self._both("brings_tokens", pred, of.for_tokens), of.every)
        if of.for_scales is not None:
            self._bring_each(at.scale_bytes, self._both("brings_scales", pred, of.for_scales))

    def _both(self, name: str, pred: Reg | None, lanes: Reg) -> Reg:
        """Whether this is one of these lanes, and `pred` holds where there is one."""
        if pred is None:
            return lanes
        both: Reg = self.b.op("and.pred", name, pred, lanes)
        return both

    def _bring_each(self, bytes: int, pred: Reg, every: Reg | None = None) -> None:
        """A copy to each of the first stages, of sources so many bytes apart; to `every` CTA where that is said."""
        of = self.of
        for stage in range(self.early):
            place, bell = of.place[stage * self.at.stage_bytes], self.ring.full_bells[BELL * stage]
            if every is None:
                self._copy(place, self.source[stage * bytes], of.size, bell, pred)
            else:
                self.b.op(MULTICAST, place, self.source[stage * bytes], of.size, bell, every, pred=pred)

    def _bring_stage(self, target: Reg) -> None:
        b, ring, source, of = self.b, self.ring, self.source, self.of
        b.op("bar.warp.sync", -1, note="no lane falls a phase behind")
        b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, ring.full[0], self.coming, pred=self.leads)
        b.op("add.u32", target, of.place, ring.offset)
        self._copy(target[0], source[0], of.size, ring.full[0], of.copies if self.brings is None else self.brings)
        if of.for_all is not None:
            b.op(MULTICAST, target[0], source[0], of.size, ring.full[0], of.every, pred=of.for_all)
        step = b.op("cvt.u64.u32", "copy_advance", of.step)
        b.op("add.u64", source, source, step)
        ring.turn()

    def _find_record(self) -> None:
        """Where this lane's record begins."""
        b, spec, tasks = self.b, self.spec, self.tasks
        record = b.op(
            "mad.lo.u32", scratch(b, "copied_record", "u32"), tasks.group, self.at.shape.unit_records, tasks.lane
        )
        b.op("min.u32", record, record, spec.parts * spec.kind.records(spec.n) - 1)
        b.op("mad.wide.u32", self.source, record, spec.kind.record_bytes(spec.k), tasks.weight)
        if tasks.is_last is not None:
            b.note("lanes whose record no warpgroup has in this tile bring nothing")
            b.op("setp.ge.u32", self.brings, tasks.lane, self.at.shape.unit_records)
            b.op("setp.lt.and.u32", self.brings, tasks.lane, self.at.records, self.brings)
            b.op("and.pred", self.brings, self.brings, tasks.is_last)
            b.op("not.pred", self.brings, self.brings)
            b.op("and.pred", self.brings, self.brings, self.of.copies)
