"""Tokens and weights both in e4m3: products of their bytes as they lie, and scales applied to the sums.

With a scale for each block of 128 columns every block's sums are scaled on their way to the totals; those of a row, or
of the whole matrix, are applied to the totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.convert import RUN, scratch, scratch_array
from ptxgen.products.wgmma.mainloop.multiplier import Multiplier
from ptxgen.products.wgmma.tokens.layout import SCALE_BYTES

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.products.wgmma.product import PackedProduct

OCTET = 8  # tokens of a group of accumulators, of which a lane has two


class ScaledMultiplier(Multiplier):
    """The same fragments, for `PackedProduct.scaled`: tensor cores add up all products."""

    def _outside(self) -> None:
        self.b.without("ask_scales")
        with self.b.fragment("scale_sums", "the scales of rows and tokens"):
            self._scale_totals()

    def _scale_totals(self) -> None:
        b, at = self.b, self.at
        place = self._token_scales()
        of_rows = () if self.spec.in_blocks else self._row_scales()  # those of blocks are in the totals
        of_tokens = scratch_array(b, "token_scale", "f32", 2)
        for octet in range(at.tokens // OCTET):
            convert.load_words(b, of_tokens, place, SCALE_BYTES * OCTET * octet, space="global")
            for block, sums in enumerate(self.sums):
                b.note(f"tokens {OCTET * octet} to {OCTET * octet + OCTET - 1} of the tile, block {block}", after=RUN)
                for i in range(4):
                    total = sums[4 * octet + i]
                    if of_rows:
                        b.op("mul.f32", total, total, of_rows[2 * block + i // 2])
                    b.op("mul.f32", total, total, of_tokens[i % 2])

    def _row_scales(self) -> Sequence[Reg]:
        """Those of the lane's two rows of every block."""
        b = self.b
        (piece,) = self._trailing()
        found = scratch_array(b, "row_scale", "f32", 2 * self.at.shape.blocks)
        for block, trailer in enumerate(self.scales_at):
            own = found[2 * block : 2 * block + 2]
            convert.load_words(b, own[: piece.words], trailer, space="global.nc")
            if piece.words == 1:
                b.op("mov.f32", own[1], own[0])
        return found.regs

    def _token_scales(self) -> Reg:
        """Where the scales of the lane's tokens begin."""
        b = self.b
        from_ = b.op("and.b32", scratch(b, "scale_lane", "u32"), self.lane, 3)
        b.op("mul.lo.u32", from_, from_, 2)
        b.op("mad.lo.u32", from_, self.token_tile, self.at.tokens, from_)
        place: Reg = b.op("mad.wide.u32", scratch(b, "scales_from", "u64"), from_, SCALE_BYTES, b.ld_param("x_scales"))
        return place


def products_out_of_range(spec: PackedProduct, x_scales: np.ndarray, weight: np.ndarray, count: int) -> str:
    """Which product of finite scales is no normal f32 number, of the first `count` tokens; "" for none."""
    import numpy as np

    tiles, first = spec.kind.tiles(spec.k), spec.kind.tiles(spec.k) * spec.kind.tile_bytes
    trailer = np.ascontiguousarray(weight.reshape(spec.parts * spec.kind.records(spec.n), -1)[:, first:])
    of_weights = np.abs(trailer.view(np.float32)[:, :tiles].astype(np.float64))
    of_x = np.abs(x_scales.transpose(0, 2, 1).reshape(-1, x_scales.shape[1])[:count, :tiles].astype(np.float64))
    for group in range(tiles):
        x, w = (each[:, group][(each[:, group] > 0) & np.isfinite(each[:, group])] for each in (of_x, of_weights))
        if x.size and w.size:
            least, most = w.min() * min(x.min(), 1.0), w.max() * x.max()
            if least < 2.0**-126 or most >= 2.0**128:
                return f"got {least if least < 2.0**-126 else most:g} in group {group}"
    return ""
