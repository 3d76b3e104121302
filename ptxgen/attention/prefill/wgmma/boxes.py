"""The producer by tensor maps: a warp asks for boxes of K, one for boxes of V, two copy rows of q."""

from __future__ import annotations

from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.maps import Maps
from ptxgen.attention.prefill.wgmma.ring import K_EMPTY, K_FULL, V_FULL, WORD, Ring
from ptxgen.attention.prefill.wgmma.tile import COLUMN, STAGES, SWIZZLED_ROW, WgmmaTile
from ptxgen.builder import Builder
from ptxgen.builder.values import SINK, Addr, Reg
from ptxgen.dtypes import DType

WARPS = 2  # that ask for boxes
LOAD = "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


class Boxes:
    """Fragments of the warps that ask for boxes: the maps', `begin_boxes`, `aim_box`, `box_empty`, `fill_box` and
    `next_box`."""

    def __init__(self, b: Builder, tile: WgmmaTile, items: Items, ring: Ring, dtype: DType) -> None:
        self.b, self.tile, self.items, self.ring = b, tile, items, ring
        self.maps = Maps(b, items, tile, dtype)

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
