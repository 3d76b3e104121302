"""GGUF's Q4_K: blocks of 256 columns; 8 sub-blocks of 32 with a scale and a min of 6 bits, and two f16 for the block.

weight = (d · scale) · code − dmin · min. A tile of 16 rows by 256 columns, 2304 bytes:
[0, 2048) the codes as nibbles, as in q4_0's. [2048, 2176): word at g·16 + t·4; its byte j = scale (6 bits) | upper two
bits of the min in bits 6, 7; j = 0: row g sub-block t; 1: row g, 4 + t; 2: row g + 8, t; 3: row g + 8, 4 + t.
[2176, 2240): half word at g·8 + t·2: the lower four bits of those mins, j = 0, 2, 1, 3 at bits 0, 4, 8, 12.
[2240, 2304): at g·8: d, dmin of row g, d, dmin of row g + 8 (f16). Source: `blocks`, raw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.weights import sub_blocks
from ptxgen.weights.bits import (
    NIBBLE_UNITS,
    low_nibbles,
    nibble_fragment,
)
from ptxgen.weights.blocks import (
    field,
    in_blocks,
    join_scales,
    pack_nibbles,
    ratio,
    raw_blocks,
    split_scales,
    unpack_nibbles,
    whole_blocks,
)
from ptxgen.weights.format import ByteCodes, Piece, Source, ZeroPoints
from ptxgen.weights.order import cut, from_rows, join, to_rows

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg

BLOCK = 256
BLOCK_BYTES = 144
SUB = 32


def codes_of(both: np.ndarray) -> np.ndarray:
    """`[rows, blocks, 128]` bytes as codes `[rows, blocks, 256]`: 32 low nibbles, then the 32 high ones."""
    split = both.reshape(*both.shape[:2], 4, 1, SUB)
    return np.concatenate([split & 15, split >> 4], 3).reshape(*both.shape[:2], BLOCK)


def bytes_of(codes: np.ndarray) -> np.ndarray:
    """The inverse of `codes_of`."""
    split = codes.reshape(*codes.shape[:2], 4, 2, SUB)
    return np.asarray((split[:, :, :, 0] | (split[:, :, :, 1] << 4)).reshape(*codes.shape[:2], 128))


def pack_mins(scales: np.ndarray, mins: np.ndarray, blocks: np.ndarray) -> list[np.ndarray]:
    """The three fields after the codes. scales, mins `[rows, blocks, 8]`, blocks f16 `[rows, blocks, 2]`, of which one
    that is multiplied with zeros alone becomes 0: `sub_block_zeros` takes its unit from the larger one."""
    unused = ~np.stack([scales.any(2), mins.any(2)], 2) & np.isfinite(blocks)
    blocks = np.where(unused, np.float16(0), blocks)
    tiled = [to_rows(each, 1)[:, :, :, :, 0] for each in (scales, mins, blocks)]  # [record, tile, g, half, …]
    by_lane = [np.moveaxis(each.reshape(*each.shape[:4], 2, 4), 5, 3) for each in tiled[:2]]  # [… g, t, half, upper]
    scale, low = (each.reshape(*each.shape[:4], 4) for each in by_lane)
    nibbles = sum((low[..., j] & 15).astype(np.uint16) << 4 * place for j, place in enumerate(sub_blocks.MIN_ORDER))
    return [scale | (low >> 4 << 6), np.asarray(nibbles, np.uint16), tiled[2]]


def unpack_mins(tiles: np.ndarray, offset: int, rows: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The inverse of `pack_mins`, from tiles with the three fields at `offset`."""
    both = cut(tiles, offset, np.uint8, 8, 4, 4)
    nibbles = cut(tiles, offset + 128, np.uint16, 8, 4)
    low = np.stack([(nibbles >> 4 * place & 15).astype(np.uint8) for place in sub_blocks.MIN_ORDER], -1)
    by_lane = [both & 63, low | (both >> 6 << 4)]
    tiled = [np.moveaxis(each.reshape(*each.shape[:4], 2, 2), 3, 5) for each in by_lane]
    out = [each.reshape(*each.shape[:4], 1, 8) for each in tiled]
    blocks = cut(tiles, offset + 192, np.float16, 8, 2, 1, 2)
    scales, mins, blocks = (from_rows(each, rows, count) for each in (*out, blocks))
    return scales, mins, blocks


