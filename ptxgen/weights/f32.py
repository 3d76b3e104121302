"""Plain f32 weights.

A tile of 16 rows by 32 columns, 2048 bytes: chunk c at c·1024; there the four f32 of row g of lane l at l·16, and those
of row g + 8 at 512 + l·16. Source: `weight` f32 `[rows, cols]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.weights.format import OWN, Piece, Source, WeightFormat
from ptxgen.weights.order import cut, from_fragments, join, to_fragments

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg


class F32(WeightFormat):
    """f32 as it is."""

    def pack(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        self.check(rows, cols)
        weight = np.asarray(source["weight"], np.float32).reshape(rows, cols)
        return join([to_fragments(weight, self.tile_k).transpose(0, 1, 2, 5, 3, 4, 6)]).reshape(-1)

    def unpack(self, packed: np.ndarray, rows: int, cols: int) -> Source:
        tiles = packed.reshape(self.records(rows), -1, self.tile_bytes)
        fragments = cut(tiles, 0, np.float32, self.chunks, 2, 8, 4, OWN).transpose(0, 1, 2, 4, 5, 3, 6)
        return {"weight": from_fragments(fragments, rows, cols)}

    def dequantise(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        return np.asarray(source["weight"], np.float32).reshape(rows, cols)

    def quantise(self, values: np.ndarray) -> Source:
        return {"weight": values.astype(np.float32)}

    def codes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int, out: Sequence[Reg]) -> None:
        first = 8 * chunk + 4 * half
        for value, word in zip(out, words[first : first + 4], strict=True):
            b.op("mov.b32", value, word)


FORMATS = (F32("f32", 32, 2048, tuple(Piece(512 * n, 16) for n in range(4))),)
