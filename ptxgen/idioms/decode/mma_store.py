"""The end of the mma main loop: a warp's maxima, sums and outputs to shared memory, as the contract lays them out."""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.builder.values import Addr, Reg, Shared
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.decode.contract import Partials
from ptxgen.idioms.decode.mma_layout import Block
from ptxgen.idioms.decode.mma_step import Step


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
        _store_row(step, Addr(row, partials.row(0) + head * partials.pitch_bytes), column, exists)
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


def _store_row(step: Step, row: Addr, column: int, exists: Reg | None) -> None:
    """One head's output: a lane has `elements` consecutive dims of every block of V."""
    b, output = step.b, 0
    for block in step.ring.layout.v_blocks:
        lane = _lane_offset(b, block, row)
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
            place = Addr(lane, row.offset + 4 * (block.first_dim + first))
            b.op(f"st.shared.v{len(part)}.f32", place, part, pred=guard)


def _lane_offset(b: Builder, block: Block, row: Addr) -> Reg:
    """The lane's row address plus its place in blocks of this width."""
    name = f"acc_lane{block.elements}"
    if name in b.registers:
        return b.registers[name]
    assert isinstance(row.base, Reg)
    made: Reg = b.op("mad.lo.u32", name, b.registers["lane_g"], 4 * block.elements, row.base)
    return made
