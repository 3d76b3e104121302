"""How tensor cores multiply a tile with one token: its digits, or blocks of them, stand on columns of N."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import over_lanes
from ptxgen.products.tokens.digits import (
    DIGIT_BYTES,
    DIGITS,
    FACTOR_BYTES,
    MAGIC_BITS,
    QUAD,
    UNIT,
    Blocks,
    Digits,
    Integers,
    unit_of,
)
from ptxgen.weights.format import CHUNK

if TYPE_CHECKING:
    from ptxgen.products.mainloop.reader import Place
    from ptxgen.weights.format import Piece, WeightFormat

MMA_BF16 = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
MMA_F16 = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
MMA_S8 = "mma.sync.aligned.m16n8k32.row.col.s32.{}.s8.s32"
FEW_WORDS = 24  # that a lane reads of a tile; with more, registers are short
BLOCKS = 4  # whose sums an accumulator has, each in a lane of a quad


class Columns(ABC):
    """What a warp does with a tile; `totals` are the lane's of rows g and g + 8, to be added up over a quad."""

    totals: Sequence[Reg]
    x_bases: tuple[Reg, ...]  # addresses in shared memory of the lane's x in tile 0 …
    x_steps: tuple[int, ...]  # … and their step from tile to tile

    def __init__(self, b: Builder, kind: WeightFormat) -> None:
        self.b, self.kind = b, kind

    @staticmethod
    def takes(kind: WeightFormat) -> bool:
        """Whether tiles are wide enough."""
        return True

    @property
    def pieces(self) -> Sequence[Piece]:
        """What a lane reads of a tile."""
        return self.kind.pieces

    @abstractmethod
    def begin(self, place: Place, quad: Reg, digits: Digits | None) -> None:
        """Where the lane finds x; `digits` says where it lies, unless the columns know."""

    @abstractmethod
    def multiply(self, words: Sequence[Reg], at: Sequence[Reg]) -> None:
        """A tile times x, whose addresses are `at`, into the totals."""

    def clear(self) -> None:
        """Set every total to 0."""
        convert.clear(self.b, self.totals)

    def publish(self, to: Reg, quad: Reg) -> None:
        """The totals of the warp to 16 f32; `to` is where row g is there."""
        b = self.b
        over_lanes(b, "add.f32", self.totals, (1, 2))
        for half, total in enumerate(self.totals):
            b.op("st.shared.f32", to[4 * 8 * half], total, pred=self.is_writer)

    def find_writer(self, quad: Reg) -> None:
        """One lane of a quad writes."""
        self.is_writer = self.b.op("setp.eq.u32", "is_writer", quad, 0)


