"""Attention of one token over keys and values that lie on the host. Owns nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxgen.dtypes import f32
from ptxgen.errors import SpecError

if TYPE_CHECKING:
    from ptxgen.models.spec import ModelSpec
    from ptxgen.runtime.core.device import Device

Pair = tuple[np.ndarray, np.ndarray]


def attention_with_cache(
    device: Device, model: ModelSpec, layer: int, q: np.ndarray, caches: Pair, own: Pair
) -> np.ndarray:
    """See `Model.attention_with_cache`."""
    from ptxgen.kernels import MultiHeadAttention

    shape, window = model.shape, model.layer(layer).window
    spec = MultiHeadAttention(
        head_dim=shape.head_dim, n_heads=shape.n_heads, n_kv_heads=shape.n_kv_heads, q_dtype=f32, kv_dtype=f32,
        scale=shape.scale, soft_cap=shape.soft_cap, window=window,
    )  # fmt: skip
    rows = []
    for name, cache, new in zip(("k", "v"), caches, own, strict=True):
        if cache.ndim != 2 or cache.shape[1] != model.kv_width or new.size != model.kv_width:
            want = f"{name}_cache and {name} must be [positions, {model.kv_width}] and [{model.kv_width}]"
            raise SpecError(f"attention_with_cache: {want} (got {list(cache.shape)} and {list(new.shape)})")
        whole = np.concatenate([cache, new.reshape(1, -1)]).astype(np.float32)
        rows.append(device.array(whole.reshape(len(whole), shape.n_kv_heads, shape.head_dim)))
    if len(caches[0]) != len(caches[1]) or q.size != model.q_width:
        got = f"{len(caches[0])}, {len(caches[1])} and {q.size}"
        raise SpecError(f"attention_with_cache: caches must be of one length, and q of {model.q_width} (got {got})")
    queries = device.array(np.ascontiguousarray(q, np.float32).reshape(1, shape.n_heads, shape.head_dim))
    out = device.empty(queries.shape, f32)
    bound = device.load(spec).bind(q=queries, k=rows[0], v=rows[1], out=out, q_len=1, kv_len=rows[0].shape[0])
    bound.launch()
    return out.numpy().reshape(-1)
