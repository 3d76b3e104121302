"""Merging splits through global memory: every split leaves a record, and the last to arrive merges them all.

Who comes last is known by a ticket, an atomic counter that wraps to zero with the last arrival, ready for the next
launch. The order of the merge is that of the splits, whoever merges: results do not depend on the order of arrival.
"""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.idioms.decode.merge import Elements, Partial, combine, empty, partials
from ptxgen.values import Reg, Shared

RECORD_FLOATS = 6  # of an element: four values, maximum and sum
_AT_ONCE = 16  # records in flight while merging


class Splits:
    """Records `[unit][split][element]` of values (16 bytes), and behind a unit's values its maxima and sums (8 bytes).

    `unit` numbers (sequence, KV head, part of the group); `splits` (the capacity) and `active` (those that have work
    now) are registers; `index` is this CTA's split, `ticket` its counter's index.
    """

    def __init__(self, b: Builder, elements: Elements, splits: Reg, active: Reg, index: Reg, most: int) -> None:
        self.b, self.elements = b, elements
        self.splits, self.active, self.index = splits, active, index
        self.at_once = min(most, _AT_ONCE)
        self.values = b.reg("record_values", "u64")
        self.statistics = b.reg("record_statistics", "u64")
        self.flag: Shared = b.shared("last_flag", 4, 4)

    def locate(self, records: Reg, unit: Reg) -> None:
        """Addresses of the unit's records."""
        b, count = self.b, self.elements.count
        first = b.op("mul.lo.u32", "record_first", unit, self.splits)
        b.op("mad.wide.u32", self.values, first, 4 * RECORD_FLOATS * count, records)
        b.op("mad.wide.u32", self.statistics, self.splits, 16 * count, self.values)

    def _address(self, name: str, split: Reg, size: int, base: Reg) -> Reg:
        b = self.b
        place = b.registers.get(f"{name}_place") or b.reg(f"{name}_place", "u64")
        b.op("mad.wide.u32", place, split, size * self.elements.count, base)
        b.op("mad.wide.u32", place, self.elements.element, size, place)
        return place

    def store(self, part: Partial) -> None:
        """Leave the current element's record."""
        b = self.b
        b.op("st.global.v4.f32", self._address("values", self.index, 16, self.values)[0], part.values)
        where = self._address("statistics", self.index, 8, self.statistics)
        b.op("st.global.v2.f32", where[0], (part.maximum, part.total))

    def arrive(self, tickets: Reg, ticket: Reg) -> None:
        """Thread 0 draws a ticket: its release makes the CTA's records visible, its acquire the others'."""
        b = self.b
        leader = b.op("setp.eq.u32", "ticket_leader", b.registers["thread"], 0)
        place = b.op("mad.wide.u32", "ticket_place", ticket, 4, tickets)
        final = b.op("sub.u32", "ticket_final", self.active, 1)
        drawn = b.reg("ticket_drawn", "u32")
        b.op("atom.acq_rel.gpu.global.inc.u32", drawn, place[0], final, pred=leader)
        b.op("sub.u32", drawn, final, drawn, pred=leader)
        b.op("st.shared.u32", self.flag[0], drawn, pred=leader)

    def read_flag(self) -> Reg:
        """Whether this CTA came last."""
        b = self.b
        left = b.op("ld.shared.u32", "ticket_left", self.flag[0])
        last: Reg = b.op("setp.eq.u32", "is_last", left, 0)
        return last

    def begin(self, into: Partial) -> None:
        """Merge nothing yet for the current element."""
        empty(self.b, into)
        self.b.op("mov.u32", self.b.reg("record_split", "u32"), 0)

    def merge(self, into: Partial) -> Reg:
        """Merge the next records of the current element; returns whether more are left."""
        b = self.b
        split = b.registers["record_split"]
        values = self._address("values", split, 16, self.values)
        statistics = self._address("statistics", split, 8, self.statistics)
        parts = partials(b, "record", self.at_once)
        exists, left = b.reg("record_exists", "pred"), b.op("sub.u32", "record_left", self.active, split)
        for index, part in enumerate(parts):
            empty(b, part)
            b.op("setp.gt.u32", exists, left, index)
            count = self.elements.count
            b.op("ld.global.v2.f32", (part.maximum, part.total), statistics[8 * count * index], pred=exists)
            b.op("ld.global.v4.f32", part.values, values[16 * count * index], pred=exists)
        combine(b, into, (into, *parts))
        b.op("add.u32", split, split, self.at_once)
        more: Reg = b.op("setp.lt.u32", "record_more", split, self.active)
        return more
