"""Tiles of K and V in shared memory: where they come from, how they get there, which stage is read.

Three ways: cp.async into the other stage while this one is used; through registers, where K and V are converted, into
the other stage; or, with one stage only, straight in between two barriers.
"""

from __future__ import annotations

from collections.abc import Iterator

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.copies import Place, RowCopy
from ptxgen.attention.prefill.rows import Rows
from ptxgen.attention.prefill.sources import source_of
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType
from ptxgen.idioms.convert import clear, scratch

Words = tuple[Reg, ...]
_PARTS = {1: "attention/prefill/alone.ptx.j2", 2: "attention/prefill/ahead.ptx.j2"}  # by stages
CHUNKS_AT_ONCE = 4  # of K and as many of V, where a tile passes through registers into the only stage


class KeyTiles:
    """`stages` stages, each `keys` rows of K and then of V, from the register `base` on."""

    def __init__(self, b: Builder, spec: Prefill, rows: Rows, threads: int, stages: int, dtype: DType) -> None:
        self.b, self.spec, self.rows, self.stages = b, spec, rows, stages
        self.copy = RowCopy(b, "kv", spec.dim, rows.keys, threads, spec.attention.problem.kv_dtype, dtype)
        self.tile_bytes = rows.keys * self.copy.pitch
        self.source = source_of(b, spec, rows, self.copy)
        self.quantised = self.source.quantised
        self.words: dict[str, list[Words]] = {}
        self.scales: dict[str, list[Reg | None]] = {}

    @property
    def stage_bytes(self) -> int:
        """Bytes from a stage to the next."""
        return 2 * self.tile_bytes

    def aim(self, base: Reg) -> None:
        """Point this thread at its chunks of the first tile; part of an open fragment."""
        b, copy = self.b, self.copy
        row, chunk = copy.aim(self.rows.thread)
        self.source.aim(row, chunk)
        to = self._to_first = copy.offset("kv_to", row, chunk)
        b.op("add.u32", to, to, base)
        if self.stages == 2:
            self.fill_stage = b.op("mov.u32", "fill_stage", 0)
            self.read_stage = b.op("mov.u32", "read_stage", 0)

    def fetch(self) -> None:
        """Fragment `fetch`, which starts the way of the next tile; for one stage and no cp.async also `fill`, a loop's
        body that brings some of its rows there while `more_rows`."""
        b = self.b
        with b.fragment("fetch"):
            b.note(f"{self.rows.keys} keys; rows from kv_len on become zeros")
            if self.copy.direct or self.stages == 1:
                self._aim_at_stage()
            if not self._fills:
                self.source.start()
            if self.copy.direct:
                self._fetch_async()
            elif self.stages == 2:
                self._fetch_words()
            if not self._fills:
                self.source.advance(self.rows.keys)
            if self.stages == 2 and self.copy.direct:
                self._other_stage()
        b.expose(two_stages=self.stages == 2, stage_part=_PARTS[self.stages])
        if self._fills:
            self._fill()
        else:
            b.without("fill")

    @property
    def _fills(self) -> bool:
        """Whether a tile goes through registers straight into the only stage."""
        return self.stages == 1 and not self.copy.direct

    def _fetch_async(self) -> None:
        b, copy = self.b, self.copy
        size = b.reg("copy_bytes", "u32")
        for i in range(copy.spread.row_passes):
            exists = self.source.exists(i)
            b.op("selp.b32", size, 16, 0, exists)
            self.source.row(i, exists)
            for x in "kv":
                for column, takes_part in copy.passes(i):
                    to = copy.place(self._to(x), i, column)
                    copy.copy_async(to, self.source.chunk_at(x, i, column), size, takes_part)
        b.op("cp.async.commit_group")

    def _to(self, x: str) -> Place:
        """Where this thread's first chunk of K or V goes."""
        return self._fill_at, 0 if x == "k" else self.tile_bytes

    def _aim_at_stage(self) -> None:
        """Find this thread's place in the stage to fill; the offset of a stage is the same for all threads."""
        at = self._fill_at = scratch(self.b, "kv_fill", "u32")
        if self.stages == 1:
            self.b.op("mov.u32", at, self._to_first)
        else:
            self.b.op("add.u32", at, self._to_first, self.fill_stage)

    def read_at(self, name: str, lane: Reg) -> Reg:
        """The address `lane` in the stage that is read, into the register `name`; part of an open fragment."""
        if self.stages == 1:
            return lane
        out: Reg = self.b.op("add.u32", scratch(self.b, name, "u32"), lane, self.read_stage)
        return out

    def advance(self) -> None:
        """Read the other stage from now on; part of an open fragment."""
        if self.stages == 2:
            self.b.op("sub.u32", self.read_stage, self.stage_bytes, self.read_stage)

    def _other_stage(self) -> None:
        self.b.op("sub.u32", self.fill_stage, self.stage_bytes, self.fill_stage)

    # -- through registers ---------------------------------------------------------------------------------------------

    def _chunks(self, row_passes: int) -> Iterator[tuple[int, int, int, Reg | None]]:
        """The chunks of this thread: number, row pass, column pass, and the predicate that it takes part."""
        for i in range(row_passes):
            for column, takes_part in self.copy.passes(i):
                yield i * self.copy.spread.column_passes + column, i, column, takes_part

    def _load(self, x: str, row_pass: int, column: int, words: Words, scale: Reg | None, present: Reg) -> None:
        """A chunk's words and scale; zeros where it does not exist."""
        clear(self.b, words)
        at = self.source.chunk_at(x, row_pass, column)
        self.copy.load(words, at, present)
        if scale is not None:
            self.b.op("mov.b16", scale, 0)
            self.b.op("ld.global.nc.b16", scale, self.source.scale_at(x, row_pass, column), pred=present)

    def _present(self, row_pass: int, column: int, takes_part: Reg | None) -> Reg:
        """The predicate that a chunk exists and is this thread's; with the first of a row, where the row lies."""
        exists = self.source.exists(row_pass)
        if column == 0:
            self.source.row(row_pass, exists)
        if takes_part is not None:
            self.b.op("and.pred", exists, exists, takes_part)
        return exists

    def _store(
        self, x: str, row_pass: int, column: int, words: Words, scale: Reg | None, takes_part: Reg | None
    ) -> None:
        """Convert a chunk and put it into its stage."""
        wide = None
        if scale is not None:
            wide = scratch(self.b, "wide_scale", "f32")
            self.b.op("cvt.f32.f16", wide, scale)
        self.copy.store(words, self.copy.place(self._to(x), row_pass, column), takes_part, wide)

    def _fetch_words(self) -> None:
        b, per_chunk = self.b, self.copy.source_bytes // 4
        chunks = self.copy.spread.row_passes * self.copy.spread.column_passes
        for x in "kv":
            words = b.array(f"{x}_word", "b32", chunks * per_chunk)
            self.words[x] = [tuple(words[i * per_chunk : (i + 1) * per_chunk]) for i in range(chunks)]
            self.scales[x] = list(b.array(f"{x}_scale", "b16", chunks)) if self.quantised else [None] * chunks
        for number, i, column, takes_part in self._chunks(self.copy.spread.row_passes):
            present = self._present(i, column, takes_part)
            for x in "kv":
                self._load(x, i, column, self.words[x][number], self.scales[x][number], present)

    def settle(self) -> None:
        """The fragment that converts the words of the next tile and puts them into the other stage."""
        if self.copy.direct or self.stages == 1:
            self.b.without("settle")
            return
        with self.b.fragment("settle"):
            self.b.note(
                f"{self.spec.attention.problem.kv_dtype} to {self.copy.target}, into the stage that no warp reads"
            )
            self._aim_at_stage()
            for number, i, column, takes_part in self._chunks(self.copy.spread.row_passes):
                for x in "kv":
                    self._store(x, i, column, self.words[x][number], self.scales[x][number], takes_part)
            self._other_stage()

    def _fill(self) -> None:
        """A few row passes at a time, for what registers hold of them."""
        b, s = self.b, self.copy.spread
        passes = s.row_passes
        while passes % 2 == 0 and passes * s.column_passes > CHUNKS_AT_ONCE:
            passes //= 2
        rows = min(passes * s.rows_per_pass, self.rows.keys)
        with b.fragment("fill", "load a tile of K and V, converted on its way to shared memory"):
            self.source.start()
            for _, i, column, takes_part in self._chunks(passes):
                present = self._present(i, column, takes_part)
                for x in "kv":
                    words = self.copy.chunk_words(f"{x}_word")
                    scale = scratch(b, f"{x}_scale", "b16") if self.quantised else None
                    self._load(x, i, column, words, scale, present)
                    self._store(x, i, column, words, scale, takes_part)
            self.source.advance(rows)
            at = self._fill_at
            b.op("add.u32", at, at, rows * self.copy.pitch)
            end = b.op("add.u32", "kv_fill_end", self._to_first, self.tile_bytes)
            b.op("setp.lt.u32", "more_rows", at, end)
