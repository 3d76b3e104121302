"""Decode attention in NumPy, float64: what the kernels are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptxgen.attention.decode.contract import Attention
from ptxgen.scales import spread

if TYPE_CHECKING:
    import numpy as np


def visible_rows(attention: Attention, a: Mapping[str, Any], x: str, sequence: int | None, end: int) -> np.ndarray:
    """K or V (`x`) of the visible positions of a sequence, `[n_kv_heads, positions, head_dim]`, scales applied.

    `a` holds the arguments by parameter name; `sequence` is None where caches have no batch dimension.
    """
    import numpy as np

    first = max(0, end - attention.window) if attention.window else 0

    def part(name: str) -> np.ndarray:
        array: np.ndarray = a[name]
        if attention.page_size:
            positions = np.arange(first, end)
            pages = a["page_table"][sequence, positions // attention.page_size]
            found: np.ndarray = array[pages, :, positions % attention.page_size].swapaxes(0, 1)
            return found
        whole: np.ndarray = array if sequence is None else array[sequence]
        return whole[:, first:end]

    rows = part(f"{x}_cache").astype(np.float64)
    if attention.quantised:
        rows *= spread(part(f"{x}_scales").astype(np.float64), attention.head_dim)
    return rows


def attend(
    attention: Attention,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    slopes: np.ndarray | None,
    sinks: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Output `[n_heads, head_dim]` and log-sum-exp `[n_heads]` of one query; the last of the rows is the newest."""
    import numpy as np

    heads = (attention.n_kv_heads, attention.group)
    positions = k.shape[1]
    if positions == 0:
        empty = np.full(attention.n_heads, -np.inf) if sinks is None else sinks.astype(np.float64)
        return np.zeros(q.shape), empty
    scores = q.astype(np.float64).reshape(*heads, -1) @ k.swapaxes(1, 2) * attention.scale
    if attention.soft_cap:
        scores = attention.soft_cap * np.tanh(scores / attention.soft_cap)
    if slopes is not None:
        scores = scores + slopes.astype(np.float64).reshape(*heads, 1) * (np.arange(positions) - (positions - 1))
    top = scores.max(-1, keepdims=True)
    if sinks is not None:
        sink = sinks.astype(np.float64).reshape(*heads, 1)
        top = np.maximum(top, sink)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sink - top)
    return (weights @ v / total).reshape(q.shape), (top + np.log(total)).reshape(-1)
