"""MultiHeadAttention in NumPy, float64 inside: what a launch leaves in its buffers, and arguments to try it with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.scales import scale_groups, spread

if TYPE_CHECKING:
    from ptxgen.kernel import Arrays
    from ptxgen.kernels.multi_head_attention import MultiHeadAttention


def given(spec: MultiHeadAttention, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Lengths, scales and tables of an example; in a batch the tokens are dealt out and the lengths drawn at random."""
    out: dict[str, Any] = {"q_rows": sizes["n_tokens"], "kv_rows": sizes["n_keys"]}
    if spec.batched:
        inner = np.sort(rng.integers(0, sizes["n_tokens"], sizes["batch"] - 1, endpoint=True))
        out["q_starts"] = np.array([0, *inner, sizes["n_tokens"]], np.int32)
        out["kv_lens"] = rng.integers(0, spec.max_len, sizes["batch"], np.int32, endpoint=True)
        out["n_sequences"] = sizes["batch"]
        if spec.page_size:
            out["page_table"] = _page_table(spec, rng, sizes, out["kv_lens"])
    else:
        room = {"q_len": sizes["n_tokens"], "kv_len": spec.max_len or sizes["n_keys"]}
        for name, most in room.items():
            length = most if sizes[name] < 0 else sizes[name]
            out[name] = np.array([length], np.int32) if spec.indirect else length
    if spec.kv_dtype.name == "s8":
        shape = tuple(sizes[e] if isinstance(e, str) else e for e in spec.params()[1].shape[:-1])
        for name in ("k_scales", "v_scales"):
            out[name] = rng.uniform(0.005, 0.02, (*shape, scale_groups(spec.head_dim))).astype(np.float16)
    return out


def _page_table(
    spec: MultiHeadAttention, rng: np.random.Generator, sizes: Mapping[str, int], lengths: np.ndarray
) -> np.ndarray:
    """Pages in random order, shared where there are too few, and −1 where a sequence has none."""
    width = -(-spec.max_len // spec.page_size)
    table = np.resize(rng.permutation(sizes["pages"]).astype(np.int32), (sizes["batch"], width))
    return np.where(np.arange(width) < -(-lengths // spec.page_size)[:, None], table, -1).astype(np.int32)


def reference(spec: MultiHeadAttention, a: Mapping[str, Any]) -> Arrays:
    """`out`, and `lse` where there is one; rows that no token has stay as they are."""
    out = {"out": a["out"].copy()} | ({"lse": a["lse"].copy()} if spec.lse else {})
    k, v = (_wide(spec, a[x], a.get(f"{x}_scales")) for x in "kv")
    if not spec.batched:
        q_len, kv_len = (int(np.ravel(a[x])[0]) for x in ("q_len", "kv_len"))
        _attend(spec, out, a["q"], k, v, 0, q_len, kv_len)
        return out
    for s in range(int(a["n_sequences"])):
        first, end = map(int, a["q_starts"][s : s + 2])
        keys, values = (in_pages(x, a["page_table"][s]) if spec.page_size else x[s] for x in (k, v))
        _attend(spec, out, a["q"], keys, values, first, end - first, int(a["kv_lens"][s]))
    return out


def _wide(spec: MultiHeadAttention, x: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    """K or V as float64 `[…, n_kv_heads, keys, head_dim]`; rows that do not count may hold NaN."""
    wide = x.astype(np.float64)
    if scales is not None:
        wide *= spread(scales.astype(np.float64), spec.head_dim)
    return wide if spec.layout == "heads" or spec.max_len else wide.swapaxes(0, 1)


def in_pages(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The pages of a sequence as `[n_kv_heads, keys, head_dim]`."""
    pages: np.ndarray = x[table].swapaxes(0, 1)
    return pages.reshape(pages.shape[0], -1, pages.shape[-1])


def _attend(
    spec: MultiHeadAttention,
    out: Arrays,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    first: int,
    q_len: int,
    kv_len: int,
) -> None:
    """Fill in the rows of one sequence: q_len tokens from `first` on, and kv_len keys."""
    q_len, kv_len = max(0, q_len), min(max(0, kv_len), spec.max_len or k.shape[1])
    distance = (np.arange(q_len) + kv_len - q_len)[:, None] - np.arange(kv_len)
    seen = np.ones(distance.shape, bool)
    if spec.causal:
        seen = (distance >= 0) & ((distance < spec.window) if spec.window else True)
    tokens = slice(first, first + q_len)
    for h in range(spec.n_heads):
        rows = (h, tokens) if spec.layout == "heads" else (tokens, h)
        scores = q[rows].astype(np.float64) @ k[h // spec.group, :kv_len].T * spec.softmax_scale
        if spec.soft_cap:
            scores = spec.soft_cap * np.tanh(scores / spec.soft_cap)
        values, sums = _softmax(np.where(seen, scores, -np.inf), v[h // spec.group, :kv_len])
        out["out"][rows] = values.astype(out["out"].dtype)
        if spec.lse:
            out["lse"][rows] = sums


def _softmax(scores: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """softmax(scores) @ values and ln Σ exp(scores) by row; a row of −inf gives zeros and −inf."""
    largest = scores.max(-1, initial=-np.inf, keepdims=True)
    p = np.exp(scores - np.where(np.isfinite(largest), largest, 0.0))
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return (p / np.where(total == 0, 1.0, total)) @ values, (np.log(total) + largest)[..., 0]
