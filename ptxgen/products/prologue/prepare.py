"""x of one token into shared memory as digits; times the norm's weights, and the sum of its squares."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ptxgen.builder import Builder, Fragment
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.idioms.division import split
from ptxgen.idioms.reduce import over_warp
from ptxgen.products.geometry.runs import Runs
from ptxgen.products.tokens.digits import digits_of
from ptxgen.weights.format import OWN

if TYPE_CHECKING:
    from ptxgen.products.mainloop.stream import Stream
    from ptxgen.products.problem.product import Product

MOST_IN_FLIGHT = 32  # columns that a thread asks for before it waits
LINE = 32  # columns of a line of the L2


class Item(NamedTuple):
    """One load of all threads: the fragment that keeps it, and where not all warps have such columns, which do."""

    suffix: str
    keep: Fragment
    find: Fragment | None
    takes: Reg | None


class Prepare:
    """Fragments `norm_early`, `begin_stage`, `stage` and those of every `Item`, `next_stage` and, with a norm,
    `sum_squares`; `squares` is `[warp]`."""

    def __init__(self, b: Builder, spec: Product, at: Runs) -> None:
        self.b, self.spec, self.at = b, spec, at
        self.own_k = at.tiles * spec.kind.tile_k  # columns of this CTA
        self.digits = digits_of(spec.kind)(b, spec.kind, self.own_k, at.threads)
        self.reach = at.threads * self.digits.columns  # columns of one load of all threads
        loads = -(-self.own_k // self.reach)
        self.flight = min(loads, MOST_IN_FLIGHT // self.digits.columns)
        self.passes = -(-loads // self.flight)
        self.squares: Shared | None = b.shared("squares", 4 * at.warps) if spec.norm else None

    def request_norm(self, thread: Reg) -> None:
        """Fragment `norm_early`: the norm's weights come to the L2, whose loads wait for x."""
        b, spec = self.b, self.spec
        if not spec.norm:
            b.without("norm_early")
            return
        with b.fragment("norm_early", "the norm's weights are constant: they come to the L2 before x is waited for"):
            norm = self.norm = b.ld_param("norm_weight")
            line = b.op("mul.lo.u32", "norm_line", thread, LINE)
            inside, at = b.reg("norm_inside", "pred"), b.op("mad.wide.u32", "norm_line_at", line, 4, norm)
            for i in range(-(-spec.k // (LINE * self.at.threads))):
                b.op("setp.lt.u32", inside, line, max(0, spec.k - i * LINE * self.at.threads))
                b.op("prefetch.global.L2", at[4 * i * LINE * self.at.threads], pred=inside)

    def build(self, stream: Stream) -> list[Item]:
        """Everything else; the parts of a pass."""
        b, spec, digits = self.b, self.spec, self.digits
        with b.fragment("begin_stage", "the thread's first columns of x, and where they go in shared memory"):
            group, quad = split(b, "stage_group", "stage_quad", stream.thread, OWN)
            column = self.column = b.op("mul.lo.u32", "stage_column", group, OWN * digits.columns)
            b.op("mad.lo.u32", column, quad, OWN, column)
            self.source = b.ld_param("x")
            self.place, self.end = column, b.reg("end_of_columns", "u32") if stream.rank is not None else spec.k
            if stream.rank is not None:
                self._own_part(stream)
            digits.begin(group, quad)
            if self.passes > 1:  # the same for all lanes of a warp, which work together
                self.pass_at = b.op("mov.u32", "stage_pass", 0)
            if spec.norm:
                self.total = b.op("mov.f32", "square_sum", 0.0)
        items = self._stage(stream.warp)
        if self.passes > 1:
            with b.fragment("next_stage", "on to the next columns"):
                step = self.flight * self.reach
                b.op("add.u32", column, column, step)
                digits.next(self.flight)
                b.op("add.u32", self.pass_at, self.pass_at, step)
                b.op("setp.lt.u32", "stage_again", self.pass_at, self.own_k)
                if self.place is not column:
                    b.op("add.u32", self.place, self.place, step)
        if not spec.norm:
            b.without("sum_squares")
            return items
        with b.fragment("sum_squares", "the warp's sum of squares to shared memory"):
            over_warp(b, "add.f32", self.total)
            is_first = b.op("setp.eq.u32", "is_first_lane", stream.lane, 0)
            slot = b.op("mov.u32", "squares_slot", self.squares)
            b.op("mad.lo.u32", slot, stream.warp, 4, slot)
            b.op("st.shared.f32", slot[0], self.total, pred=is_first)
        return items

    def _own_part(self, stream: Stream) -> None:
        """Of CTAs that share k: where this one's x begins, and from which of its columns on, to which."""
        b, spec, at = self.b, self.spec, self.at
        first = b.op("mul.lo.u32", "first_column", stream.first_of_rank, spec.kind.tile_k)
        b.op("mad.wide.u32", self.source, first, 4, self.source)
        if spec.norm:
            b.op("mad.wide.u32", self.norm, first, 4, self.norm)
        b.op("sub.u32", self.end, spec.k, first)
        b.op("min.u32", self.end, self.end, self.own_k)
        if at.spare:
            b.note("k does not come out even: the last CTA takes x as zero where another has it")
            is_last = b.op("setp.eq.u32", "has_spare", stream.rank, at.split - 1)
            spare = b.op("selp.b32", "spare_columns", at.spare * spec.kind.tile_k, 0, is_last)
            self.place = b.op("sub.u32", "own_column", self.column, spare)
            b.op("sub.u32", self.end, self.end, spare)

    def _is_inside(self, inside: Reg, first: int) -> None:
        """Whether x has the columns of this thread's load from `first` on, and they are this CTA's."""
        b, end = self.b, self.end
        if not isinstance(end, Reg):
            b.op("setp.lt.u32", inside, self.column, max(0, end - first))
            return
        wanted = convert.scratch(b, "wanted_column", "u32")
        b.op("add.u32", wanted, self.place, first)
        b.op("setp.lt.u32", inside, wanted, end)

    def _stage(self, warp: Reg) -> list[Item]:
        """Fragment `stage`, the loads of a pass, and what becomes of them."""
        b, spec, columns = self.b, self.spec, self.digits.columns
        values = b.array("staged", "f32", self.flight * columns)
        factors = b.array("norm_factor", "f32", self.flight * columns) if spec.norm else None
        inside, there = b.reg("inside_row", "pred"), b.reg("inside_tiles", "pred")
        with b.fragment("stage", "load the columns of a pass"):
            address = b.op("mad.wide.u32", "stage_from", self.column, 4, self.source)
            convert.clear(b, values)
            if factors is not None:
                norm_at = b.op("mad.wide.u32", "norm_from", self.column, 4, self.norm)
                convert.clear(b, factors)
            for i in range(self.flight):
                for index, piece in enumerate(self.digits.pieces):
                    first, place = i * self.reach + piece, OWN * (i * len(self.digits.pieces) + index)
                    self._is_inside(inside, first)
                    own = values[place : place + OWN]
                    convert.load_words(b, own, address, 4 * first, pred=inside)
                    if factors is not None:
                        own = factors[place : place + OWN]
                        convert.load_words(b, own, norm_at, 4 * first, space="global.nc", pred=inside)
            takes = b.reg("takes_columns", "pred")
            first_column = b.op("mul.lo.u32", "first_of_warp", warp, 32 * columns)
            if self.passes > 1:
                b.op("add.u32", first_column, first_column, self.pass_at)
        items = []
        for i in range(self.flight):
            own = values[columns * i : columns * (i + 1)]
            with b.fragment(f"keep_{i}", "become digits in shared memory") as keep:
                if factors is not None:
                    self._normalise(own, factors[columns * i : columns * (i + 1)])
                b.op("setp.lt.u32", there, self.column, max(0, self.own_k - i * self.reach))
                self.digits.keep(own, i, there)
            some = self.passes > 1 or (i + 1) * self.reach > self.own_k
            find = None
            if some:
                with b.fragment(f"find_{i}") as find:
                    b.op("setp.lt.u32", takes, first_column, max(0, self.own_k - i * self.reach))
            items.append(Item(f"_{i}", keep, find, takes if some else None))
        return items

    def _normalise(self, values: tuple[Reg, ...], factors: tuple[Reg, ...]) -> None:
        """Squares into the sum, then the factor: the root is taken off the products at the end."""
        b, spec = self.b, self.spec
        for value, factor in zip(values, factors, strict=True):
            b.op("fma.rn.f32", self.total, value, value, self.total)
            if spec.norm_offset:
                b.op("add.f32", factor, factor, spec.norm_offset)
            b.op("mul.f32", value, value, factor)
