"""Which keys become 16-bit rows in memory, as blocks that CTAs draw: those that some query sees, of every sequence with
queries, some keys of a head each.

Blocks of a batch are counted in the order of its sequences, 32 of them at a time: a lane counts those of one. Draws
come in order, so a CTA goes through the batch once. A page that several sequences share is widened for each of them, to
the same bits in the same place: check mode notes such stores.
"""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.ragged import WARP
from ptxgen.attention.prefill.rows import Rows
from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.maps import box_keys
from ptxgen.attention.prefill.wgmma.tile import WgmmaTile
from ptxgen.builder import Builder
from ptxgen.builder.values import Or, Reg
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.division import divide, remainder


class Blocks(Rows):
    """Fragments `begin_blocks`, `count_blocks` and `look_further`, both bodies of loops over a batch's sequences; the
    keys of a block, as a source reads them."""

    prefix = "narrow_"

    def __init__(self, b: Builder, spec: Prefill, tile: WgmmaTile, items: Items, rows: int) -> None:
        super().__init__(b, spec, rows, tile.keys)
        self.tile, self.items = tile, items
        self.several = self.cache.batched

    def count(self) -> None:
        """Build the fragments that find out how many there are, `total` of all heads."""
        b = self.b
        if not self.several:
            b.without("begin_blocks", "count_blocks")
            return
        with b.fragment("begin_blocks", "keys and values as 16-bit rows: how many blocks of them there are"):
            self.starts, self.lengths = self.param("q_starts"), self.param("kv_lens")
            self.lane = b.op("and.b32", b.reg("block_lane", "u32"), self.items.thread, WARP - 1)
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
            blocks = self._blocks(tokens, self.begins, self.kv_len)
        self.total = b.op("mul.lo.u32", "all_blocks", blocks, self.problem.n_kv_heads)

    def draw(self, block: Reg) -> None:
        """The head of a block, and its number among those of a head; part of an open fragment."""
        b, heads = self.b, self.problem.n_kv_heads
        self.kv_head = remainder(b, "wide_head", block, heads)
        self.number = divide(b, "wide_tile", block, heads)
        if self.several:
            b.op("setp.ge.u32", scratch(b, "looks_further", "pred"), self.number, self.end)

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
        """The keys of the block; part of an open fragment."""
        b = self.b
        first = self.number
        if self.several:
            holds = b.op("setp.gt.u32", "holds_block", self.through, self.number)
            holders = b.op("vote.sync.ballot.b32", b.reg("block_holders", "b32"), holds, -1)
            holder = b.op("brev.b32", b.reg("block_holder", "b32"), holders)
            b.op("clz.b32", holder, holder)
            before = b.op("sub.u32", b.reg("blocks_before", "u32"), self.through, self.blocks)
            b.op("shfl.sync.idx.b32", before, before, holder, 31, -1)
            b.op("sub.u32", first, self.number, before)
            self.kv_len = b.op("shfl.sync.idx.b32", b.reg("block_kv_len", "s32"), self.length, holder, 31, -1)
            self.sequence = b.op("sub.u32", b.reg("block_sequence", "u32"), self.base, WARP)
            b.op("add.u32", self.sequence, self.sequence, holder)
        b.op("min.u32", first, first, ((1 << 31) - 1) // self.rows, note="no key lies beyond")
        self.key_begin = b.op("mul.lo.u32", b.reg("wide_first", "s32"), first, self.rows)
        if self.begins is not None:
            begins = self.begins
            if self.several:
                begins = b.op("shfl.sync.idx.b32", b.reg("block_begins", "s32"), begins, holder, 31, -1)
            b.op("add.s32", self.key_begin, self.key_begin, begins)

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
        box = box_keys(self.cache, self.tile)
        b.note(f"boxes of {box} keys are read to their end, whatever lies there")
        b.op("add.s32", length, length, box - 1)
        divide(b, "block_length", length, box)
        b.op("mul.lo.s32", length, length, box)
        if not self.cache.page_size:
            b.op("min.s32", length, length, self.cache.max_len)
        return self._blocks(tokens, begins, length), begins, length

    def _begins(self, tokens: Reg, length: Reg) -> Reg | None:
        """With a window the first key of the first tile that queries see; part of an open fragment."""
        b, window = self.b, self.variant.window
        if not window:
            return None
        begins: Reg = b.op("sub.s32", scratch(b, "first_widened", "s32"), length, tokens)
        b.op("sub.s32", begins, begins, window - 1)
        b.op("max.s32", begins, begins, 0)
        divide(b, "first_widened", begins, self.keys)
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
