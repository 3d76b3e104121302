"""Attention over a KV cache with NumPy arrays on the CPU executor: a prompt, then tokens one by one, without a GPU.

python examples/numpy/decode.py
"""

from __future__ import annotations

import numpy as np

from ptxgen.runtime import Executor, open_device

N_HEADS, N_KV_HEADS, HEAD_DIM, PROMPT, TOKENS = 8, 2, 64, 20, 12


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """softmax(q · Kᵀ / √head_dim) · V of one position, in float64."""
    k, v = (np.repeat(x.astype(np.float64), N_HEADS // N_KV_HEADS, axis=1) for x in (k, v))
    scores = np.einsum("hd,phd->hp", q, k) / np.sqrt(HEAD_DIM)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.einsum("hp,phd->hd", weights / weights.sum(1, keepdims=True), v)


def main() -> None:
    rng = np.random.default_rng(0)
    device = open_device("cpu")
    executor = Executor(device, n_layers=1, n_heads=N_HEADS, n_kv_heads=N_KV_HEADS, head_dim=HEAD_DIM, max_len=64)
    rows = PROMPT + TOKENS
    q = rng.standard_normal((rows, N_HEADS, HEAD_DIM), np.float32)
    k, v = rng.standard_normal((2, rows, N_KV_HEADS, HEAD_DIM), np.float32)
    out = np.zeros_like(q)

    prompt = slice(0, PROMPT)
    executor.flash_attention_cached(0, q[prompt], k[prompt], v[prompt], out[prompt])
    for at in range(PROMPT, rows):  # the cache stays on the device
        executor.incremental_attention(0, q[at], k[at], v[at], out[at])

    error = max(np.abs(out[at] - expected(q[at], k[: at + 1], v[: at + 1])).max() for at in range(rows))
    print(f"{rows} positions, largest error {error:.1e}")
    if error > 1e-5:
        raise SystemExit("not what NumPy computes")


if __name__ == "__main__":
    main()
