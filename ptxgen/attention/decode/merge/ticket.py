"""Which CTAs merge the records of a unit's splits: a ticket says, an atomic counter. The last to use it leaves it at
zero, ready for the next launch.

A late ticket is drawn behind the record: the last to leave one merges, and all records are on their way. An early
ticket is drawn when a CTA has found work, and the atomic's latency lies behind its loads: the last to start merges, and
waits for CTAs that have all started, so that they come to their records whatever else waits for room on the GPU. (So do
the CTAs of their clusters, which start together; each rank has a ticket of its own.)

Several mergers share the output: the last few to start, each a part. Who is not the very last may wait only when it
knows that all have started; so it asks, once, in the same counter, behind its first loads. If they have, it merges its
part. If not, its mark stays in the counter for the last to find, which then merges that part too.
"""

from __future__ import annotations

from ptxgen.attention.decode.contract import MOST_SHARED_SPLITS
from ptxgen.attention.decode.merge.cluster import Exchange
from ptxgen.attention.decode.merge.cta import Elements
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms.convert import scratch


class Ticket:
    """What tickets have in common: thread 0 draws, and tells the CTA in a word of shared memory."""

    def __init__(self, b: Builder, active: Reg, thread: Reg) -> None:
        self.b, self.active, self.thread = b, active, thread
        self.drawn = b.reg("ticket_drawn", "u32")
        self.told: Shared = b.shared("ticket_told", 4, 4)

    def leads(self) -> Reg:
        """Whether this thread draws."""
        leads = scratch(self.b, "ticket_leads", "pred")
        self.b.op("setp.eq.u32", leads, self.thread, 0)
        return leads

    def read(self) -> Reg:
        """Behind a barrier: whether this CTA merges."""
        left = self.b.op("ld.shared.u32", "ticket_left", self.told[0])
        merges: Reg = self.b.op("setp.eq.u32", "merges", left, 0)
        return merges

    def _counter(self, unit: Reg, exchange: Exchange | None) -> tuple[Reg, Reg]:
        """The counters, and which of them is the unit's; of a cluster each rank has one."""
        tickets = self.b.ld_param("tickets")
        if exchange is None:
            return tickets, unit
        return tickets, self.b.op("mad.lo.u32", "ticket", unit, exchange.size, exchange.rank)

    def _draw(self, tickets: Reg, index: Reg) -> tuple[Reg, Reg]:
        """(leader, the last ticket); the counter's `index` is among `tickets`."""
        leads, place, final = self.leads(), self._place(tickets, index), self._final()
        self.b.op("atom.relaxed.gpu.global.inc.u32", self.drawn, place[0], final, pred=leads)
        return leads, final

    def _tell(self, leads: Reg, final: Reg) -> None:
        self.b.op("sub.u32", self.drawn, final, self.drawn, pred=leads)
        self.b.op("st.shared.u32", self.told[0], self.drawn, pred=leads)

    def _place(self, tickets: Reg, index: Reg) -> Reg:
        place: Reg = self.b.op("mad.wide.u32", "ticket_place", index, 4, tickets)
        return place

    def _final(self) -> Reg:
        final = scratch(self.b, "ticket_final", "u32")
        self.b.op("sub.u32", final, self.active, 1)
        return final


class LateTicket(Ticket):
    """The last CTA to leave its record merges."""

    def draw(self, unit: Reg, exchange: Exchange | None) -> None:
        """Draw a ticket and write it to shared memory, ahead of a barrier."""
        self._tell(*self._draw(*self._counter(unit, exchange)))


class EarlyTicket(Ticket):
    """The last CTA to start merges. Only what was drawn is kept in a register meanwhile."""

    def leads(self) -> Reg:
        """Only where there is more than one split."""
        leads = super().leads()
        self.b.op("setp.ne.and.u32", leads, self.active, 1, leads)
        return leads

    def draw(self, unit: Reg, exchange: Exchange | None) -> None:
        """Draw a ticket from the unit's counter."""
        self._draw(*self._counter(unit, exchange))

    def tell(self) -> None:
        """Write the ticket to shared memory, ahead of a barrier."""
        self._tell(self.leads(), self._final())


