"""Blocks' sums to the totals where tokens, too, have a scale for every block of 128 columns.

Shared memory bounds these products: tensor cores read tokens from it and threads read weights, and that takes as long
as the products. If each thread also read a scale for each of its tokens, a quarter of all, it would take half as long
again. But scales of tokens are powers of four: the product of one with the block's weight scale differs from the weight
scale only in its upper byte. A separate warp packs these bytes for four tokens of a thread into a word, and stores the
weights' scale with them.
"""

from __future__ import annotations

from typing import NamedTuple

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.convert import scratch, scratch_array
from ptxgen.products.wgmma.mainloop.pipelined import PipelinedMultiplier
from ptxgen.products.wgmma.mainloop.promoted import Unit
from ptxgen.products.wgmma.mainloop.scaled import OCTET
from ptxgen.products.wgmma.product import PackedProduct
from ptxgen.products.wgmma.ring import BELL, Ring
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tokens.layout import SCALE_BYTES
from ptxgen.weights.e4m3 import BLOCK
from ptxgen.weights.format import TILE_ROWS, Piece

LANES = 32
QUAD = 4  # lanes that have the columns of an octet
PAIR = 2 * OCTET  # tokens whose scales a lane has in a word
WORD = PER_WORD = 4  # bytes, of as many factors
UPPER_BYTES, BOTH_HALVES = 0x73, 0x5410  # for prmt: the upper bytes of two words; the lower halves of two
LOWER_BYTES = 0x0654  # for prmt: those of the second word below the byte of the first that is added to this


class Factors(NamedTuple):
    """Where the factors of a stage lie: from `begin` on words of four lanes for every pair of octets, `vector` pairs
    side by side; then the weights' `scale`."""

    begin: int
    vector: int
    scale: int

    @classmethod
    def of(cls, at: Geometry) -> Factors:
        begin = at.token_bytes + at.records * at.tile_bytes + at.scale_bytes
        pairs = at.product_tokens // PAIR
        return cls(begin, next(v for v in (4, 2, 1) if pairs % v == 0), begin + at.tokens)


class FactorFinder:
    """The warp that leaves factors in every stage. Fragments `begin_factors`, `find_scales`, `poll_scales`, `factors`;
    predicate `finds_more`."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring) -> None:
        self.b, self.spec, self.at, self.ring = b, spec, at, ring

    def build(self, tasks: Tasks) -> None:
        """Build all of its fragments."""
        b, spec, at, ring, lane = self.b, self.spec, self.at, self.ring, tasks.lane
        kind, own = spec.kind, Factors.of(at)
        words = at.tokens // WORD
        with b.fragment("begin_factors", "where four tokens' scales lie in a stage, and where their word goes"):
            ring.begin(copies=False)
            base = b.op("mov.u32", "factors_base", ring.memory)
            pair = b.op("shr.u32", "own_pair", lane, 2)
            first = b.op("and.b32", "lane_of_pair", lane, QUAD - 1)
            scales = b.op("mad.lo.u32", "own_scales", pair, PAIR * SCALE_BYTES, base)
            b.op("mad.lo.u32", scales, first, 2 * SCALE_BYTES, scales)
            word = b.op("mad.lo.u32", "own_word", first, own.vector * WORD, base)
            group = b.op("div.u32", "pair_group", pair, own.vector)
            b.op("mad.lo.u32", word, group, QUAD * own.vector * WORD, word)
            b.op("rem.u32", pair, pair, own.vector)
            b.op("mad.lo.u32", word, pair, WORD, word)
            tells = b.op("setp.eq.u32", "tells_factors", lane, 0)
            has_last = b.op("setp.lt.u32", "has_last_word", lane, words % LANES) if words % LANES else None
            scale, next_scale = b.reg("weight_scale", "f32"), b.reg("next_scale", "f32")
            convert.clear(b, (next_scale,))
            from_, to, beside = (b.reg(name, "u32") for name in ("scales_now", "word_now", "scale_now"))
        with b.fragment("find_scales", "the weights' scales of the tile's rows; the first is asked for"):
            of_block = BLOCK // TILE_ROWS * kind.record_bytes(spec.k)
            scale_at = b.op("mad.wide.u32", "scale_at", tasks.group, of_block, tasks.weight)
            b.op("add.u64", scale_at, scale_at, kind.tiles(spec.k) * kind.tile_bytes)
            if tasks.first_step is not None:
                b.op("mad.wide.u32", scale_at, tasks.first_step, SCALE_BYTES, scale_at)
            b.op("ld.global.nc.f32", next_scale, scale_at[0])
            left = b.op("mov.u32", "factor_steps", tasks.steps)
        with b.fragment("poll_scales", "whether the tokens' scales are there"):
            b.op("mbarrier.try_wait.parity.shared::cta.b64", ring.is_full, ring.full[BELL * at.stages], ring.parity)
        with b.fragment("factors", "the upper bytes of four factors; the weights' next scale is asked for"):
            b.op("mov.f32", scale, next_scale)
            b.op("sub.u32", left, left, 1)
            more = b.op("setp.ne.u32", "finds_more", left, 0)
            b.op("add.u64", scale_at, scale_at, SCALE_BYTES)
            b.op("ld.global.nc.f32", next_scale, scale_at[0], pred=more)
            for place, offset_of in ((from_, scales), (to, word), (beside, base)):
                b.op("add.u32", place, offset_of, ring.offset)
            for index in range(-(-words // LANES)):
                pred = has_last if (index + 1) * LANES > words else None
                self._pack(from_, own.begin - at.scale_bytes + LANES * WORD * SCALE_BYTES * index, scale, pred)
                b.op("st.shared.b32", to[own.begin + LANES * WORD * index], self.word, pred=pred)
            b.op("st.shared.f32", beside[own.scale], scale, pred=tells)
            b.op("bar.warp.sync", -1)
            b.op("mbarrier.arrive.shared::cta.b64", scratch(b, "arrival", "b64"), ring.full[0], pred=tells)
            ring.turn()

    def _pack(self, from_: Reg, offset: int, scale: Reg, pred: Reg | None) -> None:
        """Two neighbours of an octet, and the same of the next, each times the weights' `scale`."""
        b = self.b
        four = scratch_array(b, "four_scales", "f32", 4)
        self.word = scratch(b, "packed_scales", "b32")
        upper = scratch(b, "upper_scales", "b32")
        if pred is not None:
            convert.clear(b, four)
        for half in (0, 1):
            own = four[2 * half : 2 * half + 2]
            convert.load_words(b, own, from_, offset + half * OCTET * SCALE_BYTES, space="shared", pred=pred)
        for each in four:
            b.op("mul.ftz.f32", each, each, scale)
        b.op("prmt.b32", self.word, four[0], four[1], UPPER_BYTES)
        b.op("prmt.b32", upper, four[2], four[3], UPPER_BYTES)
        b.op("prmt.b32", self.word, self.word, upper, BOTH_HALVES)


