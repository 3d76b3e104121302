"""What the kernel types share that go over rows: CTAs of a row, whose threads load, combine and store it in passes.

Owns the fragments `depends` and `locate`; what happens to the elements is the kernel types'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ptxgen import rules
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray
from ptxgen.dtypes import f32
from ptxgen.idioms.elements import Elements, pieces, widen
from ptxgen.idioms.programmatic import programmatic_rules, wait_for_producer
from ptxgen.idioms.reduce import over_cta
from ptxgen.idioms.rows import RowShare, RowWalk
from ptxgen.launch import Extent, Launch, Param, buffer
from ptxgen.spec.fields import Said

if TYPE_CHECKING:
    from ptxgen.dtypes import DType
    from ptxgen.targets import Target

HEADS = Said(doc="heads of a row, each normalised by itself; 0: the row is one", draws=(0, 1, 3, 8), refuses=(-1,))
RESIDUAL = Said(doc="x is added to the residual stream first")
EPS = Said(draws=(1e-6, 1e-5), refuses=(0.0,), silent="beside squares about 1 it is less than a comparison tells")


def norm_rules(dim: int, eps: float, heads: int) -> Iterator[str]:
    """Reasons against a norm of so many heads of so many elements."""
    yield from rules.between("dim", dim, 1, 1 << 20)
    yield from rules.between("eps", eps, 1e-12, 1.0)
    yield from rules.between("heads", heads, 0, 1024)


class RowKernel:
    """Base, beside `KernelType`, of a kernel type with rows of `dim` elements, or of `heads` times `dim` where it has
    such a field; a buffer whose first extent is "rows" has a row for each, others serve all rows.

    `dim` is a field of the kernel type; `programmatic` may be one. The fragment `depends` stands before the first load;
    a kernel that is not programmatic has nothing there.
    """

    dim: int
    programmatic: bool = False
    heads = 0

    @property
    def share(self) -> RowShare:
        """How a CTA's threads share a row; override where elements do not need each other and several CTAs may."""
        return RowShare.of(self.dim, f32.bytes)

    def row(self, name: str, dtype: DType = f32, access: str = "in", elements: int = 0) -> Param:
        """A buffer of rows of `elements` (none: `dim`)."""
        inner: tuple[Extent, ...] = (*((self.heads,) if self.heads else ()), elements or self.dim)
        return buffer(name, dtype, "rows", *inner, access=access, align=self.share.vector * dtype.bytes)

    def common(self, name: str, dtype: DType = f32) -> Param:
        """A buffer of one row that serves all."""
        return buffer(name, dtype, self.dim, align=self.share.vector * dtype.bytes)

    def target_rules(self, target: Target) -> Iterator[str]:
        """griddepcontrol needs sm_90."""
        yield from programmatic_rules(self.programmatic, target)

    def launch(self, target: Target) -> Launch:
        """The CTAs of a row."""
        grid = ("rows", max(1, self.heads), self.share.ctas)
        return Launch(grid, (self.share.threads, 1, 1), programmatic=self.programmatic)

    def rows(self, b: Builder) -> Rows:
        """Find this CTA's row in every buffer."""
        wait_for_producer(b, self.programmatic)
        return Rows(b, self.share, self.heads)


