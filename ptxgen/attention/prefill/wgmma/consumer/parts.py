"""Parts of the keys of a tile of rows, put together through memory: a record a part, and who leaves the last merges.

A record is a warp's: what each of its threads has of 16 rows' accumulators, sums and maxima, in that thread's order. So
a thread merges records of its own kind alone, and goes on as if it had seen all keys. It merges them in the order of
the parts, its own among them: results do not depend on who comes last. Nobody waits: the counter of a warp's rows says
who is last, and is zero again then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptxgen.attention.prefill.wgmma.consumer.loop import Consumer
from ptxgen.attention.prefill.wgmma.tile import CHIP_SMS, WgmmaTile
from ptxgen.builder.values import Reg
from ptxgen.dtypes import f32, u32
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.dot import multiply
from ptxgen.launch import Param, workspace

WARP, WARPS = 32, 4  # threads of a warp, warps of a warpgroup
VECTOR = 4  # floats that a thread stores at once
MOST_TILES = CHIP_SMS  # of rows, whose keys are shared
MOST_RECORDS = 2 * CHIP_SMS  # of a warp: parts of all tiles of rows
AT_ONCE = 64  # floats of a record that a thread has on their way, as registers allow
LEAST = -(2.0**127)  # what a row that saw no key is shifted by, so that no difference of maxima is of two infinities


def record_floats(tile: WgmmaTile) -> int:
    """Of a warp: accumulators of its rows, and a maximum and a sum for two rows of each thread."""
    return WARP * (tile.width // 2 + VECTOR)


def part_params(tile: WgmmaTile) -> tuple[Param, ...]:
    """The records, and the counters of parts."""
    warps = WARPS * tile.warpgroups
    return (
        workspace("part_records", f32, MOST_RECORDS * warps, record_floats(tile)),
        workspace("parts_left", u32, MOST_TILES * warps, align=4, zeroed=True),
    )


class Parts:
    """Fragments `all_keys` and `leave_part` (a record, and a counter that says whether it was the last), and pieces of
    the merge: a beginning and a loop's body each."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.b, self.tile, self.items, self.softmax = consumer.b, consumer.tile, consumer.items, consumer.softmax
        self.warps = WARPS * self.tile.warpgroups
        self.state = (self.softmax.limit[0], self.softmax.total[0], self.softmax.limit[1], self.softmax.total[1])

    def build(self) -> None:
        """All of them."""
        b = self.b
        self.has_all: Reg = b.reg("has_all", "pred")
        with b.fragment("all_keys", "a warp of the only part has seen all of them"):
            b.op("setp.le.u32", self.has_all, self.items.parts, 1)
        with b.fragment("leave_part", "what this warp has of its rows, and whether all other parts are there"):
            self.warp = b.op("mad.lo.u32", b.reg("warp_of_cta", "u32"), self.consumer.group, WARPS, self.consumer.warp)
            self.records = b.ld_param("part_records")
            at = b.reg("part_at", "u64")
            self._record(at, self.items.item)
            b.op("st.global.v4.f32", at[0], self.state)
            for first in range(0, len(self.consumer.acc), VECTOR):
                values = tuple(self.consumer.acc[first : first + VECTOR])
                b.op("st.global.v4.f32", at[4 * WARP * (VECTOR + first)], values)
            b.op("bar.warp.sync", -1)
            last = b.op("sub.u32", b.reg("last_part", "u32"), self.items.parts, 1)
            counter = b.op("min.u32", b.reg("counter", "u32"), self.items.unit, MOST_TILES - 1)
            b.op("mad.lo.u32", counter, counter, self.warps, self.warp)
            place = b.op("mad.wide.u32", scratch(b, "counter_at", "u64"), counter, 4, b.ld_param("parts_left"))
            left = b.op("mov.u32", b.reg("parts_before", "u32"), 0)
            b.op("atom.acq_rel.gpu.global.inc.u32", left, place[0], last, pred=self.consumer.is_first_lane)
            b.op("shfl.sync.idx.b32", left, left, 0, 31, -1)
            self.merges: Reg = b.op("setp.eq.u32", "merges", left, last)
            b.op("setp.eq.u32", self.has_all, left, last)
            b.op("bar.warp.sync", -1, note="what other warps left is there for all lanes")
        acc = self.consumer.acc
        pieces = -(-len(acc) // AT_ONCE)
        size = -(-len(acc) // pieces // VECTOR) * VECTOR
        values = b.array("record_value", "f32", size).regs
        theirs = tuple(b.reg(f"record_{name}", "f32") for name in ("limit0", "total0", "limit1", "total1"))
        self.at = b.reg("record_at", "u64")
        self.unmerged = b.reg("unmerged", "u32")
        merges = [
            (f"records{n}", *self._piece(n, first, values[: len(acc) - first], theirs))
            for n, first in enumerate(range(0, len(acc), size))
        ]
        b.expose(merges_of_records=merges)

    def _piece(self, number: int, first: int, values: Sequence[Reg], theirs: Sequence[Reg]) -> tuple[Any, Any]:
        """Fragments that begin with a row's accumulators from `first` on, and add those of a record: a loop for so
        many, as registers do for no more."""
        b, acc = self.b, self.consumer.acc[first : first + len(values)]
        with b.fragment(f"begin_merge{number}", "from the first part on, the own one among them") as begin:
            first_item = b.op("sub.u32", scratch(b, "first_item", "u32"), self.items.item, self.items.part)
            self._record(self.at, first_item)
            b.op("mov.u32", self.unmerged, self.items.parts)
            for limit in self.softmax.limit:
                b.op("mov.f32", limit, float("-inf"))
            for value in (*self.softmax.total, *acc):
                b.op("mov.f32", value, 0.0)
        with b.fragment(f"merge_record{number}", "on the scale of the larger maximum of each row") as merge:
            b.op("ld.global.v4.f32", tuple(theirs), self.at[0])
            for n in range(0, len(acc), VECTOR):
                b.op("ld.global.v4.f32", tuple(values[n : n + VECTOR]), self.at[4 * WARP * (VECTOR + first + n)])
            factors = [self._state_of(row, *theirs[2 * row : 2 * row + 2]) for row in range(2)]
            for n, (mine, value) in enumerate(zip(acc, values, strict=True)):
                factor, other = factors[n % VECTOR // 2]
                multiply(b, (mine,), factor)
                b.op("fma.rn.f32", mine, value, other, mine)
            b.op("add.u64", self.at, self.at, 4 * record_floats(self.tile) * self.warps)
            b.op("sub.u32", self.unmerged, self.unmerged, 1)
            b.op("setp.ne.u32", scratch(b, "more_records", "pred"), self.unmerged, 0)
        return begin, merge

    def _record(self, at: Reg, item: Reg) -> None:
        """Where this thread's piece of an item's record begins; part of an open fragment."""
        b = self.b
        index = b.op("min.u32", scratch(b, "record", "u32"), item, MOST_RECORDS - 1)
        b.op("mad.lo.u32", index, index, self.warps, self.warp)
        b.op("mad.wide.u32", at, index, 4 * record_floats(self.tile), self.records)
        b.op("mad.wide.u32", at, self.consumer.lane, 4 * VECTOR, at)

    def _state_of(self, row: int, limit: Reg, total: Reg) -> tuple[Reg, Reg]:
        """A row's maximum and sum with those of a record; what the accumulators of both are multiplied by; part of an
        open fragment."""
        b, mine, all_of = self.b, self.softmax.limit[row], self.softmax.total[row]
        factor, other = (scratch(b, f"{name}_factor{row}", "f32") for name in ("merged", "record"))
        new = b.op("max.f32", scratch(b, "merged_limit", "f32"), mine, limit)
        scale = b.op("max.f32", scratch(b, "merged_scale", "f32"), new, LEAST)
        for to, of in ((factor, mine), (other, limit)):
            b.op("sub.f32", to, of, scale)
            b.op("ex2.approx.ftz.f32", to, to)
        b.op("mov.f32", mine, new)
        b.op("mul.f32", all_of, all_of, factor)
        b.op("fma.rn.f32", all_of, total, other, all_of)
        return factor, other
