"""Units of weights times x, the sums of warps, and what becomes of a row: published, added, or a logit."""

from __future__ import annotations

from ptxgen.builder import SINK, Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.activation import activate
from ptxgen.idioms.reduce import over_lanes
from ptxgen.idioms.sampling.order import ordered_key
from ptxgen.persistent.begin import MBARRIER_BYTES, Begin
from ptxgen.persistent.plan import BATCH, SUM_BYTES, WARPS, Plan
from ptxgen.persistent.steps import Steps
from ptxgen.products.tokens.digits import DIGIT_BYTES, DIGITS
from ptxgen.weights.format import OWN, TILE_ROWS

CHAINS = 2  # of products that wait for no other
MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"


class Rows:
    """Fragments of a batch of records: `begin_rows`, `begin_batch`, `unit_full`, `take`, `release`, `multiply`,
    `leave_sums`, `next_unit`; then, a row a thread, `sum_row`, `finish_gate`, `finish_add`, `finish_bias`,
    `keep_logit`, `publish`, `next_batch`."""

    def __init__(self, b: Builder, plan: Plan, begin: Begin, steps: Steps, digits: Reg) -> None:
        self.b, self.plan, self.at, self.steps, self.digits = b, plan, begin, steps, digits

    def build(self) -> None:
        """Build the fragments of a product's rows, from their bytes to what is published."""
        self._begin()
        self._multiply()
        self._leave()
        self._sum()
        self._finish()
        self._publish()
        self._next_batch()

    def _begin(self) -> None:
        b, plan, at, share = self.b, self.plan, self.at, self.steps.share
        self.totals = b.array("total", "f32", 4)
        self.products, self.zeros = b.array("product", "f32", 4 * CHAINS), b.array("zero", "f32", 4)
        self.digit = b.array("x_digit", "b32", 2 * CHAINS)
        with b.fragment("locate_units", "the lane's words of a tile, its digit of x, its rows' sums"):
            convert.clear(b, self.zeros)
            convert.clear(b, self.totals)
            convert.clear(b, self.digit)
            self.has_digit = b.op("setp.lt.u32", "has_digit", at.row, DIGITS)
            self.digits_at = b.op("mad.lo.u32", "digits_at", at.row, DIGIT_BYTES, self.digits)
            b.op("mad.lo.u32", self.digits_at, at.quad, 2 * OWN, self.digits_at)
            tile_digits = plan.kind.chunks * DIGITS * DIGIT_BYTES
            b.op("mad.lo.u32", self.digits_at, at.warp, tile_digits, self.digits_at)
            self.tile = b.op("mul.lo.u32", "tile_in_unit", at.warp, plan.kind.tile_bytes)
            self.by_lane, self.by_row = b.reg("words_by_lane", "u32"), None
            stride = next(piece.stride for piece in plan.kind.pieces if piece.by == "lane")
            b.op("mad.lo.u32", self.by_lane, at.lane, stride, self.tile)
            self.mine = b.op("mov.u32", "sums_mine", at.sums)
            b.op("mad.lo.u32", self.mine, at.row, SUM_BYTES, self.mine)
            b.op("mad.lo.u32", self.mine, at.warp, 4, self.mine)
            self.theirs = b.op("mov.u32", "sums_theirs", at.sums)
            b.op("mad.lo.u32", self.theirs, at.thread, SUM_BYTES, self.theirs)
            self.to_other = b.op("mov.u32", "to_other_sums", BATCH * TILE_ROWS * SUM_BYTES)
        with b.fragment("begin_rows", "from the first of the CTA's records on"):
            b.op("add.u32", self.steps.squares, self.steps.squares, self.steps.other_squares)
            b.op("sub.u32", self.steps.other_squares, 0, self.steps.other_squares)
            self.left = b.op("mov.u32", "records_left", share.count)
            self.first = b.op("mov.u32", "batch_first", share.first)
        with b.fragment("begin_batch", "the next records of this CTA, as many as are summed together"):
            b.op("setp.eq.u32", "first_batch", self.first, share.first)
            self.count = b.op("min.u32", "batch_records", self.left, BATCH)
            self.units = b.op("mul.lo.u32", "units_left", self.count, share.units)
            self.part_tile = b.op("mov.u32", "part_tile", at.warp)
            self.x_at = b.op("mov.u32", "x_at", self.digits_at)
            self.sums_to = b.op("mov.u32", "sums_to", self.mine)

    def _multiply(self) -> None:
        b, plan, at, steps = self.b, self.plan, self.at, self.steps
        kind, share = plan.kind, steps.share
        with b.fragment("unit_full"):
            b.op("mbarrier.try_wait.parity.shared::cta.b64", "is_full", steps.bell[0], steps.phase)
            b.op("setp.lt.u32", "has_tile", self.part_tile, share.tiles)
        words = b.array("word", "b32", kind.words)
        with b.fragment("take", "the lane's words of the warp's tile"):
            place = b.op("add.u32", "words_at", steps.slot, self.by_lane)
            at_word = 0
            for piece in kind.pieces:
                own = words[at_word : at_word + piece.words]
                convert.load_words(b, own, place, piece.offset, space="shared")
                at_word += piece.words
        with b.fragment("release", "the slot is free when all warps have read it"):
            b.op("bar.warp.sync", -1)
            b.op("mbarrier.arrive.shared::cta.b64", SINK, steps.bell[8], 1, pred=steps.first_lane)
        with b.fragment("multiply", "digits of x stand in columns of their own; small sums, then the record's"):
            begun: set[int] = set()
            for chunk in range(kind.chunks):
                offset = DIGITS * DIGIT_BYTES * chunk
                digit = self.digit[2 * chunk % len(self.digit) :][:2]
                convert.load_words(b, digit, self.x_at, offset, space="shared", pred=self.has_digit)
                for a in kind.fragments(b, words, chunk):
                    own = self.products[4 * (chunk % CHAINS) :][:4]
                    sums = own if chunk % CHAINS in begun else self.zeros.regs
                    begun.add(chunk % CHAINS)
                    b.op(MMA, own, tuple(a), digit, sums)
            for chain in sorted(begun):
                for total, product in zip(self.totals, self.products[4 * chain :][:4], strict=True):
                    b.op("add.f32", total, total, product)
        with b.fragment("next_unit", "on to the next slot; behind a record's last unit its sums are whole"):
            b.op("add.u32", steps.slot, steps.slot, plan.unit_bytes)
            b.op("add.u32", steps.bell, steps.bell, MBARRIER_BYTES)
            end = b.op("add.u32", "taken_end", at.bell, MBARRIER_BYTES * plan.stages)
            wraps = b.op("setp.eq.u32", "taken_wraps", steps.bell, end)
            b.op("mov.u32", steps.bell, at.bell, pred=wraps)
            b.op("mov.u32", steps.slot, at.ring, pred=wraps)
            b.op("xor.b32", steps.phase, steps.phase, 1, pred=wraps)
            b.op("add.u32", self.part_tile, self.part_tile, WARPS)
            b.op("add.u32", self.x_at, self.x_at, WARPS * kind.chunks * DIGITS * DIGIT_BYTES)
            over = b.op("sub.u32", "past_tiles", self.part_tile, at.warp)
            b.op("setp.ge.u32", "record_ends", over, share.tiles)
            b.op("sub.u32", self.units, self.units, 1)
            b.op("setp.ne.u32", "more_units", self.units, 0)

    def _leave(self) -> None:
        b, at = self.b, self.at
        with b.fragment("leave_sums", "the warp's sums of a record, and the next record from its first columns on"):
            writes = b.op("setp.eq.u32", "leaves_sums", at.quad, 0)
            for half in (0, 1):
                total, other = self.totals[2 * half : 2 * half + 2]
                b.op("add.f32", total, total, other)
                over_lanes(b, "add.f32", total, (1, 2))
                b.op("st.shared.f32", self.sums_to[8 * half * SUM_BYTES], total, pred=writes)
            convert.clear(b, self.totals)
            b.op("add.u32", self.sums_to, self.sums_to, TILE_ROWS * SUM_BYTES)
            b.op("mov.u32", self.part_tile, at.warp)
            b.op("mov.u32", self.x_at, self.digits_at)

    def _sum(self) -> None:
        b, plan, steps = self.b, self.plan, self.steps
        share = steps.share
        with b.fragment("sum_row", "the thread's row: the sums of all warps in order, over the root mean square"):
            has = b.op("setp.lt.u32", "has_row", steps.result_record, self.count)
            parts = b.array("row_part", "f32", WARPS)
            convert.clear(b, parts)
            convert.load_words(b, parts, self.theirs, space="shared", pred=has)
            self.value = b.op("add.f32", "row_value", parts[0], parts[1])
            for part in parts[2:]:
                b.op("add.f32", self.value, self.value, part)
            squares = b.array("row_square", "f32", WARPS)
            convert.load_words(b, squares, steps.squares, space="shared")
            mean = b.op("add.f32", "row_mean", squares[0], squares[1])
            for square in squares[2:]:
                b.op("add.f32", mean, mean, square)
            b.op("fma.rn.f32", mean, mean, 1.0 / plan.spec.dim, plan.spec.eps)
            b.op("rsqrt.approx.f32", mean, mean)
            b.op("mul.f32", self.value, self.value, mean, pred=steps.normed)
            record = b.op("add.u32", "row_record", self.first, steps.result_record)
            b.op("min.u32", record, record, 2 * max(product.records(plan.kind) for product in plan.products))
            self.out_row = b.op("mad.lo.u32", "out_row", record, TILE_ROWS, steps.result_row)
            half = b.op("shr.u32", "pair_record", record, 1)
            b.op("mad.lo.u32", self.out_row, half, TILE_ROWS, steps.result_row, pred=steps.gated)
            self.writes = b.op("setp.lt.and.u32", "writes_row", self.out_row, share.rows, has)
            b.op("add.u32", self.mine, self.mine, self.to_other)
            b.op("add.u32", self.theirs, self.theirs, self.to_other)
            b.op("sub.u32", self.to_other, 0, self.to_other)

    def _finish(self) -> None:
        b, plan, steps, at = self.b, self.plan, self.steps, self.at
        with b.fragment("finish_gate", "gate and up are rows of neighbouring records, half a warp apart"):
            up = b.reg("row_up", "f32")
            b.op("shfl.sync.bfly.b32", up, self.value, 16, 31, -1)
            activate(b, plan.spec.activation, (self.value,))
            b.op("mul.f32", self.value, self.value, up)
            b.op("setp.lt.and.u32", self.writes, at.lane, 16, self.writes)
        with b.fragment("finish_add", "the residual stream"):
            b.op("add.f32", self.value, self.value, steps.residual)
            b.op("mov.f32", steps.residual, self.value)
        if plan.spec.bias:
            with b.fragment("finish_bias"):
                b.op("add.f32", self.value, self.value, steps.bias_value)
        else:
            b.without("finish_bias")
        with b.fragment("keep_logit", "store the logit, and keep the best"):
            logits = b.ld_param("logits")
            b.op("mad.wide.u32", logits, self.out_row, 4, logits)
            b.op("st.global.f32", logits[0], self.value)
            key = b.reg("logit_key", "u32")
            ordered_key(b, key, self.value)
            better = b.op("setp.gt.u32", "is_better", key, steps.best)
            b.op("mov.u32", steps.best, key, pred=better)
            b.op("mov.u32", steps.best_row, self.out_row, pred=better)

    def _publish(self) -> None:
        b, plan, steps = self.b, self.plan, self.steps
        share = steps.share
        with b.fragment("publish", "to every copy; the same place of the next layer is cleared"):
            bits = b.op("mov.b32", "row_bits", self.value)
            b.op("not.b32", bits, bits)
            wide = b.op("cvt.u64.u32", "row_offset", share.out)
            b.op("mad.wide.u32", wide, self.out_row, 4, wide)
            out, clear = b.op("add.u64", "row_out", steps.now, wide), b.op("add.u64", "row_clear", steps.next, wide)
            step = b.op("cvt.u64.u32", "copy_step", share.copy_bytes)
            for copy in range(plan.copies):
                many = None if copy == 0 else ~steps.is_qkv
                b.op("st.relaxed.gpu.global.b32", clear[0], 0, pred=many)
                b.op("st.relaxed.gpu.global.b32", out[0], bits, pred=many)
                if copy + 1 < plan.copies:
                    b.op("add.u64", out, out, step)
                    b.op("add.u64", clear, clear, step)

    def _next_batch(self) -> None:
        b = self.b
        with b.fragment("next_batch"):
            b.op("add.u32", self.first, self.first, BATCH)
            b.op("sub.u32", self.left, self.left, self.count)
            b.op("setp.ne.u32", "more_batches", self.left, 0)