class Rows:
    """This CTA's row in every buffer, and the thread's elements of the current pass, as f32 registers."""

    def __init__(self, b: Builder, share: RowShare, heads: int) -> None:
        self.b, self.share, self.walk = b, share, RowWalk(b, share)
        self._moved: dict[str, tuple[Elements, ...]] = {}
        self._values: dict[tuple[str, int], RegArray] = {}
        self._bases: dict[str, Reg] = {}
        with b.fragment("locate", "the row's pointers, and the thread's place in the row"):
            self.thread: Reg = b.op("mov.u32", "thread", b.special("tid.x"))
            self.row: Reg = b.op("mov.u32", "row", b.special("ctaid.x"))
            index = b.op("cvt.u64.u32", "wide_row", self.row)
            if heads:
                head = b.op("cvt.u64.u32", "head", b.op("mov.u32", "cta_head", b.special("ctaid.y")))
                b.op("mad.lo.u64", index, index, heads, head)
            for name, param in b.params.items():
                base = self._bases[name] = b.ld_param(name)
                if param.shape[:1] == ("rows",):
                    elements = param.shape[-1] if len(param.shape) > 1 else 1
                    assert isinstance(elements, int), f"{name}: elements of a row"
                    b.op("mad.lo.u64", base, index, elements * param.dtype.bytes, base)
            several = share.ctas > 1
            self._cta = b.op("mov.u32", "cta_of_row", b.special("ctaid.z")) if several else None
            self.begin()

    def base(self, name: str) -> Reg:
        """Where a buffer's row begins; of a buffer that serves all rows, the buffer."""
        return self._bases[self.b.param(name).name]

    def array(self, name: str) -> RegArray:
        """Registers for the thread's elements of a pass."""
        return self.b.array(name, "f32", self.share.elements)

    @contextmanager
    def each(self, fragment: str, title: str = "", *, more: str) -> Iterator[None]:
        """A fragment of what is done in each pass: it takes a pass up, and goes to the next. The template places it in
        `loop("name", more)`, where the predicate `more` says that there is another (none where one takes the row)."""
        with self.b.fragment(fragment, title):
            self.step()
            yield
            self.advance(more)

    def reduce(self, name: str, operation: str, *values: Reg) -> None:
        """Reduce values over the CTA, by an opcode such as `"add.f32"`; the template places `reduce(name)`."""
        over_cta(self.b, name, operation, values, self.thread, self.share.warps)

    def begin(self) -> None:
        """Go before the first pass again."""
        self.walk.begin(self.thread, self._cta)

    def step(self) -> None:
        """Take up a pass; first in its fragment."""
        self.walk.step()

    def advance(self, again: str) -> None:
        """Go to the next pass if there is one; last in its fragment. `again` is for the macro `loop`."""
        self.walk.advance(again)

    def load(self, name: str, into: Sequence[Reg] | None = None, first: int = 0) -> Sequence[Reg]:
        """The thread's elements of a buffer's row, from element `first` of it; those beyond the row are zero.

        `into`: registers for them; by default the buffer's own for this `first`, the same in every pass.
        """
        if into is None:
            if (name, first) not in self._values:
                self._values[name, first] = self.array(f"{name}{first or ''}_value")
            into = self._values[name, first]
        dtype, at = self._at(name, first)
        parts = self._pieces(f"{name}{first or ''}_word", dtype, into)
        self.walk.load(at, parts)
        widen(self.b, parts, into)
        return into

    def store(self, name: str, values: Sequence[Reg]) -> None:
        """Write the thread's elements of a buffer's row."""
        dtype, at = self._at(name, 0)
        parts = self._pieces(f"{name}_word", dtype, values)
        for i, part in enumerate(parts):
            part.narrow(self.b, values[i * self.share.vector : (i + 1) * self.share.vector])
        self.walk.store(at, parts)

    def only(self, values: Sequence[Reg], beyond: float = 0.0) -> None:
        """Make `beyond` what is beyond the row: -inf before a maximum, which the zeros of `load` would be part of."""
        for i, value in enumerate(values):
            exists = self.walk.exists[i // self.share.vector]
            if exists is not None:
                self.b.op("selp.f32", value, value, beyond, exists)

    def _pieces(self, name: str, dtype: DType, values: Sequence[Reg]) -> tuple[Elements, ...]:
        """The values as vectors of a buffer; the registers that move them are the buffer's, once declared."""
        if dtype == f32:
            return pieces(self.b, name, dtype, values, self.share.vector)
        if name not in self._moved:
            self._moved[name] = pieces(self.b, name, dtype, values, self.share.vector)
        return self._moved[name]

    def _at(self, name: str, first: int) -> tuple[DType, Reg]:
        """The type of a buffer, and where the thread's first vector of its row lies."""
        dtype, base = self.b.param(name).dtype, self.base(name)
        at = self.walk.at(f"{name}_at", base, dtype.bytes)
        if first:
            self.b.op("add.u64", at, at, first * dtype.bytes)
        return dtype, at
