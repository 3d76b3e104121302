"""What the GGUF formats with blocks of 32 columns share: a scale, a min for some, and codes of four or five bits.

A tile of 16 rows by 128 columns begins with the lower four bits as nibbles in fragment order: 64 columns p at
p·512 + lane·16, a word a chunk; of its byte b the low nibble is row g, the high one row g + 8, column 4t + b. Fifth
bits follow, a word for 64 columns p at lane·8 + p·4: of its byte b, bits 0 … 3 are row g in chunks 4p … 4p + 3, column
4t + b; bits 4 … 7 row g + 8. Then block t at g·16·s + t·4·s: the scales of rows g and g + 8, and for s = 2 their mins.
Narrow tiles are the same with two blocks or one; of one block the nibbles are at lane·8, and the fifth bits half a word
at lane·2, a nibble for chunk 0 and 1 of row g, then of row g + 8, column 4t + b its bit b. Source: `blocks`, raw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ptxgen.weights.bits import (
    NIBBLE_UNITS,
    add_fifth,
    bytes_to_f16,
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
    fifth_pieces,
    in_blocks,
    nibble_pieces,
    pack_fifth,
    pack_nibbles,
    ratio,
    raw_blocks,
    sides,
    unpack_fifth,
    unpack_nibbles,
    whole_blocks,
)
from ptxgen.weights.format import ByteCodes, Piece, Source
from ptxgen.weights.order import cut, from_rows, join, to_rows

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg

BLOCK = 32
TILE_COLUMNS = (128, 64, 32)


class BlocksOf32(ByteCodes):
    """Codes of `bits`, an f16 scale for 32 columns, and an f16 min for them where `with_min`, else less half of what
    the codes have."""

    bits: ClassVar[int]
    with_min: ClassVar[bool]
    numbers: ClassVar[int]  # f16 ones of a block
    byte_type = "u8"

    def __init_subclass__(cls, *, bits: int, with_min: bool) -> None:
        cls.bits, cls.with_min, cls.numbers = bits, with_min, 1 + with_min
        half = 1 << bits - 1
        cls.less, cls.x_sum_factor = (0, 1.0) if with_min else (half, float(-half))
        cls.code_digits = 0 if with_min else 1

    # -- bytes of a tile -----------------------------------------------------------------------------------------------

    @staticmethod
    def fifths_at(tile_k: int) -> int:
        """Where fifth bits begin, behind the nibbles."""
        return 8 * tile_k

    @classmethod
    def scales_at(cls, tile_k: int) -> int:
        """Where scales and mins begin, behind the codes."""
        return 2 * cls.bits * tile_k

    # -- NumPy ---------------------------------------------------------------------------------------------------------

    def pack(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        self.check(rows, cols)
        tile_k = self.fitted(cols).tile_k
        codes, scales = self._fields(source, rows, cols)
        flat = codes.reshape(rows, cols)
        parts = [pack_nibbles(flat & 15, tile_k)]
        if self.bits > 4:
            parts.append(pack_fifth(flat >> 4, tile_k))
        return join([*parts, np.moveaxis(to_rows(scales, tile_k // BLOCK), 3, 5)]).reshape(-1)

    def unpack(self, packed: np.ndarray, rows: int, cols: int) -> Source:
        tile_k = self.fitted(cols).tile_k
        tiles = packed.reshape(self.records(rows), self.tiles(cols), -1)
        codes = unpack_nibbles(tiles, tile_k, rows, cols)
        if self.bits > 4:
            codes = codes | (unpack_fifth(tiles, self.fifths_at(tile_k), tile_k, rows, cols) << 4)
        shape = (8, tile_k // BLOCK, self.numbers, 2)
        scales = np.moveaxis(cut(tiles, self.scales_at(tile_k), np.float16, *shape), 5, 3)
        return {"blocks": self._raw(in_blocks(codes, BLOCK), from_rows(scales, rows, cols // BLOCK))}

    def dequantise(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        codes, numbers = self._fields(source, rows, cols)
        scales, wide = numbers[..., :1].astype(np.float32), codes.astype(np.float32)
        if self.with_min:
            return np.asarray((scales * wide + numbers[..., 1:].astype(np.float32)).reshape(rows, cols))
        return np.asarray((scales * (wide - np.float32(self.less))).reshape(rows, cols))

    def quantise(self, values: np.ndarray) -> Source:
        blocks, most = in_blocks(values.astype(np.float32), BLOCK), (1 << self.bits) - 1
        if self.with_min:
            low = blocks.min(2, keepdims=True)
            scales = (blocks.max(2, keepdims=True) - low) / np.float32(most)
            numbers = np.concatenate([scales, low], 2).astype(np.float16)
            codes = ratio(blocks - numbers[..., 1:].astype(np.float32), numbers[..., :1].astype(np.float32))
        else:
            furthest = np.take_along_axis(blocks, np.abs(blocks).argmax(2)[..., None], 2)
            numbers = (furthest / np.float32(-self.less)).astype(np.float16)
            codes = ratio(blocks, numbers.astype(np.float32)) + self.less
        return {"blocks": self._raw(np.clip(np.rint(codes), 0, most).astype(np.uint8), numbers)}

    def _fields(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> tuple[np.ndarray, np.ndarray]:
        """Codes `[rows, blocks, 32]`, and scales and mins `[rows, blocks, 1 or 2]`."""
        numbers, fifths = 2 * self.numbers, 4 * (self.bits > 4)
        blocks = raw_blocks(source, rows, cols // BLOCK, numbers + fifths + BLOCK // 2)
        both = field(blocks, numbers + fifths, BLOCK // 2)
        codes = np.concatenate([both & 15, both >> 4], 2)
        if fifths:
            codes |= np.unpackbits(field(blocks, numbers, fifths), axis=2, bitorder="little") << 4
        return codes, field(blocks, 0, self.numbers, np.float16)

    def _raw(self, codes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """The inverse of `_fields`: raw blocks."""
        low = codes & 15
        fifths = [np.packbits(codes >> 4, axis=2, bitorder="little")] if self.bits > 4 else []
        return whole_blocks(numbers, *fifths, low[..., : BLOCK // 2] | (low[..., BLOCK // 2 :] << 4))

    # -- one lane on a device ------------------------------------------------------------------------------------------

    @property
    def _code_words(self) -> int:
        """Words of codes that a lane reads of a tile."""
        return self.chunks + (-(-self.chunks // 4) if self.bits > 4 else 0)

    @property
    def scale_chunks(self) -> int:
        return BLOCK // 16

    def code_bytes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int) -> Reg:
        code = low_nibbles(b, words[chunk], half)
        if self.bits > 4:
            add_fifth(b, code, words[self.chunks + chunk // 4], chunk, half, self.tile_k)
        return code

    def scales(self, b: Builder, words: Sequence[Reg], chunk: int) -> tuple[Sequence[Reg], Sequence[Reg]]:
        found = [pair(b, name) for name in ("scale", "min")[: self.numbers]]
        if chunk % 2 == 0:
            for i, both in enumerate(found):
                halves_to_f32(b, *both, words[self._code_words + chunk // 2 * self.numbers + i])
        return found[0], found[1] if self.with_min else ()

    def codes_as_f16(self, b: Builder, words: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]) -> None:
        """Of formats without mins."""
        units = (1024, 64) if self.bits == 4 else (1024,)
        less = [constant(b, f"less_{unit + self.less}", pair_of_f16(-unit - self.less)) for unit in units]
        if self.bits == 4:
            nibbles_to_f16(b, out[0], words[chunk], less)
            return
        for half in (0, 1):
            own = out[0][half::2]
            bytes_to_f16(b, own, self.code_bytes(b, words, chunk, half), apart=True)
            for register in own:
                b.op("add.rn.f16x2", register, register, less[0])

    @property
    def block_pieces(self) -> tuple[Piece, ...]:
        scales = sides(self.scales_at(self.tile_k), 4 * self.numbers, self.tile_k)
        return (*self.pieces[: -self.numbers], *(replace(each, words=self.numbers) for each in scales))

    def byte_fragment(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        if self.bits == 4:
            return nibble_fragment(b, words[chunk : chunk + 2])
        return super().byte_fragment(b, words, chunk)

    def add_blocks(
        self, b: Builder, words: Sequence[Reg], sums: Sequence[Sequence[Reg]], x_sums: Sequence[Reg],
        totals: Sequence[Reg], odd: Reg | None,
    ) -> None:  # fmt: skip
        units = NIBBLE_UNITS if self.bits == 4 else (1.0, 1.0)
        for i, (values, x_sum) in enumerate(zip(sums, x_sums, strict=True)):
            numbers = words[self._code_words + i * self.numbers :]
            if self.with_min:
                factors, mins = (
                    scaled_pair(b, "scale", numbers[0], units),
                    scaled_pair(b, "min", numbers[1], (1.0, 1.0)),
                )
                for value, factor, least, total in zip(values, factors, mins, totals, strict=True):
                    b.op("fma.rn.f32", total, value, factor, total)
                    b.op("fma.rn.f32", total, x_sum, least, total)
                continue
            factors = scaled_pair(b, "scale", numbers[0], (1.0, 1.0))
            for value, factor, unit, total in zip(values, factors, units, totals, strict=True):
                if unit == 1.0 and self.bits > 4:
                    b.op("add.f32", value, value, x_sum)
                else:
                    b.op("fma.rn.f32", value, value, unit, x_sum)
                b.op("fma.rn.f32", total, value, factor, total)


def formats(kind: type[BlocksOf32], name: str) -> tuple[BlocksOf32]:
    """A format in tiles of 128 columns, and in narrower ones."""
    made: list[BlocksOf32] = []
    for tile_k in reversed(TILE_COLUMNS):
        at, size, nbytes = kind.scales_at(tile_k), kind.numbers, 4 * tile_k // BLOCK
        fifths = fifth_pieces(kind.fifths_at(tile_k), tile_k) if kind.bits > 4 else ()
        scales = (Piece(at + nbytes * i, nbytes * size, "row", tile_k // BLOCK) for i in range(size))
        pieces = (*nibble_pieces(tile_k), *fifths, *scales)
        made.insert(0, kind(name, tile_k, at + size * tile_k, pieces, block_cols=BLOCK, narrow=tuple(made)))
    return (made[0],)
