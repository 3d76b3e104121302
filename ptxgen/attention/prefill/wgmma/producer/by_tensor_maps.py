"""The producer by tensor maps: a warp asks for boxes of K, one for boxes of V, two copy rows of q."""

from __future__ import annotations

from collections.abc import Iterator

from ptxgen.attention.prefill.rows import Rows
from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.producer.tensor_maps import Maps, box_keys
from ptxgen.attention.prefill.wgmma.ring import K_EMPTY, K_FULL, V_FULL, WORD, Ring
from ptxgen.attention.prefill.wgmma.tile import COLUMN, LANES, STAGES, SWIZZLED_ROW, WgmmaTile
from ptxgen.builder import Builder
from ptxgen.builder.values import SINK, Addr, Reg
from ptxgen.dtypes import DType
from ptxgen.idioms import convert
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.division import divide, remainder

WARPS = 2  # that ask for boxes
LOAD = "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


class Boxes:
    """Fragments of the warps that ask for boxes: the maps', `begin_boxes`, `aim_box`, `box_empty`, `fill_box`, those of
    a tile's tail, and `next_box`."""

    def __init__(self, b: Builder, tile: WgmmaTile, items: Items, ring: Ring, dtype: DType) -> None:
        self.b, self.tile, self.items, self.ring = b, tile, items, ring
        self.maps = Maps(b, items, tile, dtype)

    def build(self, smem: Reg) -> None:
        """All of them; `smem` is where shared memory begins."""
        b, tile, items = self.b, self.tile, self.items
        with b.fragment("part", "the first warp copies K, the second V, the others q"):
            b.op("setp.lt.u32", "copies_boxes", items.thread, 32 * WARPS)
            copies_v = self.copies_v = b.op("setp.ge.u32", "copies_v", items.thread, 32)
            lane = b.op("and.b32", b.reg("box_lane", "u32"), items.thread, 31)
            asks = b.op("setp.eq.u32", "asks", lane, 0)
            box = b.op("selp.b32", b.reg("boxes_at", "u32"), tile.v_at, tile.k_at, copies_v)
            b.op("add.u32", box, box, smem)
            barriers = b.op("selp.b32", b.reg("box_barriers", "u32"), V_FULL, K_FULL, copies_v)
            b.op("add.u32", barriers, barriers, self.ring.at)
            number = b.op("mov.u32", "boxes", 0, note="tiles so far")
            if tile.tails:
                self.tail = b.op("add.u32", "tail_barrier", smem, tile.tail_at)
                self.tails = b.op("mov.u32", "tails", 0, note="tiles of V so far that reach past the last key")
        map_ = self.maps.build(smem, lane, copies_v)
        with b.fragment("begin_boxes"):
            step = self.step = b.op("mov.s32", "box_step", 0)
        with b.fragment("aim_box", "the tile of keys that comes next, and its slot"):
            stage = b.op("and.b32", b.reg("box_stage", "u32"), number, STAGES - 1)
            bar = b.op("mad.lo.u32", "box_barrier", stage, WORD, barriers)
            parity = b.op("bfe.u32", "box_parity", number, STAGES.bit_length() - 1, 1)
            b.op("xor.b32", parity, parity, 1)
            at = b.op("mad.lo.u32", "box_at", stage, tile.kv_bytes, box)
            key = items.tile_start(step)
            done: Addr = bar[0]
            if tile.tails:
                end = b.op("add.s32", b.reg("box_end", "s32"), key, tile.keys)
                has_tail = b.op("setp.gt.and.s32", "has_tail", end, items.kv_len, copies_v)
                if items.cache.page_size:
                    self._page(lane, key)
                done = b.op("selp.b32", b.reg("box_done", "u32"), self.tail, bar, has_tail)[0]
        self.ring.wait("box_empty", bar[K_EMPTY - K_FULL], parity)
        ends = "rows from kv_len on follow" if tile.tails else "those from kv_len on become zeros"
        with b.fragment("fill_box", f"{tile.keys} keys; {ends}"):
            if not items.cache.page_size:  # whose rows are exchanged below
                b.op("bar.warp.sync", -1, note="no lane falls a phase behind")
            if tile.turned:
                self._ask_for_bytes(Addr(map_), at, done, key, asks)
            else:
                b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, done, tile.kv_bytes, pred=asks)
                for first, row, head in self._boxes(key):
                    for n in range(tile.columns):
                        to = at[(n * tile.keys + first) * SWIZZLED_ROW]
                        b.op(LOAD, to, Addr(map_, 0, (COLUMN * n, row, head)), done, pred=asks)
        if tile.tails:
            self._tail(at, key, lane, bar, asks)
        else:
            b.without("aim_tail", "tail_boxes", "clear_tail", "tail_is_clear")
        with b.fragment("next_box"):
            b.op("add.u32", number, number, 1)
            b.op("add.s32", step, step, 1)
            b.op("setp.lt.s32", "more_boxes", step, items.key_tiles)

    def _ask_for_bytes(self, map_: Addr, at: Reg, done: Addr, key: Reg, asks: Reg) -> None:
        """Boxes of K of 8 bits, or the one of V by element; part of an open fragment."""
        b, tile, items, v = self.b, self.tile, self.items, self.copies_v
        size = b.op("selp.b32", b.reg("box_bytes", "u32"), tile.v_bytes, tile.k_bytes, v)
        b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, done, size, pred=asks)
        [(_, row, head)] = self._boxes(key)
        turned = b.reg("turned_tile", "u32")
        b.op("mad.lo.u32", turned, head, turned_tiles(b, items, tile.keys), items.tile_number(self.step))
        b.op("selp.b32", turned, turned, head, v)
        row = b.op("selp.b32", b.reg("box_row", "s32"), 0, row, v)
        b.op(LOAD, at[0], Addr(map_.base, 0, (0, row, turned)), done, pred=asks)
        asks_for_k = b.op("and.pred", b.reg("asks_for_k", "pred"), asks, ~v) if tile.k_columns > 1 else asks
        for n in range(1, tile.k_columns):
            to = at[n * tile.keys * SWIZZLED_ROW]
            b.op(LOAD, to, Addr(map_.base, 0, (SWIZZLED_ROW * n, row, turned)), done, pred=asks_for_k)

    # -- which rows ----------------------------------------------------------------------------------------------------

    def _page(self, lane: Reg, key: Reg) -> None:
        """A lane finds one box's page, and where in it the box begins; part of an open fragment."""
        b, cache = self.b, self.items.cache
        mine = b.op("mad.lo.s32", b.reg("page_key", "s32"), lane, box_keys(cache, self.tile), key)
        exists = b.op("setp.lt.s32", "page_exists", mine, self.items.kv_len)
        b.note("a box behind the last key asks for rows that exist")
        b.op("selp.b32", mine, mine, key, exists)
        slot = divide(b, "page_slot", mine, cache.page_size)
        b.op("min.u32", slot, slot, cache.pages - 1)
        table = b.ld_param("page_table")
        b.op("mad.wide.u32", table, self.items.found.sequence, 4 * cache.pages, table)
        at = b.op("mad.wide.u32", "page_at", slot, 4, table)
        page = b.op("ld.global.nc.s32", "page", at[0])
        self.row = remainder(b, "page_row", mine, cache.page_size)
        if cache.heads_inside:
            b.op("mad.lo.s32", self.row, page, cache.page_size, self.row)
        else:
            b.op("mad.lo.s32", page, page, self.items.problem.n_kv_heads, self.items.kv_head)
        self.page = page

    def _boxes(self, key: Reg) -> Iterator[tuple[int, Reg, Reg]]:
        """Of every box the first of the tile's keys, and its row and head in the map; part of an open fragment."""
        b, cache, items = self.b, self.items.cache, self.items
        if not cache.batched:
            yield 0, key, items.kv_head
        elif not cache.page_size:
            heads = items.problem.n_kv_heads
            head = b.op("mad.lo.s32", b.reg("box_head", "s32"), items.found.sequence, heads, items.kv_head)
            yield 0, key, head
        else:
            step = box_keys(cache, self.tile)
            for n in range(self.tile.keys // step):
                row = b.op("shfl.sync.idx.b32", scratch(b, "box_row", "s32"), self.row, n, 31, -1)
                head = items.kv_head
                if not cache.heads_inside:
                    head = b.op("shfl.sync.idx.b32", scratch(b, "box_head", "s32"), self.page, n, 31, -1)
                yield n * step, row, head

    def _tail(self, at: Reg, key: Reg, lane: Reg, bar: Reg, asks: Reg) -> None:
        """Fragments `aim_tail`, `tail_boxes` (a wait), `clear_tail` (a loop's body) and `tail_is_clear`: rows of V from
        kv_len on may hold anything, and no probability makes a NaN zero."""
        b, tile, items = self.b, self.tile, self.items
        with b.fragment("aim_tail", "rows of V from kv_len on become zeros, when the boxes have come"):
            parity = b.op("and.b32", b.reg("tail_parity", "u32"), self.tails, 1)
            b.op("add.u32", self.tails, self.tails, 1)
            row = b.op("shr.u32", b.reg("tail_row", "s32"), lane, LANES.bit_length() - 1)
            b.op("add.s32", row, row, items.kv_len)
            b.op("sub.s32", row, row, key)
            place = b.op("and.b32", b.reg("tail_place", "u32"), lane, LANES - 1)
            b.op("shl.b32", place, place, 4)
            b.op("add.u32", place, place, at)
            b.op("mad.lo.u32", place, row, SWIZZLED_ROW, place)
            zero = b.op("mov.b32", b.reg("no_value", "b32"), 0)
            more = b.op("setp.lt.s32", "more_tail", row, tile.keys)
        self.ring.wait("tail_boxes", self.tail[0], parity)
        with b.fragment("clear_tail", "zeros in the lane's row from kv_len on"):
            for n in range(tile.columns):
                convert.store_words(b, place, (zero,) * 4, n * tile.keys * SWIZZLED_ROW, space="shared")
            b.op("add.s32", row, row, 32 // LANES)
            b.op("add.u32", place, place, 32 // LANES * SWIZZLED_ROW)
            b.op("setp.lt.s32", more, row, tile.keys)
        with b.fragment("tail_is_clear"):
            b.op("fence.proxy.async.shared::cta")
            b.op("bar.warp.sync", -1)
            self.ring.arrive(bar[0], asks)


def turned_tiles(b: Builder, rows: Rows, keys: int) -> Reg | int:
    """Tiles of V by element that a head has room for; part of an open fragment."""
    if rows.cache.max_len:
        return -(-rows.cache.max_len // keys)
    tiles = b.op("add.s32", scratch(b, "turned_tiles", "s32"), rows.kv_len, keys - 1)
    return divide(b, "turned_tiles", tiles, keys)
