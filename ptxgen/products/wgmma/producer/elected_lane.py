"""The warp that copies where one of its lanes brings everything, records that lie one after the other.

The lane is elected anew for every batch of copies: then ptxas knows that one thread runs them and issues them one
behind the other, where a copy by several lanes is a loop over these, some 50 cycles each.
"""

from __future__ import annotations

from dataclasses import replace

from ptxgen.builder.values import SINK, Addr, Or, Reg
from ptxgen.idioms.convert import scratch
from ptxgen.products.wgmma.producer.copier import COPY, MULTICAST, Copier
from ptxgen.products.wgmma.product import PackedProduct
from ptxgen.products.wgmma.ring import BELL
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tokens import layout

FEW_RECORDS = 4  # of one warpgroup: no more copies of a stage than lanes issue in its time


def elects(spec: PackedProduct, at: Geometry) -> bool:
    """Whether one lane brings everything: of weights as they lie, where every CTA has all its records, so that they lie
    one after the other. In e4m3 with few of them, several tiles in turn were slower so, and the cause was not found."""
    last = at.shape.last
    there = (at.row_groups - last) * at.records + last * at.shape.unit_records
    in_a_row = there == spec.parts * spec.kind.records(spec.n)
    return in_a_row and spec.straight and not (spec.scaled and at.records <= FEW_RECORDS)


