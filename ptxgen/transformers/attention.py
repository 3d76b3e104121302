"""Attention of transformers' models on our kernels, and in plain torch where these cannot compute it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ptxgen.transformers.launches import repeated
from ptxgen.transformers.mask import are_bounds, opened, visible
from ptxgen.transformers.operators import attend, attend_now, most_head_dim

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_warned: set[str] = set()


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls for a layer: query `[batch, heads, queries, dim]`, key and value `[batch, kv_heads, keys,
    dim]`; out `[batch, queries, heads, dim]`, and no weights."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    (attention_mask, window), cap = opened(attention_mask, sliding_window or 0), softcap or 0.0
    compiling = torch.compiler.is_compiling()
    plain = attention_mask is None and s_aux is None and position_bias is None and not dropout
    if plain and not compiling and not _needs_gradients(query, key, value):  # what served a call like it can this
        found = repeated(query, key, value, scale, cap, window)
        if found is not None:
            return found, None
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    reason = unfit(query, key, value, attention_mask, dropout, scale, position_bias, s_aux)
    if reason:
        warn_once(f"ptxgen attention: {reason}; this runs through sdpa")
        mask = attention_mask
        if are_bounds(mask) or (mask is None and causal and (query.shape[2] > 1 or window)):
            mask = visible(mask, query.shape[2], key.shape[2], window, causal, query)
        return _in_torch(query, key, value, mask, dropout, scale, cap, s_aux, position_bias), None
    run = attend if compiling else attend_now
    sinks = None if s_aux is None else s_aux.float()  # by each call, so that a graph's replay takes what they are then
    return run(query, key, value, attention_mask, sinks, scale, cap, window, causal), None


def warn_once(message: str) -> None:
    """Say it the first time; nothing while torch traces."""
    if not torch.compiler.is_compiling() and message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=3)


def unfit(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, scale: float, bias: Tensor | None,
    sinks: Tensor | None = None,
) -> str:  # fmt: skip
    """Why the kernels cannot compute this; empty where they can."""
    dim = query.shape[-1]
    if dim % 8 or dim > most_head_dim():
        return f"head_dim must be a multiple of 8 up to {most_head_dim()} (got {dim})"
    if value.shape[-1] != dim:
        return f"keys and values must be equally wide (got {dim} and {value.shape[-1]})"
    if query.dtype not in DTYPES or not query.dtype == key.dtype == value.dtype:
        return f"queries, keys and values must be f16, bf16 or f32 alike (got {query.dtype}, {key.dtype})"
    if query.device.type not in ("cuda", "cpu"):
        return f"tensors must lie on a CUDA device or the CPU (got {query.device})"
    if mask is not None and not are_bounds(mask):
        return "the mask must be causal with padding on the left (got another one)"
    if bias is not None:
        return "there is no position bias in the kernels (got one)"
    if dropout:
        return f"there is no dropout in the kernels (got {dropout})"
    if _needs_gradients(query, key, value, sinks):
        return "nothing is differentiable in the kernels (got tensors that need gradients)"
    if scale <= 0:
        return f"the scale must be above 0 (got {scale})"
    return ""


def _needs_gradients(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _in_torch(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, scale: float, cap: float,
    sinks: Tensor | None, bias: Tensor | None,
) -> Tensor:  # fmt: skip
    """The same in torch, `mask` bool or to be added."""
    group = query.shape[1] // key.shape[1]
    if group > 1:
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros((), dtype=query.dtype, device=query.device).where(mask, torch.finfo(query.dtype).min)
    if mask is not None and mask.shape[-1] > key.shape[2]:
        mask = mask[..., : key.shape[2]]
    if bias is not None:
        mask = bias if mask is None else mask + bias
    if not cap and sinks is None:
        out = scaled_dot_product_attention(query, key, value, mask, dropout, scale=scale)
        return out.transpose(1, 2).contiguous()
    scores = (query @ key.transpose(2, 3)).float() * scale
    if cap:
        scores = torch.tanh(scores / cap) * cap
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        column = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    weights = torch.softmax(scores, -1)[..., : key.shape[2]].to(query.dtype)
    return (torch.dropout(weights, dropout, dropout > 0) @ value).transpose(1, 2).contiguous()
