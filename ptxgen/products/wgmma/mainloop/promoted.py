"""Products in e4m3 with short sums: tensor cores add 128 columns, and f32 additions the rest (promotion).

A stage is multiplied unit by unit: a tile and a block of rows with a piece of the tokens. With two sets of short sums
a unit's products run while the sums of the preceding unit are added to the totals. No product runs on into the next
stage: ptxas would let no two products overlap if their sums were read after the loop iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ptxgen.builder import Builder, Fragment
from ptxgen.builder.values import Reg, RegArray
from ptxgen.idioms import convert
from ptxgen.idioms.convert import RUN
from ptxgen.products.wgmma.mainloop.multiplier import PER_CHUNK, Part, Turns
from ptxgen.products.wgmma.mainloop.scaled import OCTET, ScaledMultiplier
from ptxgen.products.wgmma.product import PackedProduct
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.tiling.geometry import WARPS, Geometry
from ptxgen.products.wgmma.tokens.layout import ROW_BYTES, SCALE_BYTES

FIRST_TURN = 4  # named barriers from here on; those before are of results


class Unit(NamedTuple):
    """A piece of the tokens, from `first` on, with a tile of a block of rows; the n-th of a stage."""

    number: int
    tile: int
    block: int
    first: int


class Turn(NamedTuple):
    """A unit's fragments where warpgroups take turns at issuing products: before them, they, and behind them."""

    before: Fragment
    products: Fragment
    behind: Fragment


