"""Blocks' sums to the totals with factors from tensor cores: of many tokens in e4m3 with a scale for every block.

A lane needs the scales of a quarter of the tokens, as do the seven others with its columns: read by each they would
take shared memory, which the products need, for as long as these themselves. So a warp beside the copying one multiplies
the tokens' scales with the weights', and leaves each product as three numbers in bf16 that add up to it, which are two
words; the multiplying warps read 32 different words at a time, and a small product with ones adds up the three and
brings them to all lanes. Its rows g have the factors of an octet of tokens, rows g + 8 those of the next.
"""

from __future__ import annotations

from collections.abc import Iterator

from ptxgen.builder import Builder, Fragment
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.convert import RUN, scratch, scratch_array
from ptxgen.products.wgmma.geometry import Geometry
from ptxgen.products.wgmma.product import PackedProduct
from ptxgen.products.wgmma.multiply import PER_CHUNK
from ptxgen.products.wgmma.promoted import PromotedMultiplier, Unit
from ptxgen.products.wgmma.ring import BELL, Ring
from ptxgen.products.wgmma.scaled import OCTET
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.products.wgmma.tokens import ROW_BYTES, SCALE_BYTES
from ptxgen.weights.bits import pair_of_bf16
from ptxgen.weights.format import Piece

LANES = 32
TRIAL: dict = {}
PAIR = 2 * OCTET  # tokens whose factors are a word of every lane
WORD = 4  # bytes
UPPER = 0xFFFF0000  # bits of an f32 that are a bf16 number
UPPER_HALVES = 0x7632  # for prmt: of two words, the first one's below
LARGEST = float.fromhex("0x1.fffffep127")
SPREAD = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"


