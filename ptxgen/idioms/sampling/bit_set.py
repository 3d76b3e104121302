"""A set of small numbers in shared memory, a bit each: cleared and filled by all threads of a CTA, then asked."""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.threads import ceil_div


class BitSet:
    """Numbers below `count`. Fragments `clear_start`, `clear` (a loop's body: `clear_has` enters it, `clear_more` goes
    on), and after a barrier `mark_start`, `mark` (`mark_has`, `mark_more`); then another barrier."""

    def __init__(self, b: Builder, count: int, threads: int) -> None:
        self.b, self.count, self.threads = b, count, threads
        self.words = ceil_div(count, 32)  # of 32 bits
        self.memory = b.shared("marks", 4 * self.words)

    def build(self, thread: Reg, list: Reg, length: Reg, longest: int) -> None:
        """Mark the first `length` (s32, at most `longest`) of the s32 numbers at `list`; those outside are left out."""
        b, memory = self.b, self.memory
        with b.fragment("clear_start"):
            word = b.op("mov.u32", "mark_word", thread)
            b.op("setp.lt.u32", "clear_has", word, self.words)
        with b.fragment("clear", "clear a word of marks"):
            at = b.op("mov.u32", "mark_at", memory)
            b.op("mad.lo.u32", at, word, 4, at)
            b.op("st.shared.u32", at[0], 0)
            b.op("add.u32", word, word, self.threads)
            b.op("setp.lt.u32", "clear_more", word, self.words)
        with b.fragment("mark_start", "the thread's first entry of the list"):
            entry = b.op("mov.u32", "mark_entry", thread)
            b.op("max.s32", length, length, 0)
            b.op("min.s32", length, length, longest)
            b.op("setp.lt.u32", "mark_has", entry, length)
        with b.fragment("mark", "mark an entry of the list: one bit"):
            source = b.op("mad.wide.u32", "mark_source", entry, 4, list)
            number = b.op("ld.global.s32", "marked", source[0])
            inside = b.op("setp.lt.u32", "mark_inside", number, self.count)
            bit = b.op("and.b32", "mark_bit", number, 31)
            b.op("shl.b32", bit, b.op("mov.u32", "mark_one", 1), bit)
            b.op("shr.u32", word, number, 5)
            b.op("mov.u32", at, memory)
            b.op("mad.lo.u32", at, word, 4, at)
            b.op("red.shared.or.b32", at[0], bit, pred=inside)
            b.op("add.u32", entry, entry, self.threads)
            b.op("setp.lt.u32", "mark_more", entry, length)

    def read(self, first: Reg, exists: Reg | None) -> Reg:
        """The marks of numbers `first`, first + 1, … within its word, from the lowest bit on; part of a fragment."""
        b = self.b
        bits, at = scratch(b, "mark_bits", "u32"), scratch(b, "mark_place", "u32")
        b.op("mov.u32", at, self.memory)
        b.op("shr.u32", bits, first, 5)
        b.op("mad.lo.u32", at, bits, 4, at)
        b.op("mov.u32", bits, 0)
        b.op("ld.shared.u32", bits, at[0], pred=exists)
        b.op("and.b32", at, first, 31)
        b.op("shr.u32", bits, bits, at)
        return bits
