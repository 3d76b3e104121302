"""Blocks' sums to the totals where tokens have one scale a row: what a block's sums are multiplied with is the weights'
scale alone, the tokens' are applied to the totals."""

from __future__ import annotations

from ptxgen.builder.values import Reg
from ptxgen.products.wgmma.mainloop.pipelined import PipelinedMultiplier
from ptxgen.products.wgmma.mainloop.promoted import Unit
from ptxgen.products.wgmma.tokens.layout import SCALE_BYTES


class BlockMultiplier(PipelinedMultiplier):
    """The same fragments, for whole blocks with `PackedProduct.row_scales`; a scale is asked for a stage ahead."""

    def _scales(self) -> None:
        b = self.b
        self.block_scale, self.next_scale = b.reg("block_scale", "f32"), b.reg("next_scale", "f32")
        self.asks = b.reg("asks_scale", "pred")

    def _find_trailers(self, group: Reg, warp: Reg, weight: Reg, first_step: Reg | None) -> None:
        super()._find_trailers(group, warp, weight, first_step)
        self.b.op("ld.global.nc.f32", self.next_scale, self._scale_at()[0])

    def _scale_at(self) -> Reg:
        """Where the next stage's scale is, of the warp's one block of rows."""
        return next(iter(self.scales_at))

    def _read_scales(self, unit: Unit) -> None:
        if unit.number > 0:
            return
        b, place = self.b, self._scale_at()
        b.op("mov.f32", self.block_scale, self.next_scale)
        b.op("add.u64", place, place, SCALE_BYTES)
        b.op("setp.gt.u32", self.asks, self.step, 1)
        b.op("ld.global.nc.f32", self.next_scale, place[0], pred=self.asks)

    def _promote(self, unit: Unit, running: int) -> None:
        b, short, totals = self.b, self._short(unit), self.sums[unit.block][unit.first // 2 :]
        for total, each in zip(totals, short, strict=False):
            b.op("fma.rn.f32", total, each, self.block_scale, total)

    def _outside(self) -> None:
        self.b.without("ask_scales")
        with self.b.fragment("scale_sums", "the scales of tokens"):
            self._scale_totals()
