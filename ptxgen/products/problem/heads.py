"""What the rows of a product are that are heads of q, k and v: which of them, of what cache, and how they rotate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ptxgen import rules
from ptxgen.idioms import kv_cache
from ptxgen.idioms.rope import rotation as rotary
from ptxgen.weights.format import TILE_ROWS

KV_DTYPES = ("f32", "f16", "bf16", "e4m3")  # int8 takes a scale, which no single row of a product knows

# rows of the weights, by whose they are: from the first of q, or of v, to the last of k, or of v
HEADS = {"qkv": (0, 2), "qk": (0, 1), "v": (1, 2)}


class Heads(kv_cache.CacheSpec, Protocol):
    """What there must be beside a cache: heads of q, and how q and k rotate."""

    @property
    def n_heads(self) -> int:
        """Query heads."""

    @property
    def n(self) -> int:
        """Rows of q, k and v together."""

    @property
    def rotation(self) -> rotary.Rotation:
        """Which elements rotate, by which angles."""


def head_rules(spec: Heads) -> Iterator[str]:
    """Reasons against heads of q, k and v, of whole records of rows, and a cache of these fields."""
    yield from kv_cache.cache_rules(spec, KV_DTYPES)
    yield from rules.multiple_of("head_dim", spec.head_dim, TILE_ROWS, TILE_ROWS, 512)
    yield from rules.between("n_heads", spec.n_heads, 1, 1024)
    yield from rules.divides("n_kv_heads", spec.n_kv_heads, "n_heads", spec.n_heads)
    yield from spec.rotation.rules()
