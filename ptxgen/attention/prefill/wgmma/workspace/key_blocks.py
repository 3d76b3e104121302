"""Which keys become 16-bit rows in memory, as blocks that warps draw: those that some query sees, of every sequence
with queries, some keys of a head each.

They come in the order in which items ask for them: with a causal mask from the last key of a sequence on, all heads of
a section side by side. Blocks of a batch are counted in the order of its sequences, 32 of them at a time: a lane counts
those of one. Draws come in order, so a warp goes through the batch once. A page that several sequences share is widened
for each of them, to the same bits in the same place: check mode notes such stores.
"""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.ragged import WARP
from ptxgen.attention.prefill.rows import Rows
from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.producer.tensor_maps import box_keys
from ptxgen.attention.prefill.wgmma.tile import WgmmaTile
from ptxgen.builder import Builder
from ptxgen.builder.values import Or, Reg
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.division import divide, remainder

BLOCK = 16  # keys at least; all tiles are multiples of it


class Blocks(Rows):
    """Fragments `begin_sequences`, `count_blocks` and `look_further`, both bodies of loops over a batch's sequences;
    the keys of a block, as a source reads them."""

    prefix = "narrow_"

    def __init__(self, b: Builder, spec: Prefill, tile: WgmmaTile, items: Items, rows: int) -> None:
        super().__init__(b, spec, rows, tile.keys)
        self.tile, self.items = tile, items
        self.several = self.cache.batched
        self.whole_tiles = tile.turned  # to the end of a tile blocks are made, of zeros behind the last key

    def tiles_of_head(self) -> Reg:
        """Tiles of keys of a head of the one sequence; part of an open fragment."""
        b = self.b
        tiles = b.op("add.s32", scratch(b, "tiles_of_head", "s32"), self.items.kv_len, self.keys - 1)
        return divide(b, "tiles_of_head", tiles, self.keys)

    def count(self, lane: Reg) -> None:
        """Build the fragments that find out how many there are, `total` of all heads."""
        b = self.b
        if not self.several:
            b.without("begin_sequences", "count_blocks")
            return
        self.lane = lane
        with b.fragment("begin_sequences", "keys whose rows are made: how many blocks of them there are"):
            self.starts, self.lengths = self.param("q_starts"), self.param("kv_lens")
            self.base = b.op("mov.u32", "sequences_counted", 0)
            self.mine = b.op("mov.u32", "blocks_of_lane", 0)
            self.end = b.op("mov.u32", "blocks_looked_at", 0)
            b.op("setp.gt.s32", "counts_blocks", self.items.batch_count, 0)
        with b.fragment("count_blocks", f"of {WARP} sequences"):
            blocks, *_ = self._sequence()
            b.op("add.u32", self.mine, self.mine, blocks)
            b.op("add.u32", self.base, self.base, WARP)
            b.op("setp.lt.u32", "more_to_count", self.base, self.items.batch_count)

    def begin(self) -> None:
        """How many there are; part of an open fragment."""
        b = self.b
        if self.several:
            blocks = b.op("redux.sync.add.u32", scratch(b, "blocks_of_head", "u32"), self.mine, -1)
            b.op("mov.u32", self.base, 0)
        else:
            self.kv_len, tokens = self.items.kv_len, self.items.q_len
            self.begins = self._begins(tokens, self.kv_len)
            made = self._whole(self.kv_len) if self.whole_tiles else self.kv_len
            blocks = self.blocks = self._blocks(tokens, self.begins, made)
            self.length = self.kv_len
            if self._has_sections:
                self.of_section = b.op("mul.lo.u32", "blocks_of_section", blocks, self.items.section_heads)
                b.op("max.u32", self.of_section, self.of_section, 1)
        self.total: Reg = b.op("mul.lo.u32", "all_blocks", blocks, self.problem.n_kv_heads)

    @property
    def _has_sections(self) -> bool:
        return not self.several and self.problem.n_kv_heads > 1

    def draw(self, block: Reg) -> None:
        """The head of a block, and its number among those of a head; part of an open fragment."""
        b, heads = self.b, self.problem.n_kv_heads
        if self._has_sections:
            self._draw_of_section(block)
            return
        self.kv_head = remainder(b, "wide_head", block, heads)
        self.number = divide(b, "wide_tile", block, heads)
        if self.several:
            b.op("setp.ge.u32", scratch(b, "looks_further", "pred"), self.number, self.end)

    def _draw_of_section(self, block: Reg) -> None:
        """Heads of a section side by side; part of an open fragment."""
        b, of_section, heads = self.b, self.of_section, self.items.section_heads
        section = b.op("div.u32", b.reg("wide_section", "u32"), block, of_section)
        b.op("min.u32", section, section, self.problem.n_kv_heads - 1)
        within = b.op("mul.lo.u32", b.reg("wide_within", "u32"), section, of_section)
        b.op("sub.u32", within, block, within)
        self.number = b.op("div.u32", scratch(b, "wide_tile", "s32"), within, heads)
        self.kv_head = b.op("mul.lo.u32", b.reg("wide_head", "u32"), self.number, heads)
        b.op("sub.u32", self.kv_head, within, self.kv_head)
        b.op("mad.lo.u32", self.kv_head, section, heads, self.kv_head)
        b.op("min.u32", self.kv_head, self.kv_head, self.problem.n_kv_heads - 1)

    def find(self) -> None:
        """Fragment `look_further`, where the block may lie beyond the sequences that were looked at."""
        b = self.b
        if not self.several:
            b.without("look_further")
            return
        with b.fragment("look_further", f"the blocks of the next {WARP} sequences"):
            self.blocks, self.begins, self.length = self._sequence()
            self.through = b.op("mov.u32", "blocks_through", self.blocks)
            below, has_below = b.reg("blocks_below", "u32"), b.reg("has_blocks_below", "pred")
            for distance in (1, 2, 4, 8, 16):
                b.op("shfl.sync.up.b32", Or(below, has_below), self.through, distance, 0, -1)
                b.op("add.u32", self.through, self.through, below, pred=has_below)
            b.op("add.u32", self.through, self.through, self.end)
            b.op("shfl.sync.idx.b32", self.end, self.through, WARP - 1, 31, -1)
            b.op("add.u32", self.base, self.base, WARP)
            further = b.op("setp.ge.u32", scratch(b, "looks_further", "pred"), self.number, self.end)
            b.op("setp.lt.and.u32", further, self.base, self.items.batch_count, further)

    def place(self) -> None:
        """The keys of the block; of one sequence also `tile_number`, the tile that holds them, and for how many of its
        blocks this one `counts_for`; part of an open fragment."""
        b = self.b
        first, blocks, begins = self.number, self.blocks, self.begins
        if self.several:
            holds = b.op("setp.gt.u32", "holds_block", self.through, self.number)
            holders = b.op("vote.sync.ballot.b32", b.reg("block_holders", "b32"), holds, -1)
            holder = b.op("brev.b32", b.reg("block_holder", "b32"), holders)
            b.op("clz.b32", holder, holder)

            def of_holder(name: str, value: Reg, type: str) -> Reg:
                return b.op("shfl.sync.idx.b32", b.reg(name, type), value, holder, 31, -1)  # type: ignore[no-any-return]

            before = b.op("sub.u32", b.reg("blocks_before", "u32"), self.through, blocks)
            before = b.op("shfl.sync.idx.b32", before, before, holder, 31, -1)
            first = b.op("sub.u32", b.reg("block_number", "u32"), self.number, before)
            blocks = of_holder("blocks_of_sequence", blocks, "u32")
            self.kv_len = of_holder("block_kv_len", self.length, "s32")
            if begins is not None:
                begins = of_holder("block_begins", begins, "s32")
            self.sequence = b.op("sub.u32", b.reg("block_sequence", "u32"), self.base, WARP)
            b.op("add.u32", self.sequence, self.sequence, holder)
        if self.variant.causal:
            from_last = b.op("sub.u32", b.reg("block_from_last", "u32"), blocks, first)
            first = b.op("sub.u32", from_last, from_last, 1)
        first = b.op("min.u32", b.reg("block_place", "u32"), first, ((1 << 31) - 1) // self.rows,
                     note="no key lies beyond")  # fmt: skip
        self.key_begin = b.op("mul.lo.s32", b.reg("wide_first", "s32"), first, self.rows)
        if begins is not None:
            b.op("add.s32", self.key_begin, self.key_begin, begins)
        if self.whole_tiles:
            self.tile_number = divide(b, "wide_tile_number", self.key_begin, self.keys)
        elif not self.several:
            self._place_in_tile()

    def _place_in_tile(self) -> None:
        """Which tile of keys the block is part of, and for how many; the last one of a sequence for those behind it,
        too; part of an open fragment."""
        b = self.b
        self.tile_number = divide(b, "wide_tile_number", self.key_begin, self.keys)
        counts = self.counts_for = b.op("mul.lo.u32", b.reg("counts_for", "u32"), self.tile_number, self.keys)
        b.op("sub.u32", counts, self.key_begin, counts)
        divide(b, "counts_before", counts, self.rows)
        b.op("sub.u32", counts, self.keys // self.rows, scratch(b, "counts_before", "s32"))
        end = b.op("add.s32", b.reg("block_end", "s32"), self.key_begin, self.rows)
        is_last = b.op("setp.ge.s32", "is_last_block", end, self.length)
        b.op("selp.b32", counts, counts, 1, is_last)

    def _sequence(self) -> tuple[Reg, Reg | None, Reg]:
        """A sequence of a lane: its blocks, its first key, how many keys; part of an open fragment."""
        b = self.b
        mine = b.op("add.u32", scratch(b, "block_scan", "u32"), self.base, self.lane)
        exists = b.op("setp.lt.u32", scratch(b, "block_scan_exists", "pred"), mine, self.items.batch_count)
        at = b.op("mad.wide.u32", scratch(b, "block_scan_at", "u64"), mine, 4, self.starts)
        found = {}
        for name, offset in (("start", 0), ("end", 4)):
            found[name] = b.op("mov.s32", scratch(b, f"block_scan_{name}", "s32"), 0)
            b.op("ld.global.nc.s32", found[name], at[offset], pred=exists)
        tokens = b.op("sub.s32", scratch(b, "block_tokens", "s32"), found["end"], found["start"])
        b.op("mad.wide.u32", at, mine, 4, self.lengths)
        length = b.op("mov.s32", scratch(b, "block_length", "s32"), 0)
        b.op("ld.global.nc.s32", length, at[0], pred=exists)
        b.op("max.s32", length, length, 0)
        b.op("min.s32", length, length, self.cache.max_len)
        begins = self._begins(tokens, length)
        if self.whole_tiles:
            return self._blocks(tokens, begins, self._whole(length)), begins, length
        box = box_keys(self.cache, self.tile)
        b.note(f"boxes of {box} keys are read to their end, whatever lies there")
        b.op("add.s32", length, length, box - 1)
        divide(b, "block_length", length, box)
        b.op("mul.lo.s32", length, length, box)
        if not self.cache.page_size:
            b.op("min.s32", length, length, self.cache.max_len)
        return self._blocks(tokens, begins, length), begins, length

    def _whole(self, length: Reg) -> Reg:
        """So many keys, to the end of their last tile; part of an open fragment."""
        b = self.b
        whole = b.op("add.s32", scratch(b, "whole_tiles", "s32"), length, self.keys - 1)
        divide(b, "whole_tiles", whole, self.keys)
        b.op("mul.lo.s32", whole, whole, self.keys)
        return whole  # type: ignore[no-any-return]

    def _begins(self, tokens: Reg, length: Reg) -> Reg | None:
        """With a window the first key of the first tile that queries see; part of an open fragment."""
        b, window = self.b, self.variant.window
        if not window:
            return None
        begins: Reg = b.op("sub.s32", scratch(b, "first_widened", "s32"), length, tokens)
        b.op("sub.s32", begins, begins, window - 1)
        b.op("max.s32", begins, begins, 0)
        divide(b, "first_widened", begins, self.keys)
        b.op("min.s32", begins, begins, ((1 << 31) - 1) // self.keys, note="no key lies beyond")
        b.op("mul.lo.s32", begins, begins, self.keys)
        return begins

    def _blocks(self, tokens: Reg, begins: Reg | None, length: Reg) -> Reg:
        """The blocks of a head from the first key on; none without queries; part of an open fragment."""
        b, keys = self.b, length
        if begins is not None:
            keys = b.op("sub.s32", scratch(b, "keys_widened", "s32"), length, begins)
        blocks: Reg = b.op("add.s32", scratch(b, "blocks_of_head", "s32"), keys, self.rows - 1)
        divide(b, "blocks_of_head", blocks, self.rows)
        has_queries = b.op("setp.gt.s32", scratch(b, "has_queries", "pred"), tokens, 0)
        b.op("selp.b32", blocks, blocks, 0, has_queries)
        return blocks
