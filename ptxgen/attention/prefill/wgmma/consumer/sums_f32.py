"""Sums in f32 of the products with V of 8 bits, for caches with more keys than tensor cores should add up alone: these
keep some 14 bits of a sum and drop what lies below, so the error grows with the keys of one accumulator.

Behind so many tiles the accumulators are added to the sums, and the next product starts from nothing. The first of a
thread's sums lie in registers, as many as there are, the others in shared memory, in places of the thread's own. What
a raised maximum does to them waits for the next addition: each row has a factor for that.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.attention.prefill.wgmma.tile import CHUNK, WARPGROUP, WgmmaTile
from ptxgen.builder import Builder
from ptxgen.builder.values import Not, Reg
from ptxgen.idioms.convert import RUN, clear, load_words, scratch, store_words

AT_ONCE = 4  # values of a place: two of each of the thread's rows
OF_ACCUMULATORS = (0, 0, 1, 1)  # their rows, by their numbers; then again
OF_SUMS = (0, 1)


class Promoted:
    """Fragments `look_at_run`, `promote` and `join_sums`. `acc` are the accumulators of the output, `sums` one of each
    row's probabilities; `smem` is where shared memory begins."""

    def __init__(
        self, b: Builder, tile: WgmmaTile, acc: Sequence[Reg], sums: Sequence[Reg], thread: Reg, smem: Reg
    ) -> None:
        self.b, self.tile, self.thread, self.smem = b, tile, thread, smem
        self.acc, self.sums = acc, sums
        self.kept = b.array("total", "f32", tile.sums_kept) if tile.sums_kept else ()
        self.row_totals = [] if tile.sums_stored else b.array("row_total", "f32", len(sums))  # else stored, too
        self.carry = b.array("carry", "f32", len(sums))  # what the sums are still to be multiplied by
        self.goes_on: Reg = b.reg("goes_on", "pred")  # the next product adds to the accumulators

    def clear(self) -> None:
        """Nothing added up yet; part of an open fragment."""
        b = self.b
        clear(b, (*self.kept, *self.row_totals))
        self._settle()
        if self.tile.sums_stored:
            at, zeros = self._place(), self._stored()
            clear(b, zeros)
            for first in range(0, self.tile.sums_stored + AT_ONCE, AT_ONCE):
                store_words(b, at, zeros, self._offset(first), space="shared")

    def build(self, step: Reg) -> None:
        """All fragments; `step`: the item's tile whose product with K was issued last, or that behind its last."""
        b, every = self.b, self.tile.tiles_alone
        with b.fragment("look_at_run", f"tensor cores add up {every * self.tile.keys} keys alone, {every} tiles"):
            place = b.op("and.b32", b.reg("run_place", "b32"), step, every - 1)
            b.op("setp.ne.u32", self.goes_on, place, 0)
        with b.fragment("promote", "sums in f32 take what the accumulators have; these begin anew"):
            self._add(into=False)
            self._settle()
        with b.fragment("join_sums", "accumulators += the sums in f32"):
            self._add(into=True)

    @property
    def promotes(self) -> Not:
        """Whether this is the place for `promote`."""
        return ~self.goes_on

    def _settle(self) -> None:
        for carry in self.carry:
            self.b.op("mov.f32", carry, 1.0)

    def _add(self, *, into: bool) -> None:
        """Sums times their factors plus accumulators become these (`into`), or the sums; part of an open fragment."""
        b, count = self.b, len(self.kept)
        self._add_some(self.kept, self.acc[:count], OF_ACCUMULATORS, into=into)
        if not self.tile.sums_stored:
            self._add_some(self.row_totals, self.sums, OF_SUMS, into=into)
            return
        b.note("those in shared memory; the last are of probabilities")
        at, stored = self._place(), self._stored()
        firsts = range(count, len(self.acc), AT_ONCE)
        places = [(self.acc[first : first + AT_ONCE], OF_ACCUMULATORS) for first in firsts]
        for number, (values, rows) in enumerate([*places, (self.sums, OF_SUMS)]):
            b.note(f"{values[0].name} and those after it", after=RUN)
            totals, offset = stored[: len(values)], self._offset(AT_ONCE * number)
            load_words(b, totals, at, offset, space="shared")
            self._add_some(totals, values, rows, into=into)
            if not into:
                store_words(b, at, totals, offset, space="shared")

    def _add_some(self, totals: Sequence[Reg], values: Sequence[Reg], rows: Sequence[int], *, into: bool) -> None:
        """The same of some, whose `rows` come again and again; part of an open fragment."""
        for i, (total, value) in enumerate(zip(totals, values, strict=True)):
            carry = self.carry[rows[i % len(rows)]]
            self.b.op("fma.rn.f32", value if into else total, total, carry, value)

    def _stored(self) -> Sequence[Reg]:
        """Registers for a place's sums."""
        return [scratch(self.b, f"stored_total{i}", "f32") for i in range(AT_ONCE)]

    def _place(self) -> Reg:
        """Where this thread's places begin; part of an open fragment. Not kept, as registers are scarce."""
        b = self.b
        at: Reg = b.op("mad.lo.u32", scratch(b, "totals_at", "u32"), self.thread, CHUNK, self.smem)
        return at

    def _offset(self, first: int) -> int:
        """From there to the place of the stored sums `first` …: threads lie side by side."""
        tile = self.tile
        place = first // AT_ONCE * WARPGROUP * tile.warpgroups - tile.producer_threads
        return tile.sums_at + place * CHUNK