class FactoredMultiplier(PipelinedMultiplier):
    """The same fragments, for `Geometry.factored`."""

    def _scales(self) -> None:
        b, at = self.b, self.at
        self.place = Factors.of(at)
        self.words_of_scales = b.array("scales_word", "b32", at.shorts * at.product_tokens // PAIR)
        self.block_scale = b.reg("block_scale", "f32")
        self.factors = b.array("factor", "f32", at.product_tokens // 4 if self._unpacks() else PER_WORD)

    def _trailing(self) -> list[Piece]:
        return []

    def _begin_scales(self, base: Reg) -> None:
        b, place = self.b, self.place
        lane = b.op("and.b32", "own_words", self.lane, QUAD - 1)
        self.own_scales = b.op("mad.lo.u32", lane, lane, place.vector * WORD, base)
        self.base = base
        self.scales_place, self.block_place = b.reg("words_at", "u32"), b.reg("block_scale_at", "u32")

    def _find(self) -> None:
        super()._find()
        self.b.op("add.u32", self.block_place, self.base, self.ring.offset)

    def _outside(self) -> None:
        self.b.without("ask_scales", "scale_sums")

    def _read_scales(self, unit: Unit) -> None:
        """The scales of the unit's tokens, and of the weights."""
        b, vector, words = self.b, self.place.vector, self._words(unit)
        for first in range(0, len(words), vector):
            offset = self.place.begin + QUAD * WORD * (unit.first // PAIR + first)
            convert.load_words(b, words[first : first + vector], self.scales_place, offset, space="shared")
        if unit.number == 0:
            b.op("ld.shared.f32", self.block_scale, self.block_place[self.place.scale])

    def _words(self, unit: Unit) -> list[Reg]:
        """Those of a unit's scales; units whose products run together have different ones."""
        each = self.at.product_tokens // PAIR
        first = unit.number % len(self.shorts) * each
        return list(self.words_of_scales[first : first + each])

    def _promote(self, unit: Unit, running: int) -> None:
        b, short, totals = self.b, self._short(unit), self.sums[unit.block][unit.first // 2 :]
        late = not self._unpacks()
        for i in range(self.at.product_tokens // 2):
            if late and i % 8 == 0:
                self._unpack_word(self._words(unit)[i // 8])
            factor = self.factors[i // 4 % 2 * 2 + i % 2 if late else i // 4 * 2 + i % 2]
            b.op("fma.rn.f32", totals[i], short[i], factor, totals[i])

    def _unpacks(self) -> bool:
        return len(self.shorts) > 1  # with one set of sums nothing of this warpgroup runs meanwhile

    def _unpack(self, unit: Unit) -> None:
        for word, first in zip(self._words(unit), range(0, len(self.factors), PER_WORD), strict=True):
            self._unpack_word(word, first)

    def _unpack_word(self, word: Reg, first: int = 0) -> None:
        for index, factor in enumerate(self.factors[first : first + PER_WORD]):
            self.b.op("prmt.b32", factor, word, self.block_scale, LOWER_BYTES | index << 12)
