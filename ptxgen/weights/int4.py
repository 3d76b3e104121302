"""4-bit weights in groups of 32, 64 or 128 columns with f16 scales and integer zero points, as AWQ and GPTQ have them.

weight = (code − zero) · scale, 0 ≤ code ≤ 15 and 0 ≤ zero ≤ 16 (files have 0 to 15, GPTQ's less 1 in four bits).
A tile of 16 rows by 128 columns (groups of 128: by 256) begins with the codes as nibbles, as in q4_0's. Then, with n
groups a tile, at g·4n + 4j the scales of rows g and g + 8 in group j; then bytes at g·2n + 2j: their zeros.
Bytes: 1216 (32), 1120 (64), 2144 (128). Narrow tiles are the same with fewer columns, down to a group. Source:
`qweight` uint8 `[rows, cols]`, one code each; `scales` f16 and `zeros` uint8 `[rows, cols / group]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.idioms import convert
from ptxgen.weights.bits import (
    NIBBLE_UNITS,
    bytes_to_f32,
    constant,
    fragment,
    halves_to_f32,
    low_nibbles,
    nibble_fragment,
    nibbles_to_f16,
    pair,
    pair_of_bf16,
    pair_of_f16,
    scaled_pair,
)
from ptxgen.weights.blocks import in_blocks, nibble_pieces, pack_nibbles, ratio, sides, unpack_nibbles
from ptxgen.weights.format import Piece, Source, WeightFormat
from ptxgen.weights.order import cut, from_rows, join, to_rows

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg


@dataclass(frozen=True)
class Int4(WeightFormat):
    """Codes of 4 bits in groups of `block_cols` columns."""

    @property
    def groups(self) -> int:
        """Groups of a tile."""
        return self.tile_k // self.block_cols

    @property
    def _nibble_bytes(self) -> int:
        return 8 * self.tile_k

    def pack(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        self.check(rows, cols)
        kind = self.fitted(cols)
        assert isinstance(kind, Int4)
        codes = np.asarray(source["qweight"], np.uint8).reshape(rows, cols)
        scales = np.asarray(source["scales"], np.float16).reshape(rows, -1)
        zeros = np.asarray(source["zeros"], np.uint8).reshape(rows, -1)
        tiled = [to_rows(each, kind.groups).transpose(0, 1, 2, 4, 3) for each in (scales, zeros)]
        return join([pack_nibbles(codes, kind.tile_k), *tiled]).reshape(-1)

    def unpack(self, packed: np.ndarray, rows: int, cols: int) -> Source:
        kind = self.fitted(cols)
        assert isinstance(kind, Int4)
        tiles = packed.reshape(self.records(rows), -1, kind.tile_bytes)
        shape, count = (8, kind.groups, 2), cols // self.block_cols
        scales = cut(tiles, kind._nibble_bytes, np.float16, *shape).transpose(0, 1, 2, 4, 3)
        zeros = cut(tiles, kind._nibble_bytes + 32 * kind.groups, np.uint8, *shape).transpose(0, 1, 2, 4, 3)
        return {
            "qweight": unpack_nibbles(tiles, kind.tile_k, rows, cols),
            "scales": from_rows(scales, rows, count),
            "zeros": from_rows(zeros, rows, count),
        }

    def dequantise(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        codes = in_blocks(np.asarray(source["qweight"]).reshape(rows, cols), self.block_cols).astype(np.float32)
        zeros = np.asarray(source["zeros"]).reshape(rows, -1, 1).astype(np.float32)
        scales = np.asarray(source["scales"]).reshape(rows, -1, 1).astype(np.float32)
        return ((codes - zeros) * scales).reshape(rows, cols)

    def quantise(self, values: np.ndarray) -> Source:
        rows, cols = values.shape
        groups = in_blocks(values.astype(np.float32), self.block_cols)
        low = np.minimum(groups.min(2, keepdims=True), 0)
        high = np.maximum(groups.max(2, keepdims=True), 0)
        scales = ((high - low) / np.float32(15)).astype(np.float16)
        wide = scales.astype(np.float32)
        zeros = np.clip(np.rint(ratio(-low, wide)), 0, 16)
        codes = np.clip(np.rint(ratio(groups, wide) + zeros), 0, 15).astype(np.uint8)
        return {"qweight": codes.reshape(rows, cols), "scales": scales[..., 0], "zeros": zeros[..., 0].astype(np.uint8)}

    def codes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int, out: Sequence[Reg]) -> None:
        zero = pair(b, "zero_point")[half]
        per_group = self.block_cols // 16
        if chunk % per_group == 0:  # 2^23 + zero, as bytes_to_f32 takes it
            at = 2 * (chunk // per_group) + half
            bits = convert.scratch(b, "zero_bits", "b32")
            b.op("prmt.b32", bits, words[self.chunks + self.groups + at // 4], 0x4B000000, 0x7440 + at % 4)
            b.op("mov.b32", zero, bits)
        bytes_to_f32(b, out, low_nibbles(b, words[chunk], half), zero)

    def fragments(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Sequence[Reg]]:
        out, per_group = fragment(b), self.block_cols // 16
        minus = constant(b, "minus_pair", pair_of_bf16(-1))
        for half in (0, 1):
            zero = convert.scratch(b, f"zero_pair_{half}", "b32")
            if chunk % per_group == 0:  # 128 + zero, twice
                self._zero_pair(b, zero, words, 2 * (chunk // per_group) + half, 0x43434343)
            code = low_nibbles(b, words[chunk], half)
            for register, selector in zip(out[half::2], (0x4140, 0x4342), strict=True):
                b.op("prmt.b32", register, code, 0x43434343, selector)
                b.op("fma.rn.bf16x2", register, zero, minus, register)
        return (out,)

    def _zero_pair(self, b: Builder, out: Reg, words: Sequence[Reg], at: int, above: int) -> None:
        """A pair of 16-bit numbers, twice: a byte of `above` over the zero `at` of the tile's."""
        word, byte = words[self.chunks + self.groups + at // 4], at % 4
        b.op("prmt.b32", out, word, above, 0x4040 | byte << 8 | byte)

    @property
    def scale_chunks(self) -> int:
        return self.block_cols // 16

    def scales(self, b: Builder, words: Sequence[Reg], chunk: int) -> tuple[Sequence[Reg], Sequence[Reg]]:
        upper, lower = pair(b, "scale")
        per_group = self.block_cols // 16
        if chunk % per_group == 0:
            halves_to_f32(b, upper, lower, words[self.chunks + chunk // per_group])
        return (upper, lower), ()

    code_digits = 1

    def codes_as_f16(self, b: Builder, words: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]) -> None:
        less, per_group = convert.scratch_array(b, "less_zero", "b32", 2).regs, self.block_cols // 16
        if chunk % per_group == 0:  # −1024 − zero, twice
            for half, register in enumerate(less):
                self._zero_pair(b, register, words, 2 * (chunk // per_group) + half, 0xE4E4E4E4)
            b.op("add.rn.f16x2", less[1], less[1], constant(b, "pair_960", pair_of_f16(960)))
        nibbles_to_f16(b, out[0], words[chunk], less)

    byte_type = "u8"
    x_sum_factor = -1.0

    @property
    def block_pieces(self) -> tuple[Piece, ...]:
        """A group of 32 columns is a block; of wider ones all lanes of a row have the scales and zeros."""
        codes, at = self.pieces[:-2], self._nibble_bytes
        if self.block_cols == self.x_block:
            return (*codes, *sides(at, 4, self.tile_k), *sides(at + 32 * self.groups, 2, self.tile_k))
        return (*codes, *_group_pieces(at, self.groups))

    def byte_fragment(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        return nibble_fragment(b, words[chunk : chunk + 2])

    def add_blocks(
        self, b: Builder, words: Sequence[Reg], sums: Sequence[Sequence[Reg]], x_sums: Sequence[Reg],
        totals: Sequence[Reg], odd: Reg | None,
    ) -> None:  # fmt: skip
        zeros = pair(b, "zero_point")
        own = len(sums) if self.block_cols == self.x_block else self.groups
        for i, (values, x_sum) in enumerate(zip(sums, x_sums, strict=True)):
            group = i * own // len(sums)
            factors = scaled_pair(b, "scale", words[self.chunks + group], (1.0, 1.0))
            first, byte = (group - own, 0) if self.block_cols == self.x_block else (-1, 2 * group)
            bytes_to_f32(b, zeros, words[first], 0.0, byte)
            for value, unit, zero, factor, total in zip(values, NIBBLE_UNITS, zeros, factors, totals, strict=True):
                b.op("mul.f32", value, value, unit)
                b.op("fma.rn.f32", value, zero, x_sum, value)
                b.op("fma.rn.f32", total, value, factor, total)


def _group_pieces(at: int, groups: int) -> tuple[Piece, Piece]:
    """Scales and zeros of all groups of a row, which begin at `at`."""
    zeros = at + 32 * groups
    return Piece(at, 4 * groups, "row", groups), Piece(zeros, 2 * groups, "row", -(-groups // 2), half=groups == 1)


def _made(group: int, *widths: int) -> Int4:
    """A format in tiles of the first of `widths`, and in narrower ones."""
    first, *others = widths
    n, nibbles = first // group, 8 * first
    pieces = (*nibble_pieces(first), *_group_pieces(nibbles, n))
    narrow = tuple(_made(group, each) for each in others)
    return Int4(f"int4_g{group}", first, nibbles + 48 * n, pieces, block_cols=group, narrow=narrow)


FORMATS = (_made(32, 128, 64, 32), _made(64, 128, 64), _made(128, 256, 128))
