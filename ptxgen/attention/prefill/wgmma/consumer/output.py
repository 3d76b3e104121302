"""What the consumers leave: accumulators over their sums, through shared memory to `out`; the log-sum-exp."""

from __future__ import annotations

from ptxgen.attention.prefill.wgmma.consumer.loop import Consumer
from ptxgen.attention.prefill.wgmma.consumer.registers import UNIT
from ptxgen.attention.prefill.wgmma.consumer.softmax import SAFE
from ptxgen.attention.prefill.wgmma.tile import COLUMN, ROWS, SWIZZLED_ROW
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.division import divide, remainder

WARP = 32
WARP_ROWS = 16


def output(consumer: Consumer, smem: Reg, checked: bool) -> None:
    """Fragments `finish`, `look_for_overflow` (where `checked`), `stage_out`, `store_out`, `store_lse`."""
    b, softmax = consumer.b, consumer.softmax
    with b.fragment("finish", "accumulators over their sums"):
        softmax.finish(consumer.rows)
    if checked:
        _look_for_overflow(consumer, smem)
    else:
        b.without("look_for_overflow")
    if consumer.spec.lse:
        with b.fragment("log_sums", "the rows' log-sum-exp, in place of their sums: fewer registers beside the output"):
            for row, total in enumerate(softmax.total):
                b.op("mov.f32", total, softmax.log_sum(row))
    else:
        b.without("log_sums")
    _store(consumer, _stage(consumer, smem))
    if consumer.spec.lse:
        _store_lse(consumer)
    else:
        b.without("store_lse")


def _look_for_overflow(consumer: Consumer, smem: Reg) -> None:
    b, softmax = consumer.b, consumer.softmax
    with b.fragment("look_for_overflow", "a sum beyond the safe range, or an output that is not finite, sets the flag"):
        fails, zero = b.reg("fails", "pred"), b.reg("all_finite", "f32")
        b.op("setp.geu.f32", fails, softmax.total[0], SAFE)
        b.op("setp.geu.or.f32", fails, softmax.total[1], SAFE, fails)
        b.op("mul.f32", zero, consumer.acc[0], 0.0)
        for value in consumer.acc[1:]:
            b.op("fma.rn.f32", zero, value, 0.0, zero)
        b.op("setp.neu.or.f32", fails, zero, 0.0, fails)
        one = b.op("mov.b32", b.reg("flag_set", "b32"), 1)
        b.op("red.shared.or.b32", smem[consumer.tile.flag_at], one, pred=fails)


