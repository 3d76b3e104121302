"""How parts of the keys become one again, through memory.

A part leaves a record a warp: what each of its threads has of accumulators, maxima and sums, in that thread's order. So
a thread merges records of its own kind alone, and goes on as if it had seen all keys. It merges them in the order of
the parts, its own among them: results do not depend on who comes last. Nobody waits: a counter says who is last, and is
zero again then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptxgen.attention.prefill.parts import Part, Shares
from ptxgen.attention.prefill.ragged import WARP
from ptxgen.attention.prefill.softmax import Softmax
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.dot import multiply

VECTOR = 4  # floats that a thread stores at once
AT_ONCE = 64  # floats of a record that a thread has on their way, as registers allow
LOWEST = -(2.0**127)  # what a row that saw no key is shifted by, so that no difference of maxima is of two infinities


class Merge:
    """Fragments of what a thread leaves of a part, and of the merge: `build` makes pieces of it, a beginning and a
    loop's body each.

    `accumulators[r]` are those of the thread's row r, `order` all of them as records have them.
    """

    def __init__(
        self, b: Builder, shares: Shares, part: Part, softmax: Softmax, accumulators: Sequence[Sequence[Reg]],
        order: Sequence[Reg],
    ) -> None:  # fmt: skip
        self.b, self.shares, self.part, self.softmax, self.order = b, shares, part, softmax, order
        self.row_of = {value: row for row, values in enumerate(accumulators) for value in values}
        self.state = [each for pair in zip(softmax.limit, softmax.total, strict=True) for each in pair]
        self.all: Reg = b.reg("has_all", "pred")
        self.last = b.reg("last_part", "u32")

    def begin(self) -> None:
        """Whether this CTA has seen all keys already, and whether it has a part of them; part of an open fragment."""
        b, part = self.b, self.part
        takes = b.op("setp.lt.u32", b.reg("takes_part", "pred"), part.number, part.taking)
        b.op("setp.eq.and.u32", self.all, part.taking, 1, takes)
        b.op("setp.gt.and.u32", "in_parts", part.taking, 1, takes)

    def leave(self, warp: Reg, lane: Reg) -> None:
        """Write this thread's record; part of an open fragment."""
        b = self.b
        self.warp, self.lane = warp, lane
        self.records = b.ld_param("part_records")
        at = b.reg("part_at", "u64")
        self._record(at, self.part.item)
        values = [*self.state, *self.order]
        for first in range(0, len(values), VECTOR):
            b.op("st.global.v4.f32", at[4 * WARP * first], tuple(values[first : first + VECTOR]))

    def draw(self, counters: int, of_unit: Reg | int, leads: Reg) -> Reg:
        """Count this part, and say how many were there before, to the thread that `leads`; part of an open fragment."""
        b, part = self.b, self.part
        b.op("sub.u32", self.last, part.taking, 1)
        counter = b.op("min.u32", b.reg("counter", "u32"), part.unit, self.shares.ctas - 1)
        if counters > 1:
            b.op("mad.lo.u32", counter, counter, counters, of_unit)
        place = b.op("mad.wide.u32", scratch(b, "counter_at", "u64"), counter, 4, b.ld_param("parts_left"))
        before: Reg = b.op("mov.u32", b.reg("parts_before", "u32"), 0)
        b.op("atom.acq_rel.gpu.global.inc.u32", before, place[0], self.last, pred=leads)
        return before

    def see(self, before: Reg) -> None:
        """Whether all other parts were there, so that this CTA has them all; part of an open fragment."""
        self.b.op("setp.eq.u32", self.all, before, self.last)

    def build(self) -> None:
        """The pieces: so many accumulators as registers do for."""
        b, order = self.b, self.order
        pieces = -(-len(order) // AT_ONCE)
        size = -(-len(order) // pieces // VECTOR) * VECTOR
        values = b.array("record_value", "f32", size).regs
        theirs = b.array("record_state", "f32", len(self.state)).regs
        self.at, self.unmerged = b.reg("record_at", "u64"), b.reg("unmerged", "u32")
        b.expose(
            merges_of_records=[
                (f"records{n}", *self._piece(n, first, values[: len(order) - first], theirs))
                for n, first in enumerate(range(0, len(order), size))
            ]
        )

    def _piece(self, number: int, first: int, values: Sequence[Reg], theirs: Sequence[Reg]) -> tuple[Any, Any]:
        """Begin with the accumulators from `first` on, and add those of a record."""
        b, order, part = self.b, self.order[first : first + len(values)], self.part
        with b.fragment(f"begin_merge{number}", "from the first part on, the own one among them") as begin:
            first_item = b.op("sub.u32", scratch(b, "first_item", "u32"), part.item, part.number)
            self._record(self.at, first_item)
            b.op("mov.u32", self.unmerged, part.taking)
            for limit in self.softmax.limit:
                b.op("mov.f32", limit, float("-inf"))
            for value in (*self.softmax.total, *order):
                b.op("mov.f32", value, 0.0)
        with b.fragment(f"merge_record{number}", "on the scale of the larger maximum of each row") as merge:
            for n in range(0, len(theirs), VECTOR):
                b.op("ld.global.v4.f32", tuple(theirs[n : n + VECTOR]), self.at[4 * WARP * n])
            for n in range(0, len(order), VECTOR):
                some = tuple(values[n : n + VECTOR])
                b.op("ld.global.v4.f32", some, self.at[4 * WARP * (len(theirs) + first + n)])
            factors = [self._row(row, *theirs[2 * row : 2 * row + 2]) for row in range(self.shares.rows)]
            for mine, value in zip(order, values, strict=True):
                factor, other = factors[self.row_of[mine]]
                multiply(b, (mine,), factor)
                b.op("fma.rn.f32", mine, value, other, mine)
            b.op("add.u64", self.at, self.at, 4 * self.shares.record_floats * self.shares.warps)
            b.op("sub.u32", self.unmerged, self.unmerged, 1)
            b.op("setp.ne.u32", scratch(b, "more_records", "pred"), self.unmerged, 0)
        return begin, merge

    def _record(self, at: Reg, item: Reg) -> None:
        """Where this thread's piece of an item's record begins; part of an open fragment."""
        b, shares = self.b, self.shares
        index = b.op("min.u32", scratch(b, "record", "u32"), item, shares.records - 1)
        b.op("mad.lo.u32", index, index, shares.warps, self.warp)
        b.op("mad.wide.u32", at, index, 4 * shares.record_floats, self.records)
        b.op("mad.wide.u32", at, self.lane, 4 * VECTOR, at)

    def _row(self, row: int, limit: Reg, total: Reg) -> tuple[Reg, Reg]:
        """A row's maximum and sum with those of a record; what the accumulators of both are multiplied by; part of an
        open fragment."""
        b, mine, all_of = self.b, self.softmax.limit[row], self.softmax.total[row]
        factor, other = (scratch(b, f"{name}_factor{row}", "f32") for name in ("merged", "record"))
        new = b.op("max.f32", scratch(b, "merged_limit", "f32"), mine, limit)
        scale = b.op("max.f32", scratch(b, "merged_scale", "f32"), new, LOWEST)
        for to, of in ((factor, mine), (other, limit)):
            b.op("sub.f32", to, of, scale)
            b.op("ex2.approx.ftz.f32", to, to)
        b.op("mov.f32", mine, new)
        b.op("mul.f32", all_of, all_of, factor)
        b.op("fma.rn.f32", all_of, total, other, all_of)
        return factor, other
