"""An epilogue for products whose rows are heads of q, k and v: q and k rotate, k and v go to the cache."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Table
from ptxgen.idioms import convert, kv_cache
from ptxgen.idioms.division import split
from ptxgen.idioms.rope import rotation as rotary
from ptxgen.products.epilogue.results import Epilogue
from ptxgen.products.geometry.groups import Geometry
from ptxgen.products.geometry.runs import Runs

if TYPE_CHECKING:
    from ptxgen.products.problem.heads import Heads
    from ptxgen.products.problem.product import Product


class HeadsEpilogue(Epilogue):
    """Row r is element r % head_dim of head r / head_dim: of q, then of k, then of v; the product's row 0 is row
    `first`. The two of a pair that rotates are neighbours, so that neighbouring lanes have them."""

    def __init__(self, b: Builder, spec: Product, at: Geometry | Runs, heads: Heads, first: int = 0) -> None:
        super().__init__(b, spec, at)
        self.set_heads(heads, first)

    def set_heads(self, heads: Heads, first: int = 0) -> None:
        """Say what the rows are."""
        self.heads, self.first = heads, first
        self.q_end = heads.n_heads * heads.head_dim
        self.k_end = (heads.n_heads + heads.n_kv_heads) * heads.head_dim

    def begin(self) -> None:
        b = self.b
        self.early = isinstance(self.at, Runs) and self.turns == 1  # the row is known before x
        with b.fragment("read_early", "the token's position, and what is known of the row"):
            position = b.ld_param("position")
            self.position = b.op("ld.global.s32", "row_position", position[0])
            if self.early:
                self._prepare(self.out_row)

    def _prepare(self, out_row: Reg) -> None:
        """Bias, place in the head, and how much its pair turns from position to position."""
        b, rotation = self.b, self.heads.rotation
        if self.first:
            b.op("add.u32", out_row, out_row, self.first)
        known = b.op("setp.lt.u32", "row_is_known", out_row, self.heads.n)
        if self.spec.bias:
            bias = b.ld_param("bias")
            b.op("mad.wide.u32", bias, out_row, 4, bias)
            self.bias = b.op("mov.f32", "bias_value", 0.0)
            b.op("ld.global.nc.f32", self.bias, bias[0], pred=known)
        self.head, self.element = split(b, "head", "element", out_row, rotation.head_dim)
        if self.first >= self.k_end:
            return
        self.rotates = b.op("setp.lt.and.u32", "rotates", out_row, self.k_end, known)
        if rotation.rotary_dim < rotation.head_dim:
            b.op("setp.lt.and.u32", self.rotates, self.element, rotation.rotary_dim, self.rotates)
        pair = b.op("shr.u32", "pair", self.element, 1)
        turns = b.op("mov.u64", "turns_row", self.pair_turns)
        b.op("mad.wide.u32", turns, pair, 8, turns)
        self.turn = b.op("mov.b64", "turn_of_pair", 0)
        b.op("ld.global.nc.b64", self.turn, turns[0], pred=self.rotates)

    def place(self, out_row: Reg, inside: Reg) -> None:
        b = self.b
        if not self.early:
            self._prepare(out_row)
        if self.spec.bias:
            b.op("add.f32", self.values[0], self.values[0], self.bias)
        if self.first < self.k_end:
            self._rotate()
        self.guard(inside)

    def _rotate(self) -> None:
        """x cos - y sin for the first of a pair, y cos + x sin for the second: the first takes the opposite angle."""
        b, value, rotation = self.b, self.values[0], self.heads.rotation
        b.note("pairs of q and k rotate by the angle of their place in the head")
        other = b.reg("other_of_pair", "f32")
        b.op("shfl.sync.bfly.b32", other, value, 1, 31, self._lanes())
        wide, odd = b.op("cvt.s64.s32", "wide_position", self.position), b.op("and.b32", "second", self.row, 1)
        is_second = b.op("setp.ne.u32", "is_second", odd, 0)
        back = b.op("neg.s64", "minus_position", wide)
        b.op("selp.b64", wide, wide, back, is_second)
        cos, sin = rotary.cos_sin(b, rotation, wide, self.turn)
        b.op("mul.f32", other, other, sin)
        b.op("fma.rn.f32", value, value, cos, other, pred=self.rotates)

    def _lanes(self) -> int | Reg:
        """The lanes of the warp that have results: all or the first 16, as results are whole records."""
        if self.results % 32 == 0:
            return -1
        if self.results < 32:
            return 0xFFFF
        b = self.b
        lanes, whole = b.reg("lanes_with_results", "b32"), b.reg("whole_warp", "pred")
        b.op("mov.b32", lanes, 0xFFFF)
        b.op("setp.lt.u32", whole, self.result, self.results // 32 * 32)
        b.op("mov.b32", lanes, -1, pred=whole)
        return lanes

    @cached_property
    def pair_turns(self) -> Table:
        """How much each pair turns from position to position."""
        return rotary.turns_table(self.b, self.heads.rotation)

    def guard(self, inside: Reg) -> None:
        """A token without a position in the cache writes nothing; part of an open fragment."""
        b = self.b
        b.note("one unsigned comparison refuses negative positions too")
        b.op("setp.lt.and.u32", inside, self.position, self.heads.max_len, inside)

    def limit(self, appends: Reg) -> None:
        """Of the rows of k and v that are inside, those that are appended; part of an open fragment."""

    def query_row(self) -> Reg:
        """The address of the token's row of q."""
        return self.b.ld_param("q")

    def sequence(self) -> Reg:
        """Which one the token is of, where there are several."""
        return self.row

    def store(self, out_row: Reg) -> None:
        b, heads, value = self.b, self.heads, self.values[0]
        kv_head = b.op("sub.u32", "kv_head", self.head, heads.n_heads)
        appends = b.op("setp.ge.u32", "appends", out_row, self.q_end)
        if self.first < self.q_end:
            query = self.query_row()
            b.op("mad.wide.u32", query, out_row, 4, query)
            b.op("st.global.f32", query[0], value, pred=~appends)
        self.limit(appends)
        b.note("the head of k or v, and its row of the cache")
        is_v = b.op("setp.ge.u32", "is_v", out_row, self.k_end)
        b.op("sub.u32", kv_head, kv_head, heads.n_kv_heads, pred=is_v)
        index = kv_cache.cache_row(b, heads, self.sequence(), kv_head, self.position, appends)
        k_cache, v_cache = b.ld_param("k_cache"), b.ld_param("v_cache")
        cache = b.op("selp.b64", "cache", v_cache, k_cache, is_v)
        b.op("mad.lo.u64", cache, index, heads.head_dim * heads.kv_dtype.bytes, cache)
        b.op("mad.wide.u32", cache, self.element, heads.kv_dtype.bytes, cache)
        convert.store_one(b, cache, value, heads.kv_dtype, pred=appends)
