"""Weights of 16 bits.

A tile of 16 rows by 64 columns, 2048 bytes: chunk c at c·512 + lane·16, four words: row g columns 4t, 4t + 1; row g + 8
the same; row g columns 4t + 2, 4t + 3; row g + 8 the same. A narrow tile of f16 ends after 32 columns. Source:
`weight` `[rows, cols]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.dtypes import DType, bf16, f16
from ptxgen.idioms import convert
from ptxgen.weights.bits import fragment
from ptxgen.weights.format import Piece, Source, WeightFormat
from ptxgen.weights.order import cut, from_fragments, join, to_fragments

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg

PIECES = tuple(Piece(512 * n, 16) for n in range(4))


@dataclass(frozen=True)
class Half(WeightFormat):
    """Elements of 16 bits as they are, f16 or bf16."""

    dtype: DType = f16

    def pack(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        self.check(rows, cols)
        weight = np.asarray(source["weight"]).astype(self.dtype.numpy, copy=False).reshape(rows, cols)
        fragments = to_fragments(weight.view(np.uint16), self.fitted(cols).tile_k)
        pairs = fragments.reshape(*fragments.shape[:6], 2, 2)
        return join([pairs.transpose(0, 1, 2, 3, 4, 6, 5, 7)]).reshape(-1)

    def unpack(self, packed: np.ndarray, rows: int, cols: int) -> Source:
        kind = self.fitted(cols)
        tiles = packed.reshape(self.records(rows), -1, kind.tile_bytes)
        pairs = cut(tiles, 0, np.uint16, kind.chunks, 8, 4, 2, 2, 2).transpose(0, 1, 2, 3, 4, 6, 5, 7)
        fragments = pairs.reshape(*pairs.shape[:6], 4)
        return {"weight": from_fragments(fragments, rows, cols).view(self.dtype.numpy)}

    def dequantise(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        return np.asarray(source["weight"]).reshape(rows, cols).astype(np.float32)

    def quantise(self, values: np.ndarray) -> Source:
        return {"weight": values.astype(self.dtype.numpy)}

    def codes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int, out: Sequence[Reg]) -> None:
        convert.unpack(b, out, (words[4 * chunk + half], words[4 * chunk + 2 + half]), self.dtype)

    def fragments(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Sequence[Reg]]:
        own = words[4 * chunk : 4 * chunk + 4]
        if self.dtype == bf16:
            return (own,)
        # 11 bits are two bf16 numbers: the nearest, and what is left
        high, low = fragment(b), fragment(b, "a_rest")
        wide, back = ([convert.scratch(b, f"{name}{i}", "f32") for i in (0, 1)] for name in ("a_wide_", "a_back_"))
        for word, upper, lower in zip(own, high, low, strict=True):
            convert.unpack(b, wide, (word,), f16)
            convert.pack(b, (upper,), wide, bf16)
            convert.unpack(b, back, (upper,), bf16)
            for value, less in zip(wide, back, strict=True):
                b.op("sub.f32", value, value, less)
            convert.pack(b, (lower,), wide, bf16)
        return high, low


class Half16(Half):
    """f16 as it is, whose narrow tiles have 32 columns."""

    def halves(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        return words[4 * chunk : 4 * chunk + 4]

    def add_blocks(
        self, b: Builder, words: Sequence[Reg], sums: Sequence[Sequence[Reg]], x_sums: Sequence[Reg],
        totals: Sequence[Reg], odd: Reg | None,
    ) -> None:  # fmt: skip
        for value, total in zip(sums[0], totals, strict=True):
            b.op("add.f32", total, total, value)


FORMATS = (Half16("f16", 64, 2048, PIECES, narrow=(Half16("f16", 32, 1024, PIECES[:2]),)),)
