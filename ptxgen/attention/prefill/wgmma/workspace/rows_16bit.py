"""K and V of 8 bits as 16-bit rows in memory, made by the launch itself: once for all queries. (Conversions on the way
into shared memory are repeated for every tile of them.)

Warps draw blocks of keys of a head from a counter until none is left. Of one sequence, they are those that copy
queries, and make rows under the products, in the order in which items ask for them: each tile of keys has a count of
its blocks that are made, and the warps that ask for boxes of a tile wait until it is full. Of a batch, they are the
consumers, and boxes are asked for when all blocks are made. Who has drawn a block runs, and makes it without waiting
for anyone: so nobody waits for a warp that has not begun. The last warp to leave sets all counts back to zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.ragged import WARP
from ptxgen.attention.prefill.sources import source_of
from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.producer.by_tensor_maps import WARPS
from ptxgen.attention.prefill.wgmma.producer.swizzled_copies import SwizzledCopy
from ptxgen.attention.prefill.wgmma.producer.widening import sign_bits
from ptxgen.attention.prefill.wgmma.ring import WARPS as WARPS_OF_GROUP
from ptxgen.attention.prefill.wgmma.tile import COLUMN, WgmmaTile, makes_at_first, tile_of
from ptxgen.attention.prefill.wgmma.variants import folds_scales
from ptxgen.attention.prefill.wgmma.workspace.key_blocks import BLOCK, Blocks
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType
from ptxgen.idioms.convert import clear, scratch, store_words
from ptxgen.idioms.polls import Polls
from ptxgen.launch import Extent

LINE = 128  # bytes of a cache line: what is drawn from lies apart from what is waited for
DRAWN, LEFT = 0, LINE  # offsets of the counters of a launch
COUNTERS = 2 * LINE // 4  # words before the counts of blocks that are made
# Chunks of 8 values on their way to a thread of the producer, as registers allow, by the largest head_dim; with scales
# no more than so many, nor to a thread of a batch's consumers in heads of up to 64; to one of other consumers.
AT_ONCE = ((64, 8), (96, 4), (128, 16), (192, 4), (256, 4))
WITH_SCALES, OF_CONSUMERS = 12, 16
INSIDE = 4  # in heads of up to 64 with scales, where query heads lie side by side for a token
# The same where the producer divides by query heads of a KV head that are not 1, 2, 4 or 8, in heads other than 128;
# and where zeros follow the rows, too.
BESIDE_DIVISIONS, AND_ZEROS = ((56, 4), (96, 6), (112, 4), (256, 6)), 2


def _of_dim(table: Sequence[tuple[int, int]], dim: int) -> int:
    """What a table has for the least head_dim that is no less."""
    return next(count for most, count in table if dim <= most)


def counters(prefill: Prefill) -> Extent:
    """Words of the workspace of counts: one for each tile of keys of a head, or one for a batch, and some before."""
    cache, keys = prefill.attention.cache, tile_of(prefill).keys
    if makes_at_first(prefill):
        return COUNTERS + 1
    heads = prefill.attention.problem.n_kv_heads
    if cache.max_len:
        return heads * -(-cache.max_len // keys) + COUNTERS
    return f"{heads} * ceil_div(n_keys, {keys}) + {COUNTERS}"


class Widened:
    """Fragments `find_widened` (the kernel's), `begin_widening`, `begin_blocks`, `draw_first`; `draw`, within the
    loop over blocks, of which are `drawn`, `load_block`, `store_block` and `count_made`; `begin_tiles_made`,
    `tiles_unseen`, `tiles_made` (a wait) and `see_widened`, of the warps that ask for boxes; `leave` and `set_back` (a
    loop's body)."""

    makes_k = True  # as well as V

    def __init__(self, b: Builder, spec: Prefill, tile: WgmmaTile, items: Items, dtype: DType) -> None:
        self.b, self.spec, self.tile, self.items, self.dtype = b, spec, tile, items, dtype
        self.at_first = makes_at_first(spec)
        warps = tile.threads // WARP
        self.warps = warps - WARPS_OF_GROUP if self.at_first else WARPS_OF_GROUP - WARPS  # of a CTA, that draw
        self.k_scales: Reg | None = None
        self._take_blocks()

    def _take_blocks(self) -> None:
        """How large a block is, how a warp shares it, and whence it comes."""
        b, spec, tile = self.b, self.spec, self.tile
        paged = bool(spec.attention.cache.page_size)
        rows = 2 * BLOCK if self.at_first and spec.dim <= COLUMN and not paged else BLOCK
        self.copy = SwizzledCopy(b, "wide", spec.dim, rows, WARP, self.dtype, spec.attention.problem.kv_dtype)
        self.blocks = Blocks(b, spec, tile, self.items, rows)
        self.source = source_of(b, spec, self.blocks, self.copy)
        self.at_once = _of_dim(AT_ONCE, spec.dim)
        if self.source.quantised:
            inside = spec.attention.problem.heads_inside and spec.dim <= COLUMN
            self.at_once = min(self.at_once, INSIDE if inside else WITH_SCALES)
        if spec.attention.problem.group not in (1, 2, 4, 8) and spec.dim != 2 * COLUMN:
            most = AND_ZEROS if tile.width != spec.dim else _of_dim(BESIDE_DIVISIONS, spec.dim)
            self.at_once = min(self.at_once, most)
        if self.at_first:
            few = self.source.quantised and self.blocks.several and spec.dim <= COLUMN
            self.at_once = WITH_SCALES if few else OF_CONSUMERS

    def begin(self) -> None:
        """Where 16-bit rows and counts lie; part of an open fragment."""
        b, items = self.b, self.items
        items.wide = {x: b.ld_param(f"wide_{x}") for x in "kv"}
        self.at: Reg = b.ld_param("widening")

    def build(self, step: Reg, passes: Reg | None, copies_v: Reg) -> None:
        """Build every fragment named above; `step`: the tile of an item that is asked for; `passes`: how often the CTA
        has computed its items; `copies_v`: a warp asks for boxes of V."""
        b, items, blocks = self.b, self.items, self.blocks
        with b.fragment("begin_widening", "which of the warps makes rows of K and V in memory"):
            self.lane = b.op("and.b32", b.reg("wide_lane", "u32"), items.thread, WARP - 1)
            self.leads = b.op("setp.eq.u32", "leads", self.lane, 0)
            seen = b.op("mov.s32", "tiles_seen", 0)
            if not self.at_first:
                self.tiles = blocks.tiles_of_head()
                widens = b.op("setp.ge.u32", "widens_now", items.thread, WARP * WARPS)
        if self.at_first:
            b.without("widens_once", "draw_first")
        else:
            with b.fragment("widens_once", "not in the rounds that follow"):
                b.op("setp.ne.u32", widens, items.thread, items.thread)
        blocks.count(self.lane)
        drawn = b.reg("block_drawn", "u32")
        with b.fragment("begin_blocks", "rows that are made: a block is some keys of a head"):
            self._aim()
            blocks.begin()
            if self.makes_k and folds_scales(self.spec.attention.variant):
                self.k_scales = b.ld_param("k_scale", "wide_k_scale")
            b.note("each warp also draws one that is not there, the last of them sets the counter back")
            most = b.op("mad.lo.u32", "last_draw", items.ctas, self.warps, blocks.total)
            b.op("sub.u32", most, most, 1)
            made = b.op("mov.u32", "blocks_made", 0)
            self.made_at = b.op("mov.u64", "made_at", self.at)
        if not self.at_first:
            with b.fragment("draw_first", "under the barrier and the copies of queries"):
                draws = b.op("and.pred", "draws_first", items.is_producer, self.leads)
                b.op("setp.ge.and.u32", draws, items.thread, WARP * WARPS, draws)
                b.op("atom.relaxed.gpu.global.inc.u32", drawn, self.at[DRAWN], most, pred=draws)
        with b.fragment("draw", "ahead of when it is needed"):
            b.op("atom.relaxed.gpu.global.inc.u32", drawn, self.at[DRAWN], most, pred=self.leads)
        with b.fragment("drawn", "the block that is next, if there is one"):
            block = b.op("shfl.sync.idx.b32", "block", drawn, 0, 31, -1)
            b.op("setp.lt.u32", "has_block", block, blocks.total)
            blocks.draw(block)
        blocks.find()
        self._block(made)
        with b.fragment("count_made", "counted when all lanes have written them"):
            b.op("bar.warp.sync", -1)
            counts = b.op("setp.ne.and.u32", "counts_made", made, 0, self.leads)
            b.op("red.release.gpu.global.add.u32", self.made_at[4 * COUNTERS], made, pred=counts)
            if not self.at_first:
                b.op("mov.u32", made, 0)
        self._wait_for_all(seen, copies_v) if self.at_first else self._wait_for_tiles(seen, step, passes)
        self._leave(passes)

    def _count_at(self, head: Reg, number: Reg) -> Reg:
        """Where the count of a head's tile of keys lies, but for `COUNTERS` words; part of an open fragment."""
        b = self.b
        index = b.op("mad.lo.u32", scratch(b, "tile_count", "u32"), head, self.tiles, number)
        at: Reg = b.op("mad.wide.u32", scratch(b, "tile_count_at", "u64"), index, 4, self.at)
        return at

    # -- the warps that ask for boxes ----------------------------------------------------------------------------------

    def _aim(self) -> None:
        """This lane's part of a block; part of an open fragment."""
        self.row, self.chunk = self.copy.aim(self.lane)

    def _wait_for_all(self, seen: Reg, copies_v: Reg) -> None:
        """Once a warp, until all blocks are made."""
        b, polls = self.b, Polls(self.b)
        b.without("begin_tiles_made")
        with b.fragment("tiles_unseen", "whether the next tile may still be in the making"):
            if self.makes_k:
                b.op("setp.eq.s32", "is_unseen", seen, 0)
            else:
                b.op("setp.eq.and.s32", "is_unseen", seen, 0, copies_v)
            b.op("mov.s32", seen, 1)
            polls.allow()
        with b.fragment("tiles_made", "until all blocks are made"):
            so_far = b.op("ld.acquire.gpu.global.u32", "blocks_so_far", self.at[4 * COUNTERS])
            b.op("setp.ge.u32", "are_made", so_far, self.blocks.total)
            polls.count()
        self._see()

    def _wait_for_tiles(self, seen: Reg, step: Reg, passes: Reg | None) -> None:
        """Before a tile of an item, until its blocks are made."""
        b, items, polls = self.b, self.items, Polls(self.b)
        with b.fragment("begin_tiles_made", "no tile of this item was looked for"):
            b.op("mov.s32", seen, 0)
            if passes is not None:
                again = b.op("setp.ne.u32", "asks_again", passes, 0)
                b.op("mov.s32", seen, (1 << 31) - 1, pred=again, note="all of them in the first pass")
        with b.fragment("tiles_unseen", "whether the next tile may still be in the making"):
            b.op("setp.ge.s32", "is_unseen", step, seen)
            polls.allow()
        with b.fragment("tiles_made", f"how many of the next {WARP} tiles are made"):
            ahead = b.op("add.s32", b.reg("step_ahead", "s32"), step, self.lane)
            exists = b.op("setp.lt.s32", "step_exists", ahead, items.key_tiles)
            at = self._count_at(items.kv_head, items.tile_number(ahead))
            so_far = b.op("mov.u32", b.reg("blocks_so_far", "u32"), self.tile.keys // BLOCK)
            b.op("ld.acquire.gpu.global.u32", so_far, at[4 * COUNTERS], pred=exists)
            lacks = b.op("setp.lt.u32", "lacks_blocks", so_far, self.tile.keys // BLOCK)
            lacking = b.op("vote.sync.ballot.b32", b.reg("tiles_lacking", "b32"), lacks, -1)
            b.op("brev.b32", lacking, lacking)
            count = b.op("clz.b32", b.reg("tiles_in_order", "s32"), lacking)
            b.op("add.s32", seen, step, count)
            b.op("setp.gt.s32", "are_made", count, 0)
            polls.count()
        self._see()

    def _see(self) -> None:
        b = self.b
        with b.fragment("see_widened", "what other warps have written, seen by the copies from here on"):
            b.op("bar.warp.sync", -1)
            b.op("fence.proxy.async")

    # -- the end -------------------------------------------------------------------------------------------------------

    def _leave(self, passes: Reg | None) -> None:
        b, items = self.b, self.items
        if passes is None:
            b.without("pass_is_first")
        else:
            with b.fragment("pass_is_first", "warps leave when all that they ask for has been asked for once"):
                b.op("setp.eq.u32", "is_first_pass", passes, 0)
        with b.fragment("leave", "the last warp to have drawn and looked sets the counts back"):
            warps = b.op("mul.lo.u32", "all_warps", items.ctas, WARPS_OF_GROUP)
            b.op("sub.u32", warps, warps, 1)
            b.op("bar.warp.sync", -1)
            left = b.op("mov.u32", b.reg("warps_left", "u32"), 0)
            b.op("atom.acq_rel.gpu.global.inc.u32", left, self.at[LEFT], warps, pred=self.leads)
            b.op("shfl.sync.idx.b32", left, left, 0, 31, -1)
            last = b.op("setp.eq.u32", "is_last_to_leave", left, warps)
            count = b.op("mov.u32", "counts", 1)
            if not self.at_first:
                b.op("mul.lo.u32", count, self.tiles, items.problem.n_kv_heads)
            at = b.op("mad.wide.u32", "count_back_at", self.lane, 4, self.at)
            index = b.op("mov.u32", "count_back", self.lane)
            more = b.op("setp.lt.and.u32", "sets_back", index, count, last)
        with b.fragment("set_back", "a lane sets back every 32nd"):
            b.op("st.global.u32", at[4 * COUNTERS], 0)
            b.op("add.u64", at, at, 4 * WARP)
            b.op("add.u32", index, index, WARP)
            b.op("setp.lt.u32", more, index, count)

    # -- a block -------------------------------------------------------------------------------------------------------

    def _block(self, made: Reg) -> None:
        """Fragments `load_block`, of the block that was drawn, and `store_block`, of its 16-bit rows; `made` counts."""
        b, copy = self.b, self.copy
        chunks = [
            (i, column, x, takes_part)
            for i in range(copy.spread.row_passes)
            for column, takes_part in copy.passes(i)
            for x in "kv"
        ]
        apart = copy.spread.row_passes if self.items.cache.page_size else 1  # else at equal steps
        self.wide = [b.reg(f"wide_row{i}", "u64") for i in range(apart)]
        self.exist = [b.reg(f"wide_row_exists{i}", "pred") for i in range(copy.spread.row_passes)]
        self.each = copy.source_bytes // 4
        self.words = b.array("wide_word", "b32", self.each * self.at_once)
        self.scales = b.array("wide_scale_of", "b16", self.at_once) if self.source.quantised else None
        self.row_of_words = -1
        with b.fragment("load_block", f"{self.blocks.rows} keys and values"):
            self.blocks.place()
            self.source.aim(self.row, self.chunk)
            self.source.start()
            self._load(chunks[: self.at_once])
            signs = self._signs(self.blocks.kv_head)
        with b.fragment("store_block", "as 16-bit rows"):
            for first in range(0, len(chunks), self.at_once):
                some = chunks[first : first + self.at_once]
                if first:
                    self._load(some)
                for n, (i, column, x, takes_part) in enumerate(some):
                    b.note(f"{x.upper()} of rows from {i * copy.spread.rows_per_pass} on")
                    self._store(n, (i, column, x), signs, self._present(self.exist[i], takes_part))
            if self.at_first:
                b.op("add.u32", made, made, 1)
            else:
                b.op("mov.u32", made, self.blocks.counts_for)
                b.op("mov.u64", self.made_at, self._count_at(self.blocks.kv_head, self.blocks.tile_number))

    def _load(self, chunks: list[tuple[int, int, str, Reg | None]]) -> None:
        """Some chunks of a block; part of an open fragment."""
        b, source, scales = self.b, self.source, self.scales
        for n, (i, column, x, takes_part) in enumerate(chunks):
            if i != self.row_of_words:
                self.row_of_words = i
                self._row(i)
            pred = self._present(self.exist[i], takes_part)
            words = tuple(self.words[self.each * n : self.each * (n + 1)])
            clear(b, words)
            self.copy.load(words, source.chunk_at(x, i, column), pred)
            if scales is not None:
                b.op("mov.b16", scales[n], 0)
                b.op("ld.global.nc.b16", scales[n], source.scale_at(x, i, column), pred=pred)

    def _row(self, i: int) -> None:
        """This thread's row of a pass: whether it exists, and where its 16-bit rows begin; part of an open fragment."""
        b, source = self.b, self.source
        b.op("setp.gt.s32", self.exist[i], source.left, i * self.copy.spread.rows_per_pass)
        source.row(i, self.exist[i])
        if i >= len(self.wide):
            return
        assert source.values.k_from is not None, "aimed, and at a row"
        b.note("rows lie as those of 8 bits do, twice as far apart")
        wide = b.op("sub.u64", self.wide[i], source.values.k_from, source.values.k)
        b.op("shl.b64", wide, wide, 1)

    def _present(self, exists: Reg, takes_part: Reg | None) -> Reg:
        if takes_part is None:
            return exists
        b = self.b
        return b.op("and.pred", scratch(b, "wide_exists", "pred"), exists, takes_part)  # type: ignore[no-any-return]

    def _store(self, n: int, place: tuple[int, int, str], signs: Reg | None, pred: Reg) -> None:
        """Chunk `n` of those that were loaded, as 16-bit values; part of an open fragment."""
        b, (i, column, x) = self.b, place
        scale = None if self.scales is None else self.scales[n]
        words = self.words[self.each * n : self.each * (n + 1)]
        made = self.copy.widened(words, scale, signs if x == "k" else None)
        to = b.op("add.u64", scratch(b, "wide_at", "u64"), self.wide[min(i, len(self.wide) - 1)], self.items.wide[x])
        offset = 2 * self.source.chunk_at(x, i, column).offset
        store_words(b, to, made, offset, pred=pred)

    def _signs(self, head: Reg) -> Reg | None:
        """The sign bits that K takes from its head's scale; part of an open fragment."""
        b, scales = self.b, self.k_scales
        if scales is None:
            return None
        at = b.op("mad.wide.u32", b.reg("wide_scale_at", "u64"), head, 4, scales)
        return sign_bits(b, b.op("ld.global.nc.f32", b.reg("wide_sign_of", "f32"), at[0]))
