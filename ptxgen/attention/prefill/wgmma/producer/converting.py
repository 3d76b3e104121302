"""The producer of 8-bit K and V: words of a tile are loaded while those of the tile before become 16-bit
values in swizzled shared memory.

An e4m3 value is one of f16 and of bf16; an int8 value times its scale is rounded to them. For fp8 K stays as it is.
"""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.sources import source_of
from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.producer.by_threads import Producer, QueryCopies
from ptxgen.attention.prefill.wgmma.producer.swizzled_copies import PairedCopy, SwizzledCopy
from ptxgen.attention.prefill.wgmma.producer.widening import sign_bits
from ptxgen.attention.prefill.wgmma.ring import K_EMPTY, K_FULL, V_EMPTY, V_FULL, Ring
from ptxgen.attention.prefill.wgmma.tile import CHUNK, LANES, SWIZZLED_ROW, WgmmaTile
from ptxgen.attention.prefill.wgmma.variants import folds_scales
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType
from ptxgen.idioms.convert import clear, scratch


class Conversions(Producer):
    """Fragments `begin_tiles`, `load_k`, and of a tile `aim_fill`, `load_v`, `fill_k`, `next_fill`, `fill_v`."""

    def __init__(self, b: Builder, spec: Prefill, tile: WgmmaTile, items: Items, ring: Ring, dtype: DType) -> None:
        super().__init__(b, spec, tile, items, ring, dtype)
        if not spec.fp8:
            kind = spec.attention.problem.kv_dtype
            self.kv = PairedCopy(b, "kv", spec.dim, tile.keys, tile.producer_threads, dtype, kind)
            self.source = source_of(b, spec, items, self.kv)

    def aim(self, smem: Reg) -> None:
        if self.spec.fp8:
            super().aim(smem)
            self.kv_row, self.kv_chunk = self.row, self.chunk
            return
        QueryCopies.aim(self, smem)
        b = self.b
        self.kv_row, self.kv_chunk = self.kv.aim(self.thread)
        first = self.kv.offset("kv_to", self.kv_row, self.kv_chunk)
        b.op("add.u32", first, first, smem)
        self.kv_to = (first, b.op("xor.b32", b.reg("kv_to_next", "u32"), first, CHUNK))
        self.filled = b.op("mov.u32", "filled", 0, note="tiles so far")

    def build(self, smem: Reg) -> None:
        QueryCopies.build(self, smem)
        b, tile = self.b, self.tile
        self._declare()
        if self.spec.fp8:
            with b.fragment("aim_v", "a chunk of V becomes two, side by side"):
                self._aim_v()
        else:
            b.without("aim_v")
        with b.fragment("begin_tiles"):
            self.step = b.op("mov.s32", "fill_step", 0)
            self.signs = self._signs()
        with b.fragment("load_k", "words of K of the tile that comes next, if there is one"):
            self._aim_source()
            self._load("k")
        with b.fragment("aim_fill", "the slot of this tile of keys"):
            self.stage, self.slot, self.parity = self.ring.slot("fill", self.filled)
            b.op("xor.b32", self.parity, self.parity, 1)
            if self.spec.fp8:
                self.slot_at = b.op("mad.lo.u32", "fill_at", self.stage, tile.kv_bytes, self.to)
                for half, to in enumerate(self.v_to):
                    b.op("mad.lo.u32", self.v_at[half], self.stage, tile.kv_bytes, to)
            else:
                self.slots_at = [
                    b.op("mad.lo.u32", b.reg(f"fill_at{half}", "u32"), self.stage, tile.kv_bytes, to)
                    for half, to in enumerate(self.kv_to)
                ]
            b.op("setp.eq.s32", "is_first_fill", self.step, 0)
        with b.fragment("load_v"):
            self._load("v")
        self.ring.wait("k_empty", self.slot[K_EMPTY], self.parity)
        self._convert("k", tile.k_at, K_FULL)
        with b.fragment("next_fill"):
            b.op("add.u32", self.filled, self.filled, 1)
            b.op("add.s32", self.step, self.step, 1)
        self.ring.wait("v_empty", self.slot[V_EMPTY], self.parity)
        self._convert("v", tile.v_at, V_FULL)

    def _declare(self) -> None:
        """Registers of a tile's words, and of the scales beside them."""
        b, spread, each = self.b, self.kv.spread, self.kv.source_bytes // 4
        chunks = spread.row_passes * spread.column_passes
        self.words, self.scales = {}, {}
        for x in "kv":
            words = b.array(f"{x}_word", "b32", chunks * each)
            self.words[x] = [tuple(words[n * each : (n + 1) * each]) for n in range(chunks)]
            self.scales[x] = list(b.array(f"{x}_scale_of", "b16", chunks)) if self.source.quantised else [None] * chunks

    def _aim_source(self) -> None:
        """This thread's rows of the tile `step`, none where that is beyond the last; part of an open fragment."""
        b, items = self.b, self.items
        more = b.op("setp.lt.s32", "more_fills", self.step, items.key_tiles)
        items.key_begin = items.tile_start(self.step)
        self.source.aim(self.kv_row, self.kv_chunk)
        b.op("selp.b32", self.source.left, self.source.left, 0, more)
        self.source.start()

    def _signs(self) -> Reg | None:
        """The sign bits that K takes from its head's scale, of which the softmax has the size; part of an open
        fragment."""
        if not folds_scales(self.spec.attention.variant):
            return None
        return sign_bits(self.b, self.items.k_scale)

    def _aim_v(self) -> None:
        """Where this thread's chunks of V go, of which each is 16 values; part of an open fragment."""
        b = self.b
        self.wide = SwizzledCopy(
            b, "v", self.spec.dim, self.tile.keys, self.tile.producer_threads, self.dtype, self.kv.source
        )
        chunk = b.op("shl.b32", b.reg("v_chunk", "u32"), self.chunk, 1)
        column = b.op("shr.u32", "v_column", chunk, LANES.bit_length() - 1)
        b.op("and.b32", chunk, chunk, LANES - 1)
        first = self.wide.offset("v_to", self.row, chunk)
        b.op("mad.lo.u32", first, column, self.tile.keys * SWIZZLED_ROW, first)
        second = b.op("xor.b32", b.reg("v_to_next", "u32"), first, CHUNK)
        self.v_to = (first, second)
        for to in self.v_to:
            b.op("add.u32", to, to, self.base)
        self.v_at = [b.reg(f"v_fill_at{half}", "u32") for half in range(2)]

    def _load(self, x: str) -> None:
        """Words of K or V of the tile that was aimed at, zeros from kv_len on; part of an open fragment."""
        b, copy, source = self.b, self.kv, self.source
        number = 0
        for i in range(copy.spread.row_passes):
            exists = source.exists(i)
            source.row(i, exists)
            for column, takes_part in copy.passes(i):
                words, scale = self.words[x][number], self.scales[x][number]
                present = exists
                if takes_part is not None:
                    present = b.op("and.pred", scratch(b, "chunk_exists", "pred"), exists, takes_part)
                clear(b, words)
                copy.load(words, source.chunk_at(x, i, column), present)
                if scale is not None:
                    b.op("mov.b16", scale, 0)
                    b.op("ld.global.nc.b16", scale, source.scale_at(x, i, column), pred=present)
                number += 1

    def _convert(self, x: str, at: int, full: int) -> None:
        """Fragment `fill_k` or `fill_v`: the words, as 16-bit values, into their slot."""
        b, copy = self.b, self.kv
        kind = self.dtype if x == "v" else copy.target
        with b.fragment(f"fill_{x}", f"{self.tile.keys} rows of {x.upper()} as {kind}; zeros from kv_len on"):
            number = 0
            for i in range(copy.spread.row_passes):
                for column, takes_part in copy.passes(i):
                    scale, words = self.scales[x][number], self.words[x][number]
                    signs = self.signs if x == "k" else None
                    if not self.spec.fp8:
                        places = [copy.place((to, at), i, column) for to in self.slots_at]
                        copy.convert(words, places, takes_part, scale, signs)
                    elif x == "v":
                        offset = at + (i * copy.spread.rows_per_pass + 2 * column * self.tile.keys) * SWIZZLED_ROW
                        self.wide.convert(words, [place[offset] for place in self.v_at], takes_part, None, None)
                    else:
                        copy.convert(words, [copy.place((self.slot_at, at), i, column)], takes_part, scale, signs)
                    number += 1
            b.note("seen by wgmma from here on")
            b.op("fence.proxy.async.shared::cta")
            self.ring.arrive_all(self.slot[full])