class SharedTicket(EarlyTicket):
    """The last CTAs to start merge elements [first, end) in equal parts, numbered from the last CTA on. There are as
    many as splits are active, at most `mergers`, rounded down to a power of two.

    Thread 0 alone runs `draw`, `ask` and `tell`, and keeps the counter's address and answers in between.
    """

    def __init__(
        self, b: Builder, active: Reg, elements: Elements, mergers: int, first: Reg | int, end: Reg | int
    ) -> None:  # fmt: skip
        super().__init__(b, active, elements.thread)
        self.together = elements.together
        self.mergers, self.first, self.end = mergers, first, end
        self.asked = b.reg("ticket_asked", "u32")
        self.shift, self.count = b.reg("mergers_shift", "u32"), b.reg("mergers", "u32")
        self.mask, self.share = b.reg("part_mask", "u32"), b.reg("part_share", "u32")
        self.part_first, self.part_end = b.reg("part_first", "u32"), b.reg("part_end", "u32")

    def draw(self, unit: Reg, exchange: Exchange | None) -> None:
        """Draw a ticket, which adds 1 to the counter's lower half."""
        self.place = self._place(*self._counter(unit, exchange))
        self.b.op("atom.relaxed.gpu.global.add.u32", self.drawn, self.place[0], 1)

    def ask(self) -> None:
        """Ask whether all have started, where this CTA is among the last but not the last. Else this leaves a mark."""
        b = self.b
        _, mark, asks = self._rank()
        b.op("mov.b32", self.asked, self.drawn)
        b.op("atom.relaxed.gpu.global.add.u32", self.asked, self.place[0], mark, pred=asks)

    def tell(self) -> None:
        """Write to shared memory which parts this CTA merges, a bit each. The last CTA to use the counter clears it."""
        b = self.b
        rank, mark, asks = self._rank()
        now = b.op("selp.b32", "ticket_now", mark, 1, asks)
        b.op("add.u32", now, now, self.asked)
        b.note("the counter when all CTAs have started and all that must ask have asked: bits 17 to mergers + 15")
        whole = b.op("add.u32", "ticket_whole", self.count, 16)
        b.op("shl.b32", whole, 1, whole)  # of 16 mergers 0: shl gives 0 from 32 on
        b.op("sub.u32", whole, whole, 1 << 17)
        b.op("add.u32", whole, whole, self.active)
        used = b.op("setp.eq.u32", "ticket_used", now, whole)
        b.op("st.relaxed.gpu.global.u32", self.place[0], 0, pred=used)
        b.op("and.b32", now, now, MOST_SHARED_SPLITS)
        started = b.op("setp.eq.u32", "all_started", now, self.active)
        b.note("this CTA's own part; the last CTA to start also merges the parts of CTAs that asked before it started")
        marks = b.op("shr.u32", "ticket_marks", self.drawn, 16)
        b.op("selp.b32", marks, 0, marks, asks)
        b.op("shl.b32", self.mask, 1, rank)
        b.op("or.b32", self.mask, self.mask, marks)
        b.op("selp.b32", self.mask, self.mask, 0, started)
        b.op("st.shared.u32", self.told[0], self.mask)

    def read(self) -> Reg:
        """Behind the barrier: whether this CTA merges any part."""
        self.b.op("ld.shared.u32", self.mask, self.told[0])
        merges: Reg = self.b.op("setp.ne.u32", "merges", self.mask, 0)
        return merges

    def divide(self) -> None:
        """Elements of a part."""
        b = self.b
        self._mergers()
        b.op("sub.u32", self.share, self.count, 1)
        b.op("add.u32", self.share, self.share, self.end)
        b.op("sub.u32", self.share, self.share, self.first)
        b.op("shr.u32", self.share, self.share, self.shift)
        if self.together > 1:
            b.op("add.u32", self.share, self.share, self.together - 1)
            b.op("and.b32", self.share, self.share, -self.together)

    def take(self) -> Reg:
        """The CTA's next part; whether there are more."""
        b = self.b
        rank = b.op("bfind.u32", "part_number", self.mask)
        bit = b.op("shl.b32", "part_bit", 1, rank)
        b.op("xor.b32", self.mask, self.mask, bit)
        first = b.op("mad.lo.u32", "part_start_at", rank, self.share, self.first)
        b.op("min.u32", self.part_first, first, self.end)
        b.op("add.u32", self.part_end, self.part_first, self.share)
        b.op("min.u32", self.part_end, self.part_end, self.end)
        more: Reg = b.op("setp.ne.u32", "part_again", self.mask, 0)
        return more

    def start(self, elements: Elements) -> None:
        """The thread's first element of the part."""
        mine = self.b.op("add.u32", "part_mine", self.part_first, self.thread)
        elements.start(mine, self.part_end)

    def _mergers(self) -> None:
        """How many CTAs merge."""
        b = self.b
        b.op("min.u32", self.shift, self.active, self.mergers)
        b.op("bfind.u32", self.shift, self.shift)
        b.op("shl.b32", self.count, 1, self.shift)

    def _rank(self) -> tuple[Reg, Reg, Reg]:
        """How many start after this CTA, its mark, and whether it is one that asks."""
        b, rank, asks = self.b, scratch(self.b, "ticket_rank", "u32"), scratch(self.b, "ticket_asks", "pred")
        b.op("and.b32", rank, self.drawn, MOST_SHARED_SPLITS)
        b.op("sub.u32", rank, self._final(), rank)
        self._mergers()
        b.op("setp.lt.u32", asks, rank, self.count)
        b.op("setp.ne.and.u32", asks, rank, 0, asks)
        mark = scratch(b, "ticket_mark", "u32")
        b.op("shl.b32", mark, 1 << 16, rank)
        return rank, mark, asks
