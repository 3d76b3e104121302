"""GGUF's Q5_K: as Q4_K, with a fifth bit a code.

A tile of 16 rows by 256 columns, 2816 bytes: [0, 2048) the lower four bits as in q4_k's. [2048, 2560): 64 columns p at
lane·16 + p·4, a word; of its byte b, bits 0 … 3 are the fifth bits of row g in chunks 4p … 4p + 3, column 4t + b; bits
4 … 7 those of row g + 8. [2560, 2816) scales and mins as `sub_block_format` has them. Source: `blocks`, raw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.weights import sub_blocks
from ptxgen.weights.bits import add_fifth, low_nibbles
from ptxgen.weights.blocks import (
    field,
    in_blocks,
    join_scales,
    pack_fifth,
    pack_nibbles,
    raw_blocks,
    split_scales,
    unpack_fifth,
    unpack_nibbles,
    whole_blocks,
)
from ptxgen.weights.format import Source
from ptxgen.weights.order import join
from ptxgen.weights.sub_block_format import (
    BLOCK,
    SubBlocks,
    bytes_of,
    codes_of,
    formats,
    from_levels,
    levels,
    pack_mins,
    unpack_mins,
)

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg

BLOCK_BYTES = 176
_SUBS = np.arange(8, dtype=np.uint8)[:, None]


class Q5K(SubBlocks):
    """Q4_K with codes of 5 bits."""

    def pack(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        self.check(rows, cols)
        codes, *rest = self._fields(source, rows, cols)
        flat = codes.reshape(rows, cols)
        parts = [pack_nibbles(flat & 15, self.tile_k), pack_fifth(flat >> 4, self.tile_k), *pack_mins(*rest)]
        return join(parts).reshape(-1)

    def unpack(self, packed: np.ndarray, rows: int, cols: int) -> Source:
        tiles = packed.reshape(self.records(rows), -1, self.tile_bytes)
        codes = in_blocks(unpack_nibbles(tiles, self.tile_k, rows, cols), BLOCK)
        fifth = in_blocks(unpack_fifth(tiles, 2048, self.tile_k, rows, cols), BLOCK)
        scales, mins, blocks = unpack_mins(tiles, 2560, rows, cols // BLOCK)
        high = _high_bytes(fifth)
        return {"blocks": whole_blocks(blocks, join_scales(scales, mins), high, bytes_of(codes))}

    def dequantise(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        return from_levels(*self._fields(source, rows, cols))

    def quantise(self, values: np.ndarray) -> Source:
        codes, scales, mins, blocks = levels(in_blocks(values.astype(np.float32), BLOCK), 31)
        high, low = _high_bytes(codes >> 4), bytes_of(codes & 15)
        return {"blocks": whole_blocks(blocks, join_scales(scales, mins), high, low)}

    def _fields(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> tuple[np.ndarray, ...]:
        """As `Q4K._fields`, codes of 5 bits."""
        blocks = raw_blocks(source, rows, cols // BLOCK, BLOCK_BYTES)
        scales, mins = split_scales(field(blocks, 4, 12))
        fifth = (field(blocks, 16, 32)[:, :, None, :] >> _SUBS & 1).reshape(rows, -1, BLOCK)
        codes = codes_of(field(blocks, 48, 128)) | (fifth << 4)
        return codes, scales, mins, field(blocks, 0, 2, np.float16)

    def code_bytes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int) -> Reg:
        code = low_nibbles(b, words[chunk], half)
        add_fifth(b, code, words[16 + chunk // 4], chunk, half, self.tile_k)
        return code

    def codes_as_f16(self, b: Builder, words: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]) -> None:
        sub_blocks.byte_integers(b, self, words, words[20:24], chunk, out[0])

    def codes_less_zeros(
        self, b: Builder, words: Sequence[Reg], zeros: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]
    ) -> None:
        sub_blocks.byte_integers(b, self, words, words[20:24], chunk, out[0], zeros)

    def add_blocks(
        self, b: Builder, words: Sequence[Reg], sums: Sequence[Sequence[Reg]], x_sums: Sequence[Reg],
        totals: Sequence[Reg], odd: Reg | None,
    ) -> None:  # fmt: skip
        sub_blocks.add_sub_blocks(b, words[20:], sums, x_sums, totals, odd, (1.0, 1.0))

    def tile_factors(self, b: Builder, words: Sequence[Reg]) -> tuple[Sequence[Reg], Sequence[Reg]]:
        return sub_blocks.block_factors(b, words[28:], (1.0, 1.0))


def _high_bytes(fifth: np.ndarray) -> np.ndarray:
    """Fifth bits `[rows, blocks, 256]` as the 32 bytes of raw blocks: bit s of byte l is column 32s + l."""
    split = fifth.reshape(*fifth.shape[:2], 8, 32)
    return np.asarray(np.bitwise_or.reduce(split << _SUBS, 2).astype(np.uint8))


FORMATS = formats(Q5K, "q5_k", 5)
