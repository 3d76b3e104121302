"""What attention computes: how many queries, keys and values of which sizes and types, whatever scores go through and
wherever rows lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ptxgen.dtypes import DType, f32
from ptxgen.launch import Extent, Param, buffer


@dataclass(frozen=True)
class Problem:
    """out(h) = softmax(scores of q(h) with K) · V for every query head h, which reads KV head h // group.

    A query, and a row of K, has `qk_dim` elements; a row of V, and an output, `v_dim`. `v_in_k`: a row of V is the
    beginning of the row of K (latent attention). Queries and outputs are of `q_dtype`, K and V of `kv_dtype`.

    `queries`: query positions, 1 of each sequence (decode) or "n_tokens" of all (prefill), whose q, out and lse are
    `[n_tokens, n_heads, …]` (`by_token`), `[n_heads, n_tokens, …]`, or with `heads_inside`
    `[n_heads / heads_inside, n_tokens, heads_inside, …]`.
    """

    n_heads: int
    n_kv_heads: int
    qk_dim: int
    v_dim: int
    q_dtype: DType
    kv_dtype: DType
    v_in_k: bool = False
    queries: Extent = 1
    by_token: bool = False
    heads_inside: int = 0

    @property
    def group(self) -> int:
        """Query heads that share a KV head: the rows that meet every row of K and V."""
        return self.n_heads // self.n_kv_heads

    @property
    def query_bytes(self) -> int:
        """Bytes of one head's query."""
        return self.qk_dim * self.q_dtype.bytes

    @property
    def output_bytes(self) -> int:
        """Bytes of one head's output."""
        return self.v_dim * self.q_dtype.bytes

    @property
    def rows(self) -> tuple[Extent, ...]:
        """The shape of queries and outputs but for a row's elements; without that of a batch."""
        if self.queries == 1:
            return (self.n_heads,)
        if self.heads_inside:
            return (self.n_heads // self.heads_inside, self.queries, self.heads_inside)
        return (self.queries, self.n_heads) if self.by_token else (self.n_heads, self.queries)

    @property
    def token_step(self) -> int:
        """Rows of q, out and lse from a query position to the next of the same head."""
        return self.n_heads if self.by_token else self.heads_inside or 1

    def q(self, *lead: Extent) -> Param:
        """The queries; `lead` is the shape of a batch."""
        return buffer("q", self.q_dtype, *lead, *self.rows, self.qk_dim)

    def outputs(self, *lead: Extent, lse: bool) -> Iterator[Param]:
        """The outputs and, where they are wanted, the log-sum-exps."""
        yield buffer("out", self.q_dtype, *lead, *self.rows, self.v_dim, access="out")
        if lse:
            yield buffer("lse", f32, *lead, *self.rows, access="out", align=4)