class ElectedCopier(Copier):
    """`Copier`'s fragments where one elected lane brings whole batches of a stage."""

    def _begin(self) -> None:
        b, at = self.b, self.at
        self.place = b.op("mov.u32", "copy_place", self.ring.memory)
        self.token_place = self.place
        self.x, self.x_from = b.ld_param("x"), b.reg("tokens_from", "u64")
        self.every: Reg | None = None
        if at.shape.last:
            self.is_whole = b.reg("is_whole", "pred")
        if at.shape.share > 1:
            part = b.op("mul.lo.u32", "own_part", self.tasks.share_rank, self._token_bytes)
            self.token_place = b.op("add.u32", "token_place", self.place, part)
            self.every = self._every()
        if self.spec.by_block:
            self.x_scales, self.scales_from = b.ld_param("x_scales"), b.reg("token_scales_from", "u64")

    @property
    def _token_bytes(self) -> int:
        """Of the tokens of a stage, what this CTA brings."""
        return self.at.token_bytes // self.at.shape.share

    def _elect(self) -> Reg:
        b = self.b
        elected = scratch(b, "elected", "pred")
        b.op("elect.sync", Or(scratch(b, "elected_lane", "u32"), elected), -1)
        return elected

    def _leads(self) -> Reg:
        return self._elect()

    def _early_records(self, goes: Reg | None) -> None:
        b, at, elected = self.b, self.at, self._elect()
        if goes is not None:
            b.op("and.pred", elected, elected, goes)
        for stage in range(self.early):
            bell = self.ring.full_bells[BELL * stage]
            b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, bell, self.coming, pred=elected)
            self._records(self.place, stage * at.stage_bytes, stage * at.tile_bytes, bell, elected)

    def _records(self, place: Reg, offset: int, source: int, bell: Addr, pred: Reg) -> None:
        """The records of a stage, from `source` on in global memory."""
        at, of_all = self.at, pred
        if self.tasks.is_last is not None:
            of_all = self.b.op("and.pred", scratch(self.b, "brings_all", "pred"), pred, self.is_whole)
        for record in range(at.records):
            to = place[offset + at.token_bytes + record * at.tile_bytes]
            from_ = self.source[source + record * self.spec.kind.record_bytes(self.spec.k)]
            self._copy(to, from_, at.tile_bytes, bell, pred if record < at.shape.unit_records else of_all)

    def _tokens(self, place: Reg, offset: int, source: int, bell: Addr, pred: Reg) -> None:
        """Bring the tokens of a stage."""
        opcode, to = (COPY, ()) if self.every is None else (MULTICAST, (self.every,))
        self.b.op(opcode, place[offset], self.x_from[source], self._token_bytes, bell, *to, pred=pred)

    def _scales(self, place: Reg, offset: int, source: int, bell: Addr, pred: Reg) -> None:
        """The tokens' scales of a stage: their place is that of a record after the last."""
        at = self.at
        if at.factored:
            bell = replace(bell, offset=bell.offset + BELL * at.stages)
            self.b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, bell, at.scale_bytes, pred=pred)
        to = place[offset + at.token_bytes + at.records * at.tile_bytes]
        self.b.op(COPY, to, self.scales_from[source], at.scale_bytes, bell, pred=pred)

    def _find_sources(self) -> None:
        b, spec, at, tasks = self.b, self.spec, self.at, self.tasks
        self._find_record()
        blocks = layout.blocks(spec.k, spec.x_dtype)
        b.op("mad.wide.u32", self.x_from, tasks.token_tile, blocks * spec.digits * at.tokens * layout.ROW_BYTES, self.x)
        if at.shape.share > 1:
            b.op("mad.wide.u32", self.x_from, tasks.share_rank, self._token_bytes, self.x_from)
        if spec.by_block:
            size = blocks * at.tokens * layout.SCALE_BYTES
            b.op("mad.wide.u32", self.scales_from, tasks.token_tile, size, self.x_scales)
        if tasks.first_step is not None:
            for source, step in self._steps():
                b.op("mad.wide.u32", source, tasks.first_step, step, source)

    def _steps(self) -> list[tuple[Reg, int]]:
        """Every source, and how far a stage's is from the next one's."""
        at = self.at
        found = [(self.source, at.tile_bytes), (self.x_from, at.token_bytes)]
        return [*found, (self.scales_from, at.scale_bytes)] if self.spec.by_block else found

    def _early_tokens(self) -> None:
        elected = self._elect()
        assert self.goes is not None
        self.b.op("and.pred", elected, elected, self.goes)
        self._first_tokens(elected)

    def _bring_tokens(self, is_first: Reg | None) -> None:
        b = self.b
        if self.has_tile is None:
            b.note("the tokens of the stages whose weights are on their way")
            elected = self._elect()
            if is_first is not None:
                b.op("and.pred", elected, elected, is_first)
            self._first_tokens(elected)
        for source, step in self._steps():
            b.op("add.u64", source, source, step * self.early, pred=is_first)

    def _first_tokens(self, pred: Reg) -> None:
        """Those, and their scales, of the stages whose weights are on their way."""
        at = self.at
        for stage in range(self.early):
            offset, bell = stage * at.stage_bytes, self.ring.full_bells[BELL * stage]
            self._tokens(self.token_place, offset, stage * at.token_bytes, bell, pred)
            if self.spec.by_block:
                self._scales(self.place, offset, stage * at.scale_bytes, bell, pred)

    def _bring_stage(self, target: Reg) -> None:
        b, ring = self.b, self.ring
        b.note("electing takes all lanes, so that none falls a phase behind")
        elected = self._elect()
        b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, ring.full[0], self.coming, pred=elected)
        b.op("add.u32", target, self.token_place, ring.offset)
        self._tokens(target, 0, 0, ring.full[0], elected)
        if self.token_place is not self.place:
            b.op("add.u32", target, self.place, ring.offset)
        if self.spec.by_block:
            self._scales(target, 0, 0, ring.full[0], elected)
        self._records(target, 0, 0, ring.full[0], elected)
        for source, step in self._steps():
            b.op("add.u64", source, source, step)
        ring.turn()

    def _find_record(self) -> None:
        b, spec, tasks = self.b, self.spec, self.tasks
        size = self.at.shape.unit_records * spec.kind.record_bytes(spec.k)
        b.op("mad.wide.u32", self.source, tasks.group, size, tasks.weight)
        if tasks.is_last is not None:
            b.op("not.pred", self.is_whole, tasks.is_last)
