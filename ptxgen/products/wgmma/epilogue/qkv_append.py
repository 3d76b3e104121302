"""Results of many tokens that are heads of q, k and v, each token of a sequence of its own: q and k rotate, k and v go
to the caches.

A lane has four neighbouring elements of a head, of some tokens. What it needs of them (positions, frequencies) it asks
for before its tile is multiplied, where registers allow that.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import f32
from ptxgen.idioms import convert, kv_cache
from ptxgen.idioms.division import divide_any
from ptxgen.idioms.rope import rotation as rotary
from ptxgen.products.problem.heads import Heads
from ptxgen.products.wgmma.epilogue.outlets import Outlet
from ptxgen.products.wgmma.epilogue.results import Results
from ptxgen.products.wgmma.product import PackedProduct
from ptxgen.products.wgmma.ring import Ring
from ptxgen.products.wgmma.tiling.geometry import VECTOR, Geometry


class HeadsOut(Outlet):
    """Where four neighbouring elements of a head go: to q, or to the cache of k or of v. The product's row 0 is row
    `first` of q, k and v; a lane has `loads` tokens, `together` apart."""

    def __init__(self, b: Builder, spec: PackedProduct, heads: Heads, first: int, loads: int, together: int) -> None:
        self.q_end = heads.n_heads * heads.head_dim
        super().__init__(b, spec, f32.bytes * self.q_end, ragged=False)  # records are whole
        self.heads, self.first, self.together = heads, first, together
        self.k_end = (heads.n_heads + heads.n_kv_heads) * heads.head_dim
        self.has_q, self.turns = first < self.q_end, first < self.k_end
        self.caches = [b.ld_param(f"{x}_cache") for x in "kv"]
        if self.has_q:
            self.q, self.to = b.ld_param("q"), b.reg("query_at", "u64")
        self.positions_from = b.ld_param("positions")
        self.positions = b.array("row_position", "s32", loads)
        self.rows = b.array("row_of_cache", "u64", loads)  # 0: nothing is appended
        self.kv_head, self.cache = b.reg("kv_head", "u32"), b.reg("cache", "u64")
        self.appends, self.sequence = b.reg("appends", "pred"), b.reg("sequence", "u32")

    def ask(self, row: Reg, column: Reg, count: Reg) -> None:
        """Of the first token, which is `row`, the elements from `column` on: their place in a head, and what is asked
        for; part of an open fragment."""
        b, heads = self.b, self.heads
        if self.first:
            b.op("add.u32", column, column, self.first)
        head = divide_any(b, convert.again(b, "head"), column, heads.head_dim)
        b.op("min.u32", head, head, heads.n // heads.head_dim - 1)  # as it is: a bound for the checks
        element = b.op("mul.lo.u32", convert.again(b, "element"), head, heads.head_dim)
        b.op("sub.u32", element, column, element)
        b.op("mov.u32", self.sequence, row)
        source = b.op("mad.wide.u32", convert.again(b, "positions_at"), row, 4, self.positions_from)
        left, there = convert.scratch(b, "positions_left", "s32"), convert.scratch(b, "has_position", "pred")
        b.op("sub.s32", left, count, row)
        for load, position in enumerate(self.positions):
            b.op("mov.s32", position, -1)
            b.op("setp.gt.s32", there, left, load * self.together)
            b.op("ld.global.s32", position, source[4 * load * self.together], pred=there)
        if self.turns:
            self._ask_turns(column, element)
        self._find_cache(column, head, element)

    def _ask_turns(self, column: Reg, element: Reg) -> None:
        """The frequencies of the two pairs."""
        b, rotation = self.b, self.heads.rotation
        self.rotates = b.op("setp.lt.u32", "rotates", column, self.k_end)
        if rotation.rotary_dim < rotation.head_dim:
            b.op("setp.lt.and.u32", self.rotates, element, rotation.rotary_dim, self.rotates)
        chunk = b.op("shr.u32", "chunk_of_head", element, VECTOR.bit_length() - 1)
        self.rotor = rotary.load_turns(b, rotation, chunk, self.rotates, f32, VECTOR)

    def _find_cache(self, column: Reg, head: Reg, element: Reg) -> None:
        """The element in the first row of K's or V's cache, and of which head; the token's place in q."""
        b, heads = self.b, self.heads
        k_cache, v_cache = self.caches
        is_v = b.op("setp.ge.u32", "is_v", column, self.k_end)
        b.op("setp.ge.u32", self.appends, column, self.q_end)
        b.op("sub.u32", self.kv_head, head, heads.n_heads)
        b.op("sub.u32", self.kv_head, self.kv_head, heads.n_kv_heads, pred=is_v)
        b.op("selp.b64", self.cache, v_cache, k_cache, is_v)
        b.op("mad.wide.u32", self.cache, element, heads.kv_dtype.bytes, self.cache)
        if self.has_q:
            b.op("mad.wide.u32", self.to, self.sequence, self.row_bytes, self.q)
            b.op("mad.wide.u32", self.to, column, f32.bytes, self.to)

    def find(self, tile: Reg, token: Reg, row: Reg, column: Reg) -> None:
        """Nothing: `ask` has found it."""
        self._token = 0

    def find_rows(self, left: Reg) -> None:
        """Where each of the `left` tokens goes in the cache: all together, as pages are loads; part of an open
        fragment."""
        b, heads = self.b, self.heads
        writes, sequence = convert.scratch(b, "appends_row", "pred"), convert.scratch(b, "cached_sequence", "u32")
        for load, (position, to) in enumerate(zip(self.positions, self.rows, strict=True)):
            b.note(f"token {load * self.together} from the lane's first", after=convert.RUN)
            b.op("setp.gt.and.s32", writes, left, load * self.together, self.appends)
            # one unsigned comparison refuses negative positions too
            b.op("setp.lt.and.u32", writes, position, heads.max_len, writes)
            there = b.op("selp.b32", convert.again(b, "cached_position"), position, 0, writes)
            b.op("add.u32", sequence, self.sequence, load * self.together)
            b.op("selp.b32", sequence, sequence, 0, writes)
            index = kv_cache.cache_row(b, heads, sequence, self.kv_head, there, writes)
            b.op("mad.lo.u64", to, index, heads.head_dim * heads.kv_dtype.bytes, self.cache)
            b.op("selp.b64", to, to, 0, writes)

    def go_to(self, token: int) -> None:
        if self.has_q:
            super().go_to(token)
        self._token = token

    def store(self, values: Sequence[Reg], guard: Reg, inside: Reg) -> None:
        b, heads = self.b, self.heads
        load = self._token // self.together
        if self.turns:
            rotary.rotate(b, self.rotor, values, self.positions[load], f32, self.rotates)
        writes = convert.scratch(b, "appends_row", "pred")
        if self.has_q:
            b.op("and.pred", writes, guard, ~self.appends)
            b.op("st.global.v4.f32", self.to[0], tuple(values), pred=writes)
        b.op("setp.ne.and.u64", writes, self.rows[load], 0, guard)
        words = values
        if heads.kv_dtype != f32:
            words = convert.scratch_array(b, "cached", "b32", convert.words_of(heads.kv_dtype, VECTOR)).regs
            convert.pack(b, words, values, heads.kv_dtype)
        convert.store_words(b, self.rows[load], words, pred=writes)


class HeadResults(Results):
    """`Results` of a product whose rows are those of q, k and v, from `first` on."""

    def __init__(
        self, b: Builder, spec: PackedProduct, at: Geometry, ring: Ring, sums: Sequence[Sequence[Reg]], *,
        heads: Heads, first: int,
    ) -> None:  # fmt: skip
        super().__init__(b, spec, at, ring, sums)
        self.heads, self.first = heads, first

    def _make_outlet(self) -> HeadsOut:
        loads = self.at.out_tokens // self.together
        self.heads_out = HeadsOut(self.b, self.spec, self.heads, self.first, loads, self.together)
        return self.heads_out

    def _ask_early(self) -> None:
        if self.at.crowded:
            self.b.without("ask_early")
            return
        with self.b.fragment("ask_early", "what results need, asked for before the tile is multiplied"):
            self.heads_out.ask(*self._find_place(), self.count)

    def _find_beside(self, row: Reg, column: Reg) -> None:
        if self.at.crowded:
            self.heads_out.ask(row, column, self.count)
        self.heads_out.find_rows(self.left)
