"""The end of the mma main loop: a warp's maxima, sums and outputs to shared memory, as the contract lays them out."""

from __future__ import annotations

from ptxgen.attention.decode.contract import Partials
from ptxgen.attention.decode.loops.mma.layout import Block
from ptxgen.attention.decode.loops.mma.step import Step
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms.convert import scratch


def spread_of(heads: int, dim: int) -> int:
    """`Partials.spread` of this loop: the blocks of V of which a lane has 8 or 16 dims.

    Eight lanes store 16 bytes each at once: two of V's (g), 32 or 64 bytes apart, for each of the head pairs (q), two
    rows apart. They would meet in half or a quarter of the banks. Narrower blocks do not.
    """
    return dim // 64 * 64 if heads > 2 else 0


class Store:
    """The stores of a warp; a lane's place in blocks of a width is computed once."""

    def __init__(self, step: Step, partials: Partials) -> None:
        self.b, self.step, self.partials = step.b, step, partials
        self.g, self.q = step.loader.g, step.loader.q
        self._lanes: dict[tuple[int, int], Reg] = {}  # by elements of a block, and the first of a spread chunk
        self._pair: Reg | None = None

    def emit(self, arena: Shared) -> None:
        """Maxima, sums and outputs to shared memory; part of an open fragment."""
        b, step, partials = self.b, self.step, self.partials
        start = b.op("mov.u32", "acc_arena", arena)
        row = b.op("mad.lo.u32", "acc_row", step.task.warp, partials.warp_stride, start)
        b.op("mad.lo.u32", row, self.q, 2 * partials.pitch_bytes, row)
        statistics = b.op("mad.lo.u32", "acc_statistics", step.task.warp, partials.statistics_stride, start)
        b.op("mad.lo.u32", statistics, self.q, 8, statistics)
        first = b.op("setp.eq.u32", "acc_first_lane", self.g, 0)
        for column in range(2 * step.tiles):
            head = 8 * (column // 2) + column % 2
            if head >= partials.heads:
                continue
            exists = self._head_exists(head)
            self._store_row(row, partials.row(0) + head * partials.pitch_bytes, column, exists)
            writes = first
            if exists is not None:
                writes = scratch(b, "acc_writes", "pred")
                b.op("and.pred", writes, first, exists)
            total = step.run_sum[4 * (column // 2) + column % 2]
            b.op("st.shared.f32", statistics[partials.maximum(0) + 4 * head], step.run_max[column], pred=writes)
            b.op("st.shared.f32", statistics[partials.total(0) + 4 * head], total, pred=writes)

    def _head_exists(self, head: int) -> Reg | None:
        """Whether head 2q + `head` is one of the CTA's; None when it always is."""
        heads = self.partials.heads
        if head + 6 < heads:
            return None
        exists = scratch(self.b, "acc_exists", "pred")
        self.b.op("setp.lt.u32", exists, self.q, (heads - head + 1) // 2)
        return exists

    def _store_row(self, row: Reg, offset: int, column: int, exists: Reg | None) -> None:
        """One head's output: a lane has `elements` consecutive dims of every block of V."""
        b, step, output = self.b, self.step, 0
        for block in step.ring.layout.v_blocks:
            guard = exists
            if block.repeats:
                guard = scratch(b, "acc_lower_half", "pred")
                b.op("setp.lt.u32", guard, self.g, 4)
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
                spreads = block.first_dim < self.partials.spread
                lane = self._lane_place(block, row, first, spreads=spreads)
                place = lane[offset + 4 * (block.first_dim + (0 if spreads else first))]
                b.op(f"st.shared.v{len(part)}.f32", place, part, pred=guard)

    def _lane_place(self, block: Block, row: Reg, first: int, *, spreads: bool) -> Reg:
        """The lane's row plus its place in blocks of this width; where chunks are spread, of the one at `first`."""
        b = self.b
        key = block.elements, first if spreads else 0
        name = f"acc_lane{block.elements}" + (f"_{key[1]}" if key[1] else "")
        if key in self._lanes:
            return self._lanes[key]
        if not spreads:
            self._lanes[key] = b.op("mad.lo.u32", name, self.g, 4 * block.elements, row)
            return self._lanes[key]
        self._pair = self._pair or b.op("shl.b32", "acc_spread", self.q, 4)
        made: Reg = b.op("mul.lo.u32", name, self.g, 4 * block.elements)
        if first:
            b.op("add.u32", made, made, 4 * first)
        b.op("xor.b32", made, made, self._pair)
        b.op("add.u32", made, made, row)
        self._lanes[key] = made
        return made
