"""What every weight format has: packing as data and in NumPy, and how one lane reads it on a device.

A matrix `[rows = outputs, cols = inputs]` is packed as an array of equal *records*, one for 16 rows: tiles of 16 rows
by `tile_k` columns one after the other, then a trailer (scales that belong to more than a tile), each a multiple of 16
bytes. So matrices of one format and width are stacked by joining their records. Where tiles of the usual width would
leave more than 2 % of the columns empty, all tiles of the matrix are narrower (`WeightFormat.fitted`).

Within a tile lane 4g + t of a warp (g = 0 … 7, t = 0 … 3) owns rows g and g + 8, at columns 16c + 4t … 16c + 4t + 3 of
every *chunk* c of 16 columns: the A fragment of `mma.m16n8k16` (and k32 for bytes) in an order of k that makes four
neighbours of one lane, so that it needs four neighbours of x. Rows and columns past the matrix are packed as zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from ptxgen import rules
from ptxgen.weights.bits import bytes_to_bf16, bytes_to_f32, constant, fragment, pair_of_bf16

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg

TILE_ROWS = 16
CHUNK = 16  # columns of a chunk
OWN = 4  # neighbouring columns of a chunk that one lane owns
MOST = 1 << 24  # rows and columns
Source = dict[str, np.ndarray]


@dataclass(frozen=True)
class Piece:
    """Consecutive 32-bit words that a lane reads of every tile.

    They begin at `offset` from the tile (`in_trailer`: from the trailer) plus `stride` bytes for each lane ("lane"),
    each g ("row"), each 4g + t div 2 ("side"), each of these, and 2 more where t is odd ("own"), or each 2g + t div 2
    ("pair"); tiles further on begin `step` bytes later (None: the tile's size).
    `half`: the one word is half a word in memory.
    """

    offset: int
    stride: int
    by: str = "lane"
    words: int = 4
    in_trailer: bool = False
    step: int | None = None
    half: bool = False


class ZeroPoints(NamedTuple):
    """Of 32 columns each: weight = d · (scale · code − zero) + offset, with the zero near min · dmin / d, or 32 · min
    where that is less.

    Of the lane's own columns, pairs of f16 for rows g and g + 8 in units of codes: `zeros`, negated, and `mins`. Of
    each row `d`, `dmin`, and the unit of offsets; `zero_units` overwrites `d` and `units`."""

    zeros: Sequence[Reg]
    mins: Sequence[Reg]
    d: Sequence[Reg]
    dmin: Sequence[Reg]
    units: Sequence[Reg]


@dataclass(frozen=True)
class WeightFormat(ABC):
    """One format: `name`, columns and bytes of a tile, and what a lane reads of a tile."""

    name: str
    tile_k: int
    tile_bytes: int
    pieces: tuple[Piece, ...]
    block_cols: int = 1  # the format itself needs a multiple of so many columns
    narrow: tuple[WeightFormat, ...] = ()  # the same format in narrower tiles, the widest first

    # -- shapes --------------------------------------------------------------------------------------------------------

    def rules(self, rows: int, cols: int) -> Iterator[str]:
        """Reasons why a matrix of this shape cannot be had."""
        yield from rules.between("rows", rows, 1, MOST)
        yield from rules.multiple_of("cols", cols, self.block_cols, self.block_cols, MOST)

    def fitted(self, cols: int) -> WeightFormat:
        """The format in the tiles that a matrix of so many columns has: its own, or where they would be empty by more
        than 2 %, the widest of `narrow` of which `cols` is a multiple."""
        if 100 * self.tile_k * -(-cols // self.tile_k) <= 102 * cols:
            return self
        return next((each for each in self.narrow if cols % each.tile_k == 0), self)

    def tiles(self, cols: int) -> int:
        """Tiles of a record."""
        return -(-cols // self.fitted(cols).tile_k)

    def trailer_bytes(self, cols: int) -> int:
        """Bytes of a record after its tiles."""
        return 0

    def record_bytes(self, cols: int) -> int:
        """Bytes of 16 rows."""
        return self.tiles(cols) * self.fitted(cols).tile_bytes + self.trailer_bytes(cols)

    def records(self, rows: int) -> int:
        """Records of a matrix."""
        return -(-rows // TILE_ROWS)

    def nbytes(self, rows: int, cols: int) -> int:
        """Exact size of the packed matrix, padding included."""
        return self.records(rows) * self.record_bytes(cols)

    def check(self, rows: int, cols: int) -> None:
        """Raise `SpecError` with every reason against a shape."""
        from ptxgen.errors import SpecError

        if reasons := list(self.rules(rows, cols)):
            raise SpecError("\n".join(f"{self.name} weights: {reason}" for reason in reasons))

    # -- NumPy ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def pack(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        """The device's bytes, uint8 `[nbytes]`, of the file's own arrays."""

    @abstractmethod
    def unpack(self, packed: np.ndarray, rows: int, cols: int) -> Source:
        """The file's own arrays again, exactly; of Q4_K and Q5_K a block's d whose scales are all 0, and its dmin whose
        mins are, are 0."""

    @abstractmethod
    def dequantise(self, source: Mapping[str, np.ndarray], rows: int, cols: int) -> np.ndarray:
        """float32 `[rows, cols]`."""

    @abstractmethod
    def quantise(self, values: np.ndarray) -> Source:
        """The file's arrays for float32 `[rows, cols]`, each value rounded to the nearest that its block has."""

    def values(self, packed: np.ndarray, rows: int, cols: int) -> np.ndarray:
        """float32 `[rows, cols]` of a packed matrix."""
        return self.dequantise(self.unpack(packed, rows, cols), rows, cols)

    # -- one lane on a device ------------------------------------------------------------------------------------------

    @property
    def chunks(self) -> int:
        """Chunks of a tile."""
        return self.tile_k // CHUNK

    @property
    def words(self) -> int:
        """32-bit words that a lane reads of a tile."""
        return sum(piece.words for piece in self.pieces)

    @property
    def scale_chunks(self) -> int:
        """Chunks that share a scale; where there is none, those of a tile."""
        return self.chunks

    @abstractmethod
    def codes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int, out: Sequence[Reg]) -> None:
        """The four f32 codes that a lane owns of a chunk, in row g (`half` 0) or g + 8 (1)."""

    def fragments(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Sequence[Reg]]:
        """The codes of a chunk as A fragments of `mma.m16n8k16` in bf16, whose sum they are; () without such codes.

        The order of k within the chunk is that of the lanes: columns 4t, 4t + 1 in the first two registers, 4t + 2,
        4t + 3 in the other two.
        """
        return ()

    def scales(self, b: Builder, words: Sequence[Reg], chunk: int) -> tuple[Sequence[Reg], Sequence[Reg]]:
        """Factors of the codes of rows g and g + 8 in a chunk, and what is subtracted after; () where there is none.

        Called for chunk 0, 1, … in order. The registers stay until the scales change.
        """
        return (), ()

    def weights(self, b: Builder, words: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]) -> None:
        """The f32 weights that a lane owns of a chunk: `out[half][j]` is row g + 8·half, column 16·chunk + 4t + j."""
        factors, less = self.scales(b, words, chunk)
        for half, values in enumerate(out):
            self.codes(b, words, chunk, half, values)
            for value in values:
                if less:
                    b.op("fma.rn.f32", value, value, factors[half], less[half])
                elif factors:
                    b.op("mul.f32", value, value, factors[half])

    # -- one lane, where columns of N are blocks of x: `ptxgen.products.mainloop.columns` ------------------------------

    byte_type: ClassVar[str] = ""  # "u8" or "s8", where codes are bytes: what `byte_fragment` has
    x_sums_each: ClassVar[bool] = True  # whether `add_blocks` gets a sum of x for every block
    x_sum_factor: ClassVar[float] = 0.0  # of the sums of x that `add_blocks` gets; 0: it needs none

    @property
    def x_block(self) -> int:
        """Columns of a block: a lane has the sums of four neighbouring blocks of a tile, its own being block t."""
        return CHUNK if self.tile_k == 4 * CHUNK and not self.byte_type else 2 * CHUNK

    @property
    def block_pieces(self) -> tuple[Piece, ...]:
        """What a lane reads of a tile: codes as in `pieces`, of the scales only those of its blocks."""
        return self.pieces

    def halves(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        """The codes of a chunk as an A fragment in f16: numbers that `add_blocks` knows the unit of."""
        raise NotImplementedError(self.name)

    def byte_fragment(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        """The codes of this chunk and the next as an A fragment in bytes: numbers that `add_blocks` knows the unit
        of."""
        raise NotImplementedError(self.name)

    def add_blocks(
        self, b: Builder, words: Sequence[Reg], sums: Sequence[Sequence[Reg]], x_sums: Sequence[Reg],
        totals: Sequence[Reg], odd: Reg | None,
    ) -> None:  # fmt: skip
        """To the totals of rows g and g + 8, what a tile adds: `sums[i]` are the two sums of the products of `halves`
        with x in block 4i + t, of `byte_fragment` in block 2i + t div 2. `x_sums` are those of x there times
        `x_sum_factor`, of bytes for even t, for odd t zeros; without `x_sums_each`, of two blocks i that of the first
        for even, of the second for odd t. `odd` is 1 for odd t; it is there where `block_pieces` are counted by
        "own". The sums may be overwritten."""
        raise NotImplementedError(self.name)

    # -- one lane, where tokens are bytes and columns of N tokens: `ptxgen.products.digits_s8` -------------------------

    span: ClassVar[int] = 0  # columns of a scale, 16 or 32, where scales are integers and tiles have 256 columns

    @property
    def span_pieces(self) -> tuple[Piece, ...]:
        """What a lane reads of a tile: of what `offset_fragment` takes only that."""
        return self.pieces

    def span_factors(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        """The integer scales of rows g and g + 8 in the span that begins with a chunk, s32 of 8 bits. Called in
        order."""
        raise NotImplementedError(self.name)

    def offset_fragment(self, b: Builder, words: Sequence[Reg]) -> Sequence[Reg]:
        """What a sum of x over a chunk is multiplied with, beside the codes: an A fragment of `mma.m16n8k16` in bf16,
        whose columns 2t, 2t + 1, 2t + 8 and 2t + 9 are chunks t, 8 + t, 4 + t and 12 + t."""
        raise NotImplementedError(self.name)

    def tile_factors(self, b: Builder, words: Sequence[Reg]) -> tuple[Sequence[Reg], Sequence[Reg]]:
        """The units, of rows g and g + 8, of the products of `byte_fragment` times `span_factors`, and of those of
        `offset_fragment`."""
        raise NotImplementedError(self.name)

    # -- one lane, where tokens are bf16 numbers and columns of N tokens: `ptxgen.products.digits_bf16` ----------------

    @property
    def few_pieces(self) -> tuple[Piece, ...]:
        """What a lane reads of a tile that has spans; of mins what `offset_fragment` takes."""
        return self.span_pieces if self.has_mins else self.pieces

    def span_scales(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        """`span_factors` as f32, exactly."""
        raise NotImplementedError(self.name)

    def tile_scales(self, b: Builder, words: Sequence[Reg]) -> tuple[Sequence[Reg], Sequence[Reg]]:
        """What sums of codes times `span_scales` are multiplied with in rows g and g + 8, and those of
        `offset_fragment`, () where there are no mins."""
        raise NotImplementedError(self.name)

    # -- one lane, where tokens are f16 in units of their rows: `ptxgen.products.wgmma.mainloop.codes` --------------

    # f16 numbers that add up to a code times its integer scale, or to a code where that has none; 0: unknown
    code_digits: ClassVar[int] = 0
    has_mins: ClassVar[bool] = False  # whether every 32 columns have an integer that is subtracted

    @property
    def code_pieces(self) -> tuple[Piece, ...]:
        """What a lane reads of a tile."""
        return self.pieces

    @property
    def code_chunks(self) -> int:
        """Chunks whose products of `codes_as_f16` have one unit."""
        return self.chunks if self.span else self.scale_chunks

    def codes_as_f16(self, b: Builder, words: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]) -> None:
        """The codes of a chunk, times their integer scales where they have such, as A fragments of `mma.m16n8k16` in
        f16, whose sum they are; with fewer than `code_digits` rounded. Columns 2t and 2t + 1 are columns 4t and
        4t + 2 of the chunk, 2t + 8 and 2t + 9 those after them; called in order."""
        raise NotImplementedError(self.name)

    def mins_as_f16(self, b: Builder, words: Sequence[Reg]) -> Sequence[Reg]:
        """The mins as such a fragment, whose columns 2t and 2t + 1 are those of 32 columns t and 4 + t, as columns
        2t + 8 and 2t + 9 are."""
        raise NotImplementedError(self.name)

    def code_units(self, b: Builder, words: Sequence[Reg], chunk: int) -> tuple[Sequence[Reg], Sequence[Reg]]:
        """What products of `codes_as_f16` of the `code_chunks` from a chunk on are multiplied with in rows g and g + 8,
        and those of `mins_as_f16`, () where there are no mins."""
        return self.scales(b, words, chunk)

    def zero_points(self, b: Builder, words: Sequence[Reg], name: str) -> ZeroPoints:
        """The zero points of a tile, of formats with mins; `name`: of registers that hold until its products are
        done."""
        raise NotImplementedError(self.name)

    def zero_offsets(self, b: Builder, points: ZeroPoints, half: int) -> Sequence[Sequence[Reg]]:
        """Two fragments like `mins_as_f16`, whose sum are the offsets, to 22 bits or 2^-33 of the larger of d and dmin;
        of rows g (`half` 0), then of rows g + 8."""
        raise NotImplementedError(self.name)

    def zero_units(self, b: Builder, points: ZeroPoints) -> tuple[Sequence[Reg], Sequence[Reg]]:
        """`code_units` of `codes_less_zeros` and of `zero_offsets`, in the registers of `points.d` and `points.units`:
        nothing may ask for these points afterwards."""
        raise NotImplementedError(self.name)

    def codes_less_zeros(
        self, b: Builder, words: Sequence[Reg], zeros: Sequence[Reg], chunk: int, out: Sequence[Sequence[Reg]]
    ) -> None:
        """`codes_as_f16` of codes less their zero points."""
        raise NotImplementedError(self.name)


class ByteCodes(WeightFormat):
    """A format whose codes are small unsigned integers, less a number."""

    less: ClassVar[int] = 0

    @abstractmethod
    def code_bytes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int) -> Reg:
        """The four codes that a lane owns of a chunk as bytes, below 128."""

    def codes(self, b: Builder, words: Sequence[Reg], chunk: int, half: int, out: Sequence[Reg]) -> None:
        bytes_to_f32(b, out, self.code_bytes(b, words, chunk, half), float(self.less))

    def byte_fragment(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
        out = fragment(b)
        for i, register in enumerate(out):
            b.op("mov.b32", register, self.code_bytes(b, words, chunk + i // 2, i % 2))
        return out

    def fragments(self, b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Sequence[Reg]]:
        out = fragment(b)
        less = constant(b, f"less_{128 + self.less}", pair_of_bf16(-128 - self.less))
        for half in (0, 1):
            bytes_to_bf16(b, out[half::2], self.code_bytes(b, words, chunk, half), less)
        return (out,)
