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
from ptxgen.products.wgmma.promoted import PromotedMultiplier, Turn, Unit
from ptxgen.products.wgmma.ring import BELL, Ring
from ptxgen.products.wgmma.scaled import OCTET
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.products.wgmma.tokens import SCALE_BYTES
from ptxgen.weights.bits import pair_of_bf16
from ptxgen.weights.format import Piece

LANES = 32
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
            left = b.op("and.b32", "factor_left", lane, OCTET - 1)
            b.note("two words of a lane, of four for each g and 32 for each pair of octets")
            b.op("mad.lo.u32", left, left, 4 * WORD, place)
            half = b.op("bfe.u32", "factor_half", lane, 3, 1)
            b.op("mad.lo.u32", left, half, 2 * WORD, left)
            b.op("shr.u32", half, lane, 4)
            b.op("mad.lo.u32", left, half, LANES * WORD, left)
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
                offset = scales_at + at.scale_bytes + 2 * LANES * WORD * index
                convert.store_words(b, to, self._parts(factor), offset, space="shared", pred=pred)
            b.op("bar.warp.sync", -1)
            b.op("mbarrier.arrive.shared::cta.b64", scratch(b, "arrival", "b64"), ring.full[0], pred=tells)
            ring.turn()

    def _parts(self, factor: Reg) -> list[Reg]:
        """The words of a factor: its first eight bits and the next eight, then the rest."""
        b = self.b
        b.note("finite, since zero times another token's is added to it", after=RUN)
        b.op("min.f32", factor, factor, LARGEST)
        b.op("max.f32", factor, factor, -LARGEST)
        words = list(scratch_array(b, "word_of_factor", "b32", 2).regs)
        bits, upper = scratch(b, "factor_bits", "b32"), scratch(b, "factor_upper", "f32")
        rest = scratch(b, "factor_rest", "b32")
        b.op("mov.b32", bits, factor)
        b.op("and.b32", rest, bits, UPPER)
        b.op("mov.b32", upper, rest)
        b.op("sub.f32", factor, factor, upper)
        b.op("mov.b32", rest, factor)
        b.op("prmt.b32", words[0], bits, rest, UPPER_HALVES)
        b.op("and.b32", rest, rest, UPPER)
        b.op("mov.b32", upper, rest)
        b.op("sub.f32", factor, factor, upper)
        b.op("mov.b32", words[1], factor)
        b.op("shr.u32", words[1], words[1], 16)
        return words


class FactoredMultiplier(PromotedMultiplier):
    """The same fragments, for `Geometry.factored`."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring) -> None:
        super().__init__(b, spec, at, ring)
        self.words_of_factors = b.array("factor_word", "b32", at.factors_together // PAIR)

    def _scales(self) -> None:
        self.half = self.at.factors_together
        self.factors = self.b.array("factor", "f32", self.half // 4)

    def _trailing(self) -> list[Piece]:
        return []

    def _stage(self) -> Iterator[Fragment | Turn]:
        if not self.at.turns:
            yield from super()._stage()
            return
        for unit in self.units:
            yield self._turn(unit)

    def _turn(self, unit: Unit) -> Turn:
        b = self.b
        with b.fragment(f"before_turn{unit.number}", self._named(unit)) as before:
            if unit.first == 0:
                self._read_straight(self._part_of(unit), self._set(unit))
            if self.half == self.at.product_tokens:
                self._find_factors(unit, 0)
        with b.fragment(f"products{unit.number}", "of the block's weights with its tokens") as products:
            self._multiply(unit)
            b.op("wgmma.wait_group.sync.aligned", 1, note="the next warpgroup's products follow the last of these")
        with b.fragment(f"promote{unit.number}") as behind:
            self._promote(unit, 0)
        return Turn(before, products, behind)

    def _unreleased(self) -> Reg | None:
        return None

    def _release(self, has_released: Reg | None, arrives: Reg) -> None:
        b = self.b
        with b.fragment("release", "the stage's products are done, its factors read"):
            b.op("mov.u32", self.released, self.ring.empty)
            self._arrive(arrives)

    def _promote(self, unit: Unit, running: int) -> None:
        b, at, short = self.b, self.at, self._short(unit)
        totals = self.sums[unit.block][unit.first // 2 :]
        early = at.turns and self.half == at.product_tokens
        for first in range(0, at.product_tokens, self.half):
            if not early:
                self._find_factors(unit, first)
            if first == 0:
                b.op("wgmma.wait_group.sync.aligned", running)
            b.note(f"sums of tokens {unit.first + first} on to the totals", after=RUN)
            for i in range(first // 2, min(first + self.half, at.product_tokens) // 2):
                factor = self.factors[(i - first // 2) // 4 * 2 + i % 2]
                b.op("fma.rn.f32", totals[i], short[i], factor, totals[i])

    def _begin_scales(self, base: Reg) -> None:
        b, at = self.b, self.at
        own = self.own_scales = b.op("mad.lo.u32", "own_factors", self.lane, WORD, base)
        b.op("add.u32", own, own, at.token_bytes + at.records * at.tile_bytes + at.scale_bytes)
        self.scales_place = b.reg("factors_at", "u32")
        b.note("ones for the first four rows of k, and for the others")
        one = pair_of_bf16(1)
        upper = b.op("setp.lt.u32", "adds_first", b.op("and.b32", "column_of_lane", self.lane, 3), 2)
        self.ones = [b.op("selp.b32", "ones_first", one, 0, upper), b.op("selp.b32", "ones_second", 0, one, upper)]
        self.zeros = b.array("no_factor", "f32", 4)
        convert.clear(b, self.zeros)

    def _outside(self) -> None:
        self.b.without("ask_scales", "scale_sums")

    def _find_factors(self, unit: Unit, first: int) -> None:
        b, at = self.b, self.at
        b.note("factors of the tokens", after=RUN)
        count = (min(first + self.half, at.product_tokens) - first) // PAIR
        words = self.words_of_factors[:count]
        for pair, word in enumerate(words):
            offset = LANES * WORD * ((unit.first + first) // PAIR + pair)
            b.op("ld.shared.b32", word, self.scales_place[offset])
        for pair, word in enumerate(words):
            own = self.factors[4 * pair : 4 * pair + 4]
            b.op(SPREAD, tuple(own), tuple(self.ones), (word,), tuple(self.zeros))
