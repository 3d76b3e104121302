"""V of 8 bits by element in memory, [tile of keys][element][key], made by the launch itself before it is multiplied:
wgmma takes e4m3 operands along rows alone, and the product with V sums over keys. K stays as it is.

Warps of consumers draw blocks of keys of a head, as those do that widen rows. A lane takes four elements of 16 keys and
turns them by byte permutations, so that it stores 16 keys of each of its elements at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.ragged import WARP
from ptxgen.attention.prefill.sources import source_of
from ptxgen.attention.prefill.wgmma.producer.by_tensor_maps import turned_tiles
from ptxgen.attention.prefill.wgmma.tile import CHUNK, ONES_BYTES, STAGES, SWIZZLED_ROW, tile_of
from ptxgen.attention.prefill.wgmma.workspace.key_blocks import Blocks
from ptxgen.attention.prefill.wgmma.workspace.rows_16bit import Widened
from ptxgen.builder.values import Reg
from ptxgen.dtypes import e4m3
from ptxgen.idioms.convert import scratch, store_words
from ptxgen.idioms.division import remainder
from ptxgen.launch import Extent, Param, workspace

GROUP = 16  # keys of a lane, whose bytes it stores at once
FOUR_ONES = 0x38383838
ELEMENTS = 4  # of a lane: a word of a row
# Accumulators give a thread the columns 2c and 2c + 1 of every 8, and the register operand of e4m3 takes four
# neighbours of each 16; so keys lie in the order in which these are those: of 16 keys the four words.
KEYS_IN_ORDER = tuple((2 * c, 2 * c + 1, 2 * c + 8, 2 * c + 9) for c in range(4))
EVEN, ODD = (0x5140, 0x7362), (0x5410, 0x7632)  # prmt: bytes in pairs of two words, pairs in words


@dataclass(frozen=True)
class Lanes:
    """How a warp shares a block of rows: `lanes` side by side on a row, GROUP rows after each other for a lane."""

    dim: int
    rows_per_pass = 1

    @property
    def lanes(self) -> int:
        return min(WARP, 1 << (self.dim // ELEMENTS - 1).bit_length())

    @property
    def columns(self) -> int:
        """Words that a lane takes of a row."""
        return -(-self.dim // (ELEMENTS * self.lanes))

    @property
    def row_passes(self) -> int:
        """Rows of a lane: two groups, where it takes half a line at most of each."""
        return GROUP * (2 if self.lanes == WARP else 1)

    @property
    def rows(self) -> int:
        """Of a block."""
        return self.row_passes * WARP // self.lanes


class Words:
    """What a source of rows asks of those who read them: a word at a time."""

    elements, source_bytes = ELEMENTS, ELEMENTS

    def __init__(self, spread: Lanes) -> None:
        self.spread = spread


def turned_values(prefill: Prefill) -> Param:
    """The workspace: tiles of a row of keys for each element, of all that a cache holds."""
    attention = prefill.attention
    cache, tile = attention.cache, tile_of(prefill)
    tiles: Extent = -(-cache.max_len // tile.keys) if cache.max_len else f"ceil_div(n_keys, {tile.keys})"
    heads: tuple[Extent, ...] = ("batch", attention.problem.n_kv_heads) if cache.batched else (
        attention.problem.n_kv_heads,)  # fmt: skip
    return workspace("turned_v", e4m3, *heads, tiles, prefill.dim, SWIZZLED_ROW)


class Turned(Widened):
    """The same fragments as `Widened`'s, whose blocks are of V alone."""

    makes_k = False

    def begin(self) -> None:
        self.items.wide = {"v": self.b.ld_param("turned_v")}
        self.at = self.b.ld_param("widening")

    def ones(self, smem: Reg) -> None:
        """Fragment `ones`, before the CTA's first barrier: behind the elements of V in each stage some that are one."""
        b, tile = self.b, self.tile
        with b.fragment("ones", "elements of V that are one, behind the others: their products are sums"):
            at = b.op("mad.lo.u32", b.reg("ones_at", "u32"), self.items.thread, CHUNK, smem)
            writes = b.op("setp.lt.u32", b.reg("writes_ones", "pred"), self.items.thread, ONES_BYTES // CHUNK)
            one = b.op("mov.b32", b.reg("four_ones", "b32"), FOUR_ONES)
            for stage in range(STAGES):
                ones_at = tile.v_at + stage * tile.kv_bytes + tile.v_bytes
                store_words(b, at, [one] * 4, ones_at, space="shared", pred=writes)
            b.op("fence.proxy.async.shared::cta", note="seen by wgmma behind the barrier")

    def _take_blocks(self) -> None:
        b, spec = self.b, self.spec
        self.spread = Lanes(spec.dim)
        self.blocks = Blocks(b, spec, self.tile, self.items, self.spread.rows)
        self.source = source_of(b, spec, self.blocks, Words(self.spread))

    def _aim(self) -> None:
        b, lanes = self.b, self.spread.lanes
        self.chunk = b.op("and.b32", b.reg("turned_chunk", "u32"), self.lane, lanes - 1)
        self.row = b.op("shr.u32", b.reg("turned_row", "s32"), self.lane, lanes.bit_length() - 1)
        b.op("mul.lo.s32", self.row, self.row, self.spread.row_passes)
        if self.spec.dim % (ELEMENTS * lanes):
            left = self.spec.dim // ELEMENTS - (self.spread.columns - 1) * lanes
            self.has_last = b.op("setp.lt.u32", b.reg("turned_has_last", "pred"), self.chunk, left)

    def _block(self, made: Reg) -> None:
        b = self.b
        words = b.array("turned_word", "b32", self.spread.row_passes)
        with b.fragment("load_block", f"{self.blocks.rows} values"):
            self.blocks.place()
            self.source.aim(self.row, self.chunk)
            self.source.start()
            self._load_words(words, 0)
            to = self._place()
        with b.fragment("store_block", "by element"):
            for column in range(self.spread.columns):
                if column:
                    self._load_words(words, column)
                self._turn(words, to, column)
            b.op("add.u32", made, made, 1)

    def _takes(self, column: int) -> Reg | None:
        """The predicate that this lane has a word of these, where not all have."""
        last = column == self.spread.columns - 1
        return self.has_last if last and self.spec.dim % (ELEMENTS * self.spread.lanes) else None

    def _load_words(self, words: Sequence[Reg], column: int) -> None:
        """A word of each of the lane's rows, of those that exist; part of an open fragment."""
        b, takes = self.b, self._takes(column)
        for i, word in enumerate(words):
            exists = self.source.exists(i)
            if takes is not None:
                b.op("and.pred", exists, exists, takes)
            b.op("mov.b32", word, 0)
            b.op("ld.global.nc.b32", word, self.source.chunk_at("v", i, column), pred=exists)

    def _place(self) -> Reg:
        """Where the first group of the lane's first element lies; part of an open fragment."""
        b, blocks = self.b, self.blocks
        to, wide = b.op("cvt.u64.u32", b.reg("turned_at", "u64"), blocks.kv_head), b.reg("turned_part", "u64")
        if blocks.several:
            b.op("mul.wide.u32", wide, blocks.sequence, blocks.problem.n_kv_heads)
            b.op("add.u64", to, to, wide)
        tiles = turned_tiles(b, blocks, self.tile.keys)
        if isinstance(tiles, Reg):
            tiles = b.op("cvt.u64.u32", wide, tiles)
        b.op("mul.lo.u64", to, to, tiles)
        b.op("cvt.u64.u32", wide, blocks.tile_number)
        b.op("add.u64", to, to, wide)
        b.op("mad.lo.u64", to, to, self.tile.v_bytes, self.items.wide["v"])
        b.op("mad.wide.u32", to, self.chunk, ELEMENTS * SWIZZLED_ROW, to)
        key = remainder(b, "turned_key", blocks.key_begin, self.tile.keys)
        b.op("add.u32", key, key, self.row)
        b.op("mad.wide.u32", to, key, 1, to)
        return to  # type: ignore[no-any-return]

    def _turn(self, words: Sequence[Reg], to: Reg, column: int) -> None:
        """Stores a lane's words by element; part of an open fragment."""
        b = self.b
        pairs = [[scratch(b, f"turned_pair{n}_{i}", "b32") for i in range(2)] for n in range(2)]
        out = [[scratch(b, f"turned_out{j}_{c}", "b32") for c in range(4)] for j in range(ELEMENTS)]
        for first in range(0, len(words), GROUP):
            for c, keys in enumerate(KEYS_IN_ORDER):
                a = [words[first + key] for key in keys]
                for pair, (low, high) in zip(pairs, (a[:2], a[2:]), strict=True):
                    for half, select in zip(pair, EVEN, strict=True):
                        b.op("prmt.b32", half, low, high, select)
                for j in range(ELEMENTS):
                    b.op("prmt.b32", out[j][c], pairs[0][j // 2], pairs[1][j // 2], ODD[j % 2])
            for j in range(ELEMENTS):
                offset = (column * self.spread.lanes * ELEMENTS + j) * SWIZZLED_ROW + first
                store_words(b, to, out[j], offset, pred=self._takes(column))