class DigitColumns(Columns):
    """Three bf16 digits on three columns of N."""

    def begin(self, place: Place, quad: Reg, digits: Digits | None) -> None:
        assert digits is not None
        b = self.b
        base = b.op("mov.u32", "x_base", digits.vector)
        b.op("mad.lo.u32", base, place.row, DIGIT_BYTES, base)
        b.op("mad.lo.u32", base, quad, DIGIT_BYTES // 4, base)
        self.x_bases, self.x_steps = (base,), (DIGITS * DIGIT_BYTES * self.kind.chunks,)
        self.digit, self.has_digit = b.array("x_digit", "b32", 2), b.op("setp.lt.u32", "has_digit", place.row, DIGITS)
        convert.clear(b, self.digit)
        self.products, self.totals = b.array("product", "f32", 4), b.array("sum", "f32", 2).regs
        self.zero = b.op("mov.f32", "zero_sum", 0.0)
        self.find_writer(quad)

    def multiply(self, words: Sequence[Reg], at: Sequence[Reg]) -> None:
        b = self.b
        for chunk in range(self.kind.chunks):
            offset = DIGITS * DIGIT_BYTES * chunk
            b.note(f"columns {CHUNK * chunk} to {CHUNK * (chunk + 1) - 1} of the tile", after=convert.RUN)
            convert.load_words(b, self.digit, at[0], offset, space="shared", pred=self.has_digit)
            (a,) = self.kind.fragments(b, words, chunk)
            sums = self.products.regs if chunk else (self.zero,) * 4
            b.op(MMA_BF16, self.products, tuple(a), self.digit, sums)
        for half, total in enumerate(self.totals):
            for product in self.products[2 * half : 2 * half + 2]:
                b.op("add.f32", total, total, product)


class BlockColumns(Columns):
    """Two f16 digits of the four blocks of a tile on eight columns of N: of a block's chunks only its two columns are
    not zero, so that lane t has the sums of block t, and only that factor to apply."""

    @staticmethod
    def takes(kind: WeightFormat) -> bool:
        return kind.tile_k == BLOCKS * kind.x_block

    @property
    def pieces(self) -> Sequence[Piece]:
        return self.kind.block_pieces

    def begin(self, place: Place, quad: Reg, digits: Digits | None) -> None:
        assert isinstance(digits, Blocks)
        b, kind, self.odd = self.b, self.kind, place.odd
        self.words = kind.x_block // 8  # of a digit of a block that a lane loads
        base = b.op("mov.u32", "x_base", digits.vector)
        factors = b.op("add.u32", "factors_base", base, digits.factors_at)
        b.op("mad.lo.u32", base, place.lane, 4 * self.words, base)
        b.op("mad.lo.u32", factors, quad, FACTOR_BYTES, factors)
        self.x_bases = (base, factors)
        self.x_steps = (4 * kind.tile_k, BLOCKS * FACTOR_BYTES)
        own = b.op("shr.u32", "own_block", place.row, 1)
        self.owns = b.array("owns_block", "pred", BLOCKS)
        self.digit = b.array("x_digit", "b32", BLOCKS * self.words)
        for i, owns in enumerate(self.owns):
            b.op("setp.eq.u32", owns, own, i)
        convert.clear(b, self.digit)
        self.products = b.array("product", "f32", 4)
        self.factor = b.reg("x_factor", "f32")
        self.totals = b.array("sum", "f32", 2).regs
        self.zero = b.op("mov.f32", "zero_sum", 0.0)
        self.find_writer(quad)

    def multiply(self, words: Sequence[Reg], at: Sequence[Reg]) -> None:
        b, kind = self.b, self.kind
        b.op("ld.shared.f32", self.factor, at[1][0])
        sums: Sequence[Reg] = (self.zero,) * 4
        for block, owns in enumerate(self.owns):
            digit = self.digit[self.words * block : self.words * (block + 1)]
            convert.load_words(b, digit, at[0], 0, space="shared", pred=owns)
            for i in range(0, self.words, 2):
                a = kind.halves(b, words, (self.words * block + i) // 2)
                b.op(MMA_F16, tuple(self.products), tuple(a), tuple(digit[i : i + 2]), tuple(sums))
                sums = self.products.regs
        values = [self._sum(half) for half in (0, 1)]
        kind.add_blocks(b, words, [values], (), self.totals, self.odd)

    def _sum(self, half: int) -> Reg:
        """Both digits' products of row g or g + 8, added up, times the power of two."""
        b, (value, other) = self.b, self.products[2 * half : 2 * half + 2]
        b.op("add.f32", value, value, other)
        b.op("mul.f32", value, value, self.factor)
        return value


class IntegerColumns(Columns):
    """Three s8 digits of two neighbouring blocks on eight columns of N: four a block, the last of them 0.

    Lanes t = 0, 1 of a quad have the sums of the first block, 2, 3 of the second; even ones of the two larger digits.
    """

    @staticmethod
    def takes(kind: WeightFormat) -> bool:
        return kind.tile_k % UNIT == 0 or kind.tile_k == 2 * kind.x_block

    @property
    def pieces(self) -> Sequence[Piece]:
        return self.kind.block_pieces

    def begin(self, place: Place, quad: Reg, digits: Digits | None) -> None:
        assert isinstance(digits, Integers)
        b, kind, self.odd = self.b, self.kind, place.odd
        self.factor_bytes = digits.factor_bytes
        unit = unit_of(kind)
        self.unit_groups, self.units = unit // kind.x_block // 2, kind.tile_k // unit
        self.unit_bytes, lane_bytes = DIGITS * unit, unit // 2 // QUAD
        self.words = lane_bytes // 4  # of a digit of a parity that a lane loads
        self.crowded = sum(piece.words for piece in self.pieces) > FEW_WORDS
        base = b.op("mov.u32", "x_base", digits.vector)
        factors = b.op("add.u32", "factors_base", base, digits.factors_at)
        b.op("mad.lo.u32", factors, quad, self.factor_bytes, factors)
        parity, digit = b.op("shr.u32", "own_parity", place.row, 2), b.op("and.b32", "own_digit", place.row, 3)
        b.op("mad.lo.u32", base, parity, self.unit_bytes // 2, base)
        b.op("mad.lo.u32", base, digit, QUAD * lane_bytes, base)
        b.op("mad.lo.u32", base, quad, lane_bytes, base)
        self.x_bases = (base, factors)
        self.x_steps = (self.units * self.unit_bytes, self.units * QUAD * self.factor_bytes)
        has_digit = b.op("setp.lt.u32", "has_digit", digit, DIGITS)
        self.owns = b.array("owns_parity", "pred", 2)
        self.digit = b.array("x_digit", "b32", 2 * self.words)
        for i, owns in enumerate(self.owns):
            b.op("setp.eq.and.u32", owns, parity, i, has_digit)
        convert.clear(b, self.digit)
        self.magic = b.op("mov.u32", "magic_bits", MAGIC_BITS)
        self.parts = b.array("digit_sum", "f32", 2)
        self.products = b.array("product", "s32", 4)
        self.values = b.array("block_sum_", "f32", 2 * self.unit_groups * self.units)
        sums = 0 if not kind.x_sum_factor else self.unit_groups if kind.x_sums_each else 1
        self.per_unit = self.unit_groups + sums
        self.factors = b.array("x_factor", "f32", self.units * self.per_unit)
        self.totals = b.array("sum", "f32", 2).regs
        self.find_writer(quad)

    def multiply(self, words: Sequence[Reg], at: Sequence[Reg]) -> None:
        b, kind, groups = self.b, self.kind, self.unit_groups
        per_unit = self.per_unit
        sums: list[Sequence[Reg]] = []
        x_sums: list[Reg] = []
        for unit in range(self.units):
            if unit and self.crowded:
                b.note("keeps this half of the tile from being begun earlier, for want of registers")
                b.op("bar.warp.sync", -1)
            own = self.factors[per_unit * unit : per_unit * (unit + 1)]
            x_sums += own[groups:]
            for i, owns in enumerate(self.owns):
                digit = self.digit[self.words * i : self.words * (i + 1)]
                convert.load_words(b, digit, at[0], self.unit_bytes * unit, space="shared", pred=owns)
            convert.load_words(b, own, at[1], QUAD * self.factor_bytes * unit, space="shared")
            for group in range(groups):
                self._multiply_group(words, unit, group)
                index = 2 * (groups * unit + group)
                values = self.values[index : index + 2]
                self._sum_digits(values, own[group])
                sums.append(values)
        b.note("every block's sum times its scale", after=convert.RUN)
        kind.add_blocks(b, words, sums, x_sums, self.totals, self.odd)

    def _multiply_group(self, words: Sequence[Reg], unit: int, group: int) -> None:
        """Two blocks; blocks of 32 columns one after the other, blocks of 16 as the halves of a fragment."""
        b, kind, x = self.b, self.kind, self.digit
        chunk = (unit_of(kind) * unit + 2 * kind.x_block * group) // 16
        sums: Sequence[Reg] = (self.magic,) * 4
        fragments: list[tuple[int, Sequence[Reg]]]
        if kind.x_block == 16:
            fragments = [(chunk, (x[group], x[self.words + group]))]
        else:
            starts = [self.words * p + 2 * group for p in (0, 1)]
            fragments = [(chunk + 2 * p, x[first : first + 2]) for p, first in enumerate(starts)]
        for first, digits in fragments:
            b.note(f"columns from {CHUNK * first} of the tile", after=convert.RUN)
            a = kind.byte_fragment(b, words, first)
            b.op(MMA_S8.format(kind.byte_type), tuple(self.products), tuple(a), tuple(digits), tuple(sums))
            sums = self.products.regs

    def _sum_digits(self, values: Sequence[Reg], factor: Reg) -> None:
        """Both digits' sums of rows g and g + 8: they are integers in the low bits of a float, which takes them out at
        the full rate, where a conversion runs at a quarter of it."""
        b = self.b
        for half, value in enumerate(values):
            for part, product in zip(self.parts, self.products[2 * half : 2 * half + 2], strict=True):
                b.op("mov.b32", part, product)
                b.op("sub.f32", part, part, convert.ROUNDS)
            b.op("fma.rn.f32", value, self.parts[0], 256.0, self.parts[1])
            b.op("mul.f32", value, value, factor)


def columns_of(kind: WeightFormat) -> type[Columns]:
    """What multiplies a format; `digits_of` says how x is prepared for it."""
    if kind.name == "bf16":
        return DigitColumns
    return IntegerColumns if kind.byte_type else BlockColumns
