"""Tiles of the mma main loop in shared memory (sm_90): bulk copies bring whole tiles of K and V, every warp for itself.

A stage holds one tile: K's rows, then V's. A warp's first lane issues the copies, up to `stages`
tiles ahead of their use, and each stage has an mbarrier that its bytes complete (PTX ISA: cp.async.bulk). The rest is
as with register loads: fragments come from the stage in 16-byte pieces, in the same layout.
"""

from __future__ import annotations

from typing import NamedTuple

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.contract import LoopShape, Task
from ptxgen.attention.decode.loops.mma.layout import TILE, Block, Placed, Ring
from ptxgen.builder import Builder
from ptxgen.builder.values import SINK, Reg, Shared
from ptxgen.idioms.convert import scratch
from ptxgen.targets import Target

COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
PREFETCH = "cp.async.bulk.prefetch.L2.global"
MBARRIER_BYTES = 16  # of an mbarrier (8), and room to the next
ALIGN = 128  # of stages: bulk copies to other addresses take half as long again


class Part(NamedTuple):
    """What a stage holds of a tile: `rows` names the task's address of position 0."""

    rows: str
    offset: int
    bytes: int


def parts_of(attention: Attention) -> tuple[Part, Part]:
    """K's rows, then V's."""
    k, v = TILE * attention.cache.k.bytes, TILE * attention.cache.v.bytes
    return Part("k_rows", 0, k), Part("v_rows", k, v)


