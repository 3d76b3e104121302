"""The first tiles of keys of a CTA's first item, converted on the way by its consumers, who have nothing else to do yet,
while other warps begin to make 16-bit rows of all keys in memory.
"""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.copies import Place
from ptxgen.attention.prefill.sources import source_of
from ptxgen.attention.prefill.wgmma.copies import PairedCopy
from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.ring import K_FULL, V_FULL, Ring
from ptxgen.attention.prefill.wgmma.tile import CHUNK, FEWEST, WARPGROUP, WgmmaTile
from ptxgen.attention.prefill.wgmma.variants import folds_scales
from ptxgen.attention.prefill.wgmma.widening import sign_bits
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType
from ptxgen.idioms.convert import clear, scratch

THREADS = WARPGROUP * FEWEST  # that convert: of the warpgroups that always take part


class FirstTiles:
    """Fragments `begin_fresh`, `fills_first`, `load_first`, and for each tile and K and V `first_fills`: its predicate, what fills it,
    and what says so behind a barrier of all that do."""

    def __init__(self, b: Builder, spec: Prefill, tile: WgmmaTile, items: Items, ring: Ring, dtype: DType) -> None:
        self.b, self.spec, self.tile, self.items, self.ring, self.dtype = b, spec, tile, items, ring, dtype
        kind = spec.attention.problem.kv_dtype
        self.copy = PairedCopy(b, "begun", spec.dim, tile.keys, THREADS, dtype, kind)
        self.sources = [source_of(b, spec, items, self.copy, f"first{n}_") for n in range(tile.first_tiles)]
        self.fresh = b.reg("is_fresh", "pred")

    def build(self, smem: Reg, group: Reg, read: Reg) -> None:
        """All of them, for warpgroup `group`, which has `read` so many tiles."""
        b, tile, items = self.b, self.tile, self.items
        fills = b.reg("fills_first_tiles", "pred")
        with b.fragment("begin_fresh"):
            b.op("setp.eq.u32", self.fresh, items.thread, items.thread)
        with b.fragment("fills_first", "the first tiles of the first item with keys"):
            b.op("setp.lt.and.u32", fills, group, FEWEST, self.fresh)
            b.op("setp.ne.u32", self.fresh, group, group)
        has = [b.reg(f"has_first{n}", "pred") for n in range(tile.first_tiles)]
        with b.fragment("load_first", "words of their keys and values"):
            thread = b.op("sub.u32", b.reg("first_thread", "u32"), items.thread, tile.producer_threads)
            tells = b.op("setp.eq.u32", "tells_first", thread, 0)
            row, chunk = self.copy.aim(thread)
            offset = self.copy.offset("first_to", row, chunk)
            b.op("add.u32", offset, offset, smem)
            signs = sign_bits(b, items.k_scale) if folds_scales(self.spec.attention.variant) else None
            loaded = [self._load(n, row, chunk, has[n]) for n in range(tile.first_tiles)]
        parts = []
        for n, of in enumerate(loaded):
            for x, at, full in (("k", tile.k_at, K_FULL), ("v", tile.v_at, V_FULL)):
                with b.fragment(f"fill_first_{x}{n}", f"{tile.keys} rows of {x.upper()} as {self.dtype}") as fill:
                    stage, slot = self._slot(n, read)
                    to = b.op("mad.lo.u32", scratch(b, "first_at", "u32"), stage, tile.kv_bytes, offset)
                    other = b.op("xor.b32", scratch(b, "first_at_next", "u32"), to, CHUNK)
                    self._convert(of[x], ((to, at), (other, at)), signs if x == "k" else None)
                    b.note("seen by wgmma from here on")
                    b.op("fence.proxy.async.shared::cta")
                with b.fragment(f"tell_first_{x}{n}") as tell:
                    self.ring.arrive(slot[full], tells)
                parts.append((f"first_{x}{n}", has[n], fill, tell))
        b.expose(first_fills=parts, first_threads=THREADS, first_meeting=2 * tile.warpgroups + 1)

    def _slot(self, n: int, read: Reg) -> tuple[Reg, Reg]:
        """The stage of the CTA's next tile but `n`, and its mbarriers; part of an open fragment."""
        b = self.b
        number = b.op("add.u32", scratch(b, "first_number", "u32"), read, n)
        stage, slot, _ = self.ring.slot("first", number)
        return stage, slot

    def _load(self, n: int, row: Reg, chunk: Reg, has: Reg) -> dict[str, list[tuple[tuple[Reg, ...], Reg | None]]]:
        """Words and scales of K and V of the item's tile `n`, zeros from kv_len on; part of an open fragment."""
        b, copy, source, items = self.b, self.copy, self.sources[n], self.items
        step = b.op("mov.s32", scratch(b, "first_step", "s32"), n)
        b.op("setp.lt.s32", has, step, items.key_tiles)
        items.key_begin = items.tile_start(step)
        source.aim(row, chunk)
        b.op("selp.b32", source.left, source.left, 0, has)
        source.start()
        chunks, each = copy.spread.row_passes * copy.spread.column_passes, copy.source_bytes // 4
        out: dict[str, list[tuple[tuple[Reg, ...], Reg | None]]] = {"k": [], "v": []}
        words = {x: b.array(f"first{n}_{x}_word", "b32", chunks * each) for x in "kv"}
        scales = {x: b.array(f"first{n}_{x}_scale_of", "b16", chunks) for x in "kv"} if source.quantised else None
        number = 0
        for i in range(copy.spread.row_passes):
            exists = source.exists(i)
            source.row(i, exists)
            for column, takes_part in copy.passes(i):
                present = exists
                if takes_part is not None:
                    present = b.op("and.pred", scratch(b, "chunk_exists", "pred"), exists, takes_part)
                for x in "kv":
                    some = tuple(words[x][number * each : (number + 1) * each])
                    clear(b, some)
                    copy.load(some, source.chunk_at(x, i, column), present)
                    scale = None if scales is None else scales[x][number]
                    if scale is not None:
                        b.op("mov.b16", scale, 0)
                        b.op("ld.global.nc.b16", scale, source.scale_at(x, i, column), pred=present)
                    out[x].append((some, scale))
                number += 1
        return out

    def _convert(
        self, loaded: list[tuple[tuple[Reg, ...], Reg | None]], to: tuple[Place, Place], signs: Reg | None
    ) -> None:
        """The words, as 16-bit values, into their slot; part of an open fragment."""
        copy, number = self.copy, 0
        for i in range(copy.spread.row_passes):
            for column, takes_part in copy.passes(i):
                words, scale = loaded[number]
                places = [copy.place(place, i, column) for place in to]
                copy.convert(words, places, takes_part, scale, signs)
                number += 1