class PromotedMultiplier(ScaledMultiplier):
    """The same fragments, for `PackedProduct.promoted`."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring) -> None:
        super().__init__(b, spec, at, ring)
        self.shorts = [b.array(f"short{n}_", "f32", at.product_tokens // 2) for n in range(at.shorts)]
        if spec.in_blocks:
            self._scales()
        places = [(tile, block) for tile in range(at.own_tiles) for block in range(at.shape.blocks)]
        pieces = range(0, at.tokens, at.product_tokens)
        found = ((tile, block, first) for tile, block in places for first in pieces)
        self.units = [Unit(number, *each) for number, each in enumerate(found)]

    def _scales(self) -> None:
        """Registers for scales of blocks."""
        b, at = self.b, self.at
        # asked for before the stage is waited for: one for each of its tiles and blocks of rows
        self.block_scales = b.array("block_scale", "f32", at.own_tiles * at.shape.blocks)
        if not self.spec.by_block:
            return
        # of one half of a product's tokens after the other; of all before its sums are there, where they wait for
        # their turn anyway
        self.half = at.product_tokens if at.turns else -(-at.product_tokens // (2 * OCTET)) * OCTET
        self.factors = b.array("factor", "f32", self.half // 4)

    def _sets(self) -> list[RegArray]:
        names = ("even", "odd")[: self.at.fragment_sets]
        return [self.b.array(name, "b32", PER_CHUNK * self.spec.chunks) for name in names]

    def _stage(self) -> Iterator[Fragment | Turn]:
        b = self.b
        if self.at.turns:
            yield self._turn(*self.units)
            return
        pending: Unit | None = None
        for unit in self.units:
            with b.fragment(f"part{unit.number}", self._named(unit)) as fragment:
                if unit.first == 0:
                    if pending is not None and len(self.sets) == 1:
                        b.op("wgmma.wait_group.sync.aligned", 0, note="they read the fragments of A")
                    self._read_straight(self._part_of(unit), self._set(unit))
                if pending is not None and len(self.shorts) == 1:
                    self._promote(pending, 0)
                    pending = None
                self._multiply(unit)
                if pending is not None:
                    self._promote(pending, 1)
                pending = unit
                if unit is self.units[-1]:
                    self._promote(unit, 0)
            yield fragment

    def _turn(self, unit: Unit) -> Turn:
        b = self.b
        with b.fragment("before_turn", self._named(unit)) as before:
            self._read_straight(self._part_of(unit), self._set(unit))
        with b.fragment("products", "of the block's weights with its tokens") as products:
            self._multiply(unit)
            b.op("wgmma.wait_group.sync.aligned", 1, note="the next warpgroup's products follow the last of these")
        with b.fragment("promote") as behind:
            self._promote(unit, 0)
        return Turn(before, products, behind)

    def _named(self, unit: Unit) -> str:
        return f"tile {unit.tile}, block {unit.block}, tokens {unit.first} on"

    def _part_of(self, unit: Unit) -> Part:
        return Part(unit.tile, unit.block, range(self.spec.chunks))

    def _set(self, unit: Unit) -> RegArray:
        return self.sets[(unit.tile * self.at.shape.blocks + unit.block) % len(self.sets)]

    def _short(self, unit: Unit) -> RegArray:
        return self.shorts[unit.number % len(self.shorts)]

    def _multiply(self, unit: Unit) -> None:
        b = self.b
        b.note("the products", after=RUN)
        b.op("wgmma.fence.sync.aligned")
        for chunk in self._part_of(unit).chunks:
            self._describe(self._chunk_of_tokens(unit.tile, chunk) + unit.first * ROW_BYTES)
            own = self._set(unit)[PER_CHUNK * chunk : PER_CHUNK * (chunk + 1)]
            if self.at.turns and chunk == self.spec.chunks - 1:
                b.op("wgmma.commit_group.sync.aligned")
            b.op(self.product, self._short(unit).regs, own, self.descriptor, int(chunk > 0), 1, 1)
        b.op("wgmma.commit_group.sync.aligned")

    def _promote(self, unit: Unit, running: int) -> None:
        """A unit's sums to the totals, while so many groups of products may still run."""
        b, short = self.b, self._short(unit)
        totals = self.sums[unit.block][unit.first // 2 :]
        if not self.spec.by_block:
            b.op("wgmma.wait_group.sync.aligned", running)
            b.note(f"sums of tokens {unit.first} on to the totals", after=RUN)
            for total, each in zip(totals, short, strict=False):
                if self.spec.in_blocks:
                    b.op("fma.rn.f32", total, each, self._block_scale(unit.tile, unit.block), total)
                else:
                    b.op("add.f32", total, total, each)
            return
        for first in range(0, self.at.product_tokens, self.half):
            self._find_factors(unit, first)
            if first == 0:
                b.op("wgmma.wait_group.sync.aligned", running)
            b.note(f"sums of tokens {unit.first + first} on to the totals", after=RUN)
            for i in range(first // 2, min(first + self.half, self.at.product_tokens) // 2):
                factor = self.factors[(i - first // 2) // 4 * 2 + i % 2]
                b.op("fma.rn.f32", totals[i], short[i], factor, totals[i])

    # -- scales of blocks ----------------------------------------------------------------------------------------------

    def _outside(self) -> None:
        if not self.spec.in_blocks:
            super()._outside()
            return
        if self.spec.by_block:
            self.b.without("scale_sums")
        else:
            with self.b.fragment("scale_sums", "the scales of tokens"):
                self._scale_totals()
        with self.b.fragment("ask_scales", "the weights' scales of the stage"):
            (piece,) = self._trailing()
            for block, place in enumerate(self.scales_at):
                for tile in range(self.at.own_tiles):
                    offset = tile * (piece.step or 0)
                    self.b.op("ld.global.nc.f32", self._block_scale(tile, block), place[offset])

    def _block_scale(self, tile: int, block: int) -> Reg:
        return self.block_scales[tile * self.at.shape.blocks + block]

    def _begin(self, base: Reg) -> None:
        b, at = self.b, self.at
        if at.turns:
            mine = b.op("shr.u32", "my_turn", self.warp, WARPS.bit_length() - 1)
            b.op("add.u32", mine, mine, FIRST_TURN)
            after = b.op("add.u32", "next_turn", mine, 1)
            last = b.op("setp.eq.u32", "is_last_group", mine, FIRST_TURN + at.shape.groups - 1)
            b.op("selp.b32", after, FIRST_TURN, after, last)
            self.turns = Turns(mine, after, 2 * 32 * WARPS, last)
        if self.spec.by_block:
            self._begin_scales(base)

    def _begin_scales(self, base: Reg) -> None:
        """Where the lane's tokens' scales lie."""
        b, at = self.b, self.at
        own = self.own_scales = b.op("and.b32", "own_scales", self.lane, 3)
        b.op("mad.lo.u32", own, own, 2 * SCALE_BYTES, base)
        b.op("add.u32", own, own, at.token_bytes + at.records * at.tile_bytes)
        if self.slice is not None:
            b.op("mad.lo.u32", own, self.slice, at.own_tiles * at.tokens * SCALE_BYTES, own)
        self.scales_place = b.reg("token_scales", "u32")

    def _find(self) -> None:
        if self.spec.by_block:
            self.b.op("add.u32", self.scales_place, self.own_scales, self.ring.offset)

    def _find_factors(self, unit: Unit, first: int) -> None:
        """The scales of the lane's tokens, half of a unit's from `first` on, times the weights'."""
        b, at = self.b, self.at
        b.note("scales of the tokens and of the weights", after=RUN)
        for octet in range((min(first + self.half, at.product_tokens) - first) // OCTET):
            offset = SCALE_BYTES * (unit.tile * at.tokens + unit.first + first + OCTET * octet)
            own = self.factors[2 * octet : 2 * octet + 2]
            convert.load_words(b, own, self.scales_place, offset, space="shared")
            for factor in own:
                b.op("mul.f32", factor, factor, self._block_scale(unit.tile, unit.block))
