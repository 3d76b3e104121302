"""The end of the mma main loop: a warp's maxima, sums and outputs to shared memory, as the contract lays them out."""

from __future__ import annotations

from ptxgen.attention.decode.contract import Partials
from ptxgen.attention.decode.loops.mma.layout import Block
from ptxgen.attention.decode.loops.mma.step import Step
from ptxgen.builder import Builder
from ptxgen.builder.values import Addr, Reg, Shared
from ptxgen.idioms.convert import scratch


def spread_of(heads: int, head_dim: int) -> int:
    """`Partials.spread` of this loop: the blocks of V of which a lane has 8 or 16 dims.

    Eight lanes store 16 bytes each at once: two of V's (g), 32 or 64 bytes apart, for each of the head pairs (q), two
    rows apart. They would meet in half or a quarter of the banks. Narrower blocks do not.
    """
    return head_dim // 64 * 64 if heads > 2 else 0


def store_partials(step: Step, partials: Partials, arena: Shared) -> None:
    """Maxima, sums and outputs to shared memory."""
    b, task = step.b, step.task
    start = b.op("mov.u32", "acc_arena", arena)
    row = b.op("mad.lo.u32", "acc_row", task.warp, partials.warp_stride, start)
    b.op("mad.lo.u32", row, b.registers["lane_q"], 2 * partials.pitch_bytes, row)
    statistics = b.op("mad.lo.u32", "acc_statistics", task.warp, partials.statistics_stride, start)
    b.op("mad.lo.u32", statistics, b.registers["lane_q"], 8, statistics)
    first = b.op("setp.eq.u32", "acc_first_lane", b.registers["lane_g"], 0)
    for column in range(2 * step.tiles):
        head = 8 * (column // 2) + column % 2
        if head >= partials.heads:
            continue
        exists = _head_exists(b, head, partials.heads)
        place = Addr(row, partials.row(0) + head * partials.pitch_bytes)
        _store_row(step, place, column, exists, spread=partials.spread)
        writes = first
        if exists is not None:
            writes = scratch(b, "acc_writes", "pred")
            b.op("and.pred", writes, first, exists)
        b.op("st.shared.f32", statistics[partials.maximum(0) + 4 * head], step.run_max[column], pred=writes)
        b.op(
            "st.shared.f32",
            statistics[partials.total(0) + 4 * head],
            step.run_sum[4 * (column // 2) + column % 2],
            pred=writes,
        )


def _head_exists(b: Builder, head: int, heads: int) -> Reg | None:
    """Whether head 2q + `head` is one of the CTA's; None when it always is."""
    if head + 6 < heads:
        return None
    exists = scratch(b, "acc_exists", "pred")
    b.op("setp.lt.u32", exists, b.registers["lane_q"], (heads - head + 1) // 2)
    return exists


def _store_row(step: Step, row: Addr, column: int, exists: Reg | None, *, spread: int) -> None:
    """One head's output: a lane has `elements` consecutive dims of every block of V."""
    b, output = step.b, 0
    for block in step.ring.layout.v_blocks:
        guard = exists
        if block.repeats:
            guard = scratch(b, "acc_lower_half", "pred")
            b.op("setp.lt.u32", guard, b.registers["lane_g"], 4)
            if exists is not None:
                b.op("and.pred", guard, guard, exists)
        values = [
            step.output(output + number, column // 2)[half + column % 2]
            for number in range(block.steps)
            for half in (0, 2)
        ]
        output += block.steps
        for first in range(0, len(values), 4):
            part = tuple(values[first : first + 4])
            spreads = block.first_dim < spread
            lane = _lane_place(b, block, row, first, spreads=spreads)
            place = Addr(lane, row.offset + 4 * (block.first_dim + (0 if spreads else first)))
            b.op(f"st.shared.v{len(part)}.f32", place, part, pred=guard)


def _lane_place(b: Builder, block: Block, row: Addr, first: int, *, spreads: bool) -> Reg:
    """The lane's row address plus its place in blocks of this width; where chunks are spread, of the one at `first`."""
    name = f"acc_lane{block.elements}" + (f"_{first}" if spreads and first else "")
    if name in b.registers:
        return b.registers[name]
    assert isinstance(row.base, Reg)
    if not spreads:
        made: Reg = b.op("mad.lo.u32", name, b.registers["lane_g"], 4 * block.elements, row.base)
        return made
    pair = b.registers.get("acc_spread") or b.op("shl.b32", "acc_spread", b.registers["lane_q"], 4)
    made = b.op("mul.lo.u32", name, b.registers["lane_g"], 4 * block.elements)
    if first:
        b.op("add.u32", made, made, 4 * first)
    b.op("xor.b32", made, made, pair)
    b.op("add.u32", made, made, row.base)
    return made
