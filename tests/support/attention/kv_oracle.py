"""A KV cache and attention in float64 NumPy: what an executor must agree with. Shares no code with what it checks."""

from __future__ import annotations

import numpy as np

from ptxgen.dtypes import dtype

GROUP = 32


def round_up_to_f16(x: np.ndarray) -> np.ndarray:
    """The smallest float16 that is not below x ≥ 0."""
    near = x.astype(np.float16)
    return np.where(near.astype(np.float64) < x, np.nextafter(near, np.float16(np.inf)), near).astype(np.float16)


def stored(x: np.ndarray, kind: str) -> np.ndarray:
    """What a cache of this dtype holds for float32 rows `[…, head_dim]`, as float64."""
    if kind != "s8":
        limit = {"e4m3": 448.0}.get(kind, np.inf)
        return np.clip(x, -limit, limit).astype(dtype(kind).numpy).astype(np.float64)
    padded = np.zeros((*x.shape[:-1], -(-x.shape[-1] // GROUP) * GROUP), np.float32)
    padded[..., : x.shape[-1]] = x
    grouped = padded.reshape(*x.shape[:-1], padded.shape[-1] // GROUP, GROUP)
    largest = np.abs(grouped).max(-1, keepdims=True)
    scale = round_up_to_f16((largest * np.float32(1 / 127)).astype(np.float64)).astype(np.float32)
    inverse = np.where(scale == 0, np.float32(0), np.float32(1) / np.where(scale == 0, np.float32(1), scale))
    whole = np.clip(np.rint(grouped * inverse), -127, 127)
    return (whole.astype(np.float64) * scale).reshape(padded.shape)[..., : x.shape[-1]]


class Oracle:
    """The layers of one sequence."""

    def __init__(self, n_layers: int, n_heads: int, n_kv_heads: int, head_dim: int, kind: str) -> None:
        self.kind, self.n_heads, self.n_kv_heads, self.head_dim = kind, n_heads, n_kv_heads, head_dim
        self.layers = [[np.zeros((0, n_kv_heads, head_dim)) for _ in "kv"] for _ in range(n_layers)]

    def append(self, layer: int, k: np.ndarray, v: np.ndarray) -> None:
        """Rows `[n_kv_heads, head_dim]` or `[rows, n_kv_heads, head_dim]`."""
        shape = (-1, self.n_kv_heads, self.head_dim)
        rows = (stored(x.reshape(shape), self.kind) for x in (k, v))
        self.layers[layer] = [np.concatenate([old, new]) for old, new in zip(self.layers[layer], rows, strict=True)]

    def length(self, layer: int) -> int:
        return len(self.layers[layer][0])

    def rollback(self, position: int) -> None:
        self.layers = [[x[:position] for x in layer] for layer in self.layers]

    def attend(self, layer: int, q: np.ndarray, last: int | None = None) -> np.ndarray:
        """softmax(q·kᵀ/√d)·v over the first `last` positions (default: all)."""
        k, v = (x[:last] for x in self.layers[layer])
        return attention(q.reshape(self.n_heads, self.head_dim), k, v)

    def attend_chunk(self, layer: int, q: np.ndarray) -> np.ndarray:
        """The last rows of the layer, causally: q `[rows, n_heads, head_dim]`."""
        start = self.length(layer) - len(q)
        return np.stack([self.attend(layer, row, start + i + 1) for i, row in enumerate(q)])


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """One query position: q `[n_heads, head_dim]`, k, v `[n, n_kv_heads, head_dim]`; zeros over nothing."""
    if len(k) == 0:
        return np.zeros(q.shape)
    group = q.shape[0] // k.shape[1]
    keys, values = (np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v))
    scores = np.einsum("hd,nhd->hn", q.astype(np.float64), keys) / np.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.einsum("hn,nhd->hd", weights / weights.sum(1, keepdims=True), values)
