"""From slots to the output, of tokens whose norm a product applies itself: their roots are taken off the sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.products.bytes.results import TokenResults
from ptxgen.products.few.geometry import FewRuns
from ptxgen.products.slots import add_in_pairs

if TYPE_CHECKING:
    from ptxgen.products.few.rows import FewRows
    from ptxgen.products.product import Tokens
    from ptxgen.products.stream import Stream
    from ptxgen.products.weighted import Surrounded


class FewResults(TokenResults):
    """`TokenResults` with the squares that `rows` has left."""

    def __init__(self, b: Builder, spec: Surrounded, at: FewRuns, memory: Shared, rows: FewRows) -> None:
        super().__init__(b, spec, at, memory)
        self.rows = rows

    def read_early(self, stream: Stream, tokens: Tokens) -> None:
        """Fragment `read_early`: the residual stream of a thread's only result, which is asked for before x."""
        b, at, spec = self.b, self.at, self.spec
        if not spec.residual or self.share > at.threads:
            b.without("read_early")
            return
        self.tokens = tokens
        with b.fragment("read_early", "the residual stream of the thread's result"):
            self.units = stream.units_of_cta()
            self.inside, self.out_row = b.reg("row_in_matrix", "pred"), b.reg("out_row", "u32")
            self.result = b.op("mov.u32", "result_index", stream.thread)
            last: Reg | int = self.results
            if stream.rank is not None:
                b.op("mad.lo.u32", self.result, stream.rank, self.share, self.result)
                last = b.op("mad.lo.u32", "early_end", stream.rank, self.share, self.share)
                b.op("min.u32", last, last, self.results)
            self._find(stream, "early")
            b.op("setp.lt.and.u32", self.inside, self.result, last, self.inside)
            super().place(self.out_row, self.inside)
            before = b.op("mov.f32", "before", 0.0)
            b.op("ld.global.f32", before, self.out[0], pred=self.inside)
        self.before = before

    def place(self, out_row: Reg, inside: Reg) -> None:
        """Where the result goes, whether or not the residual stream was read early."""
        if self.before is None or self.tokens is None:
            super().place(out_row, inside)
            return
        token = self.b.op("add.u32", "row_of_result", self.tokens.first, self.token)
        self.b.op("setp.lt.and.u32", inside, token, self.tokens.rows, inside)

    def rescale(self) -> None:
        """The squares of all warps and CTAs, in a fixed order; the results times the inverse of their root, to f32's
        last bit but one."""
        b, at, spec, rows = self.b, self.at, self.spec, self.rows
        if rows.squares is None or self.token is None:
            return
        own = b.op("mov.u32", "squares_at", rows.squares)
        b.op("mad.lo.u32", own, self.token, rows.square_bytes, own)
        squares = b.array("warp_square", "f32", at.split * at.warps)
        peer_at = convert.scratch(b, "peer_squares", "u32")
        for peer in range(at.split):
            words = squares[at.warps * peer : at.warps * (peer + 1)]
            if at.split == 1:
                convert.load_words(b, words, own, space="shared")
                continue
            b.op("mapa.shared::cluster.u32", peer_at, own, peer)
            convert.load_words(b, words, peer_at, space="shared::cluster")
        total = add_in_pairs(b, squares.regs)
        b.op("fma.rn.f32", total, total, 1.0 / spec.k, spec.eps)
        root, error = b.op("rsqrt.approx.f32", "root", total), b.reg("root_error", "f32")
        b.op("mul.f32", error, total, root)
        b.op("neg.f32", error, error)
        b.op("fma.rn.f32", error, error, root, 1.0)
        b.op("mul.f32", error, error, 0.5)
        b.op("fma.rn.f32", root, root, error, root)
        for result in self.values:
            b.op("mul.f32", result, result, root)
