"""Merging splits through global memory: every split leaves a record, and the unit's mergers (`ticket`) merge them.

No fence stands between a record and who merges it: every 8 bytes of a record are written at once and hold a word that
is never zero, so the one that merges sees whether they are there, and leaves zeros behind. The order of the merge is
that of the splits, whichever CTA merges: results do not depend on the order of arrival.
"""

from __future__ import annotations

from ptxgen.attention.decode.merge.cta import Elements, Partial, combine, empty, partials
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch

RECORD_FLOATS = 6  # of an element: four values, maximum and sum
_AT_ONCE = 16  # records in flight while merging; half as many in a CTA
_WIDE = 384  # of more threads than these, which have 128 registers each
_NOTHING = (-(1 << 32), -(1 << 32), -0x800000)  # the softmax over nothing as a record has it: odd words complemented


class Records:
    """Records `[unit][split][element]` of values (16 bytes), and behind a unit's values its maxima and sums (8 bytes).

    `unit` numbers (sequence, KV head, part of the group); `splits` (the capacity) and `active` (those that have work
    now) are registers; `index` is this CTA's split. `late`: they are read once before they are known to be there.
    """

    def __init__(
        self, b: Builder, elements: Elements, splits: Reg, active: Reg, index: Reg, most: int, *, late: bool
    ) -> None:
        self.b, self.elements = b, elements
        self.splits, self.active, self.index = splits, active, index
        self.at_once = min(most, _AT_ONCE if elements.threads <= _WIDE else _AT_ONCE // 2)
        self.values = b.reg("record_values", "u64")
        self.statistics = b.reg("record_statistics", "u64")
        self.split = b.reg("record_split", "u32")
        self.unread = b.reg("records_unread", "pred") if late else None
        self.exist = b.array("record_exists", "pred", self.at_once)
        self.pairs = b.array("record_pair", "b64", 3 * self.at_once)
        self.words = b.array("record_word", "u32", 3 * self.at_once)
        self.parts = partials(b, "record", self.at_once)

    def locate(self, unit: Reg) -> Reg:
        """Find the unit's records; whether this CTA's split is the only one."""
        b, count = self.b, self.elements.count
        undivided: Reg = b.op("setp.eq.u32", "undivided", self.active, 1)
        records = b.ld_param("records")
        if self.unread is not None:
            b.op("setp.lt.u32", self.unread, self.active, 0)
        first = b.op("mul.lo.u32", "record_first", unit, self.splits)
        b.op("mad.wide.u32", self.values, first, 4 * RECORD_FLOATS * count, records)
        b.op("mad.wide.u32", self.statistics, self.splits, 16 * count, self.values)
        return undivided

    @property
    def _batch(self) -> str:
        """The records that are read together, for comments."""
        return f"records 0 to {self.at_once - 1} of the batch" if self.at_once > 1 else "the record"

    def _address(self, name: str, split: Reg, size: int, base: Reg) -> Reg:
        b, place = self.b, scratch(self.b, f"{name}_place", "u64")
        b.op("mad.wide.u32", place, split, size * self.elements.count, base)
        b.op("mad.wide.u32", place, self.elements.element, size, place)
        return place

    def store(self, part: Partial) -> None:
        """Write the current element's record, whose odd words are complemented so that none is 0."""
        b = self.b
        pairs = b.array("record_left", "b64", 3)
        values = (*part.values, part.maximum, part.total)
        for index, pair in enumerate(pairs):
            told, odd = scratch(b, "record_told", "u32"), scratch(b, "record_odd", "f32")
            b.op("not.b32", told, values[2 * index + 1])
            b.op("max.u32", told, told, 1)
            b.op("mov.b32", odd, told)
            b.op("mov.b64", pair, (values[2 * index], odd))
        where = self._address("values", self.index, 16, self.values)
        b.op("st.relaxed.gpu.global.v2.b64", where[0], pairs[:2])
        b.op("st.relaxed.gpu.global.b64", self._address("statistics", self.index, 8, self.statistics)[0], pairs[2])

    def begin(self, into: Partial) -> None:
        """Begin the current element with the softmax over nothing."""
        empty(self.b, into)
        self.b.op("mov.u32", self.split, 0)

    def read(self) -> None:
        """Read the next records of the current element; those that do not exist count as softmaxes over nothing."""
        b, count = self.b, self.elements.count
        values = self._address("values", self.split, 16, self.values)
        statistics = self._address("statistics", self.split, 8, self.statistics)
        self._read = values, statistics
        left = scratch(b, "record_unmerged", "u32")
        b.op("sub.u32", left, self.active, self.split)
        b.note(f"{self._batch}, or nothing where there are no more")
        for index, exists in enumerate(self.exist):
            pairs = self.pairs[3 * index : 3 * index + 3]
            b.op("setp.gt.and.u32", exists, left, index, self.elements.has)
            for pair, nothing in zip(pairs, _NOTHING, strict=True):
                b.op("mov.b64", pair, nothing)
            b.op("ld.relaxed.gpu.global.v2.b64", pairs[:2], values[16 * count * index], pred=exists)
            b.op("ld.relaxed.gpu.global.b64", pairs[2], statistics[8 * count * index], pred=exists)

    def check(self) -> None:
        """Whether every word that was read had been written; late, what is read from now on has to be read again."""
        b = self.b
        tells = list(self.words)
        b.note(f"{self._batch}: their words")
        for index, part in enumerate(self.parts):
            registers = (*part.values, part.maximum, part.total)
            for number in range(3):
                b.op("mov.b64", registers[2 * number : 2 * number + 2], self.pairs[3 * index + number])
                b.op("mov.b32", tells[3 * index + number], registers[2 * number + 1])
        b.note("the least of the words that are never 0 once they are written")
        least = b.array("record_least", "u32", (len(tells) + 1) // 2).regs
        while len(tells) > 1:
            half, odd = len(tells) // 2, tells[len(tells) // 2 * 2 :]
            for index in range(half):
                b.op("min.u32", least[index], tells[2 * index], tells[2 * index + 1])
            tells = [*least[:half], *odd]
        b.op("setp.ne.u32", "records_there", tells[0], 0)
        if self.unread is not None:
            b.op("setp.ge.u32", self.unread, self.active, 0)

    def merge(self, into: Partial) -> Reg:
        """Merge the records that were read and clear them in memory; returns whether more are left."""
        b, count = self.b, self.elements.count
        values, statistics = self._read
        zero = b.op("mov.b64", "record_zero", 0)
        b.note(f"{self._batch}: words back from their complements, and zeros in memory")
        for index, (part, exists) in enumerate(zip(self.parts, self.exist, strict=True)):
            for number, register in enumerate((part.values[1], part.values[3], part.total)):
                b.op("not.b32", register, self.words[3 * index + number])
            b.op("st.relaxed.gpu.global.v2.b64", values[16 * count * index], (zero, zero), pred=exists)
            b.op("st.relaxed.gpu.global.b64", statistics[8 * count * index], zero, pred=exists)
        combine(b, into, (into, *self.parts), "what is merged so far and the records")
        b.op("add.u32", self.split, self.split, self.at_once)
        more: Reg = b.op("setp.lt.u32", "record_more", self.split, self.active)
        return more
