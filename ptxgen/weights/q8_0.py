"""GGUF's Q8_0: blocks of 32 columns, an f16 scale and 32 signed bytes.

A tile of 16 rows by 128 columns, 2176 bytes: the bytes as in e4m3's; block t at 2048 + g·16 + t·4: the scales of rows g
and g + 8. Narrow tiles have n = 2 or 1 blocks: 544·n bytes, block t at 512·n + g·4n + t·4. Source: `blocks`, raw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.idioms import convert
from ptxgen.weights.bits import (
    bytes_to_f32,
    fragment,
    halves_to_f32,
    pair,
    scaled_pair,
    signed_to_bf16,
    signed_to_f16,
)
from ptxgen.weights.blocks import field, in_blocks, ratio, raw_blocks, sides, whole_blocks
from ptxgen.weights.e4m3 import BYTES, pack_bytes, unpack_bytes
from ptxgen.weights.format import Piece, Source, WeightFormat
from ptxgen.weights.order import cut, from_rows, join, to_rows

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg

BLOCK = 32
BLOCK_BYTES = 34


class Q8_0(WeightFormat):
    """Signed bytes, an f16 scale for 32 columns."""

    byte_type, code_digits = "s8", 1

    def pack(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        self.check(rows, cols)
        tile_k = self.fitted(cols).tile_k
        blocks = raw_blocks(source, rows, cols // BLOCK, BLOCK_BYTES)
        codes = field(blocks, 2, BLOCK).reshape(rows, cols)
        scales = field(blocks, 0, 1, np.float16)[..., 0]
        tiled = to_rows(scales, tile_k // BLOCK).transpose(0, 1, 2, 4, 3)
        return join([pack_bytes(codes, tile_k), tiled]).reshape(-1)

    def unpack(self, packed: np.ndarray, rows: int, cols: int) -> Source:
        tile_k = self.fitted(cols).tile_k
        tiles = packed.reshape(self.records(rows), self.tiles(cols), -1)
        codes = unpack_bytes(tiles, tile_k, rows, cols)
        tiled = cut(tiles, 16 * tile_k, np.float16, 8, tile_k // BLOCK, 2).transpose(0, 1, 2, 4, 3)
        scales = from_rows(tiled, rows, cols // BLOCK)
        return {"blocks": whole_blocks(scales[..., None], in_blocks(codes, BLOCK))}

    def dequantise(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        blocks = raw_blocks(source, rows, cols // BLOCK, BLOCK_BYTES)
        scales = field(blocks, 0, 1, np.float16).astype(np.float32)
        return (scales * field(blocks, 2, BLOCK, np.int8).astype(np.float32)).reshape(rows, cols)

    def quantise(self, values: np.ndarray) -> Source:
        blocks = in_blocks(values.astype(np.float32), BLOCK)
        scales = (np.abs(blocks).max(2, keepdims=True) / np.float32(127)).astype(np.float16)
        codes = np.clip(np.rint(ratio(blocks, scales.astype(np.float32))), -127, 127)
        return {"blocks": whole_blocks(scales, codes.astype(np.int8))}

    def codes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int, out: Sequence[Reg]) -> None:
        biased = convert.scratch(b, "code_bytes", "b32")
        b.op("xor.b32", biased, words[2 * chunk + half], 0x80808080)
        bytes_to_f32(b, out, biased, 128.0)

    @property
    def scale_chunks(self) -> int:
        return 2

    def fragments(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Sequence[Reg]]:
        out = fragment(b)
        for half in (0, 1):
            signed_to_bf16(b, out[half::2], words[2 * chunk + half])
        return (out,)

    def scales(self, b: Builder, words: Sequence[Reg], chunk: int) -> tuple[Sequence[Reg], Sequence[Reg]]:
        upper, lower = pair(b, "scale")
        if chunk % 2 == 0:
            halves_to_f32(b, upper, lower, words[2 * self.chunks + chunk // 2])
        return (upper, lower), ()

    def codes_as_f16(self, b: Builder, words: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]) -> None:
        signed_to_f16(b, out[0], words[2 * chunk : 2 * chunk + 2])

    @property
    def block_pieces(self) -> tuple[Piece, ...]:
        return (*self.pieces[:-1], *sides(16 * self.tile_k, 4, self.tile_k))

    def byte_fragment(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        return words[2 * chunk : 2 * chunk + 4]

    def add_blocks(
        self, b: Builder, words: Sequence[Reg], sums: Sequence[Sequence[Reg]], x_sums: Sequence[Reg],
        totals: Sequence[Reg], odd: Reg | None,
    ) -> None:  # fmt: skip
        for word, values in zip(words[2 * self.chunks :], sums, strict=True):
            factors = scaled_pair(b, "scale", word, (1.0, 1.0))
            for value, factor, total in zip(values, factors, totals, strict=True):
                b.op("fma.rn.f32", total, value, factor, total)


def _made(tile_k: int, narrow: tuple[Q8_0, ...] = ()) -> Q8_0:
    blocks = tile_k // BLOCK
    scales = Piece(16 * tile_k, 4 * blocks, "row", blocks)
    return Q8_0("q8_0", tile_k, 17 * tile_k, (*BYTES[:blocks], scales), block_cols=BLOCK, narrow=narrow)


FORMATS = (_made(128, (_made(64), _made(32))),)
