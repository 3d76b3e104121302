"""What Q4_K and Q5_K share: blocks of 256 columns, in sub-blocks of 32 with a scale and a min of 6 bits.

weight = (d · scale) · code − dmin · min, with d and dmin f16 of the block. A tile of 16 rows ends with 256 bytes:
[0, 128): word at g·16 + t·4; its byte j = scale (6 bits) | upper two bits of the min in bits 6, 7; j = 0: row g,
sub-block t; 1: row g, 4 + t; 2: row g + 8, t; 3: row g + 8, 4 + t. [128, 192): half word at g·8 + t·2: the lower four
bits of those mins, j = 0, 2, 1, 3 at bits 0, 4, 8, 12. [192, 256): at g·8: d, dmin of row g, d, dmin of row g + 8.
What a lane makes of them on a device is `sub_blocks`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.weights import sub_blocks
from ptxgen.weights.blocks import ratio
from ptxgen.weights.format import ByteCodes, Piece, ZeroPoints
from ptxgen.weights.order import cut, from_rows, to_rows

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg

BLOCK = 256
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


SCALE_BYTES = 256  # of a tile, after its codes: scales, mins, d and dmin
# Offsets of pieces are from the end of the codes. Scales of all blocks, the lower bits of mins; d and dmin, of a row.
BLOCK_PIECES = (Piece(0, 16, "row"), Piece(128, 8, "row", 2), Piece(192, 8, "row", 2))
# Scales of sub-blocks t div 2 + 0, 4, then + 2, 6; the lower bits of half of their mins; d, dmin of rows g and g + 8.
MINS_OF_A_LANE = (
    Piece(0, 4, "side", 1), Piece(8, 4, "side", 1), Piece(128, 2, "own", 1, half=True), Piece(192, 8, "row", 2),
)  # fmt: skip
# Scales of all blocks of rows g and g + 8; upper and lower bits of the mins of blocks t div 2 and 4 + t div 2, and of
# those two blocks on; d and dmin.
SPAN_PIECES = (
    Piece(0, 16, "row"), Piece(0, 4, "side", 1), Piece(8, 4, "side", 1), Piece(128, 2, "side", 1, half=True),
    Piece(132, 2, "side", 1, half=True), Piece(192, 8, "row", 2),
)  # fmt: skip
OWN_MINS = (Piece(0, 4, "lane", 1), Piece(128, 2, "lane", 1, half=True))  # of blocks t and 4 + t


class SubBlocks(ByteCodes):
    """Codes in `code_words` words of a lane, then a scale and a min of 6 bits for 32 columns, and two f16 for 256."""

    code_digits, has_mins = 1, True
    byte_type = "u8"
    span = SUB
    x_sum_factor = -1.0
    x_sums_each = False

    @property
    def scale_chunks(self) -> int:
        return 2

    @property
    def code_words(self) -> int:
        """Words of a lane's codes, which are the first ones; those of scales, mins and d, dmin follow."""
        return 4 * len(self._codes)

    @property
    def _codes(self) -> tuple[Piece, ...]:
        return self.pieces[: -len(BLOCK_PIECES)]

    def _after_codes(self, *pieces: Piece) -> tuple[Piece, ...]:
        """Pieces whose offsets are from the end of the codes."""
        return tuple(replace(piece, offset=piece.offset + self.tile_bytes - SCALE_BYTES) for piece in pieces)

    @property
    def block_pieces(self) -> tuple[Piece, ...]:
        return (*self._codes, *self._after_codes(*MINS_OF_A_LANE))

    @property
    def code_pieces(self) -> tuple[Piece, ...]:
        return (*self.pieces, *self._after_codes(*OWN_MINS))

    @property
    def span_pieces(self) -> tuple[Piece, ...]:
        return (*self._codes, *self._after_codes(*SPAN_PIECES))

    def scales(self, b: Builder, words: Sequence[Reg], chunk: int) -> tuple[Sequence[Reg], Sequence[Reg]]:
        return sub_blocks.sub_block_scales(b, words[self.code_words :], chunk)

    def mins_as_f16(self, b: Builder, words: Sequence[Reg]) -> Sequence[Reg]:
        return sub_blocks.sub_block_mins(b, *words[self.code_words + 8 :])

    def code_units(self, b: Builder, words: Sequence[Reg], chunk: int = 0) -> tuple[Sequence[Reg], Sequence[Reg]]:
        return sub_blocks.block_factors(b, self._blocks(words), (sub_blocks.CODE_UNIT,) * 2)

    def zero_points(self, b: Builder, words: Sequence[Reg], name: str) -> ZeroPoints:
        upper, lower = self.code_words + 8, self.code_words + 9
        return sub_blocks.sub_block_zeros(b, self._blocks(words), words[upper], words[lower], name)

    def zero_offsets(self, b: Builder, points: ZeroPoints, half: int) -> Sequence[Sequence[Reg]]:
        return sub_blocks.sub_block_offsets(b, points, half)

    def zero_units(self, b: Builder, points: ZeroPoints) -> tuple[Sequence[Reg], Sequence[Reg]]:
        return sub_blocks.sub_block_units(b, points)

    def span_factors(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        return sub_blocks.sub_block_factors(b, words[self.code_words :], chunk)

    def span_scales(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        return sub_blocks.sub_block_floats(b, words[self.code_words :], chunk)

    def offset_fragment(self, b: Builder, words: Sequence[Reg]) -> Sequence[Reg]:
        return sub_blocks.min_fragment(b, words[self.code_words + 4 : self.code_words + 8])

    def tile_scales(self, b: Builder, words: Sequence[Reg]) -> tuple[Sequence[Reg], Sequence[Reg]]:
        return sub_blocks.block_factors(b, words[self.code_words + 8 :], (1.0, 1.0))

    def _blocks(self, words: Sequence[Reg]) -> Sequence[Reg]:
        """d and dmin of rows g and g + 8 in `pieces`."""
        return words[self.code_words + 6 : self.code_words + 8]


def formats(kind: type[SubBlocks], name: str, codes: int) -> tuple[SubBlocks]:
    """A format whose tiles begin with so many pieces of codes."""
    at = 512 * codes
    pieces = (*(Piece(512 * p, 16) for p in range(codes)), *(replace(p, offset=at + p.offset) for p in BLOCK_PIECES))
    return (kind(name, BLOCK, at + SCALE_BYTES, pieces, block_cols=BLOCK),)