def levels(values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes from 0 to `most`, scales, mins and the block's f16 pair for `[rows, blocks, 256]`."""
    sub = values.reshape(*values.shape[:2], 8, SUB)
    low = np.maximum(-sub.min(3), 0)
    steps = (np.maximum(sub.max(3), 0) + low) / np.float32(most)
    pairs = np.stack([steps.max(2), low.max(2)], 2) / np.float32(63)
    blocks = pairs.astype(np.float16)
    wide = blocks.astype(np.float32)
    scales, mins = (np.clip(np.rint(ratio(each, wide[..., i : i + 1])), 0, 63) for i, each in enumerate((steps, low)))
    scales, mins = scales.astype(np.uint8), mins.astype(np.uint8)
    factor, less = (wide[..., i : i + 1] * each.astype(np.float32) for i, each in enumerate((scales, mins)))
    codes = np.clip(np.rint(ratio(sub + less[..., None], factor[..., None])), 0, most)
    return codes.reshape(values.shape).astype(np.uint8), scales, mins, blocks


def from_levels(codes: np.ndarray, scales: np.ndarray, mins: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """float32 `[rows, cols]` of codes `[rows, blocks, 256]`."""
    wide = blocks.astype(np.float32)
    factor, less = (wide[..., i : i + 1] * each.astype(np.float32) for i, each in enumerate((scales, mins)))
    sub = codes.reshape(*codes.shape[:2], 8, SUB).astype(np.float32)
    return np.asarray((factor[..., None] * sub - less[..., None]).reshape(codes.shape[0], -1))


# Scales of sub-blocks t div 2 + 0, 4, then + 2, 6; the lower bits of half of their mins; d, dmin of rows g and g + 8.
MINS_OF_A_LANE = (
    Piece(2048, 4, "side", 1), Piece(2056, 4, "side", 1), Piece(2176, 2, "own", 1, half=True), Piece(2240, 8, "row", 2),
)  # fmt: skip


# after the codes: scales of all blocks of rows g and g + 8; upper and lower bits of the mins of blocks t div 2 and
# 4 + t div 2, and of those two blocks on; d and dmin
SPAN_PIECES = (
    Piece(2048, 16, "row"), Piece(2048, 4, "side", 1), Piece(2056, 4, "side", 1), Piece(2176, 2, "side", 1, half=True),
    Piece(2180, 2, "side", 1, half=True), Piece(2240, 8, "row", 2),
)  # fmt: skip


OWN_MINS = (Piece(2048, 4, "lane", 1), Piece(2176, 2, "lane", 1, half=True))  # of blocks t and 4 + t


class Q4K(ByteCodes):
    """Codes of 4 bits; for 32 columns a scale and a min of 6 bits, for 256 two f16."""

    code_digits, has_mins = 1, True

    span = SUB

    byte_type = "u8"
    x_sum_factor = -1.0
    x_sums_each = False

    def pack(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        self.check(rows, cols)
        codes, *rest = self._fields(source, rows, cols)
        return join([pack_nibbles(codes.reshape(rows, cols), self.tile_k), *pack_mins(*rest)]).reshape(-1)

    def unpack(self, packed: np.ndarray, rows: int, cols: int) -> Source:
        tiles = packed.reshape(self.records(rows), -1, self.tile_bytes)
        codes = in_blocks(unpack_nibbles(tiles, self.tile_k, rows, cols), BLOCK)
        scales, mins, blocks = unpack_mins(tiles, 2048, rows, cols // BLOCK)
        return {"blocks": whole_blocks(blocks, join_scales(scales, mins), bytes_of(codes))}

    def dequantise(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        return from_levels(*self._fields(source, rows, cols))

    def quantise(self, values: np.ndarray) -> Source:
        codes, scales, mins, blocks = levels(in_blocks(values.astype(np.float32), BLOCK), 15)
        return {"blocks": whole_blocks(blocks, join_scales(scales, mins), bytes_of(codes))}

    def _fields(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> tuple[np.ndarray, ...]:
        """Codes `[rows, blocks, 256]`, scales and mins `[rows, blocks, 8]`, d and dmin `[rows, blocks, 2]`."""
        blocks = raw_blocks(source, rows, cols // BLOCK, BLOCK_BYTES)
        scales, mins = split_scales(field(blocks, 4, 12))
        return codes_of(field(blocks, 16, 128)), scales, mins, field(blocks, 0, 2, np.float16)

    @property
    def scale_chunks(self) -> int:
        return 2

    def code_bytes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int) -> Reg:
        return low_nibbles(b, words[chunk], half)

    def scales(self, b: Builder, words: Sequence[Reg], chunk: int) -> tuple[Sequence[Reg], Sequence[Reg]]:
        return sub_blocks.sub_block_scales(b, words[16:], chunk)

    @property
    def block_pieces(self) -> tuple[Piece, ...]:
        return (*self.pieces[:4], *MINS_OF_A_LANE)

    @property
    def code_pieces(self) -> tuple[Piece, ...]:
        return (*self.pieces, *OWN_MINS)

    def codes_as_f16(self, b: Builder, words: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]) -> None:
        sub_blocks.nibble_integers(b, words[chunk], words[16:20], chunk, out[0])

    def codes_less_zeros(
        self, b: Builder, words: Sequence[Reg], zeros: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]
    ) -> None:
        sub_blocks.nibble_integers(b, words[chunk], words[16:20], chunk, out[0], zeros)

    def mins_as_f16(self, b: Builder, words: Sequence[Reg]) -> Sequence[Reg]:
        return sub_blocks.sub_block_mins(b, *words[24:])

    def code_units(self, b: Builder, words: Sequence[Reg], chunk: int = 0) -> tuple[Sequence[Reg], Sequence[Reg]]:
        return sub_blocks.block_factors(b, words[22:24], (sub_blocks.CODE_UNIT,) * 2)

    def zero_points(self, b: Builder, words: Sequence[Reg], name: str) -> ZeroPoints:
        return sub_blocks.sub_block_zeros(b, words[22:24], words[24], words[25], name)

    def zero_offsets(self, b: Builder, points: ZeroPoints, half: int) -> Sequence[Sequence[Reg]]:
        return sub_blocks.sub_block_offsets(b, points, half)

    def zero_units(self, b: Builder, points: ZeroPoints) -> tuple[Sequence[Reg], Sequence[Reg]]:
        return sub_blocks.sub_block_units(b, points)

    def byte_fragment(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        return nibble_fragment(b, words[chunk : chunk + 2])

    def add_blocks(
        self, b: Builder, words: Sequence[Reg], sums: Sequence[Sequence[Reg]], x_sums: Sequence[Reg],
        totals: Sequence[Reg], odd: Reg | None,
    ) -> None:  # fmt: skip
        sub_blocks.add_sub_blocks(b, words[16:], sums, x_sums, totals, odd, NIBBLE_UNITS)

    @property
    def span_pieces(self) -> tuple[Piece, ...]:
        return (*self.pieces[:4], *SPAN_PIECES)

    def span_factors(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        return sub_blocks.sub_block_factors(b, words[16:], chunk)

    def offset_fragment(self, b: Builder, words: Sequence[Reg]) -> Sequence[Reg]:
        return sub_blocks.min_fragment(b, words[20:24])

    def tile_factors(self, b: Builder, words: Sequence[Reg]) -> tuple[Sequence[Reg], Sequence[Reg]]:
        return sub_blocks.block_factors(b, words[24:], NIBBLE_UNITS)

    def span_scales(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        return sub_blocks.sub_block_floats(b, words[16:], chunk)

    def tile_scales(self, b: Builder, words: Sequence[Reg]) -> tuple[Sequence[Reg], Sequence[Reg]]:
        return sub_blocks.block_factors(b, words[24:], (1.0, 1.0))


def formats(kind: type[ByteCodes], name: str, codes: int) -> tuple[ByteCodes]:
    """A format whose tiles begin with so many pieces of codes; scales, mins and d, dmin of their rows follow."""
    at = 512 * codes
    scales = (Piece(at, 16, "row"), Piece(at + 128, 8, "row", 2), Piece(at + 192, 8, "row", 2))
    pieces = (*(Piece(512 * p, 16) for p in range(codes)), *scales)
    return (kind(name, 256, at + 256, pieces, block_cols=BLOCK),)


FORMATS = formats(Q4K, "q4_k", 4)
