"""Rows from global to shared memory by all threads of a CTA: as they are with cp.async, or converted on the way.

A thread takes chunks of 16 bytes or 8 elements, the same columns of every row it visits. Rows that do not exist arrive
as zeros, so that whatever lies there (NaN) meets no arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ptxgen.builder import Builder
from ptxgen.builder.values import Addr, Reg
from ptxgen.dtypes import DType, f32
from ptxgen.idioms import convert
from ptxgen.idioms.convert import scratch

Place = tuple[Reg, int]  # an address in shared memory: a register and a constant


def pitch(nbytes: int) -> int:
    """Bytes from row to row in shared memory: an odd number of 16-byte units.

    Eight rows at the same column then lie in eight different bank groups, so ldmatrix and 16-byte accesses down a
    column are free of conflicts for every dim, and every address is a lane's base plus a constant (an XOR swizzle
    needs rows of a power of two and a register per column).
    """
    return 16 * (-(-nbytes // 16) | 1)


@dataclass(frozen=True)
class Spread:
    """`rows` rows of `chunks` chunks over `threads` threads; `lanes` threads side by side on a row."""

    chunks: int
    rows: int
    threads: int
    lanes: int

    @classmethod
    def best(cls, chunks: int, rows: int, threads: int) -> Spread:
        """The longest run of a row, for whole sectors of global memory, that costs at most a seventh more passes."""
        widest = min(threads, 1 << (chunks - 1).bit_length())
        lanes = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n <= widest and (n >= 4 or n == widest)]
        made = [cls(chunks, rows, threads, n) for n in lanes]
        fewest = min(s.row_passes * s.column_passes for s in made)
        return max((s for s in made if s.row_passes * s.column_passes <= fewest * 8 / 7), key=lambda s: s.lanes)

    @property
    def rows_per_pass(self) -> int:
        """Rows that the CTA visits at once."""
        return self.threads // self.lanes

    @property
    def row_passes(self) -> int:
        """Visits until all rows are done."""
        return -(-self.rows // self.rows_per_pass)

    @property
    def column_passes(self) -> int:
        """Chunks that a thread takes of a row."""
        return -(-self.chunks // self.lanes)

    @property
    def spare_rows(self) -> bool:
        """Whether the last pass over rows has threads beyond the last row."""
        return self.rows % self.rows_per_pass != 0

    @property
    def spare_lanes(self) -> bool:
        """Whether the last pass over columns has threads beyond the last chunk."""
        return self.chunks % self.lanes != 0


@dataclass
class Last:
    """Predicates of the last passes: that the thread's chunk exists, its row, or both; None where all do."""

    chunk: Reg | None = None
    row: Reg | None = None
    both: Reg | None = None


