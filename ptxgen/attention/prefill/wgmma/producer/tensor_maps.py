"""Tensor maps of K and V, made by every CTA itself, as a launch passes plain addresses.

A map lies in global memory of the module, in a slot of this multiprocessor: shared memory has room for one CTA on it,
so no other one uses the slot meanwhile. That of one sequence ends with the last key, so that what lies behind arrives
as zeros; one of a batch ends with the rows of a cache, and one of pages with those of a page.
Source: PTX ISA 9.0, "tensormap.replace", "tensormap.cp_fenceproxy"; CUDA Programming Guide, "Device-side Encode of a
Tensor Map".
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ptxgen.attention.cache import Cache
from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.tile import MAP_BYTES, SWIZZLED_ROW, WgmmaTile
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType

SLOTS = 1024  # multiprocessors at most
WORDS = MAP_BYTES // 4
ELEMENT_TYPES = {"e4m3": 0, "f16": 6, "bf16": 10}  # .elemtype: that of bytes
SWIZZLE_128 = 3  # .swizzle_mode
DIMENSIONS = 3  # elements, keys, heads
ANY = (1 << 31) - 1  # an extent that the page table bounds


class Maps:
    """Fragments `clear_maps`, `write_maps` and `publish_maps`, by the two warps of which each copies K or V."""

    def __init__(self, b: Builder, items: Items, tile: WgmmaTile, dtype: DType) -> None:
        self.b, self.items, self.tile, self.dtype = b, items, tile, dtype

    def build(self, smem: Reg, lane: Reg, copies_v: Reg) -> Reg:
        """All of them; the address of this warp's map. `copies_v`: it is V's."""
        b = self.b
        slots = b.room("maps", 2 * MAP_BYTES * SLOTS)
        with b.fragment("clear_maps", "a tensor map of zeros"):
            made = b.op("add.u32", "map_made", smem, self.tile.maps_at)
            b.op("add.u32", made, made, MAP_BYTES, pred=copies_v)
            word = b.op("mad.lo.u32", "map_word", lane, 4, made)
            b.op("st.shared.b32", word[0], b.op("mov.b32", b.reg("no_word", "b32"), 0))
            b.op("setp.eq.u32", "writes_map", lane, 0)
        with b.fragment("meet_lanes"):
            b.op("bar.warp.sync", -1)
        box = SWIZZLED_ROW // self.dtype.bytes
        note = f"this warp's tensor map: an array [heads, keys, elements], boxes of {box} elements"
        with b.fragment("write_maps", note):
            self._write(made, copies_v)
        with b.fragment(
            "publish_maps", "the map in module memory, a place for each multiprocessor, seen by the copies from here on"
        ):
            at = b.op("mov.u64", "map_at", slots)
            slot = b.op("mov.u32", "multiprocessor", b.special("smid"))
            b.op("min.u32", slot, slot, SLOTS - 1)
            b.op("mad.wide.u32", at, slot, 2 * MAP_BYTES, at)
            b.op("add.u64", at, at, MAP_BYTES, pred=copies_v)
            b.op("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned",
                 at[0], made[0], MAP_BYTES)  # fmt: skip
            seen: Reg = b.op("cvta.global.u64", "map_seen", at)
            b.op("fence.proxy.tensormap::generic.acquire.gpu", seen[0], MAP_BYTES)
        return seen

    def _write(self, made: Reg, copies_v: Reg) -> None:
        """The fields of the map at `made`; part of an open fragment."""
        b, items = self.b, self.items
        cache, box, rows = items.cache, SWIZZLED_ROW // self.dtype.bytes, items.wide
        array = rows["k"] if "k" in rows else b.ld_param("k")
        keys, heads = self._extents()
        b.op("selp.b64", array, rows["v"] if "v" in rows else b.ld_param("v"), array, copies_v)
        row = cache.k.dim * self.dtype.bytes
        stride = b.reg("map_stride", "u64")

        def put(field: str, *operands: object, wide: bool = False, pred: Reg | None = None) -> None:
            kind = "b64" if wide else "b32"
            b.op(f"tensormap.replace.tile.{field}.shared::cta.b1024.{kind}", made[0], *operands, pred=pred)

        put("global_address", array, wide=True)
        put("rank", DIMENSIONS - 1)
        put("elemtype", ELEMENT_TYPES[self.dtype.name])
        put("interleave_layout", 0)
        put("swizzle_mode", SWIZZLE_128)
        put("fill_mode", 0)
        for n, size in enumerate((box, box_keys(cache, self.tile), 1)):
            put("box_dim", n, size)
        for n, extent in enumerate((cache.k.dim, keys, heads)):
            put("global_dim", n, extent)
        for n in range(DIMENSIONS):
            put("element_stride", n, 1)
        b.op("mov.u64", stride, cache.k.heads * row * cache.rows_per_position)
        put("global_stride", 0, stride, wide=True)
        if cache.by_token or cache.heads_inside:
            b.op("mov.u64", stride, row)
        elif cache.page_size:
            b.op("mov.u64", stride, cache.page_size * row)
        elif cache.max_len:
            b.op("mov.u64", stride, cache.rows * row)
        else:
            b.op("mul.wide.u32", stride, b.ld_param("kv_rows"), row)
        put("global_stride", 1, stride, wide=True)
        if self.tile.turned:
            self._turn(put, stride, copies_v)

    def _turn(self, put: Callable[..., None], stride: Reg, copies_v: Reg) -> None:
        """What differs in the map of V that lies by element, an array [tiles, elements, keys]; part of an open
        fragment."""
        tile, dim = self.tile, self.items.cache.v.dim
        self.b.note("V lies by element: tiles of a swizzled row of keys for each")
        put("box_dim", 1, dim, pred=copies_v)
        for n, extent in enumerate((tile.keys, dim, ANY)):
            put("global_dim", n, extent, pred=copies_v)
        for n, step in enumerate((SWIZZLED_ROW, tile.v_bytes)):
            self.b.op("mov.u64", stride, step)
            put("global_stride", n, stride, wide=True, pred=copies_v)

    def _extents(self) -> tuple[Reg | int, Reg | int]:
        """Keys, and heads of all sequences or pages; part of an open fragment."""
        b, cache, heads = self.b, self.items.cache, self.items.problem.n_kv_heads
        if cache.page_size:
            return (ANY, heads) if cache.heads_inside else (cache.page_size, ANY)
        if cache.batched:
            all_heads = b.op("mul.lo.s32", b.reg("map_heads", "s32"), self.items.batch_count, heads)
            return cache.rows, b.op("max.s32", all_heads, all_heads, 1)
        return b.op("max.s32", "map_keys", self.items.kv_len, 1), heads


def box_keys(cache: Cache, tile: WgmmaTile) -> int:
    """Keys of a box: a tile's, or so many that a box lies within a page."""
    return math.gcd(cache.page_size, tile.keys) if cache.page_size else tile.keys
