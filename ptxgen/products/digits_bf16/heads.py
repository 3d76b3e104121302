"""Results of several tokens, each of a sequence of its own, that are heads of q, k and v."""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms.division import split
from ptxgen.products.digits_bf16.geometry import FewRuns
from ptxgen.products.digits_s8.results import EarlyResults
from ptxgen.products.epilogue.heads import HeadsEpilogue
from ptxgen.products.problem.heads import Heads
from ptxgen.products.problem.weighted import Surrounded


class TokenHeads(HeadsEpilogue, EarlyResults):
    """`HeadsEpilogue` of every token, at its own position; a token without a position in the cache has a query, which
    attention loads whatever the length, and appends nothing."""

    def __init__(self, b: Builder, spec: Surrounded, at: FewRuns, memory: Shared, heads: Heads, first: int = 0) -> None:
        EarlyResults.__init__(self, b, spec, at, memory)
        self.set_heads(heads, first)

    def sources(self, name: str) -> dict[str, tuple[Reg, Reg]]:
        b, rotation = self.b, self.heads.rotation
        found: dict[str, tuple[Reg, Reg]] = {}
        if self.first < self.k_end:
            _, pair = split(b, f"{name}_head", f"{name}_pair", self.out_row, rotation.head_dim)
            rotates = b.op("setp.lt.and.u32", f"{name}_rotates", pair, rotation.rotary_dim, self.inside)
            b.op("shr.u32", pair, pair, 1)
            turn = b.op("mov.u64", f"{name}_turn", self.pair_turns)
            b.op("mad.wide.u32", turn, pair, 8, turn)
            found["turn"] = turn, rotates
        found["position"] = self._position(name)
        if self.spec.bias:
            bias = b.ld_param("bias", f"{name}_bias")
            if self.first:
                b.op("add.u64", bias, bias, 4 * self.first)
            found["bias"] = (b.op("mad.wide.u32", bias, self.out_row, 4, bias), self.inside)
        return found

    def _position(self, name: str) -> tuple[Reg, Reg]:
        """Where the token's position is, and whether there is one."""
        b = self.b
        assert self.tokens is not None
        assert self.token is not None
        self.whole_token = b.op("add.u32", f"{name}_token_of_all", self.tokens.first, self.token)
        exists = b.op("setp.lt.and.u32", f"{name}_has_position", self.whole_token, self.tokens.rows, self.inside)
        at = b.ld_param("positions", f"{name}_position")
        return b.op("mad.wide.u32", at, self.whole_token, 4, at), exists

    def read(self, name: str) -> None:
        self._prepare(self.out_row)

    def _prepare(self, out_row: Reg) -> None:
        b = self.b
        at, exists = self._position("own")
        self.position = b.op("mov.s32", "row_position", -1)
        b.op("ld.global.s32", self.position, at[0], pred=exists)
        super()._prepare(out_row)

    def place(self, out_row: Reg, inside: Reg) -> None:
        if self.early and self.first:  # what is read early has added it to the row of then
            self.b.op("add.u32", out_row, out_row, self.first)
        super().place(out_row, inside)

    def guard(self, inside: Reg) -> None:
        b = self.b
        assert self.tokens is not None
        b.op("setp.lt.and.u32", inside, self.whole_token, self.tokens.rows, inside)

    def limit(self, appends: Reg) -> None:
        b = self.b
        b.note("one unsigned comparison refuses negative positions too")
        has = b.op("setp.lt.u32", "position_in_cache", self.position, self.heads.max_len)
        b.op("and.pred", appends, appends, has)
        b.op("selp.b32", self.position, self.position, 0, has)

    def query_row(self) -> Reg:
        b, heads = self.b, self.heads
        query = b.ld_param("q")
        wide: Reg = b.op("mad.wide.u32", query, self.whole_token, 4 * heads.n_heads * heads.head_dim, query)
        return wide

    def sequence(self) -> Reg:
        whole: Reg = self.whole_token
        return whole
