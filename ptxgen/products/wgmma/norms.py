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
from ptxgen.builder.values import Reg
from ptxgen.dtypes import bf16
from ptxgen.idioms import convert
from ptxgen.idioms.reduce import WARP, over_lanes
from ptxgen.launch import Extent
from ptxgen.products.wgmma import tokens as packed
from ptxgen.products.wgmma.geometry import OCTET, VECTOR, Geometry
from ptxgen.products.wgmma.outlets import TilesOut
from ptxgen.products.wgmma.results import Results
from ptxgen.products.wgmma.shape import MOST_ROWS_FIRST
from ptxgen.products.wgmma.tasks import Tasks
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.products.wgmma.product import PackedProduct

LANES = 8  # that add up the squares of a token
MOST_LOADS = 8  # of a lane, on their way together
QUAD = (2, 1)  # distances of the lanes that have the results of 16 columns
MEETING = 4  # the barrier of all warps that multiply; results and slices have those before
NO_TILE = 0xFFFFFFFF


def squares_shape(cols: int) -> tuple[Extent, ...]:
    """Of the sums of squares of rows, f32."""
    return ("rows", cols // TILE_ROWS)


def squares(x: np.ndarray) -> np.ndarray:
    """Of f32 `[rows, cols]`."""
    import numpy as np

    parts = x.astype(np.float64).reshape(len(x), x.shape[1] // TILE_ROWS, TILE_ROWS)
    return np.asarray((parts**2).sum(2).astype(np.float32))


def norm_rules(spec: PackedProduct) -> Iterator[str]:
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
        if cols % packed.PADDED:
            which, got = ("k", "n")[name == "norm_out"], cols
            yield f"{name}: needs {which} a multiple of {packed.PADDED} (got {got}; nearest: {name}={nearest})"
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
    """Fragments `begin_roots`, `find_roots`, `read_squares` and `times_roots`: 1 / sqrt(mean + eps) of every token that
    the CTA finishes, in shared memory, found once for a tile of tokens; and sums times these."""

    def __init__(self, b: Builder, spec: PackedProduct, at: Geometry) -> None:
        self.b, self.spec, self.at = b, spec, at
        self.count = at.out_tokens * at.shape.slices
        self.memory = b.shared("roots", 4 * self.count, align=16)

    def build(self, tasks: Tasks) -> None:
        """The fragments before products."""
        b, at = self.b, self.at
        with b.fragment("begin_roots", "eight lanes have the squares of a token"):
            self.token = b.op("shr.u32", "root_of_warp", tasks.lane, LANES.bit_length() - 1)
            b.op("mad.lo.u32", self.token, tasks.warp, WARP // LANES, self.token)
            self.column = b.op("and.b32", "square_column", tasks.lane, LANES - 1)
            self.keeps = b.op("setp.eq.u32", "keeps_root", self.column, 0)
            b.op("mul.lo.u32", self.column, self.column, VECTOR)
            self.place = b.op("mov.u32", "roots_at", self.memory)
            self.to = b.op("mad.lo.u32", "root_to", self.token, 4, self.place)
            pair = b.op("and.b32", "root_pair", tasks.lane, 3)
            b.op("mad.lo.u32", self.place, pair, 8, self.place)
            if tasks.slice is not None:
                b.op("mad.lo.u32", self.place, tasks.slice, 4 * at.out_tokens, self.place)
            known = b.op("mov.u32", "roots_of", NO_TILE)
        with b.fragment("find_roots"):
            b.op("setp.ne.u32", "new_tokens", tasks.token_tile, known)
            b.op("mov.u32", known, tasks.token_tile)
        with b.fragment("read_squares", "add up the tokens' sums of squares"):
            self._read(tasks)
        b.expose(roots_meet=(MEETING, at.multiplying))

    def _read(self, tasks: Tasks) -> None:
        b, at, spec = self.b, self.at, self.spec
        slots, source, each = spec.k // TILE_ROWS, b.ld_param("squares"), WARP // LANES * at.warps
        loads = -(-slots // (LANES * VECTOR))
        values = b.array("token_square", "f32", VECTOR * min(loads, MOST_LOADS))
        totals = b.array("square_total", "f32", VECTOR)
        first = b.op("mul.lo.u32", "first_of_roots", tasks.token_tile, at.tokens)
        if tasks.split_rank is not None:
            b.op("mad.lo.u32", first, tasks.split_rank, at.out_tokens, first)
        b.op("add.u32", first, first, self.token)
        row, exists = b.reg("root_row", "u32"), b.reg("root_exists", "pred")
        there, source_at = b.reg("square_there", "pred"), b.reg("square_at", "u64")
        for begin in range(0, self.count, each):
            b.op("add.u32", row, first, begin)
            b.op("setp.lt.u32", exists, row, tasks.count)
            b.op("setp.lt.and.u32", exists, self.token, self.count - begin, exists)
            b.op("mad.wide.u32", source_at, row, 4 * slots, source)
            b.op("mad.wide.u32", source_at, self.column, 4, source_at)
            convert.clear(b, totals)
            for batch in range(0, loads, MOST_LOADS):
                some = range(batch, min(loads, batch + MOST_LOADS))
                for load in some:
                    own = values[VECTOR * (load - batch) : VECTOR * (load - batch + 1)]
                    convert.clear(b, own)
                    b.op("setp.lt.and.u32", there, self.column, slots - LANES * VECTOR * load, exists)
                    convert.load_words(b, own, source_at, 4 * LANES * VECTOR * load, pred=there)
                for i, value in enumerate(values[: VECTOR * len(some)]):
                    b.op("add.f32", totals[i % VECTOR], totals[i % VECTOR], value)
            self._keep(totals.regs, begin)

    def _keep(self, totals: Sequence[Reg], begin: int) -> None:
        """The root of the token that is so many behind the lane's first."""
        b, spec, total = self.b, self.spec, totals[0]
        for more in totals[1:]:
            b.op("add.f32", total, total, more)
        over_lanes(b, "add.f32", total, (4, 2, 1))
        b.op("fma.rn.f32", total, total, 1.0 / spec.k, spec.eps)
        b.op("sqrt.rn.f32", total, total)
        b.op("rcp.rn.f32", total, total)
        keeps = b.op("setp.lt.and.u32", convert.scratch(b, "root_inside", "pred"), self.token,
                     self.count - begin, self.keeps)  # fmt: skip
        b.op("st.shared.f32", self.to[4 * begin], total, pred=keeps)

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
