"""Where warps leave their sums in shared memory, and which of them a result is the sum of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.idioms.division import divide_bounded
from ptxgen.products.geometry.runs import SLOT_BYTES, Runs
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.products.mainloop.stream import Stream


class RunSlots:
    """A warp's sums of the CTA's record r are in slot r + warp: no two share one, and those of a record are
    neighbours, in the order of k. A slot is `[token, 16]` f32; they lie in `memory` from an offset on, or by
    themselves."""

    def __init__(self, b: Builder, at: Runs, memory: Shared | None = None, offset: int = 0) -> None:
        self.b, self.at, self.offset = b, at, offset
        self.bytes = SLOT_BYTES * at.tokens
        self.slots = memory or b.shared("sums", self.bytes * (at.most * at.parts + at.warps))

    def locate(self, stream: Stream) -> Reg:
        """Fragment `locate_slot`: where row g of this lane is in the warp's first slot."""
        b, at = self.b, self.at
        with b.fragment("locate_slot", "where the warp puts its sums"):
            self.base = b.op("mov.u32", "slots", self.slots)
            if self.offset:
                b.op("add.u32", self.base, self.base, self.offset)
            slot = b.op("add.u32", "slot", stream.own_record, stream.warp)
            mine: Reg = b.op("mad.lo.u32", "publish_at", slot, self.bytes, self.base)
            if at.idle:
                b.note("a warp without a tile adds 0")
                clear = b.op("mad.lo.u32", "clear_at", stream.lane, 4, mine)
                clears = b.op("setp.lt.u32", "clears", stream.lane, TILE_ROWS)
                for token in range(at.tokens):
                    b.op("st.shared.f32", clear[SLOT_BYTES * token], 0.0, pred=clears)
            b.op("mad.lo.u32", mine, stream.row, 4, mine)
        return mine

    def find(self, stream: Stream, unit: Reg, row: Reg, token: Reg | None = None) -> None:
        """The slots of a result: those of the warps from the one that has the record's first tile to that of its
        last."""
        b, at = self.b, self.at
        self.first, self.count = [], []
        for part in range(at.parts):
            record = unit
            if at.parts > 1:
                record = b.op("mad.lo.u32", f"record_{part}", unit, at.parts, part)
            first = b.op("mad.lo.u32", f"first_of_{part}", record, at.warps, (at.warps - 1) // at.tiles)
            last = b.op("mad.lo.u32", f"last_of_{part}", record, at.warps, at.warps - 1)
            for each in (first, last):
                self._over_records(each, stream.has_more)
            b.op("sub.u32", last, last, first)
            b.op("add.u32", first, first, record)
            b.op("mad.lo.u32", first, first, self.bytes, self.base)
            b.op("mad.lo.u32", first, row, 4, first)
            if token is not None:
                b.op("mad.lo.u32", first, token, SLOT_BYTES, first)
            self.first.append(first)
            self.count.append(last)

    def _over_records(self, value: Reg, has_more: Reg | None) -> None:
        """Divided by the number of the CTA's records."""
        b, at = self.b, self.at
        bound = at.warps * at.most * at.parts
        if has_more is not None:
            other = convert.scratch(b, "over_most", "u32")
            divide_bounded(b, other, value, at.most * at.parts, bound)
            divide_bounded(b, value, value, at.least * at.parts, bound)
            b.op("selp.b32", value, other, value, has_more)
        elif at.least * at.parts > 1:
            divide_bounded(b, value, value, at.least * at.parts, bound)

    def combine(self, values: Sequence[Reg]) -> None:
        """The sums of a result's parts, in a fixed order."""
        b, sharers = self.b, self.at.sharers
        ones = b.array("of_warp", "f32", sharers)
        has = b.reg("has_share", "pred")
        for value, first, count in zip(values, self.first, self.count, strict=True):
            b.op("ld.shared.f32", ones[0], first[0])
            for i in range(1, sharers):
                b.op("mov.f32", ones[i], 0.0)
                b.op("setp.ge.u32", has, count, i)
                b.op("ld.shared.f32", ones[i], first[self.bytes * i], pred=has)
            b.op("mov.f32", value, add_in_pairs(b, ones.regs))


def add_in_pairs(b: Builder, values: Sequence[Reg]) -> Reg:
    """The sum of registers, neighbours first, in the first of them."""
    terms = list(values)
    while len(terms) > 1:
        for left, right in zip(terms[::2], terms[1::2], strict=False):
            b.op("add.f32", left, left, right)
        terms = terms[::2]
    return terms[0]