def _stage(consumer: Consumer, smem: Reg) -> Reg:
    """A warp's 16 rows, swizzled as q's are, where no other warp writes; where they begin."""
    b, tile = consumer.b, consumer.tile
    cvt = f"cvt.rn.{consumer.dtype.name}x2.f32"
    with b.fragment("stage_out", "this warp's rows of out, to shared memory of its own"):
        base = b.op("mad.lo.u32", "out_rows_at", consumer.group, tile.q_bytes, smem)
        b.op("mad.lo.u32", base, consumer.warp, WARP_ROWS * SWIZZLED_ROW, base)
        row = b.op("and.b32", b.reg("out_lane_row", "u32"), consumer.lane, 15)
        half = b.op("shr.u32", "out_lane_half", consumer.lane, 4)
        turn = b.op("and.b32", b.reg("out_lane_turn", "u32"), row, 7)
        at = b.op("mad.lo.u32", "out_lane", row, SWIZZLED_ROW, base)
        place = b.reg("out_lane_at", "u32")
        words = b.array("out_word", "b32", 4)
        for n in range(0, tile.width // 8, 2):
            column, within = divmod(n, COLUMN // 8)
            b.op("add.u32", place, half, within)
            b.op("xor.b32", place, place, turn)
            b.op("mad.lo.u32", place, place, UNIT, at)
            for i, word in enumerate(words):
                low, high = consumer.acc[4 * n + 2 * i], consumer.acc[4 * n + 2 * i + 1]
                b.op(cvt, word, high, low)
            target = place[tile.out_at + column * ROWS * SWIZZLED_ROW]
            b.op("stmatrix.sync.aligned.m8n8.x4.shared.b16", target, tuple(words))
    return base  # type: ignore[no-any-return]


def _store(consumer: Consumer, base: Reg) -> None:
    """Rows in 16-byte pieces, a lane a piece; zeros of an item without keys, where those of out would lie over q's: the
    producer fills these for the next item already."""
    b, tile, items = consumer.b, consumer.tile, consumer.items
    chunks = tile.width // 8
    passes = WARP_ROWS * chunks // WARP
    same_chunk = WARP % chunks == 0
    with b.fragment("store_out", "the rows of out, from shared memory"):
        out = b.ld_param("out")
        b.op("bar.warp.sync", -1)
        words = tuple(b.reg(f"piece{i}", "b32") for i in range(4))
        first = b.op("mad.lo.s32", "out_first_row", consumer.group, ROWS, items.first_row)
        b.op("mad.lo.s32", first, consumer.warp, WARP_ROWS, first)
        row, chunk = b.reg("out_pass_row", "s32"), b.reg("out_chunk", "u32")
        column, within, source = b.reg("out_column", "u32"), b.reg("out_within", "u32"), b.reg("out_source", "u32")
        place, exists, each = b.reg("out_place", "u32"), b.reg("out_exists", "pred"), b.reg("out_row", "s32")
        pieces = Pieces(consumer, out, chunk, WARP // chunks if same_chunk else 0, passes)
        for i in range(passes):
            if i and same_chunk:
                b.op("add.s32", row, row, WARP // chunks)
            else:
                piece = b.op("add.u32", scratch(b, "out_piece", "u32"), consumer.lane, WARP * i)
                divide(b, "out_pass_row", piece, chunks)
                remainder(b, "out_chunk", piece, chunks)
                b.op("shr.u32", column, chunk, 3)
                b.op("and.b32", within, chunk, 7)
                b.op("mad.lo.u32", source, column, ROWS * SWIZZLED_ROW, base)
            b.op("and.b32", place, row, 7)
            b.op("xor.b32", place, place, within)
            b.op("shl.b32", place, place, 4)
            b.op("add.u32", place, place, source)
            b.op("mad.lo.u32", place, row, SWIZZLED_ROW, place)
            staged = None
            if tile.out_over_q:
                staged = items.has_keys
                for word in words:
                    b.op("mov.b32", word, 0, pred=~staged)
            convert.load_words(b, words, place, tile.out_at, space="shared", pred=staged)
            b.op("add.s32", each, row, first)
            b.op("setp.lt.s32", exists, each, items.n_rows)
            if tile.width != tile.dim:
                b.op("setp.lt.and.u32", exists, chunk, tile.dim // 8, exists)
            at, offset = pieces.place(i, each)
            convert.store_words(b, at, words, offset, pred=exists)
        b.note("read before the next item's rows come there")
        b.op("bar.warp.sync", -1)


class Pieces:
    """Where a lane's piece of every pass goes: from the first pass on by constants, where heads and tokens allow it.

    `rows`: from a pass to the next, 0 where that differs among lanes.
    """

    def __init__(self, consumer: Consumer, out: Reg, chunk: Reg, rows: int, passes: int) -> None:
        self.b, self.items, self.out, self.chunk = consumer.b, consumer.items, out, chunk
        self.problem = consumer.spec.attention.problem
        self.steps = consumer.items.steps(rows, passes) if rows else None
        self.heads: dict[int, Reg] = {}  # by how many heads on: the address of the first token's piece

    def place(self, number: int, row: Reg) -> tuple[Reg, int]:
        """The address of pass `number`, whose row is `row`: a register and a constant; part of an open fragment."""
        b, row_bytes = self.b, self.problem.output_bytes
        if number == 0 or self.steps is None:
            _, at = self.items.address("out_at", row, self.out, row_bytes)
            b.op("mad.wide.u32", at, self.chunk, UNIT, at)
            self.heads[0] = at
            return at, 0
        heads, tokens = self.steps[number]
        if self.problem.by_token or self.problem.heads_inside:
            return self.heads[0], (heads + tokens * self.problem.token_step) * row_bytes
        if heads not in self.heads:
            step = b.op("mul.wide.u32", scratch(b, "out_heads", "u64"), self.items.q_rows(), heads * row_bytes)
            self.heads[heads] = b.op("add.u64", b.reg(f"out_at_head{heads}", "u64"), self.heads[0], step)
        return self.heads[heads], tokens * row_bytes


def _store_lse(consumer: Consumer) -> None:
    b, items = consumer.b, consumer.items
    with b.fragment("store_lse", "the rows' log-sum-exp"):
        lse, writes = b.ld_param("lse"), b.reg("writes_lse", "pred")
        own = consumer.own()
        first = b.op("setp.eq.s32", "first_of_quad", own.column, 0)
        for r, skip in enumerate((0, 8)):
            row = b.op("add.s32", scratch(b, "out_row", "s32"), own.row, skip)
            b.op("setp.lt.and.s32", writes, row, items.n_rows, first)
            _, at = items.address("lse_at", row, lse, 4)
            b.op("st.global.f32", at[0], consumer.softmax.total[r], pred=writes)
