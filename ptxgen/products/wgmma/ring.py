"""A ring of stages in shared memory: one warp brings tiles of weights and of tokens, the others multiply them.

Every stage has two mbarriers: `full`, which its bytes complete, and `empty`, at which every multiplying warp arrives
once its products have read it. Lane i of the copying warp brings record i of the CTA, the lane after them the tokens:
each source is contiguous from stage to stage. Where tokens have scales for each block, a lane between brings these.
"""

from __future__ import annotations

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


class Copier:
    """Fragments `begin_copies`, `find_sources`, `poll_empty`, `copy`, `copied`: the copying warp."""

    def __init__(
        self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring, early: int, has_tile: Reg | None
    ) -> None:
        """`early`: stages whose weights are asked for before there are tokens; `has_tile`: whether the CTA has any,
        where that is known by then."""
        self.b, self.spec, self.at, self.ring, self.early, self.has_tile = b, spec, at, ring, early, has_tile

    def build(self, tasks: Tasks) -> None:
        """All fragments."""
        b, spec, at, ring = self.b, self.spec, self.at, self.ring
        lane, group, token_tile, weight = tasks.lane, tasks.group, tasks.token_tile, tasks.weight
        share_rank, split_rank, first_step, steps = tasks.share_rank, tasks.split_rank, tasks.first_step, tasks.steps
        size, source, target = b.reg("copy_bytes", "u32"), b.reg("copy_from", "u64"), b.reg("copy_to", "u32")
        with b.fragment("begin_copies", "what this lane copies: a record of weights, or the tokens"):
            ring.begin(copies=True)
            scaled = spec.by_block
            copies = b.op("setp.le.u32", "copies", lane, at.records + scaled)
            for_tokens = b.op("setp.eq.u32", "copies_tokens", lane, at.records + scaled)
            leads = b.op("setp.eq.u32", "leads", lane, 0)
            share = at.shape.share
            b.op("selp.u32", size, at.token_bytes // share, at.tile_bytes, for_tokens)
            advance = size if share == 1 else b.op("selp.u32", "copy_step", at.token_bytes, at.tile_bytes, for_tokens)
            if scaled:  # its place is that of a record after the last
                for_scales = b.op("setp.eq.u32", "copies_scales", lane, at.records)
                b.op("selp.u32", size, at.scale_bytes, size, for_scales)
                if share > 1:
                    b.op("selp.u32", advance, at.scale_bytes, advance, for_scales)
                x_scales = b.ld_param("x_scales")
            place = b.op("mov.u32", "copy_place", ring.memory)
            own = b.op("mad.lo.u32", "record_place", lane, at.tile_bytes, place)
            b.op("add.u32", own, own, at.token_bytes)
            if share > 1:
                own_part = b.op("mul.lo.u32", "own_part", share_rank, at.token_bytes // share)
                b.op("add.u32", place, place, own_part)
                b.op("and.pred", for_all := b.reg("copies_for_all", "pred"), copies, for_tokens)
                b.op("setp.lt.u32", copies, lane, at.records + scaled)
                every = b.op("mov.u16", "every_cta", (1 << share) - 1)
                if split_rank is not None:
                    shift = b.op("mul.lo.u32", "first_of_cluster", split_rank, share)
                    b.op("shl.b16", every, every, shift)
            b.op("selp.u32", place, place, own, for_tokens)
            x = b.ld_param("x")
        total = at.token_bytes + at.records * at.tile_bytes + at.scale_bytes
        early, is_first = self.early, None
        if early:
            with b.fragment("early_weights", "weights are constant: the first are on their way before the tokens are"):
                self._find_record(lane, group, weight, source)
                if first_step is not None:
                    b.op("mad.wide.u32", source, first_step, at.tile_bytes, source)
                leads_early, goes = leads, self.has_tile
                if goes is not None and isinstance(steps, Reg):
                    b.op("setp.ge.and.u32", goes := b.reg("is_long", "pred"), steps, early, self.has_tile)
                if goes is not None:
                    leads_early = b.op("and.pred", "leads_early", leads, goes)
                for stage in range(early):
                    bell = ring.full_bells[BELL * stage]
                    b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, bell, total, pred=leads_early)
                has_record = b.op("setp.lt.u32", "has_record", lane, at.records)
                if goes is not None:
                    b.op("and.pred", has_record, has_record, goes)
                for stage in range(early):
                    there, bell = place[stage * at.stage_bytes], ring.full_bells[BELL * stage]
                    b.op(COPY, there, source[stage * at.tile_bytes], size, bell, pred=has_record)
                ring.skip(early, goes if spec.stream else None)
                if goes is not None and spec.stream:
                    is_first = b.op("and.pred", "is_first_tile", goes, goes)
                else:
                    is_first = b.op("setp.eq.u32", "is_first_tile", 0, 0)
        else:
            b.without("early_weights")
        with b.fragment("find_sources", "where the tile's weights and tokens begin"):
            self._find_record(lane, group, weight, source)
            of_tile = packed.blocks(spec.k, spec.x_dtype) * spec.digits * at.tokens * packed.ROW_BYTES
            tokens_at = b.op("mad.wide.u32", "tokens_at", token_tile, of_tile, x)
            if share > 1:
                b.op("mad.wide.u32", tokens_at, share_rank, at.token_bytes // share, tokens_at)
            b.op("selp.b64", source, tokens_at, source, for_tokens)
            if scaled:
                scales_of_tile = packed.blocks(spec.k, spec.x_dtype) * at.tokens * packed.SCALE_BYTES
                b.op("mad.wide.u32", tokens_at, token_tile, scales_of_tile, x_scales)
                b.op("selp.b64", source, tokens_at, source, for_scales)
            if first_step is not None:
                b.op("mad.wide.u32", source, first_step, advance, source)
            step = b.op("mov.u32", "copied_steps", steps)
            more = b.op("setp.ne.u32", "copies_more", step, 0)
            if is_first is not None:
                b.note("the tokens of the stages whose weights are on their way")
                brings = b.op("and.pred", "brings_tokens", is_first, for_tokens)
                to = (every,) if share > 1 else ()
                for stage in range(early):
                    there, bell = place[stage * at.stage_bytes], ring.full_bells[BELL * stage]
                    opcode = MULTICAST if share > 1 else COPY
                    b.op(opcode, there, source[stage * at.token_bytes], size, bell, *to, pred=brings)
                if scaled:
                    brings_scales = b.op("and.pred", "brings_scales", is_first, for_scales)
                for stage in range(early if scaled else 0):
                    there, bell = place[stage * at.stage_bytes], ring.full_bells[BELL * stage]
                    b.op(COPY, there, source[stage * at.scale_bytes], size, bell, pred=brings_scales)
                done = b.op("mul.wide.u32", "early_bytes", advance, early)
                b.op("add.u64", source, source, done, pred=is_first)
                b.op("sub.u32", step, step, early, pred=is_first)
                b.op("setp.ne.u32", is_first, 0, 0)
                b.op("setp.ne.u32", more, step, 0)
        with b.fragment("poll_empty"):
            b.op("mbarrier.try_wait.parity.shared::cta.b64", ring.is_empty, ring.empty[0], ring.parity)
        with b.fragment("copy", "bring a stage"):
            b.op("bar.warp.sync", -1, note="no lane falls a phase behind")
            b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, ring.full[0], total, pred=leads)
            b.op("add.u32", target, place, ring.offset)
            b.op(COPY, target[0], source[0], size, ring.full[0], pred=copies)
            if share > 1:
                b.op(MULTICAST, target[0], source[0], size, ring.full[0], every, pred=for_all)
            size64 = b.op("cvt.u64.u32", "copy_advance", advance)
            b.op("add.u64", source, source, size64)
            ring.turn()
            b.op("sub.u32", step, step, 1)
            b.op("setp.ne.u32", more, step, 0)

    def _find_record(self, lane: Reg, group: Reg, weight: Reg, source: Reg) -> None:
        """Where this lane's record begins."""
        b, spec = self.b, self.spec
        record = b.op("mad.lo.u32", scratch(b, "copied_record", "u32"), group, self.at.records, lane)
        b.op("min.u32", record, record, spec.parts * spec.kind.records(spec.n) - 1)
        b.op("mad.wide.u32", source, record, spec.kind.record_bytes(spec.k), weight)
