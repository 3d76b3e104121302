"""Attention of one token over keys and values that lie on the host. Owns nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxgen.dtypes import f32
from ptxgen.errors import SpecError
from ptxgen.models.attention import Attention

if TYPE_CHECKING:
    from ptxgen.models.spec import ModelSpec
    from ptxgen.runtime.core.device import Device

Pair = tuple[np.ndarray, np.ndarray]


def attention_with_cache(
    device: Device, model: ModelSpec, layer: int, q: np.ndarray, caches: Pair, own: Pair
) -> np.ndarray:
    """See `Model.attention_with_cache`."""
    from ptxgen.runtime.attention.attention_kernels import whole_attention

    shape = model.shape
    given = {}
    for name, cache, new in zip(("k", "v"), caches, own, strict=True):
        if cache.ndim != 2 or cache.shape[1] != model.kv_width or new.size != model.kv_width:
            want = f"{name}_cache and {name} must be [positions, {model.kv_width}] and [{model.kv_width}]"
            raise SpecError(f"attention_with_cache: {want} (got {list(cache.shape)} and {list(new.shape)})")
        whole = np.concatenate([cache, new.reshape(1, -1)]).astype(np.float32)
        given[name] = device.array(whole.reshape(len(whole), shape.n_kv_heads, shape.head_dim))
    if len(caches[0]) != len(caches[1]) or q.size != model.q_width:
        got = f"{len(caches[0])}, {len(caches[1])} and {q.size}"
        raise SpecError(f"attention_with_cache: caches must be of one length, and q of {model.q_width} (got {got})")
    given["q"] = device.array(np.ascontiguousarray(q, np.float32).reshape(1, shape.n_heads, shape.head_dim))
    given["out"] = out = device.empty(given["q"].shape, f32)
    whole_attention(device, Attention.of(shape, model.layer(layer), f32, f32), given, causal=True).launch()
    return out.numpy().reshape(-1)
