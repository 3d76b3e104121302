"""The ops one after the other, for the warps that multiply: an op's rows of the tables, its slots, what kind it is."""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.persistent.begin import Begin
from ptxgen.persistent.feed import next_op
from ptxgen.persistent.plan import KIND_BYTES, WARPS, Plan
from ptxgen.weights.format import TILE_ROWS


class Steps:
    """Fragments `begin_steps`, `begin_op`, `next_step`, and registers that say what the op is."""

    def __init__(self, b: Builder, plan: Plan, begin: Begin) -> None:
        self.b, self.plan, self.at = b, plan, begin
        at = begin
        self.prev, self.now, self.next = (b.reg(f"slot_{name}", "u64") for name in ("before", "now", "after"))
        with b.fragment("begin_steps", "the slots of the layers, the residual stream's own rows, an empty ring"):
            turn = b.op("ld.global.u32", "turn_number", at.exchange[0])
            at.slot(turn, self.next, 0)
            at.slot(turn, self.now, 2)
            at.slot(turn, self.prev, 1)
            self.kind_at = b.op("mov.u32", "kind_at", at.kinds)
            self.op_at, self.done = b.op("mov.u32", "op_at", at.ops), b.op("mov.u32", "ops_done", 0)
            self.layer_at = b.op("mov.u32", "layer_at", at.caches)
            self.source = self._row() if plan.spec.embeds else b.ld_param("x")
            self.first_lane = b.op("setp.eq.u32", "first_lane", at.lane, 0)
            b.note("the CTA's rows of the residual stream stay in registers, a row a thread")
            self.result_record = b.op("shr.u32", "result_record", at.thread, 4)
            self.result_row = b.op("and.b32", "result_row", at.thread, TILE_ROWS - 1)
            self.residual = b.op("mov.f32", "residual", 0.0)
            own = b.array("own_share", "u32", 2)
            b.op("ld.shared.v2.u32", own.regs, at.kinds[KIND_BYTES])
            record = b.op("add.u32", "own_record", own[0], self.result_record)
            b.op("min.u32", record, record, plan.spec.dim)
            row = b.op("mad.lo.u32", "own_row", record, TILE_ROWS, self.result_row)
            has = b.op("setp.lt.u32", "has_own", self.result_record, own[1])
            b.op("setp.lt.and.u32", has, row, plan.spec.dim, has)
            self._own_row(row, has)
            b.note("a CTA without rows of the gate could run ahead of what is cleared: it reads along")
            gates = b.op("ld.shared.u32", "gate_count", at.kinds[2 * KIND_BYTES + 4])
            self.follows = b.op("setp.eq.u32", "follows", gates, 0)
            self.slot, self.bell = b.op("mov.u32", "slot_at", at.ring), b.op("mov.u32", "bell_at", at.bell)
            self.best, self.best_row = b.op("mov.u32", "best_key", 0), b.op("mov.u32", "best_row", 0)
            self.phase = b.op("mov.u32", "ring_phase", 0)
            self.squares = b.op("mov.u32", "squares_base", at.squares)
            self.other_squares = b.op("mov.u32", "to_other_squares", 4 * WARPS)
        with b.fragment("begin_op", "the op's share, x, and what is done with its sums"):
            self.share = at.share("op", self.kind_at)
            part = b.op("and.b32", "op_of_layer", self.done, 3)
            self.is_head = b.op("setp.eq.u32", "is_head", self.done, plan.ops - 1)
            self.is_qkv = b.op("setp.eq.and.u32", "is_qkv", part, 0, ~self.is_head)
            odd = b.op("and.b32", "op_is_odd", part, 1)
            self.adds = b.op("setp.ne.u32", "adds", odd, 0)
            self.normed = b.op("setp.eq.u32", "is_normed", odd, 0)
            self.norm = b.op("ld.shared.u64", "norm_at", self.op_at[8], pred=self.normed)
            self.gated = b.op("setp.eq.u32", "is_gated", part, 2)
            b.note("a layer's turn: the slot that was written is read, the cleared one is written")
            turns = b.op("setp.eq.u32", "slots_turn", part, 0)
            spare = b.op("mov.b64", "slot_spare", self.prev)
            b.op("mov.b64", self.prev, self.now, pred=turns)
            b.op("mov.b64", self.now, self.next, pred=turns)
            b.op("mov.b64", self.next, spare, pred=turns)
            self.x = b.op("selp.b64", "x_base", self.prev, self.now, turns)
            wide = b.op("cvt.u64.u32", "x_offset", self.share.x)
            b.op("add.u64", self.x, self.x, wide)
            b.op("setp.eq.u32", "is_first_op", self.done, 0)
            b.op("setp.ne.u32", "has_rows", self.share.count, 0)
            b.op("setp.ne.or.u32", "reads_x", self.share.count, 0, self.follows)
            if plan.spec.bias:
                self._ask_bias()
        with b.fragment("next_step"):
            b.op("add.u32", self.layer_at, self.layer_at, 16, pred=self.is_qkv)
            next_op(b, "step", self.done, self.op_at, self.kind_at, plan, at)

    def _row(self) -> Reg:
        """The address of the token's row in the packed table: its lanes' first word of a record's first tile."""
        b, kind = self.b, self.plan.kind
        token = b.op("ld.global.u32", "token_now", b.ld_param("token")[0])
        b.op("min.u32", token, token, self.plan.spec.vocab - 1)
        table = b.ld_param("table")
        record, place = b.op("shr.u32", "token_record", token, 4), b.op("and.b32", "token_lane", token, 7)
        b.op("mad.wide.u32", table, record, kind.record_bytes(self.plan.spec.dim), table)
        b.op("mad.wide.u32", table, place, 4 * 16, table)
        b.op("shr.u32", place, token, 3)
        b.op("and.b32", place, place, 1)
        b.op("mad.wide.u32", table, place, 4, table)
        return table

    def _own_row(self, row: Reg, has: Reg) -> None:
        """The thread's element of the embedding."""
        b = self.b
        if not self.plan.spec.embeds:
            from_x = b.op("mad.wide.u32", "own_x", row, 4, self.source)
            b.op("ld.global.f32", self.residual, from_x[0], pred=has)
            return
        part = b.op("shr.u32", "own_chunk", row, 4)
        place = b.op("mad.wide.u32", "own_x", part, 512, self.source)
        for shift, mask, stride in ((2, 3, 16), (1, 1, 8), (0, 1, 2)):
            b.op("shr.u32", part, row, shift)
            b.op("and.b32", part, part, mask)
            b.op("mad.wide.u32", place, part, stride, place)
        bits, wide = b.op("mov.b16", "own_bits", 0), b.reg("own_wide", "b32")
        b.op("ld.global.nc.b16", bits, place[0], pred=has)
        b.op("cvt.u32.u16", wide, bits)
        b.op("shl.b32", wide, wide, 16)
        b.op("mov.b32", self.residual, wide)

    def _ask_bias(self) -> None:
        """The bias of the thread's row of q, k and v, long before its sum."""
        b, share = self.b, self.share
        self.bias_value = b.reg("bias_value", "f32")
        source = b.op("ld.shared.u64", "bias_from", self.op_at[16], pred=self.is_qkv)
        row = b.op("add.u32", "bias_row", share.first, self.result_record)
        b.op("min.u32", row, row, self.plan.products[0].rows)
        b.op("mad.lo.u32", row, row, TILE_ROWS, self.result_row)
        asks = b.op("setp.lt.and.u32", "asks_bias", self.result_record, share.count, self.is_qkv)
        b.op("setp.lt.and.u32", asks, row, share.rows, asks)
        b.op("mad.wide.u32", source, row, 4, source)
        b.op("ld.global.nc.f32", self.bias_value, source[0], pred=asks)
