"""The producer warpgroup: rows of q, K and V from global memory into swizzled shared memory, 16 bytes a thread."""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.sources import source_of
from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.producer.queries_e4m3 import Rounding
from ptxgen.attention.prefill.wgmma.producer.swizzled_copies import HalvedCopy, SwizzledCopy, copy_rows
from ptxgen.attention.prefill.wgmma.ring import K_EMPTY, K_FULL, V_EMPTY, V_FULL, WORD, Ring
from ptxgen.attention.prefill.wgmma.tile import COLUMN, FEWEST, LANES, ROWS, WgmmaTile
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType, e4m3
from ptxgen.idioms.convert import scratch


class QueryCopies:
    """Fragments `aim_copies` (once), `begin_fill` and those of an item's q, by producer threads from `first` on."""

    def __init__(
        self, b: Builder, spec: Prefill, tile: WgmmaTile, items: Items, ring: Ring, dtype: DType, first: int = 0
    ) -> None:
        self.b, self.spec, self.tile, self.items, self.ring, self.first = b, spec, tile, items, ring, first
        kind = HalvedCopy if tile.turned and spec.dim <= COLUMN else SwizzledCopy
        self.q = kind(b, "q", tile.width, ROWS, tile.producer_threads - first, e4m3 if spec.fp8 else dtype)
        self.dtype = dtype

    def aim(self, smem: Reg) -> None:
        """This thread's place in the rows that it copies; part of an open fragment."""
        b, self.thread = self.b, self.items.thread
        if self.first:
            self.thread = b.op("sub.u32", "copying_thread", self.thread, self.first)
        self.row, self.chunk = self.q.aim(self.thread)
        self.to = self.q.offset("copy_to", self.row, self.chunk)
        b.op("add.u32", self.to, self.to, smem)
        self.base = smem
        self.taken = b.op("mov.u32", "items_filled", 0)
        self.in_row: Reg | None = None
        if self.tile.width != self.tile.dim:
            b.note("of the last chunks, those within a row; behind it come zeros")
            last = self.tile.dim // self.q.elements - (self.q.spread.column_passes - 1) * LANES
            self.in_row = b.op("setp.lt.u32", "in_row", self.chunk, last)
        self.q_from = b.ld_param("q")

    def build(self, smem: Reg) -> None:
        """All of them; `smem` is where shared memory begins."""
        b = self.b
        with b.fragment("aim_copies", "this thread's place in the rows that it copies"):
            self.aim(smem)
        with b.fragment("begin_fill", "which time q is filled, and the parity that its wait has"):
            self.q_parity = b.op("and.b32", b.reg("q_fill_parity", "u32"), self.taken, 1)
            b.op("xor.b32", self.q_parity, self.q_parity, 1)
            b.op("add.u32", self.taken, self.taken, 1)
        self._fill_q()

    def _fill_q(self) -> None:
        """Fragments `fill_q0` …, of each warpgroup's rows, each behind the wait `q0_empty` …"""
        b, copy, ring, items = self.b, self.q, self.ring, self.items
        fills: list[tuple[object, ...]] = []
        rounding = Rounding(self) if self.spec.fp8 else None
        row_bytes = self.spec.attention.problem.query_bytes
        step = items.step(copy.spread.rows_per_pass)
        for group in range(self.tile.warpgroups):
            takes_part, aim = None, None
            if items.adapts and group >= FEWEST:
                takes_part = b.reg(f"fills_q{group}", "pred")
                with b.fragment(f"aim_q{group}") as aim:
                    b.op("setp.gt.u32", takes_part, items.active, group)
            wait, over = ring.wait(f"q{group}_empty", ring.at[ring.q_empty + WORD * group], self.q_parity)
            if rounding is not None:
                fills.append((f"q{group}", aim, takes_part, wait, over, rounding.fill(group)))
                continue
            with b.fragment(
                f"fill_q{group}", f"{ROWS} rows of q from {ROWS * group} on; those past the last are zeros"
            ) as fill:
                size, exists = scratch(b, "copy_bytes", "u32"), scratch(b, "row_exists", "pred")
                at = scratch(b, "q_at", "u64")
                for i in range(copy.spread.row_passes):
                    first_row = items.second_row if items.pairs and group == 1 else items.first_row
                    row = b.op("add.s32", scratch(b, "q_pass_row", "s32"), first_row, self.row)
                    skip = ROWS * group + i * copy.spread.rows_per_pass
                    if skip:
                        b.op("add.s32", row, row, skip)
                    if i == 0 or step is None:
                        items.address("q_at", row, self.q_from, row_bytes)
                        b.op("mad.wide.u32", at, self.chunk, copy.source_bytes, at)
                    b.op("setp.lt.s32", exists, row, items.n_rows)
                    b.op("selp.b32", size, 16, 0, exists)
                    offset = i * (step or 0) * row_bytes
                    for column, takes in copy.passes(i):
                        if self.in_row is not None and column == copy.spread.column_passes - 1:
                            b.op("selp.b32", size, size, 0, self.in_row)
                        place = copy.place((self.to, group * self.tile.q_bytes), i, column)
                        source = at[offset + column * LANES * copy.source_bytes]
                        copy.copy_async(place, source, size, takes)
                ring.arrive_behind_copies(ring.at[ring.q_full + WORD * group])
            fills.append((f"q{group}", aim, takes_part, wait, over, fill))
        b.expose(q_fills=fills, rounds=rounding is not None)


