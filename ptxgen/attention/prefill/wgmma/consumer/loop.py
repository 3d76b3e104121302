"""The consumers' loop over tiles of keys: the product with K of one tile and the product with V of the tile before are
in flight together, and the softmax of the one runs under the other."""

from __future__ import annotations

from ptxgen.attention.prefill.contract import Prefill
from ptxgen.attention.prefill.wgmma.consumer.registers import (
    HIGH_WORD,
    K_STEP_8,
    ROWS_8,
    STEPS_OF_COLUMN,
    UNIT,
    ConsumerRegisters,
)
from ptxgen.attention.prefill.wgmma.consumer.softmax import TileSoftmax
from ptxgen.attention.prefill.wgmma.consumer.softmax_e5m2 import CodedSoftmax
from ptxgen.attention.prefill.wgmma.consumer.sums_f32 import Promoted
from ptxgen.attention.prefill.wgmma.items import Items
from ptxgen.attention.prefill.wgmma.ring import K_EMPTY, K_FULL, V_EMPTY, V_FULL, WORD, Ring
from ptxgen.attention.prefill.wgmma.tile import K_STEP, ONES, ROWS, SWIZZLED_ROW, WgmmaTile
from ptxgen.attention.prefill.wgmma.variants import has_first_maximum, is_limited
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType

EARLY = 2  # products with V that are still to issue when the turn is passed on


