"""A loop over a row that threads share: who takes which elements, vectorised loads and stores, tails, the next pass.

The macro `loop` of flow.ptx.j2 goes over the passes; a row that one pass takes has no loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.errors import SpecError
from ptxgen.idioms.convert import RUN, scratch
from ptxgen.idioms.elements import Elements, widest
from ptxgen.idioms.threads import ceil_div

MOST_THREADS = 512
ELEMENTS = 16  # of a thread in a pass at most
SPREAD_THREADS, SPREAD_ELEMENTS = 256, 8  # of a CTA, and of a thread, where many CTAs take a row


@dataclass(frozen=True)
class RowShare:
    """`threads` threads share a row of `dim` elements. In a pass each takes `flight` vectors of `vector` elements,
    `threads` vectors apart; `ctas` CTAs take the passes in turn. Raises `SpecError` for vectors that do not divide a
    row, as the last would reach past it: `of` and `spread` choose ones that do."""

    dim: int
    vector: int
    threads: int
    flight: int
    ctas: int = 1

    def __post_init__(self) -> None:
        if self.dim % self.vector:
            raise SpecError(f"RowShare: vectors must divide a row of {self.dim} elements (got {self.vector} in each)")

    @classmethod
    def of(cls, dim: int, bytes: int, *, most: int = MOST_THREADS, ctas: int = 1) -> RowShare:
        """A warp for a short row, up to `most` threads for a longer one; `bytes` of the widest element."""
        vector = widest(dim, bytes)
        part = ceil_div(dim, ctas)
        threads = min(most, ceil_div(part, 2 * vector * 32) * 32)
        flight = min(ceil_div(part, threads * vector), max(1, ELEMENTS // vector))
        return cls(dim, vector, threads, flight, ctas)

    @classmethod
    def spread(cls, dim: int, bytes: int) -> RowShare:
        """For rows whose elements do not need each other: CTAs of one pass, so that one row keeps many of them busy."""
        vector = widest(dim, bytes)
        threads = min(SPREAD_THREADS, ceil_div(dim, vector * 32) * 32)
        flight = max(1, min(ceil_div(dim, threads * vector), SPREAD_ELEMENTS // vector))
        return cls(dim, vector, threads, flight, ceil_div(dim, threads * vector * flight))

    @property
    def warps(self) -> int:
        """Warps that share a row in a CTA."""
        return self.threads // 32

    @property
    def elements(self) -> int:
        """Elements of a thread in a pass."""
        return self.flight * self.vector

    @property
    def reach(self) -> int:
        """Elements of a CTA in a pass."""
        return self.threads * self.elements

    @property
    def passes(self) -> int:
        """Passes of a CTA."""
        return ceil_div(self.dim, self.reach * self.ctas)

    @property
    def whole(self) -> bool:
        """Whether every vector of every pass exists."""
        return self.dim == self.passes * self.reach * self.ctas


class RowWalk:
    """A thread's way through its row. `index[i]` is the first element of its vector i, `exists[i]` whether there is one
    (None: always); both belong to the current pass.

    Names of its registers begin with `name`. `guarded`: vectors are asked whether they exist even where all do.
    """

    def __init__(self, b: Builder, share: RowShare, *, name: str = "pass_", guarded: bool = False) -> None:
        self.b, self.share, self._name = b, share, name
        self.index = b.array(f"{name}index", "u32", share.flight)
        self.exists: Sequence[Reg | None] = [None] * share.flight
        if guarded or not share.whole:
            self.exists = b.array(f"{name}exists", "pred", share.flight)
        self._placed = 0
        self._first: Reg | None = None
        self._offset: Reg | None = None

    def begin(self, thread: Reg, cta: Reg | None = None) -> None:
        """Place the thread before its first pass; `cta`: which of the row's CTAs this is, where there are several."""
        b, share = self.b, self.share
        if cta is not None:
            self._first = b.op("mul.lo.u32", self._first or f"{self._name}first", cta, share.reach)
        else:
            self._first = b.op("mov.u32", self._first or f"{self._name}first", 0)
        self._offset = b.op("mul.lo.u32", self._offset or f"{self._name}thread_offset", thread, share.vector)
        self._placed = 0

    def step(self) -> None:
        """Take up the current pass: `index[0]`. The loads and stores that follow ask for the other vectors."""
        self.b.op("add.u32", self.index[0], self._first, self._offset)
        self._placed = 0

    def at(self, name: str, base: Reg, bytes: int) -> Reg:
        """The address of the thread's first vector in a row at `base`, of elements of `bytes`."""
        address: Reg = self.b.op("mad.wide.u32", scratch(self.b, name, "u64"), self.index[0], bytes, base)
        return address

    def number(self, into: Reg, i: int) -> Reg:
        """The first element of vector i of the current pass, whether it exists or not."""
        self.b.op("add.u32", into, self.index[0], self._distance(i))
        return into

    def load(self, address: Reg, pieces: Sequence[Elements], *, space: str = "global") -> None:
        """Load the thread's vectors; elements beyond the row are zero."""
        for i, piece in enumerate(pieces):
            self.b.note(f"load vector {i} of the pass", after=RUN)
            self._place(i)
            piece.load(self.b, address, self._distance(i) * piece.dtype.bytes, space=space, pred=self.exists[i])

    def store(self, address: Reg, pieces: Sequence[Elements]) -> None:
        """Store the thread's vectors, none beyond the row."""
        for i, piece in enumerate(pieces):
            self.b.note(f"store vector {i} of the pass", after=RUN)
            self._place(i)
            piece.store(self.b, address, self._distance(i) * piece.dtype.bytes, pred=self.exists[i])

    def advance(self, again: str) -> Reg | None:
        """Go to the next pass; the predicate `again`: there is one. Where one pass takes the row, `again` is none in
        the template, and nothing is emitted. A text whose template places the open fragment in no loop that asks
        `again` is refused."""
        share = self.share
        if share.passes == 1:
            self.b.expose(**{again: None})
            return None
        self.b.op("add.u32", self._first, self._first, share.ctas * share.reach)
        more: Reg = self.b.op("setp.lt.u32", again, self._first, share.dim)
        self.b.turn(more)
        return more

    def _distance(self, i: int) -> int:
        """Elements from the thread's first vector to number i."""
        return i * self.share.threads * self.share.vector

    def _place(self, i: int) -> None:
        """Index and existence of vector i, once a pass."""
        if i < self._placed:
            return
        self._placed = i + 1
        exists = self.exists[i]
        if exists is None:
            return
        if i:
            self.b.op("add.u32", self.index[i], self.index[0], self._distance(i))
        self.b.op("setp.lt.u32", exists, self.index[i], self.share.dim)
