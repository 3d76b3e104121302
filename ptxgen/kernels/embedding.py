"""Rows of a packed table, by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ptxgen import rules
from ptxgen.builder.values import Reg, RegArray
from ptxgen.dtypes import f32, s32, u8
from ptxgen.idioms import convert
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
from ptxgen.idioms.threads import ceil_div
from ptxgen.kernel import KernelType, field, kernel_type
from ptxgen.launch import Launch, Param, buffer
from ptxgen.products.mainloop.reader import TileReader
from ptxgen.weights import weight_format, weight_formats
from ptxgen.weights.format import CHUNK, OWN, TILE_ROWS, WeightFormat

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.builder import Builder
    from ptxgen.targets import Target

LANES = 4  # of a row in a tile
MOST_THREADS = 128


@kernel_type
class Embedding(KernelType):
    """out[r] = scale · table[tokens[r]]: tokens s32 `[rows]`, table packed `[vocab, dim]`, out f32 `[rows, dim]`.

    A token outside 0 … vocab - 1 writes nothing.

    `vocab`: rows of the table. `dim`: columns of the table. `weights`: the table's format (`ptxgen.weights`).
    `scale`: factor on the rows (the root of dim for Gemma).
    """

    vocab: int
    dim: int
    weights: str = "f16"
    scale: float = field(default=1.0, draws=(0.0625, 1.0))
    programmatic: bool = False

    sizes = {"rows": 5}
    golden_lines = 950  # a tile of 256 columns
    goldens = (
        dict(vocab=50, dim=72),
        dict(vocab=40, dim=1280, weights="q4_0", scale=2.5),
        dict(vocab=33, dim=131, weights="e4m3_channel"),
        dict(vocab=20, dim=256, weights="q8_0", programmatic=True),
        dict(vocab=20, dim=256, weights="q4_k"),
        dict(vocab=20, dim=256, weights="q6_k"),
    )
    golden_targets = ("sm_75", "sm_90")

    def rules(self) -> Iterator[str]:
        yield from rules.between("vocab", self.vocab, 1, 1 << 20)
        yield from rules.between("dim", self.dim, 1, 1 << 17)
        known = list(rules.one_of("weights", self.weights, tuple(weight_formats())))
        yield from known
        if not known and self.dim % self.kind.block_cols:
            step = self.kind.block_cols
            yield from rules.multiple_of("dim", self.dim, step, step, 1 << 17)
        yield from rules.between("scale", self.scale, 1e-9, 1e9)

    def target_rules(self, target: Target) -> Iterator[str]:
        yield from programmatic_rules(self.programmatic, target)

    @property
    def kind(self) -> WeightFormat:
        """The format of the table."""
        return weight_format(self.weights).fitted(self.dim)

    @property
    def lanes(self) -> int:
        """Threads that a row needs: four a tile."""
        return LANES * self.kind.tiles(self.dim)

    @property
    def threads(self) -> int:
        """Threads of a CTA: whole warps."""
        return min(MOST_THREADS, ceil_div(self.lanes, 32) * 32)

    @property
    def cta_tiles(self) -> int:
        """Tiles that a CTA takes at once."""
        return self.threads // LANES

    def params(self) -> tuple[Param, ...]:
        kind = self.kind
        return (
            buffer("tokens", s32, "rows", align=4),
            buffer("table", u8, kind.records(self.vocab), kind.record_bytes(self.dim)),
            buffer("out", f32, "rows", self.dim, access="out", align=16 if self.dim % OWN == 0 else 4),
        )

    def launch(self, target: Target) -> Launch:
        grid = ("rows", ceil_div(self.lanes, self.threads), 1)
        return Launch(grid, (self.threads, 1, 1), programmatic=self.programmatic)

    def build(self, b: Builder) -> None:
        kind = self.kind
        wait_for_producer(b, self.programmatic)
        with b.fragment("locate", "the row's token, and the thread's tile of its row in the table"):
            thread = b.op("mov.u32", "thread", b.special("tid.x"))
            row = b.op("mov.u32", "row", b.special("ctaid.x"))
            cta = b.op("mov.u32", "cta_of_row", b.special("ctaid.y"))
            place = b.op("mad.lo.u32", "place", cta, self.threads, thread)
            tile, quad = b.op("shr.u32", "tile", place, 2), b.op("and.b32", "lane_of_row", place, 3)
            tokens = b.ld_param("tokens")
            b.op("mad.wide.u32", tokens, row, 4, tokens)
            token = b.op("ld.global.u32", "token", tokens[0])
            exists = b.op("setp.lt.u32", "exists", token, self.vocab)
            b.op("setp.lt.and.u32", exists, tile, kind.tiles(self.dim), exists)
        words = b.array("word", "b32", kind.words)
        with b.fragment("load", "load the tile's words"):
            record = b.op("shr.u32", "record", token, 4)
            upper = b.op("and.b32", "row_of_half", token, TILE_ROWS // 2 - 1)
            lane = b.op("mad.lo.u32", "lane", upper, LANES, quad)
            half = b.op("and.b32", "half", token, TILE_ROWS // 2)
            is_lower = b.op("setp.ne.u32", "is_lower", half, 0)
            reader = TileReader(b, kind, self.dim)
            reader.locate(b, b.ld_param("table"), lane, upper, tile)
            reader.go_to(b, record)
            reader.load(b, words)
        self._write(b, words, is_lower, row, tile, quad)

    def _write(self, b: Builder, words: RegArray, is_lower: Reg, row: Reg, tile: Reg, quad: Reg) -> None:
        """Fragment `write`: every chunk of the tile; `is_lower`: the row is in the lower half of its record."""
        kind = self.kind
        with b.fragment("write", "widen the words, and write the thread's columns"):
            out = b.ld_param("out")
            own = b.op("mul.lo.u32", "column_of_chunk", quad, OWN)
            column = b.op("mad.lo.u32", "column", tile, kind.tile_k, own)
            wide = b.op("mul.wide.u32", "row_offset", row, 4 * self.dim)
            b.op("add.u64", out, out, wide)
            b.op("mad.wide.u32", out, column, 4, out)
            values = b.array("value", "f32", 2 * OWN)
            halves = (values[:OWN], values[OWN:])
            inside = b.reg("inside_row", "pred")
            ragged = self.dim % kind.tile_k
            for chunk in range(kind.chunks):
                b.note(f"columns {CHUNK * chunk} to {CHUNK * (chunk + 1) - 1} of the tile", after=convert.RUN)
                kind.weights(b, words, chunk, halves)
                for upper, lower in zip(*halves, strict=True):
                    b.op("selp.f32", upper, lower, upper, is_lower)
                    if self.scale != 1.0:
                        b.op("mul.f32", upper, upper, self.scale)
                step = OWN if self.dim % OWN == 0 else 1
                for j in range(0, OWN, step):
                    if CHUNK * chunk + j >= self.dim:
                        continue
                    if ragged:
                        b.op("setp.lt.u32", inside, column, self.dim - CHUNK * chunk - j)
                    convert.store_words(
                        b, out, halves[0][j : j + step], 4 * (CHUNK * chunk + j), pred=inside if ragged else None
                    )

    def given(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
        import numpy as np

        values = rng.standard_normal((self.vocab, self.dim), np.float32)
        packed = self.kind.pack(self.kind.quantise(values), self.vocab, self.dim)
        tokens = rng.integers(0, self.vocab, sizes["rows"]).astype(np.int32)
        tokens[-1:] = self.vocab if sizes["rows"] > 1 else tokens[-1:]  # one that does not exist
        return {"tokens": tokens, "table": packed.reshape(self.kind.records(self.vocab), -1)}

    def reference(self, **a: Any) -> dict[str, np.ndarray]:
        import numpy as np

        table = self.kind.values(a["table"].reshape(-1), self.vocab, self.dim)
        out, tokens = a["out"].copy(), a["tokens"]
        inside = (tokens >= 0) & (tokens < self.vocab)
        out[inside] = (table[tokens[inside]].astype(np.float64) * self.scale).astype(np.float32)
        return {"out": out}
