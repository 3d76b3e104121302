"""The loop without tensor cores: every lane multiplies the weights it owns with x, in f32, in a fixed order."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Not, Reg, Shared
from ptxgen.idioms import convert
from ptxgen.products.geometry import Geometry
from ptxgen.products.reader import TileReader
from ptxgen.weights.format import CHUNK, OWN

if TYPE_CHECKING:
    from ptxgen.products.product import Product


class FmaLoop:
    """Fragments `locate`, `request_first`, `begin`, `take`, `advance`, `request`, `multiply`, `restart`; for gated
    products, gate first, `request_up`, `multiply_gate` and `take_up` between `take` and `advance`.

    A warp takes every `k_warps`-th tile of a record, then of the record `ctas` groups on. While it multiplies one tile
    the next is on its way.
    """

    def __init__(self, b: Builder, spec: Product, at: Geometry) -> None:
        self.b, self.spec, self.at, self.kind = b, spec, at, spec.kind
        self.reader = TileReader(b, spec.kind, spec.k, spec.parts)
        self.tiles = spec.kind.tiles(spec.k)
        self.next, self.words = (b.array(name, "b32", spec.kind.words) for name in ("ahead", "word"))
        self.one_group = at.groups <= at.ctas

    def locate(self) -> None:
        """Which tiles are this warp's; the first is asked for."""
        b, at = self.b, self.at
        with b.fragment("locate"):
            self.thread = b.op("mov.u32", "thread", b.special("tid.x"))
            lane = b.op("and.b32", "lane", self.thread, 31)
            warp = b.op("shr.u32", "warp", self.thread, 5)
            self.k_warp = b.op("and.b32", "k_warp", warp, at.k_warps - 1)
            self.row_warp = b.op("shr.u32", "row_warp", warp, at.k_warps.bit_length() - 1)
            self.row = b.op("shr.u32", "row_of_lane", lane, 2)
            self.quad = b.op("and.b32", "lane_of_row", lane, 3)
            self.group = b.op("mov.u32", "group", b.special("ctaid.x"))
            self.step = b.op("mov.u32", "tile", self.k_warp)
            self.record, self.wanted = b.reg("record", "u32"), b.reg("wanted_record", "u32")
            self.reader.locate(b, b.ld_param("weight"), lane, self.row, self.k_warp)
            self._go_to_group()
        with b.fragment("request_first"):
            self.reader.load(b, self.next)

    def _go_to_group(self, pred: Reg | None = None) -> None:
        """To this warp's record of the group; past the last record to that one, which nobody stores."""
        b = self.b
        b.op("mad.lo.u32", self.wanted, self.group, self.at.row_warps, self.row_warp, pred=pred)
        b.op("min.u32", self.record, self.wanted, self.kind.records(self.spec.n) - 1, pred=pred)
        self.reader.go_to(b, self.record, pred)

    def build(self, vector: Shared) -> None:
        """Everything but `locate`."""
        b, at, spec = self.b, self.at, self.spec
        self.sums = b.array("sum", "f32", spec.parts * 2 * at.tokens)
        self.own_x, self.own_weights = b.array("x_own", "f32", at.tokens * OWN), b.array("weight_own", "f32", 2 * OWN)
        with b.fragment("begin"):
            x_base = b.op("mov.u32", "x_base", vector)
            b.op("mad.lo.u32", x_base, self.quad, 4 * OWN, x_base)
            convert.clear(b, self.sums)
        with b.fragment("take"):
            self._take()
            self.x_at = b.op("mad.lo.u32", "x_at", self.step, 4 * self.kind.tile_k, x_base)
            self.out_group = b.op("mov.u32", "out_group", self.group)
        if spec.gated:
            with b.fragment("request_up"):
                self.reader.load(b, self.next, 1)
            with b.fragment("multiply_gate"):
                self._multiply(0)
            with b.fragment("take_up"):
                self._take()
        with b.fragment("advance"):
            b.op("add.u32", self.step, self.step, at.k_warps)
            ends = b.op("setp.ge.u32", "ends_record", self.step, self.tiles)
            self.reader.advance(b, at.k_warps)
            self.more: Reg | Not = ~ends
            if not self.one_group:
                b.op("mov.u32", self.step, self.k_warp, pred=ends)
                b.op("add.u32", self.group, self.group, at.ctas, pred=ends)
                self._go_to_group(ends)
                self.more = b.op("setp.lt.u32", "more", self.group, at.groups)
        with b.fragment("request"):
            self.reader.load(b, self.next, pred=self.more)
        with b.fragment("multiply"):
            self._multiply(spec.parts - 1)
        if not self.one_group:
            with b.fragment("restart"):
                convert.clear(b, self.sums)

    def _take(self) -> None:
        for word, ahead in zip(self.words, self.next, strict=True):
            self.b.op("mov.b32", word, ahead)

    def _multiply(self, part: int) -> None:
        b, at, spec = self.b, self.at, self.spec
        x, weights, row_bytes = self.own_x, self.own_weights, 4 * spec.padded_k
        halves = (weights[:OWN], weights[OWN:])
        for chunk in range(self.kind.chunks):
            for token in range(at.tokens):
                own = x[OWN * token : OWN * (token + 1)]
                convert.load_words(b, own, self.x_at, 4 * CHUNK * chunk + token * row_bytes, space="shared")
            self.kind.weights(b, self.words, chunk, halves)
            for half, token, j in product((0, 1), range(at.tokens), range(OWN)):
                total = self.sum(part, half, token)
                b.op("fma.rn.f32", total, halves[half][j], x[OWN * token + j], total)

    def sum(self, part: int, half: int, token: int) -> Reg:
        """The sum of a part, in row g or g + 8, for a token."""
        return self.sums[(part * 2 + half) * self.at.tokens + token]
