"""GGUF's Q4_0: blocks of 32 columns, an f16 scale and 32 codes of 4 bits, less 8.

A tile of 16 rows by 128 columns, 1152 bytes: the codes as nibbles in fragment order (64 columns p at p·512 + lane·16, a
word a chunk; of its byte b the low nibble is row g, the high one row g + 8, column 4t + b); block t at
1024 + g·16 + t·4: the scales of rows g and g + 8. Narrow tiles have n = 2 or 1 blocks: 288·n bytes, of one block the
codes at lane·8, block t at 256·n + g·4n + t·4. Source: `blocks`, raw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.weights.bits import (
    NIBBLE_UNITS,
    constant,
    halves_to_f32,
    low_nibbles,
    nibble_fragment,
    nibbles_to_f16,
    pair,
    pair_of_f16,
    scaled_pair,
)
from ptxgen.weights.blocks import (
    field,
    in_blocks,
    nibble_pieces,
    pack_nibbles,
    ratio,
    raw_blocks,
    sides,
    unpack_nibbles,
    whole_blocks,
)
from ptxgen.weights.format import ByteCodes, Piece, Source
from ptxgen.weights.order import cut, from_rows, join, to_rows

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg

BLOCK = 32
BLOCK_BYTES = 18


class Q4_0(ByteCodes):
    """Codes of 4 bits less 8, an f16 scale for 32 columns."""

    less, integer_digits = 8, 1
    byte_type = "u8"
    x_sum_factor = -8.0

    def pack(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        self.check(rows, cols)
        tile_k = self.fitted(cols).tile_k
        codes, scales = self._fields(source, rows, cols)
        tiled = to_rows(scales[..., 0], tile_k // BLOCK).transpose(0, 1, 2, 4, 3)
        return join([pack_nibbles(codes.reshape(rows, cols), tile_k), tiled]).reshape(-1)

    def unpack(self, packed: np.ndarray, rows: int, cols: int) -> Source:
        tile_k = self.fitted(cols).tile_k
        tiles = packed.reshape(self.records(rows), self.tiles(cols), -1)
        codes = in_blocks(unpack_nibbles(tiles, tile_k, rows, cols), BLOCK)
        tiled = cut(tiles, 8 * tile_k, np.float16, 8, tile_k // BLOCK, 2).transpose(0, 1, 2, 4, 3)
        scales = from_rows(tiled, rows, cols // BLOCK)
        return {"blocks": whole_blocks(scales[..., None], codes[..., :16] | (codes[..., 16:] << 4))}

    def dequantise(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        codes, scales = self._fields(source, rows, cols)
        return np.asarray((scales.astype(np.float32) * (codes.astype(np.float32) - np.float32(8))).reshape(rows, cols))

    def quantise(self, values: np.ndarray) -> Source:
        blocks = in_blocks(values.astype(np.float32), BLOCK)
        furthest = np.take_along_axis(blocks, np.abs(blocks).argmax(2)[..., None], 2)
        scales = (furthest / np.float32(-8)).astype(np.float16)
        codes = np.clip(np.rint(ratio(blocks, scales.astype(np.float32)) + 8), 0, 15).astype(np.uint8)
        return {"blocks": whole_blocks(scales, codes[..., :16] | (codes[..., 16:] << 4))}

    def _fields(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> tuple[np.ndarray, np.ndarray]:
        """Codes `[rows, blocks, 32]` and scales `[rows, blocks, 1]`."""
        blocks = raw_blocks(source, rows, cols // BLOCK, BLOCK_BYTES)
        both = field(blocks, 2, 16)
        return np.concatenate([both & 15, both >> 4], 2), field(blocks, 0, 1, np.float16)

    @property
    def scale_chunks(self) -> int:
        return 2

    def code_bytes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int) -> Reg:
        return low_nibbles(b, words[chunk], half)

    def scales(self, b: Builder, words: Sequence[Reg], chunk: int) -> tuple[Sequence[Reg], Sequence[Reg]]:
        upper, lower = pair(b, "scale")
        if chunk % 2 == 0:
            halves_to_f32(b, upper, lower, words[self.chunks + chunk // 2])
        return (upper, lower), ()

    def integers(self, b: Builder, words: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]) -> None:
        less = [constant(b, f"less_{most + self.less}", pair_of_f16(-most - self.less)) for most in (1024, 64)]
        nibbles_to_f16(b, out[0], words[chunk], less)

    @property
    def block_pieces(self) -> tuple[Piece, ...]:
        return (*self.pieces[:-1], *sides(8 * self.tile_k, 4, self.tile_k))

    def byte_fragment(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        return nibble_fragment(b, words[chunk : chunk + 2])

    def add_blocks(
        self, b: Builder, words: Sequence[Reg], sums: Sequence[Sequence[Reg]], x_sums: Sequence[Reg],
        totals: Sequence[Reg], odd: Reg | None,
    ) -> None:  # fmt: skip
        for word, values, x_sum in zip(words[self.chunks :], sums, x_sums, strict=True):
            factors = scaled_pair(b, "scale", word, (1.0, 1.0))
            for value, factor, unit, total in zip(values, factors, NIBBLE_UNITS, totals, strict=True):
                b.op("fma.rn.f32", value, value, unit, x_sum)
                b.op("fma.rn.f32", total, value, factor, total)


def _made(tile_k: int, narrow: tuple[Q4_0, ...] = ()) -> Q4_0:
    blocks = tile_k // BLOCK
    scales = Piece(8 * tile_k, 4 * blocks, "row", blocks)
    return Q4_0("q4_0", tile_k, 9 * tile_k, (*nibble_pieces(tile_k), scales), block_cols=BLOCK, narrow=narrow)


FORMATS = (_made(128, (_made(64), _made(32))),)
