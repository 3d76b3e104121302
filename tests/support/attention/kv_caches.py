"""KV caches with known bytes in them, written by plain copies: no kernel runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxgen.runtime import BatchedKvCache, Device, KvCache
from ptxgen.spec.examples import poison

KINDS = ["f32", "f16", "bf16", "e4m3", "s8"]


def made(device: Device, dtype: str = "f32", **changes: int) -> KvCache:
    shape = {"n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 40, "max_len": 48} | changes
    return KvCache(device, dtype=dtype, **shape)


def filled(cache: KvCache, lengths: tuple[int, ...] = (7, 5), seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Random bytes (no NaN) everywhere, written by plain copies; lengths set. What was written, per layer."""
    rng = np.random.default_rng(seed)
    written: list[Any] = []
    for layer, length in enumerate(lengths):
        written.append({})
        for name, buffer in cache.buffers(layer).items():
            values = rng.integers(-90, 90, buffer.shape).astype(np.float32)
            written[-1][name] = (values if cache.dtype.name == "s8" else values / 8).astype(buffer.dtype.numpy)
            buffer.copy_from(written[-1][name])
        cache.set_length(layer, length)
    return written


def as_float(arrays: dict[str, np.ndarray], kind: str) -> np.ndarray:
    values = arrays[f"{kind}_cache"].astype(np.float32)
    if f"{kind}_scales" not in arrays:
        return values
    return values * np.repeat(arrays[f"{kind}_scales"].astype(np.float32), 32, -1)[..., : values.shape[-1]]


def spoil(cache: KvCache | BatchedKvCache) -> None:
    """Fill all of a cache with NaN, or what is as bad: what lies past a length must reach no result."""
    for layer in range(cache.n_layers):
        for name, buffer in cache.buffers(layer).items():
            if name != "page_table":
                buffer.copy_from(poison(buffer.shape, buffer.dtype))
