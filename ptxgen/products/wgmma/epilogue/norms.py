"""A norm that is divided out of a product: W · (x ∘ g / r) = W · (x ∘ g) / r.

The product that adds to the residual stream x leaves x ∘ g as tiles beside it, and the sums of squares of every 16
columns of a row (`NormedResults`). The product that reads these adds the sums up while its tiles are on their way, and
multiplies its results by 1 / r (`Roots`). What is rounded is x ∘ g, by as much as what is normed would be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ptxgen import rules
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, RegArray
from ptxgen.dtypes import bf16
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import WARP, over_lanes
from ptxgen.launch import Extent
from ptxgen.products.wgmma.epilogue.outlets import TilesOut
from ptxgen.products.wgmma.epilogue.results import Results
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.products.wgmma.tiling.geometry import OCTET, VECTOR, Geometry
from ptxgen.products.wgmma.tiling.shape import MOST_ROWS_FIRST
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.products.wgmma.product import PackedProduct

LANES = 8  # that add up the squares of a token
TOKENS = WARP // LANES  # of a warp's load
MOST_LOADS, FEWER_LOADS = 16, 4  # of a lane, on their way together, and where the warp has given up registers
SQUARED = VECTOR * TILE_ROWS  # columns whose squares a lane loads at once
QUAD = (2, 1)  # distances of the lanes that have the results of 16 columns
FOUND, FREE = 5, 6  # barriers of roots that are found, and of those that nobody reads any more
NO_TILE = 0xFFFFFFFF


def squares_shape(cols: int) -> tuple[Extent, ...]:
    """Of the sums of squares of rows, f32."""
    return ("rows", cols // TILE_ROWS)


def squares(x: np.ndarray) -> np.ndarray:
    """Of f32 `[rows, cols]`."""
    import numpy as np

    parts = x.astype(np.float64).reshape(len(x), x.shape[1] // TILE_ROWS, TILE_ROWS)
    return np.asarray((parts**2).sum(2).astype(np.float32))


def product_norm_rules(spec: PackedProduct) -> Iterator[str]:
    """What a norm before a product and one behind it ask for."""
    yield from rules.one_of("norm", spec.norm, ("", "rms"))
    yield from rules.between("eps", spec.eps, 0.0, 1.0)
    yield from rules.between("norm_offset", spec.norm_offset, -16.0, 16.0)
    for name, value, nearest, cols in (("norm", spec.norm, "''", spec.k), ("norm_out", spec.norm_out, "False", spec.n)):
        if not value:
            continue
        if spec.x_dtype != bf16:
            yield f"{name}: needs bf16, which has f32's range (got x_dtype={spec.x_dtype}; nearest: {name}={nearest})"
        if spec.tokens > MOST_ROWS_FIRST:
            most = MOST_ROWS_FIRST
            yield f"{name}: is for at most {most} tokens (got tokens={spec.tokens}; nearest: {name}={nearest})"
        if cols % SQUARED:
            which, got = ("k", "n")[name == "norm_out"], cols
            yield f"{name}: needs {which} a multiple of {SQUARED} (got {got}; nearest: {name}={nearest})"
        if spec.stream:
            yield f"{name}: is for whole tiles (got stream=True; nearest: stream=False)"
    if spec.norm_out and not spec.residual:
        yield "norm_out: needs a residual stream (got residual=False; nearest: residual=True)"
    if spec.norm_out and spec.gated:
        yield "norm_out: no product of gate and up has it (got gated=True; nearest: norm_out=False)"


class NormedResults(Results):
    """Rows of a residual stream, and beside them what a product needs that norms them."""

    def _begin_beside(self, lane: Reg) -> None:
        b, spec = self.b, self.spec
        self.gain, self.gain_from = b.array("gain", "f32", VECTOR), b.ld_param("norm_weight")
        self.tiles = TilesOut(b, spec, self.at, "digits")
        self.squares_from, self.squares_at = b.ld_param("out_squares"), b.reg("squares_at", "u64")
        quad = b.op("and.b32", "lane_of_record", lane, TILE_ROWS // VECTOR - 1)
        self.leads, self.keeps = b.op("setp.eq.u32", "leads_record", quad, 0), b.reg("keeps_square", "pred")
        self.square = b.reg("square", "f32")

    def _find_beside(self, row: Reg, column: Reg) -> None:
        b, spec = self.b, self.spec
        at = b.op("mad.wide.u32", convert.scratch(b, "gain_at", "u64"), column, 4, self.gain_from)
        convert.clear(b, self.gain)
        b.op("ld.global.nc.v4.f32", self.gain.regs, at[0], pred=self.inside)
        if spec.norm_offset:
            for gain in self.gain:
                b.op("add.f32", gain, gain, spec.norm_offset)
        b.op("mad.wide.u32", self.squares_at, row, 4 * (spec.n // TILE_ROWS), self.squares_from)
        record = b.op("shr.u32", convert.scratch(b, "out_record", "u32"), column, TILE_ROWS.bit_length() - 1)
        b.op("mad.wide.u32", self.squares_at, record, 4, self.squares_at)
        self.tiles.find(self.token_tile, self.token, row, column)

    def _keep_beside(self, values: Sequence[Reg], token: int) -> None:
        b = self.b
        for value in values:
            b.op("selp.f32", value, value, 0.0, self.stored)
        b.op("mul.f32", self.square, values[0], values[0])
        for value in values[1:]:
            b.op("fma.rn.f32", self.square, value, value, self.square)
        over_lanes(b, "add.f32", self.square, QUAD)
        b.op("and.pred", self.keeps, self.stored, self.leads)
        b.op("st.global.f32", self.squares_at[4 * token * (self.spec.n // TILE_ROWS)], self.square, pred=self.keeps)
        for value, gain in zip(values, self.gain, strict=True):
            b.op("mul.f32", value, value, gain)
        self.tiles.go_to(token)
        self.tiles.store(values, self.stored, self.inside)


class Roots:
    """Fragments `begin_roots`, `begin_times`, `compare_tokens`, `read_squares` and `times_roots`: a warp beside the
    copying one finds 1 / sqrt(mean + eps) of every token that the CTA finishes, once for a tile of tokens, while the
    others multiply; these multiply their sums by it."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry) -> None:
        self.b, self.spec, self.at = b, spec, at
        self.count = at.out_tokens * at.shape.slices
        self.memory = b.shared("roots", 4 * self.count, align=16)
        self.known = None if at.one_tile else b.reg("roots_of", "u32")  # the tile of tokens whose roots are there

    def build(self, tasks: Tasks) -> None:
        """All fragments but the last."""
        b, at = self.b, self.at
        with b.fragment("begin_times", "where the roots of a lane's tokens are"):
            self.place = b.op("mov.u32", "roots_at", self.memory)
            pair = b.op("and.b32", "root_pair", tasks.lane, 3)
            b.op("mad.lo.u32", self.place, pair, 8, self.place)
            if tasks.slice is not None:
                b.op("mad.lo.u32", self.place, tasks.slice, 4 * at.out_tokens, self.place)
            self._forget()
        with b.fragment("begin_roots", "eight lanes have the squares of a token"):
            self.token = b.op("shr.u32", "root_of_lane", tasks.lane, LANES.bit_length() - 1)
            self.column = b.op("and.b32", "square_column", tasks.lane, LANES - 1)
            self.keeps = b.op("setp.eq.u32", "keeps_root", self.column, 0)
            b.op("mul.lo.u32", self.column, self.column, VECTOR)
            self.to = b.op("mov.u32", "root_to", self.memory)
            b.op("mad.lo.u32", self.to, self.token, 4, self.to)
            self._forget()
        self._compare(tasks.token_tile)
        with b.fragment("read_squares", "add up the tokens' sums of squares"):
            self._read(tasks)
        threads = at.multiplying + WARP
        b.expose(roots_found=(FOUND, threads), roots_free=(FREE, threads))

    def _forget(self) -> None:
        """There was no tile before; part of an open fragment."""
        if self.known is not None:
            self.b.op("mov.u32", self.known, NO_TILE)

    def _compare(self, token_tile: Reg) -> None:
        """Fragment `compare_tokens`, and whether there are new tokens; of a CTA's only tile they are: None."""
        b = self.b
        if self.known is None:
            b.without("compare_tokens")
            b.expose(new_tokens=None)
            return
        with b.fragment("compare_tokens", "whether the tile has other tokens than the one before, if there was one"):
            new = b.op("setp.ne.u32", "new_tokens", token_tile, self.known)
            b.op("setp.ne.and.u32", "passes_tokens", self.known, NO_TILE, new)
            b.op("mov.u32", self.known, token_tile)

    def _read(self, tasks: Tasks) -> None:
        """Tokens past the last have the root of the last."""
        b, at, spec = self.b, self.at, self.spec
        slots, source = spec.k // TILE_ROWS, b.ld_param("squares")
        loads, flight = -(-slots // (LANES * VECTOR)), FEWER_LOADS if at.wide else MOST_LOADS
        together = max(1, flight // loads)  # tokens of a lane
        values = b.array("token_square", "f32", VECTOR * min(loads * together, flight))
        first, row = b.op("mul.lo.u32", "first_of_roots", tasks.token_tile, at.tokens), b.reg("root_row", "u32")
        if tasks.split_rank is not None:
            b.op("mad.lo.u32", first, tasks.split_rank, at.out_tokens, first)
        b.op("add.u32", first, first, self.token)
        last = b.op("sub.u32", "last_token", tasks.count, 1)
        places = [b.reg(f"square_at{i}", "u64") for i in range(together)]
        totals = [b.array(f"square_total{i}_", "f32", VECTOR) for i in range(together)]
        for begin in range(0, self.count, TOKENS * together):
            turns = range(min(together, -(-(self.count - begin) // TOKENS)))
            for turn in turns:
                b.op("add.u32", row, first, begin + TOKENS * turn)
                b.op("min.u32", row, row, last)
                b.op("mad.wide.u32", places[turn], row, 4 * slots, source)
                b.op("mad.wide.u32", places[turn], self.column, 4, places[turn])
                convert.clear(b, totals[turn])
            items = [(turn, load) for turn in turns for load in range(loads)]
            for start in range(0, len(items), flight):
                self._add(items[start : start + flight], values, places, totals, slots)
            for turn in turns:
                self._keep(totals[turn].regs, begin + TOKENS * turn)

    def _add(
        self, items: Sequence[tuple[int, int]], values: RegArray, places: Sequence[Reg], totals: Sequence[RegArray],
        slots: int,
    ) -> None:  # fmt: skip
        """Loads that are on their way together, of a token each."""
        b, there = self.b, convert.scratch(self.b, "square_there", "pred")
        each = [values[VECTOR * i : VECTOR * (i + 1)] for i in range(len(items))]
        for own, (turn, load) in zip(each, items, strict=True):
            inside = None
            if LANES * VECTOR * (load + 1) > slots:
                convert.clear(b, own)
                inside = b.op("setp.lt.u32", there, self.column, slots - LANES * VECTOR * load)
            convert.load_words(b, own, places[turn], 4 * LANES * VECTOR * load, pred=inside)
        for own, (turn, _) in zip(each, items, strict=True):
            for total, value in zip(totals[turn], own, strict=True):
                b.op("add.f32", total, total, value)

    def _keep(self, totals: Sequence[Reg], begin: int) -> None:
        """The root of the token that is so many behind the lane's first."""
        b, spec, total = self.b, self.spec, totals[0]
        for more in totals[1:]:
            b.op("add.f32", total, total, more)
        over_lanes(b, "add.f32", total, (4, 2, 1))
        b.op("fma.rn.f32", total, total, 1.0 / spec.k, spec.eps)
        b.op("sqrt.rn.f32", total, total)
        b.op("rcp.rn.f32", total, total)
        b.op("st.shared.f32", self.to[4 * begin], total, pred=self.keeps)

    def times(self, sums: Sequence[Sequence[Reg]]) -> None:
        """Fragment `times_roots`: of the tokens that the warp finishes."""
        b = self.b
        roots = b.array("root", "f32", 2)
        with b.fragment("times_roots", "sums times the roots of their tokens"):
            for octet in range(self.at.out_tokens // OCTET):
                b.op("ld.shared.v2.f32", roots.regs, self.place[4 * OCTET * octet])
                for block in sums:
                    for i, value in enumerate(block[4 * octet : 4 * octet + 4]):
                        b.op("mul.f32", value, value, roots[i % 2])
