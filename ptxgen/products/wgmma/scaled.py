"""Tokens and weights both in e4m3: products of their bytes as they lie, and scales applied to the sums.

With a scale for each block of 128 columns every block's sums are scaled on their way to the totals; those of a row, or
of the whole matrix, are applied to the totals.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.convert import RUN, scratch, scratch_array
from ptxgen.products.wgmma.geometry import Geometry
from ptxgen.products.wgmma.multiply import Multiplier, Part
from ptxgen.products.wgmma.product import PackedProduct
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.tokens import SCALE_BYTES

OCTET = 8  # tokens of a group of accumulators, of which a lane has two
AHEAD = 256  # sums of a row of all totals and a block beside which there are registers for all tokens' scales


class ScaledMultiplier(Multiplier):
    """The same fragments, for `PackedProduct.scaled`."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring) -> None:
        super().__init__(b, spec, at, ring)
        if spec.by_block:
            # asked for before the stage is waited for: one for each of its tiles and blocks of rows
            self.block_scales = b.array("block_scale", "f32", at.shape.tiles * at.shape.blocks)
            self.ahead = at.tokens if at.tokens * at.sums <= AHEAD else 0
            self.factors = b.array("factor", "f32", (self.ahead or OCTET) // 4)

    def _outside(self) -> None:
        b, spec, at = self.b, self.spec, self.at
        if spec.by_block:
            with b.fragment("ask_scales", "the weights' scales of the stage"):
                (piece,) = self._trailing()
                for block, place in enumerate(self.scales_at):
                    for tile in range(at.shape.tiles):
                        b.op("ld.global.nc.f32", self._block_scale(tile, block), place[tile * (piece.step or 0)])
            b.without("scale_sums")
            return
        b.without("ask_scales")
        with b.fragment("scale_sums", "the scales of rows and tokens"):
            self._scale_totals()

    def _block_scale(self, tile: int, block: int) -> Reg:
        return self.block_scales[tile * self.at.shape.blocks + block]

    def _begin(self, base: Reg) -> None:
        b, at = self.b, self.at
        if self.spec.by_block:
            own = self.own_scales = b.op("and.b32", "own_scales", self.lane, 3)
            b.op("mad.lo.u32", own, own, 2 * SCALE_BYTES, base)
            b.op("add.u32", own, own, at.token_bytes + at.records * at.tile_bytes)
            self.scales_place = b.reg("token_scales", "u32")

    def _find(self) -> None:
        if self.spec.by_block:
            self.b.op("add.u32", self.scales_place, self.own_scales, self.ring.offset)

    def _wait(self, part: Part) -> None:
        if self.spec.by_block and self.ahead and self._ends(part):
            self.b.note("scales of the block, while its last products run", after=RUN)
            self._find_factors(part, 0, self.ahead)
        super()._wait(part)

    def _add(self, part: Part, short: Sequence[Reg]) -> None:
        if not self.spec.by_block:
            super()._add(part, short)
            return
        for octet in range(self.at.tokens // OCTET):
            if not self.ahead:
                self._find_factors(part, octet * OCTET, OCTET)
            own = self.factors[2 * octet : 2 * octet + 2] if self.ahead else self.factors.regs
            totals = self.sums[part.block]
            for i in range(4 * octet, 4 * octet + 4):
                self.b.op("fma.rn.f32", totals[i], short[i], own[i % 2], totals[i])

    def _find_factors(self, part: Part, first: int, count: int) -> None:
        """The scales of the lane's tokens, of `count` from `first` on, times the weights'."""
        b, at = self.b, self.at
        for octet in range(count // OCTET):
            offset = SCALE_BYTES * (part.tile * at.tokens + first + OCTET * octet)
            own = self.factors[2 * octet : 2 * octet + 2]
            convert.load_words(b, own, self.scales_place, offset, space="shared")
            for factor in own:
                b.op("mul.f32", factor, factor, self._block_scale(part.tile, part.block))

    def _scale_totals(self) -> None:
        b, at = self.b, self.at
        (piece,) = self._trailing()
        from_ = b.op("and.b32", scratch(b, "scale_lane", "u32"), self.lane, 3)
        b.op("mul.lo.u32", from_, from_, 2)
        b.op("mad.lo.u32", from_, self.token_tile, at.tokens, from_)
        place = b.op("mad.wide.u32", scratch(b, "scales_from", "u64"), from_, SCALE_BYTES, b.ld_param("x_scales"))
        of_rows = scratch_array(b, "row_scale", "f32", 2 * at.shape.blocks)
        for block, trailer in enumerate(self.scales_at):
            own = of_rows[2 * block : 2 * block + 2]
            convert.load_words(b, own[: piece.words], trailer, space="global.nc")
            if piece.words == 1:
                b.op("mov.f32", own[1], own[0])
        of_tokens = scratch_array(b, "token_scale", "f32", 2)
        for octet in range(at.tokens // OCTET):
            convert.load_words(b, of_tokens, place, SCALE_BYTES * OCTET * octet, space="global")
            for block, sums in enumerate(self.sums):
                b.note(f"tokens {OCTET * octet} to {OCTET * octet + OCTET - 1} of the tile, block {block}", after=RUN)
                for i in range(4):
                    total = sums[4 * octet + i]
                    b.op("mul.f32", total, total, of_rows[2 * block + i // 2])
                    b.op("mul.f32", total, total, of_tokens[i % 2])
