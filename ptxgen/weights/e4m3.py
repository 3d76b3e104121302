"""e4m3 weights with f32 scales: one of the tensor, one for each row (output channel), or one for 128 by 128 values.

A tile of 16 rows by 128 columns, 2048 bytes: 32 columns s at s·512 + lane·16, four words: row g columns 4t … 4t + 3;
row g + 8 the same; row g columns 16 + 4t …; row g + 8 the same. Narrow tiles end after 64 or 32 columns. The record's
trailer:
"e4m3" 16 bytes, the f32 scale and zeros; "e4m3_channel" 64 bytes, at 8g the scales of rows g and g + 8;
"e4m3_block" 4 bytes a tile, its scale, filled up to 16.
Source: `weight` e4m3 `[rows, cols]`, `scale` f32: `[]`, `[rows]`, or `[ceil(rows/128), ceil(cols/128)]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.dtypes import e4m3
from ptxgen.errors import SpecError
from ptxgen.idioms import convert
from ptxgen.weights.bits import constant, fragment, pair, pair_of_bf16
from ptxgen.weights.format import TILE_ROWS, Piece, Source, WeightFormat
from ptxgen.weights.order import cut, from_fragments, from_rows, join, to_fragments, to_rows

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg

LARGEST = 448.0
BLOCK = 128
BYTES = tuple(Piece(512 * n, 16) for n in range(4))


def pack_bytes(values: np.ndarray, tile_k: int) -> np.ndarray:
    """8-bit values `[rows, cols]` in fragment order, `[record, tile, 32 columns, lane's 16 bytes …]`."""
    fragments = to_fragments(values.view(np.uint8), tile_k)
    split = fragments.reshape(*fragments.shape[:2], -1, 2, *fragments.shape[3:])
    return np.asarray(split.transpose(0, 1, 2, 4, 5, 3, 6, 7))


def unpack_bytes(tiles: np.ndarray, tile_k: int, rows: int, cols: int) -> np.ndarray:
    """The inverse of `pack_bytes`, from tiles that begin with them."""
    split = cut(tiles, 0, np.uint8, tile_k // 32, 8, 4, 2, 2, 4).transpose(0, 1, 2, 5, 3, 4, 6, 7)
    return from_fragments(split.reshape(*split.shape[:2], tile_k // 16, 8, 4, 2, 4), rows, cols)


@dataclass(frozen=True)
class E4m3(WeightFormat):
    """e4m3, scales `per` "tensor", "channel" or "block"."""

    per: str = "tensor"
    code_digits = 1

    def trailer_bytes(self, cols: int) -> int:
        return {"tensor": 16, "channel": 4 * TILE_ROWS, "block": -(-4 * self.tiles(cols) // 16) * 16}[self.per]

    def pack(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        self.check(rows, cols)
        tile_k, count = self.fitted(cols).tile_k, self.tiles(cols)
        weight = np.asarray(source["weight"]).reshape(rows, cols).view(e4m3.numpy)
        wrong = np.argwhere((weight.view(np.uint8) & 127) == 127)
        if wrong.size:
            raise SpecError(f"{self.name} weights: must be finite (got NaN at {wrong[0].tolist()})")
        tiles = join([pack_bytes(weight, tile_k)])
        records = self.records(rows)
        trailer = np.zeros((records, self.trailer_bytes(cols) // 4), np.float32)
        scale = np.asarray(source["scale"], np.float32)
        if self.per == "tensor":
            trailer[:, 0] = scale.reshape(())
        elif self.per == "channel":
            trailer[:] = to_rows(scale.reshape(rows, 1), 1).reshape(records, TILE_ROWS)
        else:
            per_block = np.repeat(scale.reshape(-1, -(-cols // BLOCK)), BLOCK // TILE_ROWS, 0)
            trailer[:, :count] = np.repeat(per_block[:records], BLOCK // tile_k, 1)[:, :count]
        return np.concatenate([tiles.reshape(records, -1), trailer.view(np.uint8)], 1).reshape(-1)

    def unpack(self, packed: np.ndarray, rows: int, cols: int) -> Source:
        kind, records, tiles = self.fitted(cols), self.records(rows), self.tiles(cols)
        whole = packed.reshape(records, -1)
        body = whole[:, : tiles * kind.tile_bytes].reshape(records, tiles, kind.tile_bytes)
        trailer = np.ascontiguousarray(whole[:, tiles * kind.tile_bytes :]).view(np.float32)
        if self.per == "tensor":
            scale = trailer[0, 0].copy()
        elif self.per == "channel":
            scale = from_rows(trailer.reshape(records, 1, 8, 2, 1), rows, 1).reshape(rows)
        else:
            scale = trailer[:: BLOCK // TILE_ROWS, : tiles : BLOCK // kind.tile_k].copy()
        return {"weight": unpack_bytes(body, kind.tile_k, rows, cols).view(e4m3.numpy), "scale": np.asarray(scale)}

    def dequantise(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        weight = np.asarray(source["weight"]).reshape(rows, cols).view(e4m3.numpy).astype(np.float32)
        return np.asarray(weight * self._spread(np.asarray(source["scale"], np.float32), rows, cols))

    def quantise(self, values: np.ndarray) -> Source:
        rows, cols = values.shape
        size = np.abs(values)
        if self.per == "tensor":
            most = size.max()
        elif self.per == "channel":
            most = size.max(1)
        else:
            padded = np.zeros((-(-rows // BLOCK) * BLOCK, -(-cols // BLOCK) * BLOCK), np.float32)
            padded[:rows, :cols] = size
            most = padded.reshape(-(-rows // BLOCK), BLOCK, -(-cols // BLOCK), BLOCK).max((1, 3))
        scale = np.where(most > 0, most / LARGEST, 1.0).astype(np.float32)
        return {"weight": (values / self._spread(scale, rows, cols)).astype(e4m3.numpy), "scale": scale}

    def _spread(self, scale: np.ndarray, rows: int, cols: int) -> np.ndarray:
        """Scales, one for each value (or to be broadcast to them)."""
        if self.per == "tensor":
            return scale.reshape(1, 1)
        if self.per == "channel":
            return scale.reshape(rows, 1)
        blocks = scale.reshape(-1, -(-cols // BLOCK))
        return np.repeat(np.repeat(blocks, BLOCK, 0)[:rows], BLOCK, 1)[:, :cols]

    def codes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int, out: Sequence[Reg]) -> None:
        convert.unpack(b, out, (words[2 * chunk + half],), e4m3)

    def fragments(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Sequence[Reg]]:
        """Sign and magnitude where bf16 has them: 2^-120 of the value, denormals included."""
        out, sign = fragment(b), convert.scratch(b, "a_sign", "b32")
        scale, zero = constant(b, "e4m3_unit", pair_of_bf16(2.0**120)), constant(b, "no_pair", pair_of_bf16(-0.0))
        for half in (0, 1):
            for register, selector in zip(out[half::2], (0x1404, 0x3424), strict=True):
                b.op("prmt.b32", register, words[2 * chunk + half], 0, selector)
                b.op("and.b32", sign, register, 0x80008000)
                b.op("shr.u32", register, register, 4)
                b.op("and.b32", register, register, 0x07F007F0)
                b.op("or.b32", register, register, sign)
                b.op("fma.rn.bf16x2", register, register, scale, zero)
        return (out,)

    def scales(self, b: Builder, words: Sequence[Reg], chunk: int) -> tuple[Sequence[Reg], Sequence[Reg]]:
        upper, lower = pair(b, "scale")
        if chunk == 0:
            b.op("mov.b32", upper, words[2 * self.chunks])
            b.op("mov.b32", lower, words[-1])
        return (upper, lower), ()

    def halves(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        """The values; before sm_89 sign and magnitude where f16 has them, which is 2^-8 of it, denormals included."""
        out, sign = fragment(b), convert.scratch(b, "a_sign", "b32")
        for half in (0, 1):
            word, pairs = words[2 * chunk + half], out[half::2]
            if _converts(b):
                low, high = convert.scratch(b, "half_lo", "b16"), convert.scratch(b, "half_hi", "b16")
                b.op("mov.b32", (low, high), word)
                for register, two in zip(pairs, (low, high), strict=True):
                    b.op("cvt.rn.f16x2.e4m3x2", register, two)
                continue
            for register, selector in zip(pairs, (0x1404, 0x3424), strict=True):
                b.op("prmt.b32", register, word, 0, selector)
                _as_halves(b, register, register, sign)
        return out

    def codes_as_f16(self, b: Builder, words: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]) -> None:
        """No integers, but numbers that f16 has: sign and magnitude where it has them, 2^-8 of the value."""
        sign, shifted = convert.scratch(b, "a_sign", "b32"), convert.scratch(b, "even_bytes", "b32")
        for half in (0, 1):
            word = words[2 * chunk + half]
            for odd in (0, 1):
                _as_halves(b, out[0][2 * odd + half], word if odd else b.op("shl.b32", shifted, word, 8), sign)

    def code_units(self, b: Builder, words: Sequence[Reg], chunk: int) -> tuple[Sequence[Reg], Sequence[Reg]]:
        units, less = self.scales(b, words, chunk)
        for unit in units:
            b.op("mul.f32", unit, unit, 256.0)
        return units, less

    def add_blocks(
        self, b: Builder, words: Sequence[Reg], sums: Sequence[Sequence[Reg]], x_sums: Sequence[Reg],
        totals: Sequence[Reg], odd: Reg | None,
    ) -> None:  # fmt: skip
        factors = pair(b, "scale")
        for word, factor, value, total in zip(
            (words[2 * self.chunks], words[-1]), factors, sums[0], totals, strict=True
        ):
            b.op("mov.b32", factor, word)
            if not _converts(b):
                b.op("mul.f32", factor, factor, 256.0)
            b.op("fma.rn.f32", total, value, factor, total)


def _as_halves(b: Builder, out: Reg, word: Reg, sign: Reg) -> None:
    """The upper byte of each half of a word as f16, 2^-8 of its value: its sign and magnitude where f16 has them."""
    b.op("and.b32", sign, word, 0x80008000)
    b.op("shr.u32", out, word, 1)
    b.op("and.b32", out, out, 0x3F803F80)
    b.op("or.b32", out, out, sign)


def _converts(b: Builder) -> bool:
    """Whether the target has a conversion to f16."""
    return b.target.includes_any(("sm_89",))


def _made(name: str, scale: Piece, per: str, *widths: int) -> E4m3:
    """A format in tiles of the first of `widths`, and in narrower ones."""
    first, *others = widths
    narrow = tuple(_made(name, scale, per, each) for each in others)
    return E4m3(name, first, 16 * first, (*BYTES[: first // 32], scale), narrow=narrow, per=per)


WIDTHS = (128, 64, 32)
FORMATS = (
    _made("e4m3", Piece(0, 0, "row", 1, True, 0), "tensor", *WIDTHS),
    _made("e4m3_channel", Piece(0, 8, "row", 2, True, 0), "channel", *WIDTHS),
    _made("e4m3_block", Piece(0, 0, "row", 1, True, 4), "block", *WIDTHS),
)