class Producer(QueryCopies):
    """The same, and those of a tile of K and V: all 16 bytes at a time, by all threads of the producer."""

    def __init__(self, b: Builder, spec: Prefill, tile: WgmmaTile, items: Items, ring: Ring, dtype: DType) -> None:
        super().__init__(b, spec, tile, items, ring, dtype)
        source = spec.attention.problem.kv_dtype
        self.kv = SwizzledCopy(
            b, "kv", spec.dim, tile.keys, tile.producer_threads, source if spec.fp8 else dtype, source
        )
        self.source = source_of(b, spec, items, self.kv)

    def aim(self, smem: Reg) -> None:
        super().aim(smem)
        self.kv.take(self.q)
        self.filled = self.b.op("mov.u32", "filled", 0, note="tiles so far")

    def build(self, smem: Reg) -> None:
        super().build(smem)
        b, tile = self.b, self.tile
        with b.fragment("begin_tiles"):
            self.step = b.op("mov.s32", "fill_step", 0)
        with b.fragment("aim_fill", "the tile of keys that comes next, and its slot"):
            self.stage, self.slot, self.parity = self.ring.slot("fill", self.filled)
            b.op("xor.b32", self.parity, self.parity, 1)
            self.slot_at = b.op("mad.lo.u32", "fill_at", self.stage, tile.kv_bytes, self.to)
            self.items.key_begin = self.items.tile_start(self.step)
            self.source.aim(self.row, self.chunk)
            self.source.start()
            b.op("setp.eq.s32", "is_first_fill", self.step, 0)
        self.ring.wait("k_empty", self.slot[K_EMPTY], self.parity)
        self._fill("k", tile.k_at, K_FULL)
        self.ring.wait("v_empty", self.slot[V_EMPTY], self.parity)
        self._fill("v", tile.v_at, V_FULL)
        with b.fragment("next_fill"):
            b.op("add.u32", self.filled, self.filled, 1)
            b.op("add.s32", self.step, self.step, 1)
            b.op("setp.lt.s32", "more_fills", self.step, self.items.key_tiles)

    def _fill(self, x: str, at: int, full: int) -> None:
        b, copy = self.b, self.kv
        with b.fragment(f"fill_{x}", f"{self.tile.keys} rows of {x.upper()}; those from kv_len on become zeros"):
            copy_rows(copy, self.source, x, (self.slot_at, at))
            self.ring.arrive_behind_copies(self.slot[full])
