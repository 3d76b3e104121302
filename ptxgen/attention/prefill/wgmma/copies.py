"""Copies of rows into swizzled shared memory, 16 bytes at a time."""

from __future__ import annotations

from ptxgen.attention.prefill.copies import Place, RowCopy, Spread
from ptxgen.attention.prefill.sources import Source
from ptxgen.attention.prefill.wgmma.tile import CHUNK, LANES, SWIZZLED_ROW
from ptxgen.builder import Builder
from ptxgen.builder.values import Addr, Reg
from ptxgen.dtypes import DType
from ptxgen.idioms.convert import scratch


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
        self.has = other.has

    def place(self, to: Place, row_pass: int, column: int) -> Addr:
        """A pass over rows skips a multiple of 8, so the swizzle stays; a pass over columns skips all rows."""
        s = self.spread
        return to[0][to[1] + (row_pass * s.rows_per_pass + column * s.rows) * SWIZZLED_ROW]


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
