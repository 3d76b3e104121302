"""Where the chunks of flash decoding leave their softmaxes: `partials` and `stats`, a slot a head and chunk."""

from __future__ import annotations

from ptxgen.attention.decode.contract import Task
from ptxgen.attention.decode.merge.cta import Elements, Partial
from ptxgen.attention.decode.plan import CtaPlan
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.dot import multiply


class Slots:
    """Slots of chunk `chunk`, of `max_chunks` of every head; `query` is the first head's row, of `head_dim` values."""

    def __init__(self, b: Builder, task: Task, query: Reg, chunk: Reg, *, max_chunks: int, head_dim: int) -> None:
        self.b, self.task, self.query, self.chunk = b, task, query, chunk
        self.max_chunks, self.head_dim = max_chunks, head_dim

    def _slot(self, elements: Elements) -> Reg:
        """The index of the element's head's slot for this chunk."""
        b = self.b
        slot, head = scratch(b, "slot", "u64"), scratch(b, "slot_head", "u64")
        b.op("cvt.u64.u32", head, elements.head)
        b.op("add.u64", head, head, self.query)
        b.op("mul.lo.u64", slot, head, self.max_chunks)
        b.op("cvt.u64.u32", head, self.chunk)
        b.op("add.u64", slot, slot, head)
        return slot

    def _first(self, elements: Elements) -> tuple[Reg | None, Reg]:
        """The predicates that the element's head exists, and that this is the head's first element."""
        b, task = self.b, self.task
        exists = None
        if task.heads_left is not None:
            exists = scratch(b, "head_exists", "pred")
            b.op("setp.lt.s32", exists, elements.head, task.heads_left)
        first = scratch(b, "first_element", "pred")
        b.op("setp.eq.u32", first, elements.chunk, 0)
        if exists is not None:
            b.op("and.pred", first, first, exists)
        return exists, first

    def store(self, elements: Elements, merged: Partial, partials: Reg, stats: Reg) -> None:
        """The element's four values over the sum; with the first of a head, its stats."""
        b = self.b
        b.note("normalised: the maximum becomes log2 of the sum, and the sum 1")
        exists, first = self._first(elements)
        slot = self._slot(elements)
        level = b.op("lg2.approx.f32", "level", merged.total)
        b.op("add.f32", level, level, merged.maximum)
        inverse = b.op("rcp.approx.ftz.f32", "inverse", merged.total)
        multiply(b, merged.values, inverse)
        stats_at = b.op("mad.lo.u64", "stats_at", slot, 8, stats)
        one = b.op("mov.f32", "one", 1.0)
        b.op("st.global.v2.f32", stats_at[0], (level, one), pred=first)
        at = b.op("mad.lo.u64", "partials_at", slot, self.head_dim * 4, partials)
        quad = b.op("rem.u32", "quad", elements.element, elements.per_head)
        b.op("mad.wide.u32", at, quad, 16, at)
        b.op("st.global.v4.f32", at[0], merged.values, pred=exists)

    def leave_empty(self, plan: CtaPlan, chunks: Reg, has_positions: Reg) -> Reg:
        """Fragments `empty_start` and `empty_store`, a loop's body: the slots of this CTA that no chunk fills. Returns
        the address of all stats.

        Slot `chunk` when it has no positions (`has_positions`), and chunk + `chunks`, chunk + 2 · chunks, … below
        max_chunks, of every head: a thread for each, as many at a time as there are threads.
        """
        b, task, heads = self.b, self.task, plan.shape.heads
        together = plan.shape.threads // heads
        with b.fragment("empty_start"):
            b.note("slots without a chunk: the reduction skips a sum of 0")
            place = b.op("div.u32", "empty_place", task.tid, heads)
            head = b.op("rem.u32", "empty_head", task.tid, heads)
            slot = b.op("mul.lo.u32", "empty_slot", place, chunks)
            b.op("add.u32", slot, slot, self.chunk)
            b.op("add.u32", slot, slot, chunks, pred=has_positions)
            step = b.op("mul.lo.u32", "empty_step", chunks, together)
            marks = b.op("setp.lt.u32", "more_empty", slot, self.max_chunks)
            if heads & (heads - 1):  # the last threads have no place in a whole row of heads
                b.op("setp.lt.and.u32", marks, place, together, marks)
            if task.heads_left is not None:
                b.op("setp.lt.and.s32", marks, head, task.heads_left, marks)
            row = b.op("cvt.u64.u32", scratch(b, "slot_head", "u64"), head)
            b.op("add.u64", row, row, self.query)
            stats = b.ld_param("stats")
            at = b.op("mad.lo.u64", "empty_at", row, self.max_chunks * 8, stats)
            nothing = b.op("mov.f32", "no_level", float("-inf")), b.op("mov.f32", "no_sum", 0.0)
        with b.fragment("empty_store", "an empty chunk's maximum and sum, and the next slot"):
            target = b.op("mad.wide.u32", "empty_target", slot, 8, at)
            b.op("st.global.v2.f32", target[0], nothing)
            b.op("add.u32", slot, slot, step)
            b.op("setp.lt.u32", marks, slot, self.max_chunks)
        return stats
