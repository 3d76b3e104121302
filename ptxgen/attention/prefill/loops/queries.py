"""The tile of query rows: into shared memory at the start, and the output rows out of it at the end."""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.copies import RowCopy
from ptxgen.attention.prefill.rows import Rows
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType
from ptxgen.idioms import convert
from ptxgen.idioms.convert import scratch


class QueryTile:
    """The CTA's rows of q at the register `base`, as `dtype`; later, where types are equal, its rows of out."""

    def __init__(self, b: Builder, spec: Prefill, rows: Rows, threads: int, dtype: DType) -> None:
        self.b, self.spec, self.rows = b, spec, rows
        self.copy = RowCopy(b, "q", spec.dim, rows.rows, threads, spec.attention.problem.q_dtype, dtype)

    @property
    def pitch(self) -> int:
        """Bytes from row to row in shared memory."""
        return self.copy.pitch

    def stage(self, base: Reg) -> None:
        """Fragment `stage_q`: the rows on their way to shared memory; rows past the last are zeros."""
        b, copy = self.b, self.copy
        with b.fragment("stage_q"):
            b.note(f"{self.rows.rows} rows of q: row r is token r / {self.rows.group}; rows past the last are zeros")
            to = self._aim(self.rows.thread, base)
            q = b.ld_param("q")
            words = () if copy.direct else copy.chunk_words("q_word")
            for i in range(copy.spread.row_passes):
                exists, source, offset = self._row(i, q)
                size = b.op("selp.b32", scratch(b, "q_bytes", "u32"), 16, 0, exists) if copy.direct else None
                for column, takes_part in copy.passes(i):
                    at = offset + column * copy.spread.lanes * copy.source_bytes
                    place = copy.place((to, 0), i, column)
                    if size is not None:
                        copy.copy_async(place, source[at], size, takes_part)
                        continue
                    convert.clear(b, words)
                    copy.load(words, source[at], self._both(exists, takes_part))
                    copy.store(words, place, takes_part)

    def _aim(self, thread: Reg, base: Reg) -> Reg:
        """Point this thread at its first row and chunk; its place in shared memory."""
        b, copy = self.b, self.copy
        row, self.chunk = copy.aim(thread)
        self.first = b.op("add.s32", scratch(b, "q_first_row", "s32"), row, self.rows.first_row)
        to = copy.offset("q_to", row, self.chunk)
        b.op("add.u32", to, to, base)
        return to

    def _row(self, row_pass: int, buffer: Reg) -> tuple[Reg, Reg, int]:
        """Of this thread's row in a pass: whether it exists, and where it lies in `buffer` (register and constant)."""
        b, skip = self.b, row_pass * self.copy.spread.rows_per_pass
        exists = scratch(b, "row_exists", "pred")
        row_bytes = self.spec.attention.problem.query_bytes
        step = self.rows.step(self.copy.spread.rows_per_pass)
        at = scratch(b, "q_at", "u64")
        row = b.op("add.s32", scratch(b, "q_pass_row", "s32"), self.first, skip) if row_pass else self.first
        if row_pass == 0 or step is None:
            self.rows.address("q_at", row, buffer, row_bytes)
            b.op("mad.wide.u32", at, self.chunk, self.copy.source_bytes, at)
        b.op("setp.lt.s32", exists, row, self.rows.n_rows)
        return exists, at, row_pass * (step or 0) * row_bytes

    def _both(self, exists: Reg, takes_part: Reg | None) -> Reg:
        if takes_part is None:
            return exists
        both: Reg = self.b.op("and.pred", scratch(self.b, "chunk_exists", "pred"), exists, takes_part)
        return both

    def store_out(self, base: Reg) -> None:
        """Fragment `store_out`: the tile's rows, written over those of q, to `out` in 16-byte pieces."""
        b, copy = self.b, self.copy
        with b.fragment("store_out", "the rows of out, from shared memory"):
            thread = b.op("mov.u32", scratch(b, "own_thread", "u32"), b.special("tid.x"))
            out, to = b.ld_param("out"), self._aim(thread, base)
            words = tuple(scratch(b, f"out_word{i}", "b32") for i in range(copy.target_bytes // 4))
            for i in range(copy.spread.row_passes):
                exists, target, offset = self._row(i, out)
                for column, takes_part in copy.passes(i):
                    place = copy.place((to, 0), i, column)
                    convert.load_words(b, words, to, place.offset, space="shared", pred=takes_part)
                    at = offset + column * copy.spread.lanes * copy.target_bytes
                    convert.store_words(b, target, words, at, pred=self._both(exists, takes_part))