class Consumer(ConsumerRegisters):
    """Fragments of `attention/prefill/wgmma/consumer.ptx.j2`."""

    def __init__(self, b: Builder, spec: Prefill, tile: WgmmaTile, items: Items, ring: Ring, dtype: DType) -> None:
        super().__init__(b, spec, tile, items, dtype)
        self.ring = ring
        self.counts_as: Reg | int = 1
        self.promoted: Promoted | None = None
        of = (b, spec, items, self.scores, 4, (0, 8), self.own)
        if tile.turned:
            codes = [self.packed[row::2] for row in range(2)]
            self.softmax: TileSoftmax = CodedSoftmax(*of, codes=codes, sums=self.sums[::2])
        else:
            limited = is_limited(dtype) and has_first_maximum(spec, tile, dtype)
            self.softmax = TileSoftmax(*of, limited=limited)

    def build(self, smem: Reg) -> None:
        """All of them; `smem` is where shared memory begins."""
        b = self.b
        if self.tile.promoted:
            self.promoted = Promoted(b, self.tile, self.acc, self.sums[::2], self.items.thread, smem)
        promoted = self.promoted
        with b.fragment("join", "this warp's part of the rows, and the matrix descriptors"):
            self.high = b.op("mov.b32", b.reg("descriptor_high", "b32"), HIGH_WORD)
            self.locate(smem)
            self.read = b.op("mov.u32", "read", 0, note="tiles so far")
            self.items_read = b.op("mov.u32", "items_read", 0)
            self._turns()
            if self.items.adapts:
                self._take_part()
        if self.items.adapts:
            with b.fragment("stand_by", "a warpgroup that takes no part has no rounds"):
                has_rounds = self.items.has_rounds
                b.op("setp.lt.and.u32", has_rounds, self.group, self.items.active, has_rounds)
        else:
            b.without("stand_by")
        self._queries(smem)
        self._tiles()
        self._products()
        sums = [list(self.sums[2 * row : 2 * row + 2]) for row in range(2)]
        if not self.tile.turned:
            b.without("guess")
        if promoted is not None:
            promoted.build(self.step)
            for row, carry in zip(sums, promoted.carry, strict=True):
                row.append(carry)
        b.expose(promotes=promoted and promoted.promotes, passes_early=self.tile.sums_stored > 0)
        self.softmax.build(self.start, [[*values, *more] for values, more in zip(self.rows, sums, strict=True)])
        self._pack()

    def _turns(self) -> None:
        """Named barriers by which warpgroups take turns at issuing products; part of an open fragment."""
        b, groups = self.b, self.tile.warpgroups
        mine = b.op("add.u32", "my_turn", self.group, 1)
        after = b.op("add.u32", "next_turn", mine, 1)
        if self.items.adapts:
            last = b.op("setp.eq.u32", "is_last_group", mine, self.items.active)
        else:
            last = b.op("setp.eq.u32", "is_last_group", self.group, groups - 1)
        b.op("selp.b32", after, 1, after, last)
        if self.tile.out_over_q:
            b.op("add.u32", "my_meeting", mine, groups)

    def _take_part(self) -> None:
        """How many warps this one counts as where it frees a stage; part of an open fragment."""
        b = self.b
        b.note("warps of the first warpgroup free a stage for those that take no part, too")
        counts = self.counts_as = b.op("sub.u32", "counts_as", self.tile.warpgroups + 1, self.items.active)
        is_first = b.op("setp.eq.u32", "is_first_group", self.group, 0)
        b.op("selp.b32", counts, counts, 1, is_first)

    # -- waits ---------------------------------------------------------------------------------------------------------

    def _q_scales(self, smem: Reg) -> list[Reg]:
        """Of this thread's two rows, from shared memory; part of an open fragment."""
        b = self.b
        at = b.op("shr.u32", b.reg("q_scale_from", "u32"), self.lane, 2)
        b.op("mad.lo.u32", at, self.warp, ROWS // 4, at)
        b.op("mad.lo.u32", at, self.group, ROWS, at)
        b.op("mad.lo.u32", at, at, 4, smem)
        scales = [b.reg(f"q_scale{r}", "f32") for r in range(2)]
        for r, scale in enumerate(scales):
            b.op("ld.shared.f32", scale, at[self.tile.q_scales_at + 4 * 8 * r])
        return scales

    def _queries(self, smem: Reg) -> None:
        b, ring = self.b, self.ring
        with b.fragment("begin_item", "wait for the queries of this item"):
            at = b.op("mad.lo.u32", "q_barrier", self.group, WORD, ring.at)
            parity = b.op("and.b32", b.reg("q_parity", "u32"), self.items_read, 1)
            b.op("add.u32", self.items_read, self.items_read, 1)
            self.step = b.op("mov.s32", "step", 0)
        if self.items.pairs:
            self._skip()
        else:
            b.without("own_rows", "aim_skipped", "k_skipped", "v_skipped", "release_skipped")
        ring.wait("q_full", at[ring.q_full], parity)
        with b.fragment("clear", "nothing seen so far"):
            self.softmax.clear()
            for value in (*self.acc, *self.sums):
                b.op("mov.f32", value, 0.0)
            if self.promoted is not None:
                self.promoted.clear()
        if self.spec.fp8:
            with b.fragment("take_scales", "the scales of this thread's rows of q"):
                self.softmax.take_scales(self._q_scales(smem))
        else:
            b.without("take_scales")
        if self.tile.q_in_registers:
            self._load_q()
        else:
            b.without("load_q")
        with b.fragment("release_q"):
            if self.tile.q_in_registers or self.spec.fp8:
                b.note("when all lanes have read them")
                b.op("bar.warp.sync", -1)
            ring.arrive(at[ring.q_empty], self.is_first_lane)

    def _skip(self) -> None:
        """Fragments `own_rows`, and of a tile of keys that lies behind all rows of the second of a pair."""
        b, ring = self.b, self.ring
        with b.fragment("own_rows", "the second of a pair has rows of its own, and leaves out keys behind them"):
            skipped = b.reg("skipped", "s32")
            self.items.take_second_rows(self.group, skipped)
            skips = b.op("setp.gt.s32", "skips", skipped, 0)
        with b.fragment("aim_skipped"):
            _, slot, parity = ring.slot("skipped", self.read)
        ring.wait("k_skipped", slot[K_FULL], parity)
        ring.wait("v_skipped", slot[V_FULL], parity)
        with b.fragment("release_skipped", "a tile that no row of the warpgroup sees"):
            b.op("bar.warp.sync", -1, note="no lane falls a phase behind")
            ring.arrive(slot[K_EMPTY], self.is_first_lane)
            ring.arrive(slot[V_EMPTY], self.is_first_lane)
            b.op("add.u32", self.read, self.read, 1)
            b.op("add.s32", self.step, self.step, 1)
            b.op("setp.lt.s32", skips, self.step, skipped)

    def _load_q(self) -> None:
        b = self.b
        with b.fragment("load_q", "q as the register operand"):
            row = b.op("and.b32", b.reg("q_lane_row", "u32"), self.lane, 15)
            b.op("mad.lo.u32", row, self.warp, 16, row)
            at = b.op("mad.lo.u32", "q_lane", row, SWIZZLED_ROW, self.q_rows)
            turn = b.op("and.b32", b.reg("q_lane_turn", "u32"), row, 7)
            half = b.op("shr.u32", "q_lane_half", self.lane, 4)
            place = b.reg("q_lane_at", "u32")
            for step in range(self.steps):
                column, within = divmod(step, STEPS_OF_COLUMN)
                b.op("add.u32", place, half, 2 * within)
                b.op("xor.b32", place, place, turn)
                b.op("mad.lo.u32", place, place, UNIT, at)
                to = tuple(self.q_held[4 * step : 4 * step + 4])
                b.op("ldmatrix.sync.aligned.m8n8.x4.shared.b16", to, place[column * ROWS * SWIZZLED_ROW])

    def _tiles(self) -> None:
        b, ring, tile = self.b, self.ring, self.tile
        with b.fragment("aim_tile", "the slots of this tile of K, and of the tile of V before it"):
            stage, self.k_slot, k_parity = ring.slot("k", self.read)
            b.op("shfl.sync.idx.b32", stage, stage, 0, 31, -1)
            self.k_low = b.op("mad.lo.u32", "k_low", stage, tile.kv_bytes // UNIT, self.k_descriptor)
            self.start = self.items.tile_start(self.step)
            b.op("setp.gt.s32", "is_masked", self.step, self.items.plain_tiles)
        with b.fragment("aim_values", "the stage of the values of the tile before"):
            before = b.op("sub.u32", "read_before", self.read, 1)
            stage, self.v_slot, v_parity = ring.slot("v", before)
            b.op("shfl.sync.idx.b32", stage, stage, 0, 31, -1)
            self.v_low = b.op("mad.lo.u32", "v_low", stage, tile.kv_bytes // UNIT, self.v_descriptor)
        ring.wait("k_full", self.k_slot[K_FULL], k_parity)
        ring.wait("v_full", self.v_slot[V_FULL], v_parity)
        if self.spec.fp8:  # queries are stored by threads, which see to that
            b.without("see_copies")
        else:
            with b.fragment("see_copies"):
                b.note("copies by cp.async are seen by wgmma from here on")
                b.op("fence.proxy.async.shared::cta")
        with b.fragment("release_k"):
            ring.arrive(self.k_slot[K_EMPTY], self.is_first_lane, self.counts_as)
        with b.fragment("release_v"):
            ring.arrive(self.v_slot[V_EMPTY], self.is_first_lane, self.counts_as)
        with b.fragment("next_tile"):
            b.op("add.u32", self.read, self.read, 1)
            b.op("add.s32", self.step, self.step, 1)
            b.op("setp.lt.s32", "more_tiles", self.step, self.items.key_tiles)

    # -- products ------------------------------------------------------------------------------------------------------

    def _products(self) -> None:
        b, tile, type = self.b, self.tile, self.dtype.name
        with b.fragment(
            "products_with_k", f"scores of {ROWS} rows and {tile.keys} keys, over head_dim={self.spec.dim}"
        ):
            b.op("wgmma.fence.sync.aligned")
            contraction, kind, transposed = (K_STEP_8, "e4m3", ()) if self.spec.fp8 else (K_STEP, type, (0,))
            op = f"wgmma.mma_async.sync.aligned.m64n{tile.keys}k{contraction}.f32.{kind}.{kind}"
            for step in range(self.steps):
                column, within = divmod(step, STEPS_OF_COLUMN)
                k = self.descriptor("k_matrix", self.k_low, 32 * within + column * tile.keys * SWIZZLED_ROW)
                accumulates = int(step > 0)
                if tile.q_in_registers:
                    held = tuple(self.q_held[4 * step : 4 * step + 4])
                    b.op(op, tuple(self.score), held, k, accumulates, 1, 1, *transposed)
                else:
                    q = self.descriptor("q_matrix", self.q_descriptor, 32 * within + column * ROWS * SWIZZLED_ROW)
                    b.op(op, tuple(self.score), q, k, accumulates, 1, 1, *transposed, *transposed)
            b.op("wgmma.commit_group.sync.aligned")
        steps = tile.keys // (K_STEP_8 if tile.turned else K_STEP)
        early = min(EARLY, steps - 1)
        with b.fragment("products_with_v", "accumulators += probabilities * V, of the tile before"):
            b.op("wgmma.fence.sync.aligned")
            for step in range(steps - early):
                self._product_with_v(step)
        with b.fragment("last_products_with_v", "the last keys of that tile"):
            for step in range(steps - early, steps):
                self._product_with_v(step)
            b.op("wgmma.commit_group.sync.aligned")
        with b.fragment("scores_come"):
            b.op("wgmma.wait_group.sync.aligned", 1)
        with b.fragment("products_come"):
            b.op("wgmma.wait_group.sync.aligned", 0)

    def _product_with_v(self, step: int) -> None:
        b, type = self.b, self.dtype.name
        if self.tile.turned:
            v = self.descriptor("v_matrix", self.v_low, step * K_STEP_8)
            op = f"wgmma.mma_async.sync.aligned.m64n{self.spec.dim + ONES}k{K_STEP_8}.f32.e5m2.e4m3"
            adds = self.promoted.goes_on if self.promoted is not None and step == 0 else 1
            b.op(op, (*self.acc, *self.sums), tuple(self.packed[4 * step : 4 * step + 4]), v, adds, 1, 1)
            return
        v = self.descriptor("v_matrix", self.v_low, step * 2 * ROWS_8)
        op = f"wgmma.mma_async.sync.aligned.m64n{self.tile.width}k16.f32.{type}.{type}"
        b.op(op, tuple(self.acc), tuple(self.packed[4 * step : 4 * step + 4]), v, 1, 1, 1, 1)

    def _pack(self) -> None:
        """Fragment `pack`: probabilities as the register operand of the second product, which codes are already."""
        if self.tile.turned:
            self.b.without("pack")
            return
        b, cvt = self.b, f"cvt.rn.{self.dtype.name}x2.f32"
        with b.fragment("pack", "probabilities as the register operand of the second product"):
            for row in range(2):
                for n in range(self.tile.keys // 8):
                    low, high = self.score[4 * n + 2 * row], self.score[4 * n + 2 * row + 1]
                    b.op(cvt, self.packed[2 * n + row], high, low)
