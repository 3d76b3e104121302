"""Attention in NumPy, float64: the reference of attention kernels, whatever their cache and their lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptxgen.attention.attention import Attention
from ptxgen.dtypes import e4m3
from ptxgen.scales import spread

if TYPE_CHECKING:
    import numpy as np


def widen(attention: Attention, x: str, rows: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    """Rows of K or V (`x`) as float64, their scales applied; rows that do not count may hold anything."""
    import numpy as np

    wide = np.asarray(rows, np.float64)
    if scales is not None:
        wide = wide * spread(np.asarray(scales, np.float64), attention.cache.sides[x].dim)
    return wide


def in_pages(x: np.ndarray, table: np.ndarray, heads_inside: bool = False) -> np.ndarray:
    """The pages of a sequence as `[n_kv_heads, positions, dim]`; `heads_inside`: of pages `[page_size, n_kv_heads]`."""
    pages: np.ndarray = (x.swapaxes(1, 2) if heads_inside else x)[table].swapaxes(0, 1)
    return pages.reshape(pages.shape[0], -1, pages.shape[-1])


def cached_rows(attention: Attention, a: Mapping[str, Any], sequence: int, suffix: str = "_cache") -> list[np.ndarray]:
    """K and V of a sequence, `[n_kv_heads, positions, dim]`; `a` holds the arguments by parameter name."""
    import numpy as np

    cache = attention.cache

    def of_sequence(array: np.ndarray) -> np.ndarray:
        if cache.page_size:
            return in_pages(array, a["page_table"][sequence], cache.heads_inside)
        whole: np.ndarray = array[sequence] if cache.batched else array
        if cache.ring:
            return whole[:, np.arange(cache.max_len) % cache.ring]
        return whole.swapaxes(0, 1) if cache.by_token else whole

    def side(x: str) -> np.ndarray:
        if x == "v" and attention.problem.v_in_k:
            return side("k")[..., : attention.problem.v_dim]
        scales = of_sequence(a[f"{x}_scales"]) if cache.quantised else None
        return widen(attention, x, of_sequence(a[f"{x}{suffix}"]), scales)

    return [side(x) for x in "kv"]


def as_e4m3(q: np.ndarray) -> np.ndarray:
    """Rows of queries, each rounded to e4m3 times the power of two that leaves its largest value 128 … 256."""
    import numpy as np

    wide = q.astype(np.float32)
    largest = np.maximum(np.abs(wide).max(-1, initial=0.0, keepdims=True), np.float32(2.0**-100))
    scale = np.ldexp(np.float32(1), np.frexp(largest)[1] - 8)
    back: np.ndarray = (wide / scale).astype(e4m3.numpy).astype(np.float64) * scale
    return back


def attend(
    attention: Attention,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    newest: int,
    arguments: Mapping[str, Any],
    first_key: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs `[n_heads, queries, v_dim]` and log-sum-exps `[n_heads, queries]` of a sequence's queries `[n_heads,
    queries, qk_dim]`, the last of which stands at position `newest`.

    K and V `[n_kv_heads, keys, dim]` begin at position `first_key`; all that lie beyond what a query sees may be NaN.
    A query that sees nothing gives zeros, and −inf, or its sink.
    """
    import numpy as np

    problem, variant = attention.problem, attention.variant
    queries, keys = q.shape[1], k.shape[1]
    distance = first_key + np.arange(keys) - (newest + 1 - queries + np.arange(queries))[:, None]
    seen = np.ones(distance.shape, bool)
    if variant.causal:
        seen = np.less_equal(distance, 0)
    if variant.window:
        seen = seen & (distance > -variant.window)
    group = (problem.n_kv_heads, problem.group)
    wide = q.astype(np.float64).reshape(*group, queries, problem.qk_dim)
    if variant.head_scales:
        k, v = (x * arguments[f"{name}_scale"].astype(np.float64)[:, None, None] for name, x in (("k", k), ("v", v)))
    scores = (wide @ k[:, None].swapaxes(-1, -2)).reshape(problem.n_heads, queries, keys) * variant.scale
    if variant.soft_cap:
        scores = variant.soft_cap * np.tanh(scores / variant.soft_cap)
    for step in variant.steps:
        scores = step.reference(scores, distance, arguments)
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, initial=-np.inf, keepdims=True)
    sinks = arguments["sinks"].astype(np.float64)[:, None, None] if variant.sinks else None
    top = top if sinks is None else np.maximum(top, sinks)
    base = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(scores - base)
    total = weights.sum(-1, keepdims=True) + (0.0 if sinks is None else np.exp(sinks - base))
    shares = (weights / np.where(total == 0, 1.0, total)).reshape(*group, queries, keys)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + base)[..., 0]
    used = np.where(np.any(seen, axis=0)[:, None], v, 0.0)  # a weight of zero times NaN would be NaN
    out = (shares @ used[:, None]).reshape(problem.n_heads, queries, problem.v_dim)
    return out, lse
