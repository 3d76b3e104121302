"""GGUF's Q6_K: blocks of 256 columns; 16 sub-blocks of 16 with a signed byte as scale, an f16 for the block.

weight = (d · scale) · (code − 32). A tile of 16 rows by 256 columns, 3360 bytes:
[0, 2048) the lower four bits as in q4_k's. [2048, 3072): 32 columns s at (s/4)·512 + lane·16 + (s mod 4)·4, a word; of
its byte b, bits 0, 1 are the upper bits of row g at column 16 + 4t + b, bits 2, 3 of row g + 8 there, bits 4, 5 of row
g at column 4t + b, bits 6, 7 of row g + 8 there. [3072, 3328): bytes at g·32 + t·8 + 2q: the scales of rows g and g + 8
in sub-block 4q + t. [3328, 3360): at g·4: d of rows g and g + 8. Source: `blocks`, raw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.idioms import convert
from ptxgen.weights.bits import (
    byte_to_f16,
    bytes_to_f16,
    bytes_to_f32,
    constant,
    fragment,
    halves_to_f32,
    low_nibbles,
    pair,
    pair_of_f16,
    signed_to_bf16,
)
from ptxgen.weights.blocks import field, in_blocks, pack_nibbles, ratio, raw_blocks, unpack_nibbles, whole_blocks
from ptxgen.weights.format import ByteCodes, Piece, Source
from ptxgen.weights.order import cut, from_fragments, from_rows, join, to_fragments, to_rows

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg

BLOCK = 256
BLOCK_BYTES = 210
SUB = 16
UNITS = (1.0, 1 / 4)  # of rows g and g + 8 in `byte_fragment`
# Where the two bits of a code stand in their byte: [chunk of the 32 columns, half].
_SHIFTS = np.array([[4, 6], [0, 2]], np.uint8).reshape(2, 1, 1, 2, 1)


class Q6K(ByteCodes):
    """Codes of 6 bits less 32; for 16 columns a scale of a signed byte, for 256 an f16."""

    code_digits = 2
    less = 32
    byte_type = "u8"
    span = SUB
    x_sum_factor = -32.0

    def pack(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        self.check(rows, cols)
        codes, scales, blocks = self._fields(source, rows, cols)
        flat = codes.reshape(rows, cols)
        tiled = to_rows(scales, 1)[:, :, :, :, 0]  # [record, tile, g, half, 16]
        by_lane = tiled.reshape(*tiled.shape[:4], 4, 4).transpose(0, 1, 2, 5, 4, 3)  # [record, tile, g, t, q, half]
        parts = [pack_nibbles(flat & 15, self.tile_k), _pack_upper(flat >> 4, self.tile_k), by_lane, to_rows(blocks, 1)]
        return join(parts).reshape(-1)

    def unpack(self, packed: np.ndarray, rows: int, cols: int) -> Source:
        tiles, count = packed.reshape(self.records(rows), -1, self.tile_bytes), cols // BLOCK
        low = unpack_nibbles(tiles, self.tile_k, rows, cols)
        codes = in_blocks(low | (_unpack_upper(tiles, rows, cols) << 4), BLOCK)
        by_lane = cut(tiles, 3072, np.int8, 8, 4, 4, 2).transpose(0, 1, 2, 5, 4, 3)
        scales = from_rows(by_lane.reshape(*by_lane.shape[:4], 1, 16), rows, count)
        blocks = from_rows(cut(tiles, 3328, np.float16, 8, 2, 1), rows, count)
        return {"blocks": _raw(codes, scales, blocks[..., None])}

    def dequantise(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        codes, scales, blocks = self._fields(source, rows, cols)
        factor = blocks.astype(np.float32)[..., None] * scales.astype(np.float32)
        centred = codes.reshape(*codes.shape[:2], 16, SUB).astype(np.float32) - np.float32(32)
        return np.asarray((factor[..., None] * centred).reshape(rows, cols))

    def quantise(self, values: np.ndarray) -> Source:
        blocks = in_blocks(values.astype(np.float32), BLOCK)
        sub = blocks.reshape(*blocks.shape[:2], 16, SUB)
        steps = np.abs(sub).max(3) / np.float32(31)
        whole = (steps.max(2) / np.float32(127)).astype(np.float16)
        scales = np.clip(np.rint(ratio(steps, whole.astype(np.float32)[..., None])), -128, 127).astype(np.int8)
        factor = whole.astype(np.float32)[..., None] * scales.astype(np.float32)
        codes = np.clip(np.rint(ratio(sub, factor[..., None])) + 32, 0, 63).astype(np.uint8)
        return {"blocks": _raw(codes.reshape(blocks.shape), scales, whole[..., None])}

    def _fields(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> tuple[np.ndarray, ...]:
        """Codes `[rows, blocks, 256]`, scales `[rows, blocks, 16]`, d `[rows, blocks]`."""
        blocks = raw_blocks(source, rows, cols // BLOCK, BLOCK_BYTES)
        low = field(blocks, 0, 128).reshape(*blocks.shape[:2], 2, 1, 64)
        upper = field(blocks, 128, 64).reshape(*blocks.shape[:2], 2, 1, 32)
        four = np.concatenate([low & 15, low >> 4], 3).reshape(*blocks.shape[:2], 2, 4, 32)
        two = upper >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
        codes = (four | (two << 4)).reshape(*blocks.shape[:2], BLOCK)
        return codes, field(blocks, 192, 16, np.int8), field(blocks, 208, 1, np.float16)[..., 0]

    @property
    def scale_chunks(self) -> int:
        return 1

    def code_bytes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int) -> Reg:
        code, upper = low_nibbles(b, words[chunk], half), convert.scratch(b, "upper_bits", "b32")
        up = 4 - int(_SHIFTS[chunk % 2, 0, 0, half, 0])  # to bits 4, 5 of a byte
        word = words[16 + chunk // 2]
        if up:
            b.op("shl.b32" if up > 0 else "shr.u32", upper, word, abs(up))
            word = upper
        b.op("and.b32", upper, word, 0x30303030)
        b.op("or.b32", code, code, upper)
        return code

    def scales(self, b: Builder, words: Sequence[Reg], chunk: int) -> tuple[Sequence[Reg], Sequence[Reg]]:
        factors, block_scale = pair(b, "scale"), pair(b, "block_scale")
        if chunk == 0:
            halves_to_f32(b, *block_scale, words[32])
        q, t = chunk // 4, chunk % 4
        biased = convert.scratch(b, "scale_bytes", "b32")
        b.op("xor.b32", biased, words[24 + 2 * t + q // 2], 0x80808080)
        bytes_to_f32(b, factors, biased, 128.0, 2 * (q % 2))
        for factor, whole in zip(factors, block_scale, strict=True):
            b.op("mul.f32", factor, factor, whole)
        return factors, ()

    def codes_as_f16(self, b: Builder, words: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]) -> None:
        """A product of 12 bits, and what rounding it to 11 left."""
        q, t = chunk // 4, chunk % 4
        factors = convert.scratch_array(b, "integer_scale", "b32", 2)
        biased, minus = convert.scratch(b, "scale_bytes", "b32"), convert.scratch(b, "minus_product", "b32")
        less = constant(b, f"less_half_{self.less}", pair_of_f16(-1024 - self.less))
        code = convert.scratch_array(b, "code_pair", "b32", 2).regs
        b.op("xor.b32", biased, words[24 + 2 * t + q // 2], 0x80808080)
        for half, factor in enumerate(factors):
            byte_to_f16(b, factor, biased, 2 * (q % 2) + half, 128)
            bytes_to_f16(b, code, self.code_bytes(b, words, chunk, half), apart=True)
            for i, register in enumerate(code):
                b.op("add.rn.f16x2", register, register, less)
                rounded = b.op("mul.rn.f16x2", out[0][2 * i + half], register, factor)
                if len(out) > 1:
                    b.op("neg.f16x2", minus, rounded)
                    b.op("fma.rn.f16x2", out[1][2 * i + half], register, factor, minus)

    def code_units(self, b: Builder, words: Sequence[Reg], chunk: int = 0) -> tuple[Sequence[Reg], Sequence[Reg]]:
        scales = pair(b, "block_scale")
        halves_to_f32(b, *scales, words[32])
        return scales, ()

    @property
    def x_block(self) -> int:
        return SUB

    @property
    def block_pieces(self) -> tuple[Piece, ...]:
        return (*self.pieces[:6], Piece(3072, 8, "side", 2), Piece(3088, 8, "side", 2), Piece(3328, 4, "row", 1))

    def byte_fragment(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        """Codes of row g + 8 stand two bits further up."""
        out, bits = fragment(b), convert.scratch(b, "upper_bits", "b32")
        for i, register in enumerate(out):
            code, upper = words[chunk + i // 2], words[16 + chunk // 2]
            if i >= 2:
                shifted = convert.scratch(b, "upper_word", "b32")
                upper = b.op("shl.b32", shifted, upper, 4) if i == 2 else shifted
            b.op("and.b32", bits, upper, 0xC0C0C0C0 if i % 2 else 0x30303030)
            if i % 2:
                code = b.op("shr.u32", register, code, 2)
            b.op("and.b32", register, code, 0x3C3C3C3C if i % 2 else 0x0F0F0F0F)
            b.op("or.b32", register, register, bits)
        return out

    @property
    def span_pieces(self) -> tuple[Piece, ...]:
        return (*self.pieces, Piece(3072, 8, words=2))

    def span_factors(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        q, t = divmod(chunk, 4)
        out = convert.scratch_array(b, "scale_code", "b32", 2).regs
        for half, register in enumerate(out):
            byte = 2 * (q % 2) + half
            sign = byte | 8  # its sign in every bit of a byte
            b.op("prmt.b32", register, words[24 + 2 * t + q // 2], 0, sign << 12 | sign << 8 | sign << 4 | byte)
        return out

    def offset_fragment(self, b: Builder, words: Sequence[Reg]) -> Sequence[Reg]:
        """The tile's scales as pairs of bf16, which the sums of x are multiplied with."""
        scales, out = convert.scratch(b, "own_scales", "b32"), convert.scratch_array(b, "scale_pair", "b32", 4).regs
        for i, selector in enumerate((0x5140, 0x7362)):
            b.op("prmt.b32", scales, words[33], words[34], selector)
            signed_to_bf16(b, out[2 * i : 2 * i + 2], scales)
        return out

    def tile_factors(self, b: Builder, words: Sequence[Reg]) -> tuple[Sequence[Reg], Sequence[Reg]]:
        scales, less = pair(b, "block_scale"), pair(b, "block_less")
        halves_to_f32(b, *scales, words[32])
        for scale, other, unit in zip(scales, less, UNITS, strict=True):
            b.op("mul.f32", other, scale, -float(self.less))
            if unit != 1:
                b.op("mul.f32", scale, scale, unit)
        return scales, less

    def span_scales(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        q, t = divmod(chunk, 4)
        out, biased = pair(b, "span_scale"), convert.scratch(b, "scale_bytes", "b32")
        b.op("xor.b32", biased, words[24 + 2 * t + q // 2], 0x80808080)
        bytes_to_f32(b, out, biased, 128.0, 2 * (q % 2))
        return out

    def tile_scales(self, b: Builder, words: Sequence[Reg]) -> tuple[Sequence[Reg], Sequence[Reg]]:
        return self.code_units(b, words)

    def add_blocks(
        self, b: Builder, words: Sequence[Reg], sums: Sequence[Sequence[Reg]], x_sums: Sequence[Reg],
        totals: Sequence[Reg], odd: Reg | None,
    ) -> None:  # fmt: skip
        biased = convert.scratch(b, "scale_bytes", "b32")
        factors, block_scale, tile = pair(b, "scale"), pair(b, "block_scale"), pair(b, "tile_sum")
        for i, (values, x_sum) in enumerate(zip(sums, x_sums, strict=True)):
            b.op("xor.b32", biased, words[24 + 2 * (i % 2) + i // 4], 0x80808080)
            bytes_to_f32(b, factors, biased, 128.0, 2 * (i // 2 % 2))
            for value, unit, factor, total in zip(values, UNITS, factors, tile, strict=True):
                b.op("fma.rn.f32", value, value, unit, x_sum)
                if i == 0:
                    b.op("mul.f32", total, value, factor)
                else:
                    b.op("fma.rn.f32", total, value, factor, total)
        halves_to_f32(b, *block_scale, words[28])
        for value, factor, total in zip(tile, block_scale, totals, strict=True):
            b.op("fma.rn.f32", total, value, factor, total)


def _raw(codes: np.ndarray, scales: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Raw blocks of codes `[rows, blocks, 256]`, scales `[rows, blocks, 16]`, d `[rows, blocks, 1]`."""
    split = codes.reshape(*codes.shape[:2], 2, 4, 32)
    four, two = split & 15, split >> 4
    low = (four[..., :2, :] | (four[..., 2:, :] << 4)).reshape(*codes.shape[:2], 128)
    upper = np.bitwise_or.reduce(two << np.array([0, 2, 4, 6], np.uint8)[:, None], 3)
    return whole_blocks(low, upper.reshape(*codes.shape[:2], 64), scales, blocks)


def _pack_upper(bits: np.ndarray, tile_k: int) -> np.ndarray:
    fragments = to_fragments(bits, tile_k)  # [record, tile, chunk, g, t, half, 4]
    split = fragments.reshape(*fragments.shape[:2], 8, 2, *fragments.shape[3:])
    packed = np.bitwise_or.reduce(split << _SHIFTS, (3, 6))  # [record, tile, s, g, t, 4]
    grouped = packed.reshape(*packed.shape[:2], 2, 4, *packed.shape[3:])
    return np.asarray(grouped.transpose(0, 1, 2, 4, 5, 3, 6))


def _unpack_upper(tiles: np.ndarray, rows: int, cols: int) -> np.ndarray:
    grouped = cut(tiles, 2048, np.uint8, 2, 8, 4, 4, 4).transpose(0, 1, 2, 5, 3, 4, 6)
    packed = grouped.reshape(*grouped.shape[:2], 8, 8, 4, 4)
    split = packed[:, :, :, None, :, :, None, :] >> _SHIFTS & 3  # [record, tile, s, chunk, g, t, half, 4]
    return from_fragments(split.reshape(*split.shape[:2], 16, *split.shape[4:]), rows, cols)


FORMATS = (
    Q6K(
        "q6_k",
        256,
        3360,
        (*(Piece(512 * p, 16) for p in range(6)), Piece(3072, 32, "row"), Piece(3088, 32, "row"),
         Piece(3328, 4, "row", 1)),
        block_cols=BLOCK,
    ),
)  # fmt: skip