class RowCopy:
    """Copies of `rows` rows of `dim` elements of type `source` into rows of type `target` in shared memory.

    Its registers start with `name`.
    """

    def __init__(self, b: Builder, name: str, dim: int, rows: int, threads: int, source: DType, target: DType) -> None:
        self.b, self.name, self.source, self.target = b, name, source, target
        self.elements = 4 if source == target == f32 else 8
        self.spread = Spread.best(dim // self.elements, rows, threads)
        self.pitch = pitch(dim * target.bytes)
        self.has = Last()

    @property
    def direct(self) -> bool:
        """Whether cp.async can do it: equal types, and a target that has it."""
        return self.source == self.target and self.b.target.includes_any(("sm_80",))

    @property
    def source_bytes(self) -> int:
        """Bytes of a chunk in global memory."""
        return self.elements * self.source.bytes

    @property
    def target_bytes(self) -> int:
        """Bytes of a chunk in shared memory."""
        return self.elements * self.target.bytes

    def aim(self, thread: Reg) -> tuple[Reg, Reg]:
        """This thread's first row and first chunk; also the predicates of its last passes."""
        b, s, name = self.b, self.spread, self.name
        row = b.op("shr.u32", scratch(b, f"{name}_row", "s32"), thread, s.lanes.bit_length() - 1)
        chunk = b.op("and.b32", scratch(b, f"{name}_chunk", "u32"), thread, s.lanes - 1)
        if s.spare_lanes:
            last = s.chunks - (s.column_passes - 1) * s.lanes
            self.has.chunk = b.op("setp.lt.u32", scratch(b, f"{name}_has_chunk", "pred"), chunk, last)
        if s.spare_rows:
            has_row, left = scratch(b, f"{name}_has_row", "pred"), s.rows - (s.row_passes - 1) * s.rows_per_pass
            self.has.row = b.op("setp.lt.s32", has_row, row, left)
            if s.spare_lanes:
                both = scratch(b, f"{name}_has_both", "pred")
                self.has.both = b.op("and.pred", both, self.has.chunk, has_row)
        return row, chunk

    def offset(self, name: str, row: Reg, chunk: Reg) -> Reg:
        """Byte offset of a row's chunk within the tile in shared memory, into the register `name`."""
        start = self.b.op("mul.lo.u32", scratch(self.b, f"{self.name}_row_offset", "u32"), row, self.pitch)
        out: Reg = self.b.op("mad.lo.u32", scratch(self.b, name, "u32"), chunk, self.target_bytes, start)
        return out

    def passes(self, row_pass: int) -> Iterator[tuple[int, Reg | None]]:
        """The column passes of one pass over rows: the pass, and the predicate that this thread takes part."""
        s = self.spread
        for column in range(s.column_passes):
            last_rows = s.spare_rows and row_pass == s.row_passes - 1
            last_lanes = s.spare_lanes and column == s.column_passes - 1
            of_rows = self.has.both if last_lanes else self.has.row
            of_lanes = self.has.chunk if last_lanes else None
            yield column, of_rows if last_rows else of_lanes

    def place(self, to: Place, row_pass: int, column: int) -> Addr:
        """Where a pass's chunk goes in shared memory; `to` is the place of this thread's first chunk."""
        s = self.spread
        return to[0][to[1] + row_pass * s.rows_per_pass * self.pitch + column * s.lanes * self.target_bytes]

    def copy_async(self, to: Addr, source: Addr, size: Reg, pred: Reg | None) -> None:
        """cp.async of one chunk; `size` is 16, or 0 for zeros."""
        self.b.op("cp.async.cg.shared.global", to, source, 16, size, pred=pred)

    def chunk_words(self, name: str) -> tuple[Reg, ...]:
        """Scratch registers for one chunk on its way."""
        return tuple(scratch(self.b, f"{name}{i}", "b32") for i in range(self.source_bytes // 4))

    def load(self, words: tuple[Reg, ...], at: Addr, pred: Reg) -> None:
        """A chunk's words from global memory; left as they are where `pred` does not hold."""
        assert isinstance(at.base, Reg)
        convert.load_words(self.b, words, at.base, at.offset, space="global.nc", pred=pred)

    def store(
        self, words: tuple[Reg, ...], to: Addr, pred: Reg | None, scale: Reg | None = None, signs: Reg | None = None
    ) -> None:
        """Convert a chunk's words and store them in shared memory; `scale` (f32) multiplies int8 values, and the bits
        of `signs` turn those of packed values."""
        b = self.b
        if convert.e4m3_to_f16(b, self.source, self.target):
            wide = tuple(scratch(b, f"packed{i}", "b32") for i in range(2 * len(words)))
            convert.widen_e4m3(b, wide, words)
            words = wide
        elif self.source != self.target:
            values = tuple(scratch(b, f"wide{i}", "f32") for i in range(self.elements))
            convert.unpack(b, values, words, self.source)
            if scale is not None:
                for value in values:
                    b.op("mul.f32", value, value, scale)
            words = tuple(scratch(b, f"packed{i}", "b32") for i in range(convert.words_of(self.target, self.elements)))
            convert.pack(b, words, values, self.target)
        for word in words if signs is not None else ():
            b.op("xor.b32", word, word, signs)
        assert isinstance(to.base, Reg)
        convert.store_words(b, to.base, words, to.offset, space="shared", pred=pred)
