"""Copies of rows into swizzled shared memory, 16 bytes at a time."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.attention.prefill.copies import Place, RowCopy, Spread
from ptxgen.attention.prefill.sources import Source
from ptxgen.attention.prefill.wgmma.producer.widening import scaled, widen
from ptxgen.attention.prefill.wgmma.tile import CHUNK, LANES, SWIZZLED_ROW
from ptxgen.builder import Builder
from ptxgen.builder.values import Addr, Reg
from ptxgen.dtypes import DType
from ptxgen.idioms.convert import scratch, store_words


class SwizzledCopy(RowCopy):
    """`rows` rows by `threads` threads; a thread takes the same place in every swizzled row that it visits."""

    def __init__(
        self, b: Builder, name: str, dim: int, rows: int, threads: int, dtype: DType, source: DType | None = None
    ) -> None:
        super().__init__(b, name, dim, rows, threads, source or dtype, dtype)
        self.elements = CHUNK // dtype.bytes
        self.spread = Spread(dim // self.elements, rows, threads, LANES)

    def offset(self, name: str, row: Reg, chunk: Reg) -> Reg:
        """Chunk c of row r lies at c ^ (r % 8)."""
        b = self.b
        out: Reg = b.op("and.b32", scratch(b, name, "u32"), row, LANES - 1)
        b.op("xor.b32", out, out, chunk)
        b.op("shl.b32", out, out, 4)
        b.op("mad.lo.u32", out, row, SWIZZLED_ROW, out)
        return out

    def take(self, other: SwizzledCopy) -> None:
        """The same threads in the same places as another copy that has been aimed."""
        assert self.spread.spare_rows == other.spread.spare_rows, "their last passes have the same threads"
        self.has = other.has

    def place(self, to: Place, row_pass: int, column: int) -> Addr:
        """A pass over rows skips a multiple of 8, so the swizzle stays; a pass over columns skips all rows."""
        s = self.spread
        return to[0][to[1] + (row_pass * s.rows_per_pass + column * s.rows) * SWIZZLED_ROW]

    def convert(
        self, words: Sequence[Reg], to: Sequence[Addr], pred: Reg | None, scale: Reg | None, signs: Reg | None
    ) -> None:
        """A chunk's words of 8-bit values, as those of the target's type, to shared memory: equal parts to its places.

        `scale` (f16) multiplies int8 values, and the bits of `signs` turn those of e4m3; the words do not stay.
        """
        b, words = self.b, self.widened(words, scale, signs)
        each = len(words) // len(to)
        for n, place in enumerate(to):
            assert isinstance(place.base, Reg)
            store_words(b, place.base, words[n * each : (n + 1) * each], place.offset, space="shared", pred=pred)

    def widened(self, words: Sequence[Reg], scale: Reg | None, signs: Reg | None) -> Sequence[Reg]:
        """The same in scratch registers, or where they are."""
        b = self.b
        for word in words if signs is not None else ():
            b.op("xor.b32", word, word, signs)
        if self.source == self.target:
            return words
        packed = [scratch(b, f"packed{i}", "b32") for i in range(2 * len(words))]
        if scale is None:
            widen(b, packed, words, self.target)
        else:
            scaled(b, packed, words, scale, self.target)
        return packed


class PairedCopy(SwizzledCopy):
    """Of rows of bytes that become 16-bit values: a thread's 16 bytes become two chunks, side by side.

    Four threads take a swizzled row and four others the next one, so that eight that store together meet all banks.
    """

    def __init__(self, b: Builder, name: str, dim: int, rows: int, threads: int, dtype: DType, source: DType) -> None:
        super().__init__(b, name, dim, rows, threads, dtype, source)
        self.elements = CHUNK // source.bytes
        self.spread = Spread(dim // self.elements, rows, threads, LANES // 2)

    def offset(self, name: str, row: Reg, chunk: Reg) -> Reg:
        """That of the first of the two; the other's is this one with CHUNK turned."""
        b = self.b
        first = b.op("shl.b32", scratch(b, f"{name}_chunk", "u32"), chunk, 1)
        return super().offset(name, row, first)


class HalvedCopy(SwizzledCopy):
    """Of rows of at most 64 bytes: a thread has half a chunk, so that all lanes have some of a row."""

    def __init__(self, b: Builder, name: str, dim: int, rows: int, threads: int, dtype: DType) -> None:
        super().__init__(b, name, dim, rows, threads, dtype)
        self.elements = CHUNK // 2 // dtype.bytes
        self.spread = Spread(dim // self.elements, rows, threads, LANES)

    def offset(self, name: str, row: Reg, chunk: Reg) -> Reg:
        """That of the chunk, and its second half's."""
        b = self.b
        whole = b.op("shr.u32", scratch(b, f"{name}_chunk", "u32"), chunk, 1)
        out = super().offset(name, row, whole)
        half = b.op("and.b32", whole, chunk, 1)
        b.op("mad.lo.u32", out, half, CHUNK // 2, out)
        return out


def copy_rows(copy: SwizzledCopy, source: Source, x: str, to: Place) -> None:
    """Rows of K or V; those from kv_len on become zeros; part of an open fragment."""
    b = copy.b
    size = scratch(b, "copy_bytes", "u32")
    for i in range(copy.spread.row_passes):
        exists = source.exists(i)
        b.op("selp.b32", size, 16, 0, exists)
        source.row(i, exists)
        for column, takes_part in copy.passes(i):
            copy.copy_async(copy.place(to, i, column), source.chunk_at(x, i, column), size, takes_part)
