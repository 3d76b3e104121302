"""What attention computes: sizes and types of queries, keys and values; with its variant and its cache, all of it."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.attention.cache import Cache
from ptxgen.attention.variant import Variant
from ptxgen.dtypes import DType


@dataclass(frozen=True)
class Problem:
    """out(h) = softmax(scores of q(h) with K) · V for every query head h, which reads KV head h // group.

    A query, and a row of K, has `qk_dim` elements; a row of V, and an output, `v_dim`.
    """

    n_heads: int
    n_kv_heads: int
    qk_dim: int
    v_dim: int
    q_dtype: DType

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


@dataclass(frozen=True)
class Attention:
    """What is computed, what a score goes through, where the rows of K and V lie."""

    problem: Problem
    variant: Variant
    cache: Cache
