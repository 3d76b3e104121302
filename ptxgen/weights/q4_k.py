"""GGUF's Q4_K: blocks of 256 columns, 8 sub-blocks of 32 with a scale and a min of 6 bits, codes of 4 bits.

A tile of 16 rows by 256 columns, 2304 bytes: [0, 2048) the codes as nibbles, as in q4_0's. [2048, 2304) scales and mins
as `sub_block_format` has them. Source: `blocks`, raw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.weights import sub_blocks
from ptxgen.weights.bits import NIBBLE_UNITS, low_nibbles, nibble_fragment
from ptxgen.weights.blocks import (
    field,
    in_blocks,
    join_scales,
    pack_nibbles,
    raw_blocks,
    split_scales,
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

BLOCK_BYTES = 144


class Q4K(SubBlocks):
    """Codes of 4 bits; for 32 columns a scale and a min of 6 bits, for 256 two f16."""

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

    def code_bytes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int) -> Reg:
        return low_nibbles(b, words[chunk], half)

    def codes_as_f16(self, b: Builder, words: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]) -> None:
        sub_blocks.nibble_integers(b, words[chunk], words[16:20], chunk, out[0])

    def codes_less_zeros(
        self, b: Builder, words: Sequence[Reg], zeros: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]
    ) -> None:
        sub_blocks.nibble_integers(b, words[chunk], words[16:20], chunk, out[0], zeros)

    def byte_fragment(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        return nibble_fragment(b, words[chunk : chunk + 2])

    def add_blocks(
        self, b: Builder, words: Sequence[Reg], sums: Sequence[Sequence[Reg]], x_sums: Sequence[Reg],
        totals: Sequence[Reg], odd: Reg | None,
    ) -> None:  # fmt: skip
        sub_blocks.add_sub_blocks(b, words[16:], sums, x_sums, totals, odd, NIBBLE_UNITS)

    def tile_factors(self, b: Builder, words: Sequence[Reg]) -> tuple[Sequence[Reg], Sequence[Reg]]:
        return sub_blocks.block_factors(b, words[24:], NIBBLE_UNITS)


FORMATS = formats(Q4K, "q4_k", 4)
