"""Merging partial softmaxes: the arithmetic, and the merge of a CTA's warps out of shared memory.

Merges work on *elements*: 4 consecutive dims of one head of the CTA; element e is head e // (v_dim / 4). A thread
takes elements tid, tid + threads, …, and holds the merged maximum, sum and four values in a `Partial`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ptxgen.attention.decode.contract import Partials
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms.convert import scratch

MINUS_INFINITY = float("-inf")


class Partial(NamedTuple):
    """A softmax over some positions: maximum (log2 domain), sum, four values; all f32 registers."""

    maximum: Reg
    total: Reg
    values: tuple[Reg, ...]


def partial(b: Builder, name: str) -> Partial:
    """Declare the registers of one."""
    return Partial(b.reg(f"{name}_max", "f32"), b.reg(f"{name}_sum", "f32"), b.array(f"{name}_acc", "f32", 4).regs)


def partials(b: Builder, name: str, count: int) -> tuple[Partial, ...]:
    """Declare the registers of several."""
    maxima, totals, values = (
        b.array(f"{name}_{x}", "f32", n) for x, n in (("max", count), ("sum", count), ("acc", 4 * count))
    )
    return tuple(Partial(maxima[i], totals[i], values[4 * i : 4 * i + 4]) for i in range(count))


def empty(b: Builder, part: Partial) -> None:
    """The softmax over nothing."""
    b.op("mov.f32", part.maximum, MINUS_INFINITY)
    for register in (part.total, *part.values):
        b.op("mov.f32", register, 0.0)


def combine(b: Builder, into: Partial, parts: Sequence[Partial], what: str = "") -> None:
    """`into` = the softmax over all positions of `parts`, in their order; `into` may be one of them, the first.

    A part over nothing has maximum −inf and adds nothing; nothing at all stays (−inf, 0, 0).
    Comments call the parts `what`; without it there are none.
    """
    top, factor = scratch(b, "merge_top", "f32"), scratch(b, "merge_factor", "f32")
    if what:
        b.note("the largest maximum")
    b.op("mov.f32", top, parts[0].maximum)
    for part in parts[1:]:
        b.op("max.f32", top, top, part.maximum)
    # −inf − −inf would be NaN: over nothing, subtract 0
    finite, base = scratch(b, "merge_finite", "pred"), scratch(b, "merge_base", "f32")
    b.op("setp.neu.f32", finite, top, MINUS_INFINITY)
    b.op("selp.f32", base, top, 0.0, finite)
    if what:
        b.note(f"the sum of {what}, each times 2^(its maximum - the largest)")
    for index, part in enumerate(parts):
        b.op("sub.f32", factor, part.maximum, base)
        b.op("ex2.approx.ftz.f32", factor, factor)
        pairs = zip((into.total, *into.values), (part.total, *part.values), strict=True)
        for total, term in pairs:
            if index == 0:
                b.op("mul.f32", total, term, factor)
            else:
                b.op("fma.rn.f32", total, term, factor, total)
    b.op("mov.f32", into.maximum, top)


class Elements:
    """The walk of a CTA's threads over elements [first, end); where CTAs share them, each has a multiple of
    `together`."""

    def __init__(self, b: Builder, heads: int, v_dim: int, threads: int, thread: Reg, together: int = 1) -> None:
        self.b, self.heads, self.v_dim, self.threads, self.thread = b, heads, v_dim, threads, thread
        self.together = together
        self.element = b.reg("element", "u32")
        self.head = b.reg("element_head", "u32")
        self.chunk = b.reg("element_chunk", "u32")
        self.has = b.reg("element_has", "pred")

    @property
    def count(self) -> int:
        """Elements of all heads of the CTA."""
        return self.heads * self.per_head

    @property
    def per_head(self) -> int:
        return self.v_dim // 4

    def start(self, first: Reg, end: Reg | int) -> None:
        """The thread's first element; `element_has` says whether there is one."""
        self.b.op("mov.b32", self.element, first)
        self.b.op("setp.lt.u32", self.has, self.element, end)

    def locate(self) -> None:
        """Head and chunk of the element."""
        self.b.op("div.u32", self.head, self.element, self.per_head)
        self.b.op("mad.lo.s32", self.chunk, self.head, -self.per_head, self.element)

    def advance(self, end: Reg | int) -> None:
        """On to the thread's next element."""
        self.b.op("add.u32", self.element, self.element, self.threads)
        self.b.op("setp.lt.u32", self.has, self.element, end)


def merge_warps(b: Builder, elements: Elements, layout: Partials, arena: Shared, into: Partial) -> None:
    """Merge the partials of the CTA's warps for the current element."""
    place = scratch(b, "warp_place", "u32")
    statistics = scratch(b, "warp_statistics", "u32")
    b.op("mov.u32", statistics, arena)
    b.op("mad.lo.u32", place, elements.head, layout.pitch_bytes, statistics)
    slot = elements.chunk
    if layout.spread:
        slot = b.op("shr.u32", "warp_slot", elements.head, 1)
        b.op("and.b32", slot, slot, 3)
        if layout.spread < layout.v_dim:
            spreads = b.op("setp.lt.u32", "warp_spreads", elements.chunk, layout.spread // 4)
            b.op("selp.b32", slot, slot, 0, spreads)
        b.op("xor.b32", slot, slot, elements.chunk)
    b.op("mad.lo.u32", place, slot, 16, place)
    b.op("mad.lo.u32", statistics, elements.head, 4, statistics)
    parts = partials(b, "warp", layout.warps)
    for warp, part in enumerate(parts):
        b.op("ld.shared.f32", part.maximum, statistics[layout.maximum(warp)])
        b.op("ld.shared.f32", part.total, statistics[layout.total(warp)])
        b.op("ld.shared.v4.f32", part.values, place[layout.row(warp)])
    combine(b, into, parts, "the warps' partials")