class FactorFinder:
    """The warp that leaves factors in every stage. Fragments `begin_factors`, `find_scales`, `poll_scales`, `factors`;
    predicate `finds_more`."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring) -> None:
        self.b, self.spec, self.at, self.ring = b, spec, at, ring

    def build(self, tasks: Tasks) -> None:
        """All fragments."""
        b, spec, at, ring, lane = self.b, self.spec, self.at, self.ring, tasks.lane
        kind = spec.kind
        scales_at = at.token_bytes + at.records * at.tile_bytes
        with b.fragment("begin_factors", "where the lane's tokens' scales and factors lie in a stage"):
            ring.begin(copies=False)
            place = b.op("mov.u32", "factors_base", ring.memory)
            own = b.op("mad.lo.u32", "own_scale", lane, SCALE_BYTES, place)
            left = own
            tells = b.op("setp.eq.u32", "tells_factors", lane, 0)
            from_, to = b.reg("scales_now", "u32"), b.reg("factors_now", "u32")
            if at.tokens % LANES:
                has_last = b.op("setp.lt.u32", "has_last_token", lane, at.tokens % LANES)
        with b.fragment("find_scales", "the weights' scales of the tile's rows: the first is asked for"):
            record = b.op("mul.lo.u32", "scale_record", tasks.group, at.records)
            scale_at = b.op("mad.wide.u32", "scale_at", record, kind.record_bytes(spec.k), tasks.weight)
            b.op("add.u64", scale_at, scale_at, kind.tiles(spec.k) * kind.tile_bytes)
            if tasks.first_step is not None:
                b.op("mad.wide.u32", scale_at, tasks.first_step, SCALE_BYTES, scale_at)
            scale, next_scale = b.reg("weight_scale", "f32"), b.reg("next_scale", "f32")
            b.op("ld.global.nc.f32", next_scale, scale_at[0])
            left_steps = b.op("mov.u32", "factor_steps", tasks.steps)
        with b.fragment("poll_scales"):
            b.op("mbarrier.try_wait.parity.shared::cta.b64", ring.is_full, ring.full[BELL * at.stages], ring.parity)
        with b.fragment("factors", "each as three numbers in bf16, in two words"):
            b.op("mov.f32", scale, next_scale)
            b.op("sub.u32", left_steps, left_steps, 1)
            more = b.op("setp.ne.u32", "finds_more", left_steps, 0)
            b.op("add.u64", scale_at, scale_at, SCALE_BYTES)
            b.op("ld.global.nc.f32", next_scale, scale_at[0], pred=more)
            b.op("add.u32", from_, own, ring.offset)
            b.op("add.u32", to, left, ring.offset)
            count = -(-at.tokens // LANES)
            factors = scratch_array(b, "token_factor", "f32", count)
            for index, factor in enumerate(factors):
                pred = has_last if (index + 1) * LANES > at.tokens else None
                if pred is not None:
                    convert.clear(b, (factor,))
                b.op("ld.shared.f32", factor, from_[scales_at + LANES * SCALE_BYTES * index], pred=pred)
            for index, factor in enumerate(factors):
                pred = has_last if (index + 1) * LANES > at.tokens else None
                b.op("mul.f32", factor, factor, scale)
                offset = scales_at + at.scale_bytes + LANES * WORD * index
                b.op("st.shared.f32", to[offset], factor, pred=pred)
            b.op("bar.warp.sync", -1)
            b.op("mbarrier.arrive.shared::cta.b64", scratch(b, "arrival", "b64"), ring.full[0], pred=tells)
            ring.turn()

class PipelinedMultiplier(PromotedMultiplier):
    """Turns."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring) -> None:
        super().__init__(b, spec, at, ring)

    def _sets(self):
        b = self.b
        return [b.array(name, "b32", PER_CHUNK * self.spec.chunks) for name in ("even", "odd")]

    def _scales(self) -> None:
        b, at = self.b, self.at
        self.half = at.product_tokens
        self.factors = b.array("factor", "f32", self.half // 4)
        self.block_scales = b.array("block_scale", "f32", 1)
        self.source = TRIAL.get("source", "found")

    def _stage(self):
        b, at, ring = self.b, self.at, self.ring
        with b.fragment("load_first"):
            self._read_straight(self._part_of(self.units[0]), self.sets[0])
            if TRIAL.get("noA"):
                self._read_straight(self._part_of(self.units[0]), self.sets[1])
        stages = []
        for parity in (0, 1):
            units = []
            for unit in self.units:
                last = unit is self.units[-1]
                with b.fragment(f"products{parity}_{unit.number}") as products:
                    b.op("wgmma.fence.sync.aligned")
                    for chunk in self._part_of(unit).chunks:
                        self._describe(self._chunk_of_tokens(unit.tile, chunk) + unit.first * ROW_BYTES)
                        own = self.sets[parity][PER_CHUNK * chunk : PER_CHUNK * (chunk + 1)]
                        if chunk == self.spec.chunks - 1:
                            b.op("wgmma.commit_group.sync.aligned")
                        b.op(self.product, self._short(unit).regs, own, self.descriptor, int(chunk > 0), 1, 1)
                    b.op("wgmma.commit_group.sync.aligned")
                    if not TRIAL.get("late"):
                        self._find_factors(unit, 0)
                advance = load = None
                if last:
                    with b.fragment(f"advance{parity}") as advance:
                        b.op("mov.u32", self.released, ring.empty)
                        ring.turn()
                        b.op("sub.u32", self.step, self.step, 1)
                        b.op("setp.ne.u32", self.more, self.step, 0)
                    with b.fragment(f"load{parity}") as load:
                        if not TRIAL.get("noA"):
                            self._read_straight(self._part_of(unit), self.sets[1 - parity])
                with b.fragment(f"finish{parity}_{unit.number}") as finish:
                    if not TRIAL.get("eager"):
                        b.op("wgmma.wait_group.sync.aligned", 1)
                with b.fragment(f"promote{parity}_{unit.number}") as promote:
                    if TRIAL.get("late"):
                        self._find_factors(unit, 0)
                    b.op("wgmma.wait_group.sync.aligned", 0)
                    short, totals = self._short(unit), self.sums[unit.block][unit.first // 2 :]
                    for i in range(2 if TRIAL.get("nofma") else at.product_tokens // 2):
                        factor = self.factors[i // 4 * 2 + i % 2]
                        b.op("fma.rn.f32", totals[i], short[i], factor, totals[i])
                    if last:
                        self._arrive(self.arriving)
                units.append((products, advance, load, finish, promote))
            stages.append({"number": parity, "units": units})
        b.expose(pipelined=stages)
        return iter(())

    def _unreleased(self):
        self.arriving = self.b.known("arrives")
        self.more = self.b.reg("multiplies_more", "pred")
        self.b.op("setp.eq.u32", self.more, 0, 0)
        return None

    def _release(self, has_released, arrives) -> None:
        self.b.without("release", "multiplied")

    def _begin_scales(self, base: Reg) -> None:
        super()._begin_scales(base)
        b, at = self.b, self.at
        if self.source == "found":
            b.op("add.u32", self.own_scales, self.own_scales, at.scale_bytes)
        if self.source == "none":
            for i, f in enumerate(self.factors):
                b.op("cvt.rn.f32.u32", f, self.lane)
                b.op("add.f32", f, f, float(i))

    def _trailing(self) -> list[Piece]:
        return []

    def _outside(self) -> None:
        self.b.without("ask_scales", "scale_sums")

    def _find_factors(self, unit: Unit, first: int) -> None:
        b, at = self.b, self.at
        if self.source == "none":
            return
        for octet in range(at.product_tokens // OCTET):
            offset = SCALE_BYTES * (unit.first + OCTET * octet)
            own = self.factors[2 * octet : 2 * octet + 2]
            if self.source == "half":
                b.op("ld.shared.f32", own[0], self.scales_place[offset])
                b.op("mul.f32", own[1], own[0], 3.0)
            else:
                convert.load_words(b, own, self.scales_place, offset, space="shared")
