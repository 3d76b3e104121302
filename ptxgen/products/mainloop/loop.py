"""A warp's way over its tiles, whatever multiplies them: the next tile is on its way while one is multiplied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from ptxgen.builder import Builder
from ptxgen.builder.values import Not, Reg
from ptxgen.idioms import convert
from ptxgen.products.geometry.groups import Geometry
from ptxgen.products.mainloop.reader import TileReader
from ptxgen.products.problem.product import Product, Tokens


class Inputs(NamedTuple):
    """Addresses of x and of the norm's weights, where a fragment before the loop has loaded them."""

    x: Reg
    norm_weight: Reg


def row_of(b: Builder, name: str, tokens: Tokens, token: Reg) -> Reg:
    """The row of x of a token of the CTA; past the last row that one, or row 0 where there is none."""
    wanted = b.op("add.u32", f"{name}_wanted", tokens.first, token)
    last = b.op("max.u32", f"{name}_last", tokens.rows, 1)
    b.op("sub.u32", last, last, 1)
    row: Reg = b.op("min.u32", name, wanted, last)
    return row


class TileLoop(ABC):
    """Fragments `locate`, `request_first`, `begin`, `take`, `advance`, `request`, `multiply`, `restart`; for gated
    products, gate first, `request_up`, `multiply_gate` and `take_up` between `take` and `advance`.

    A warp takes every `k_warps`-th tile of a record, then of the record `ctas` groups on.
    """

    sums: tuple[Reg, ...]

    def __init__(self, b: Builder, spec: Product, at: Geometry) -> None:
        self.b, self.spec, self.at, self.kind = b, spec, at, spec.kind
        self.reader = TileReader(b, spec.kind, spec.k, spec.parts)
        self.tiles = spec.kind.tiles(spec.k)
        self.words = b.array("word", "b32", spec.kind.words)
        self.next = self.words if self.late else b.array("ahead", "b32", spec.kind.words)
        self.one_group = at.groups <= at.ctas

    @property
    def late(self) -> bool:
        """Whether a tile is asked for when the one before is multiplied, not before: for want of registers."""
        return False

    def locate(self, cta: str, first_cta: int = 0, weight: str = "weight") -> None:
        """Which tiles are this warp's; the first is asked for. `cta`: the special register that counts groups, from
        `first_cta` on; `weight`: the parameter."""
        b, at = self.b, self.at
        with b.fragment("locate", "the warp's record and tiles, and the lane's place in a tile"):
            self.thread = b.op("mov.u32", "thread", b.special("tid.x"))
            self.lane = b.op("and.b32", "lane", self.thread, 31)
            warp = self.warp = b.op("shr.u32", "warp", self.thread, 5)
            self.k_warp = b.op("and.b32", "k_warp", warp, at.k_warps - 1)
            self.row_warp = b.op("shr.u32", "row_warp", warp, at.k_warps.bit_length() - 1)
            self.row = b.op("shr.u32", "row_of_lane", self.lane, 2)
            self.quad = b.op("and.b32", "lane_of_row", self.lane, 3)
            self.group = b.op("mov.u32", "group", b.special(cta))
            if first_cta:
                b.op("sub.u32", self.group, self.group, first_cta)
            self.step = b.op("mov.u32", "tile", self.k_warp)
            self.record, self.wanted = b.reg("record", "u32"), b.reg("wanted_record", "u32")
            self.reader.locate(b, b.ld_param(weight), self.lane, self.row, self.k_warp)
            self._go_to_group()
        with b.fragment("request_first", "load the words of the first tile"):
            self.reader.load(b, self.next)

    def _go_to_group(self, pred: Reg | None = None) -> None:
        """To this warp's record of the group; past the last record to that one, whose result is not stored."""
        b = self.b
        b.op("mad.lo.u32", self.wanted, self.group, self.at.row_warps, self.row_warp, pred=pred)
        b.op("min.u32", self.record, self.wanted, self.kind.records(self.spec.n) - 1, pred=pred)
        self.reader.go_to(b, self.record, pred)

    def build(self, tokens: Tokens | None, inputs: Inputs | None) -> None:
        """Build every fragment but `locate`: the loop over columns, and what follows it."""
        b, at, spec = self.b, self.at, self.spec
        with b.fragment("begin", "where the lane reads x; sums of 0"):
            self.begin(tokens, inputs)
            convert.clear(b, self.sums)
        with b.fragment("take", f"{'' if self.late else 'take the loaded words, and '}find x of the tile"):
            if not self.late:
                self._take()
            self.find_x()
            self.out_group = b.op("mov.u32", "out_group", self.group)
        if spec.gated:
            with b.fragment("request_up", "load the words of the same tile of up"):
                self.reader.load(b, self.next, 1)
            with b.fragment("multiply_gate", "multiply the tile of gate with x"):
                self.multiply(0)
            if not self.late:
                with b.fragment("take_up", "take the words that were loaded"):
                    self._take()
        else:
            b.without("request_up", "multiply_gate", "take_up")
        with b.fragment("advance", "on to the next tile, which may be of the next record"):
            b.op("add.u32", self.step, self.step, at.k_warps)
            ends = b.op("setp.ge.u32", "ends_record", self.step, self.tiles)
            self.reader.advance(b, at.k_warps)
            self.more: Reg | Not = ~ends
            if not self.one_group:
                b.op("mov.u32", self.step, self.k_warp, pred=ends)
                b.op("add.u32", self.group, self.group, at.ctas, pred=ends)
                self._go_to_group(ends)
                self.more = b.op("setp.lt.u32", "more", self.group, at.groups)
        with b.fragment("request", "load the words of the next tile"):
            self.reader.load(b, self.next, pred=self.more)
        with b.fragment("multiply", "multiply the tile with x"):
            self.multiply(spec.parts - 1)
        if not self.one_group:
            with b.fragment("restart"):
                convert.clear(b, self.sums)
        else:
            b.without("restart")

    def _take(self) -> None:
        for word, ahead in zip(self.words, self.next, strict=True):
            self.b.op("mov.b32", word, ahead)

    # -- what multiplies -----------------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, tokens: Tokens | None, inputs: Inputs | None) -> None:
        """Where this lane's x begins; declares `sums`."""

    @abstractmethod
    def find_x(self) -> None:
        """Where the x of tile `step` is."""

    @abstractmethod
    def multiply(self, part: int) -> None:
        """The taken tile times x, into the sums of a part."""

    @abstractmethod
    def publish(self, at: Reg, offsets: Sequence[int]) -> None:
        """This warp's sums into shared memory, each part's `[token, 16]` f32 at its offset from the warp's slot; `at`
        is where row g of this lane is there."""