def stage_bytes(attention: Attention) -> int:
    """Shared memory of a stage."""
    return -(-sum(part.bytes for part in parts_of(attention)) // ALIGN) * ALIGN


def stages_for(attention: Attention, target: Target) -> bool:
    """Whether tiles can come by bulk copies: whole tiles of contiguous rows; scales, too, on 16-byte boundaries."""
    cache = attention.cache
    contiguous = not (cache.page_size or cache.ring or cache.quantised or cache.ragged(TILE))
    return target.includes_any(("sm_90",)) and contiguous


class Stages:
    """Owns the stages, their mbarriers, and the fragments' registers `%kv<n>`.

    The mma loop asks it as it asks a `Loader`: `issue` reads a unit of the current tile from its stage.
    """

    def __init__(
        self, b: Builder, attention: Attention, shape: LoopShape, task: Task, ring: Ring, arena: Shared, start: int
    ) -> None:
        self.b, self.attention, self.shape, self.task, self.ring = b, attention, shape, task, ring
        self.arena, self.start = arena, start
        self.rows, self.parts, self.size = attention.cache.sides, parts_of(attention), stage_bytes(attention)
        self.mbarriers = b.shared("stage_full", MBARRIER_BYTES * shape.stages * shape.warps)
        self.kv = b.array("kv", "b32", ring.registers)
        self.g, self.q = b.reg("lane_g", "u32"), b.reg("lane_q", "u32")
        self.next, self.live = b.reg("tile_next", "s32"), b.reg("tile_live", "pred")
        self.first_stage, self.first_mbarrier = b.reg("tile_first_stage", "u32"), b.reg("tile_first_bell", "u32")
        self.stage, self.mbarrier = b.reg("tile_stage", "u32"), b.reg("tile_bell", "u32")
        self.parity = b.reg("tile_parity", "u32")
        self.leads, self.issues = b.reg("tile_leads", "pred"), b.reg("tile_issues", "pred")
        self.full = b.reg("tile_full", "pred")
        self.sources = tuple(b.reg(f"kv_{part.rows}_next", "u64") for part in self.parts)
        self.lanes: dict[tuple[str, int, bool], Reg] = {}
        self._advance: dict[int, Reg] = {}

    # -- bringing tiles ----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Lane numbers, the warp's stages and mbarriers; its first lane makes these."""
        b, task, shape = self.b, self.task, self.shape
        b.op("shr.u32", self.g, task.lane, 2)
        b.op("and.b32", self.q, task.lane, 3)
        b.op("setp.eq.u32", self.leads, task.lane, 0)
        b.op("mov.u32", self.first_mbarrier, self.mbarriers)
        b.op("mad.lo.u32", self.first_mbarrier, task.warp, MBARRIER_BYTES * shape.stages, self.first_mbarrier)
        b.op("mov.u32", self.first_stage, self.arena)
        b.op("mad.lo.u32", self.first_stage, task.warp, shape.stages * self.size, self.first_stage)
        if self.start:
            b.op("add.u32", self.first_stage, self.first_stage, self.start)
        for stage in range(shape.stages):
            b.op("mbarrier.init.shared::cta.b64", self.first_mbarrier[MBARRIER_BYTES * stage], 1, pred=self.leads)
        b.op("fence.mbarrier_init.release.cluster")
        b.op("bar.warp.sync", -1)

    def point(self) -> None:
        """At the warp's first tile."""
        b, task = self.b, self.task
        b.op("mov.b32", self.next, task.tile)
        for source, part, rows in zip(self.sources, self.parts, (task.k_rows, task.v_rows), strict=True):
            b.op("mad.wide.s32", source, self.next, part.bytes, rows)

    def strides(self) -> None:
        """What carries a source from one of the warp's tiles to its next."""
        for size in sorted({part.bytes for part in self.parts}):
            self._advance[size] = self.b.op("mul.wide.u32", f"kv_advance{size}", self.task.tile_step, size)

    def step(self) -> None:
        """On to the next tile to bring."""
        self.b.op("add.s32", self.next, self.next, self.task.tile_step)
        for source, part in zip(self.sources, self.parts, strict=True):
            self.b.op("add.u64", source, source, self._advance[part.bytes])

    def exists(self, end: Reg | int) -> None:
        """Whether the tile to bring lies below `end`."""
        self.b.op("setp.lt.s32", self.live, self.next, end)
        self.b.op("and.pred", self.issues, self.live, self.leads)

    def bring(self, stage: Reg, mbarrier: Reg, number: int = 0, *, when: Reg | None = None) -> None:
        """Start the copies of a tile into stage `number` from `stage` on."""
        b, when = self.b, when or self.issues
        size = sum(part.bytes for part in self.parts)
        b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, mbarrier[MBARRIER_BYTES * number], size, pred=when)
        for source, part in zip(self.sources, self.parts, strict=True):
            place = stage[number * self.size + part.offset]
            b.op(COPY, place, source[0], part.bytes, mbarrier[MBARRIER_BYTES * number], pred=when)

    def bring_older(self) -> None:
        """Start all stages' tiles but the one that holds the newest position: it is only brought nearer, and noted."""
        b = self.b
        newest = self.newest_tile = b.op("sub.s32", "newest_tile", self.task.tile_end, 1)
        held = self.newest_held = b.reg("newest_held", "pred")
        number = self.newest_stage = b.op("mov.u32", "newest_stage", self.shape.stages)
        for stage in range(self.shape.stages):
            if stage:
                self.step()
            self.exists(newest)
            self.bring(self.first_stage, self.first_mbarrier, stage)
            b.op("setp.eq.s32", held, self.next, newest)
            b.op("mov.u32", number, stage, pred=held)
            b.op("and.pred", held, held, self.leads)
            for source, part in zip(self.sources, self.parts, strict=True):
                b.op(PREFETCH, source[0], part.bytes, pred=held)

    def bring_newest(self) -> None:
        """Start the copies of the tile that holds the newest position, if it is one of the warp's first."""
        b = self.b
        number, newest = self.newest_stage, self.newest_tile
        held = b.op("setp.lt.u32", self.newest_held, number, self.shape.stages)
        b.op("and.pred", held, held, self.leads)
        b.op("mad.lo.u32", self.stage, number, self.size, self.first_stage)
        b.op("mad.lo.u32", self.mbarrier, number, MBARRIER_BYTES, self.first_mbarrier)
        back = scratch(b, "newest_back", "s32")
        b.op("sub.s32", back, newest, self.next)
        for source, part in zip(self.sources, self.parts, strict=True):
            there = scratch(b, "newest_source", "u64")
            b.op("mad.wide.s32", there, back, part.bytes, source)
            if part is self.parts[0]:
                size = sum(p.bytes for p in self.parts)
                b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, self.mbarrier[0], size, pred=held)
            b.op(COPY, self.stage[part.offset], there[0], part.bytes, self.mbarrier[0], pred=held)

    def bring_rest(self) -> None:
        """Start the tiles of every stage but the first."""
        for stage in range(1, self.shape.stages):
            self.step()
            self.exists(self.task.tile_end)
            self.bring(self.first_stage, self.first_mbarrier, stage)

    # -- using them --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """At the first stage; where a lane's pieces lie in any."""
        b = self.b
        self.token = b.op("shl.b32", "lane_token", self.q, 1)
        b.op("mov.b32", self.stage, self.first_stage)
        b.op("mov.b32", self.mbarrier, self.first_mbarrier)
        b.op("mov.u32", self.parity, 0)
        k, v = self.parts
        sides = ((self.ring.layout.k_blocks, self.g, self.q, k), (self.ring.layout.v_blocks, self.token, self.g, v))
        for blocks, row, across, part in sides:
            for block in blocks:
                if _key(block) in self.lanes:
                    continue
                column = across
                if block.repeats:
                    column = b.op("and.b32", scratch(b, f"kv_{block.kind}_column", "u32"), column, 3)
                name = f"kv_{block.kind}{block.width}{'r' if block.repeats else ''}"
                row_bytes = self.rows[block.kind].bytes
                self.lanes[_key(block)] = self._lane(name, row, row_bytes, column, block.width, part.offset)

    def _lane(self, name: str, row: Reg, row_bytes: int, column: Reg, column_bytes: int, start: int) -> Reg:
        lane: Reg = self.b.op("mad.lo.u32", name, row, row_bytes, self.stage)
        self.b.op("mad.lo.u32", lane, column, column_bytes, lane)
        if start:
            self.b.op("add.u32", lane, lane, start)
        return lane

    def poll(self) -> Reg:
        """Try once whether the current stage is full."""
        self.b.op("mbarrier.try_wait.parity.shared::cta.b64", self.full, self.mbarrier[0], self.parity)
        return self.full

    def poll_first(self) -> Reg:
        """Try once whether the first stage is full, for the first time."""
        self.b.op("mbarrier.try_wait.parity.shared::cta.b64", self.full, self.first_mbarrier[0], 0)
        return self.full

    def read_first(self) -> None:
        """The first units of the current tile, as many as there are registers for."""
        for position in range(min(self.ring.depth, len(self.ring.units))):
            self.issue(position)

    def refill(self, position: int) -> None:
        """Read what takes the registers of the unit just used; there is nothing to read beyond the tile."""
        if position + self.ring.depth < len(self.ring.units):
            self.issue(position + self.ring.depth)

    def issue(self, position: int) -> None:
        """Read a unit of the current tile."""
        for placed in self.ring.units[position].blocks:
            block = placed.block
            lane = self.lanes[_key(block)]
            for row, distance in enumerate(block.rows):
                words = tuple(self.register(position, placed, block.word(row, i)) for i in range(block.words))
                vector = f".v{len(words)}.b32" if len(words) > 1 else ".b32" if block.width == 4 else ".u16"
                place = lane[distance * self.rows[block.kind].bytes + block.base]
                self.b.op(f"ld.shared{vector}", words if len(words) > 1 else words[0], place)

    def register(self, position: int, placed: Placed, index: int) -> Reg:
        """The register of a block of the unit at this position of the tile."""
        register: Reg = self.kv[self.ring.slot_offsets[position % self.ring.depth] + placed.offset + index]
        return register

    def release(self) -> None:
        """All lanes are done with the stage: bring the tile that is as many tiles ahead as there are stages."""
        self.b.op("bar.warp.sync", -1)
        self.step()
        self.exists(self.task.tile_end)
        self.bring(self.stage, self.mbarrier)

    def turn(self) -> None:
        """On to the next stage; behind the last, to the first with the other parity."""
        b, wraps = self.b, scratch(self.b, "tile_wraps", "pred")
        move, end = scratch(b, "tile_move", "s32"), scratch(b, "tile_last_bell", "u32")
        b.op("add.u32", self.mbarrier, self.mbarrier, MBARRIER_BYTES)
        b.op("add.u32", end, self.first_mbarrier, MBARRIER_BYTES * self.shape.stages)
        b.op("setp.eq.u32", wraps, self.mbarrier, end)
        b.op("mov.b32", self.mbarrier, self.first_mbarrier, pred=wraps)
        b.op("xor.b32", self.parity, self.parity, 1, pred=wraps)
        b.op("selp.s32", move, -(self.shape.stages - 1) * self.size, self.size, wraps)
        for lane in (self.stage, *self.lanes.values()):
            b.op("add.u32", lane, lane, move)


def _key(block: Block) -> tuple[str, int, bool]:
    return block.kind, block.width, block.repeats
