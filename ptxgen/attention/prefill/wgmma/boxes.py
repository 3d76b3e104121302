"""The producer by tensor maps: a warp asks for boxes of K, one for boxes of V, two copy rows of q."""

from __future__ import annotations

from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.maps import Maps
from ptxgen.attention.prefill.wgmma.ring import K_EMPTY, K_FULL, V_FULL, WORD, Ring
from ptxgen.attention.prefill.wgmma.tile import COLUMN, STAGES, SWIZZLED_ROW, WARPGROUP, WgmmaTile
from ptxgen.builder import Builder
from ptxgen.builder.values import SINK, Addr, Reg
from ptxgen.dtypes import DType

WARPS = 2  # that ask for boxes
LOAD = "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


class Boxes:
    """Fragments of the warps that ask for boxes: those of the maps, `begin_boxes`, `aim_box`, `box_empty`, `fill_box`,
    `next_box`; and of the others `announce`."""

    def __init__(self, b: Builder, tile: WgmmaTile, items: Items, ring: Ring, dtype: DType) -> None:
        self.b, self.tile, self.items, self.ring = b, tile, items, ring
        self.maps = Maps(b, items, tile, dtype)

    def announce(self, thread: Reg) -> None:
        """Fragment `announce`, by the threads that copy q, `thread` their number: the rows of the item's first tile are
        on their way to the L2 cache while the maps are made."""
        b, items, side = self.b, self.items, self.items.cache.k
        threads = WARPGROUP - 32 * WARPS
        with b.fragment("announce", "the first tile of K and V to the L2 cache"):
            step = items.kv_step * side.row_bytes
            at = b.op("mul.wide.u32", "announced_row", items.first_tile, self.tile.keys * step)
            b.op("mad.wide.u32", at, thread, step, at)
            head = b.op("cvt.u64.u32", "announced_head", items.kv_head)
            if items.cache.by_token:
                b.op("mad.lo.u64", at, head, side.row_bytes, at)
            elif items.cache.max_len:
                b.op("mad.lo.u64", at, head, items.cache.rows * side.row_bytes, at)
            else:
                rows = b.op("ld.param.s32", "announced_rows", Addr("kv_rows_param"))
                wide = b.op("mul.wide.u32", "announced_head_bytes", rows, side.row_bytes)
                b.op("mad.lo.u64", at, head, wide, at)
            key = b.op("mad.lo.s32", "announced_key", items.first_tile, self.tile.keys, thread)
            exists, each = b.reg("announced_exists", "pred"), b.reg("announced_each", "s32")
            for x in "kv":
                array = b.op("ld.param.u64", f"announced_{x}", Addr(f"{x}_param"))
                b.op("cvta.to.global.u64", array, array)
                b.op("add.u64", array, array, at)
            for first in range(0, self.tile.keys, threads):
                b.op("add.s32", each, key, first)
                b.op("setp.lt.s32", exists, each, items.kv_len)
                if first + threads > self.tile.keys:
                    b.op("setp.lt.and.u32", exists, thread, self.tile.keys - first, exists)
                for x in "kv":
                    b.op(
                        "cp.async.bulk.prefetch.L2.global",
                        b.registers[f"announced_{x}"][first * step],
                        side.row_bytes,
                        pred=exists,
                    )

    def build(self, smem: Reg) -> None:
        """All of them; `smem` is where shared memory begins."""
        b, tile, items = self.b, self.tile, self.items
        with b.fragment("part", "the first warp copies K, the second V, the others q"):
            b.op("setp.lt.u32", "copies_boxes", items.thread, 32 * WARPS)
            copies_v = b.op("setp.ge.u32", "copies_v", items.thread, 32)
            lane = b.op("and.b32", b.reg("box_lane", "u32"), items.thread, 31)
            asks = b.op("setp.eq.u32", "asks", lane, 0)
            box = b.op("selp.b32", b.reg("boxes_at", "u32"), tile.v_at, tile.k_at, copies_v)
            b.op("add.u32", box, box, smem)
            barriers = b.op("selp.b32", b.reg("box_barriers", "u32"), V_FULL, K_FULL, copies_v)
            b.op("add.u32", barriers, barriers, self.ring.at)
            number = b.op("mov.u32", "boxes", 0, note="tiles so far")
        map_ = self.maps.build(smem, lane, copies_v)
        with b.fragment("begin_boxes"):
            step = b.op("mov.s32", "box_step", 0)
        with b.fragment("aim_box", "the tile of keys that comes next, and its slot"):
            stage = b.op("and.b32", b.reg("box_stage", "u32"), number, STAGES - 1)
            bar = b.op("mad.lo.u32", "box_barrier", stage, WORD, barriers)
            parity = b.op("bfe.u32", "box_parity", number, STAGES.bit_length() - 1, 1)
            b.op("xor.b32", parity, parity, 1)
            at = b.op("mad.lo.u32", "box_at", stage, tile.kv_bytes, box)
            key = items.tile_start(step)
        self.ring.wait("box_empty", bar[K_EMPTY - K_FULL], parity)
        with b.fragment("fill_box", f"{tile.keys} keys; those from kv_len on become zeros"):
            b.op("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, bar[0], tile.kv_bytes, pred=asks)
            for n in range(tile.columns):
                to = at[n * tile.keys * SWIZZLED_ROW]
                b.op(LOAD, to, Addr(map_, 0, (COLUMN * n, key, items.kv_head)), bar[0], pred=asks)
        with b.fragment("next_box"):
            b.op("add.u32", number, number, 1)
            b.op("add.s32", step, step, 1)
            b.op("setp.lt.s32", "more_boxes", step, items.key_tiles)
