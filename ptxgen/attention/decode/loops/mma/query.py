"""The query of the mma main loop: B fragments that lie as the K blocks lie, in registers or staged in shared memory."""

from __future__ import annotations

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.contract import LoopShape, Task
from ptxgen.attention.decode.loops.mma import convert as mma_convert
from ptxgen.attention.decode.loops.mma.layout import Block, TileLayout
from ptxgen.attention.decode.loops.mma.load import Loader
from ptxgen.attention.decode.loops.mma.stages import Stages
from ptxgen.builder import Builder
from ptxgen.builder.values import Addr, Reg, RegArray, Shared
from ptxgen.dtypes import DType, bf16, f16
from ptxgen.idioms import convert

CHUNK = 8  # elements that a thread stages at a time


def product_dtype(kv_dtype: DType) -> DType:
    """Type of the factors of the products: bf16 for bf16 caches, f16 for all others (e4m3 and int8 fit it exactly)."""
    return bf16 if kv_dtype == bf16 else f16


def query_words(layout: TileLayout) -> int:
    """32-bit words of one head tile's B fragments, per lane."""
    return sum(block.elements // 2 for block in layout.k_blocks)


class Query:
    """B fragments of `tiles` head tiles of 8 heads: lane (g, q) holds head g at the dims that it loads of K's rows."""

    def __init__(
        self,
        b: Builder,
        attention: Attention,
        shape: LoopShape,
        task: Task,
        loader: Loader | Stages,
        *,
        shared: bool,
    ) -> None:
        self.b, self.attention, self.shape, self.task = b, attention, shape, task
        self.loader, self.layout = loader, loader.ring.layout
        self.dtype = product_dtype(attention.problem.kv_dtype)
        self.tiles = -(-shape.heads // 8)
        self.shared = shared
        self.words: RegArray = b.array("q_word", "b32", (4 if shared else query_words(self.layout)) * self.tiles)
        self._bases: dict[tuple[int, int], Reg] = {}  # by head tile and elements of a block: where this lane reads
        self._rows: dict[int, Reg] = {}
        self._raw: RegArray | None = None
        self._values: RegArray | None = None

    @property
    def pitch(self) -> int:
        """Bytes between staged heads: an odd number of 16-byte chunks, so that eight heads hit all banks."""
        return 16 * (self.attention.problem.qk_dim * 2 // 16 | 1)

    @staticmethod
    def staged_bytes(attention: Attention, heads: int) -> int:
        """Shared memory of a staged query."""
        return 16 * (attention.problem.qk_dim * 2 // 16 | 1) * heads

    # -- in registers ------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load every fragment of the query into registers, where it stays."""
        b, bases = self.b, self._bases
        first = 0
        for block in self.layout.k_blocks:
            for tile in range(self.tiles):
                key = (tile, block.elements)
                if key not in bases:
                    base = self._head_row(tile, self.task.q_row, self.attention.problem.query_bytes)
                    lane_bytes = block.elements * self.attention.problem.q_dtype.bytes
                    bases[key] = b.op("mad.wide.u32", f"q_lane{tile}_{block.elements}", self.loader.q, lane_bytes, base)
                count = block.elements // 2
                start = tile * query_words(self.layout) + first
                offset = block.first_dim * self.attention.problem.q_dtype.bytes
                self._convert(self.words[start : start + count], bases[key], offset)
                if self._alternates:
                    self._alternate(self.words[start : start + count])
            first += block.elements // 2

    def _head_row(self, tile: int, rows: Reg, pitch: int) -> Reg:
        """Address of this lane's head; lanes past the last head repeat it."""
        if tile not in self._rows:
            self._rows[tile] = self.b.op("mad.wide.u32", f"q_row{tile}", self._lane_head(tile), pitch, rows)
        return self._rows[tile]

    def _lane_head(self, tile: int) -> Reg:
        b, made, head = self.b, f"q_head{tile}", self.loader.g
        if tile:
            head = b.op("add.u32", made, head, 8 * tile)
        if 8 * tile + 8 > self.shape.heads:
            head = b.op("min.u32", convert.scratch(b, made, "u32"), head, self.shape.heads - 1)
        if self.task.heads_left is not None:
            last = convert.scratch(b, "q_last_head", "s32")
            b.op("sub.s32", last, self.task.heads_left, 1)
            head = b.op("min.u32", convert.scratch(b, made, "u32"), head, last)
        return head

    def _convert(self, words: tuple[Reg, ...], base: Reg, offset: int) -> None:
        """Load elements of q and leave them as packed pairs of the product's type."""
        # A relaxed load stays where it is: a weak one would sink below the wait for the length.
        space = "relaxed.cta.global" if self.task.early else "global"
        b, have = self.b, self.attention.problem.q_dtype
        if have == self.dtype:
            convert.load_words(b, words, base, offset, space=space)
            return
        raw, values = self._temporaries(2 * len(words))
        convert.load_words(b, raw, base, offset, space=space)
        convert.unpack(b, values, raw, have)
        convert.pack(b, words, values, self.dtype)

    @property
    def _alternates(self) -> bool:
        """Whether the pairs of every four elements must be those of K (`alternates` in `convert.py`)."""
        return mma_convert.alternates(self.attention.problem.kv_dtype, self.b.target)

    def _alternate(self, words: tuple[Reg, ...], pred: Reg | None = None) -> None:
        """Pairs (0, 1), (2, 3) of every four elements to (0, 2), (1, 3)."""
        b = self.b
        for first, second in zip(words[::2], words[1::2], strict=False):
            odd = convert.scratch(b, "q_odd", "b32")
            b.op("prmt.b32", odd, first, second, mma_convert.HIGH_HALVES)
            b.op("prmt.b32", first, first, second, mma_convert.LOW_HALVES, pred=pred)
            b.op("mov.b32", second, odd, pred=pred)

    def _temporaries(self, count: int) -> tuple[tuple[Reg, ...], tuple[Reg, ...]]:
        """For `count` elements of q: their words, and their values in f32, of arrays that suffice for any block."""
        have = self.attention.problem.q_dtype
        if self._raw is None or self._values is None:
            most = max([CHUNK if self.shared else 0, *(block.elements for block in self.layout.k_blocks)])
            self._raw = self.b.array("q_raw", "b32", convert.words_of(have, most))
            self._values = self.b.array("q_value", "f32", most)
        return self._raw[: convert.words_of(have, count)], self._values[:count]

    # -- in shared memory --------------------------------------------------------------------------------------------

    def stage_start(self) -> None:
        """Where a thread begins: chunk `tid` of all heads' chunks."""
        b, chunks = self.b, self.attention.problem.qk_dim // CHUNK
        chunk = self.chunk = b.op("mov.u32", "q_chunk", self.task.tid)
        heads: int | Reg = self.shape.heads
        if self.task.heads_left is not None:
            heads = b.op("min.s32", "q_heads", self.task.heads_left, self.shape.heads)
        self.end = b.op("mul.lo.u32", "q_chunks", heads, chunks) if isinstance(heads, Reg) else heads * chunks
        self.more = b.op("setp.lt.u32", "q_more", chunk, self.end)

    def stage(self, arena: Shared) -> None:
        """Convert one chunk of 8 elements into shared memory, and step to the thread's next one."""
        b, attention, chunk = self.b, self.attention, self.chunk
        chunks = attention.problem.qk_dim // CHUNK
        source = b.op("mad.wide.u32", "q_source", chunk, CHUNK * attention.problem.q_dtype.bytes, self.task.q_row)
        words = b.array("q_staged", "b32", CHUNK // 2).regs
        self._convert(words, source, 0)
        head = b.op("div.u32", "q_staged_head", chunk, chunks)
        if self._alternates:
            whole = None
            if attention.problem.qk_dim % 16:  # the last 8 elements of a row are single pairs of lanes
                rest = b.op("mad.lo.s32", "q_staged_rest", head, -chunks, chunk)
                whole = b.op("setp.lt.u32", "q_staged_whole", rest, chunks - 1)
            self._alternate(words, whole)
        place = b.op("mov.u32", "q_place", arena)
        b.op("mad.lo.u32", place, head, self.pitch - 16 * chunks, place)
        b.op("mad.lo.u32", place, chunk, 16, place)
        convert.store_words(b, place, words, space="shared")
        b.op("add.u32", chunk, chunk, self.shape.threads)
        b.op("setp.lt.u32", self.more, chunk, self.end)

    def locate_staged(self, arena: Shared) -> None:
        """Every lane's address of its head in shared memory, per head tile."""
        b = self.b
        start = b.op("mov.u32", "q_arena", arena)
        heads = []
        for tile in range(self.tiles):
            heads.append(b.op("mad.lo.u32", f"q_base{tile}", self._lane_head(tile), self.pitch, start))
        for elements in sorted({block.elements for block in self.layout.k_blocks}):
            for tile in range(self.tiles):
                name, q = f"q_lane{tile}_{elements}", self.loader.q
                self._bases[tile, elements] = b.op("mad.lo.u32", name, q, 2 * elements, heads[tile])

    # -- at the product ----------------------------------------------------------------------------------------------

    def fragment(self, block: Block, index: int, step: int, tile: int) -> tuple[Reg, ...]:
        """Registers of one B fragment: mma number `step` of block number `index`, head tile `tile`."""
        per_step = max(block.elements // 2 // block.steps, 1)
        if not self.shared:
            before = sum(other.elements // 2 for other in self.layout.k_blocks[:index])
            start = tile * query_words(self.layout) + before + step * per_step
            held: tuple[Reg, ...] = self.words[start : start + per_step]
            return held
        # Two steps' words come with one 16-byte load.
        loaded: tuple[Reg, ...] = self.words[4 * tile : 4 * tile + min(4, block.elements // 2)]
        if step % 2 == 0:
            base = self._bases[tile, block.elements]
            offset = 2 * block.first_dim + 8 * step
            count = min(4, block.elements // 2 - 2 * step)
            opcode = f"ld.shared.v{count}.b32" if count > 1 else "ld.shared.b32"
            self.b.op(opcode, loaded[:count] if count > 1 else loaded[0], Addr(base, offset))
        start = 2 * (step % 2)
        return loaded[start : start + per_step]
