"""Attention over tensors as transformers has them: which kernel type serves a call, with what arguments.

| queries | keys | kernel |
| --- | --- | --- |
| one | a whole buffer of which the ends count (static caches) | `IncrementalAttention` of that length |
| one | all keys (caches that grow), or padding on the left | `IncrementalAttention`, strided |
| more | all keys | `MultiHeadAttention` over heads; the batch's heads are heads |
| more | ends, or padding on the left | `MultiHeadAttention` of a ragged batch, padding moved to the right |
"""

# No `from __future__ import annotations`: torch reads the annotations as types.
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ptxgen.kernels import IncrementalAttention, MultiHeadAttention
from ptxgen.torch import _kind, _launch
from ptxgen.torch_pages import attend as attend_paged

MOST_HEADS = 1024  # of MultiHeadAttention
SHORTEST = 1024  # what caches that grow are taken to hold at least, so that few kernels serve all lengths
ALL = (1 << 31) - 1  # an end behind all keys


def most_head_dim() -> int:
    """The largest head size of both kernels."""
    return 512


@torch.library.custom_op("ptxgen::attention", mutates_args=())
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    soft_cap: float,
    window: int,
    causal: bool,
) -> Tensor:
    """query `[batch, heads, queries, dim]`, key and value `[batch, kv_heads, keys, dim]`, bounds as `mask.py` has them,
    sinks f32 `[heads]`; out `[batch, queries, heads, dim]`."""
    return attend_now(query, key, value, bounds, sinks, scale, soft_cap, window, causal)


@attend.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    soft_cap: float,
    window: int,
    causal: bool,
) -> Tensor:
    batch, heads, queries, dim = query.shape
    return query.new_empty((batch, queries, heads, dim))


def attend_now(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    soft_cap: float,
    window: int,
    causal: bool,
) -> Tensor:
    """`attend` without torch's dispatcher."""
    out = query.new_empty((query.shape[0], query.shape[2], query.shape[1], query.shape[3]))
    if not out.numel():
        return out
    window = 0 if window >= key.shape[2] else window
    key, value = key.contiguous(), value.contiguous()
    if query.shape[2] == 1:
        _decode(out, query, key, value, bounds, sinks, scale, soft_cap, window)
    elif bounds is None and query.shape[0] * query.shape[1] <= MOST_HEADS:
        return _prefill_all(query, key, value, sinks, scale, soft_cap, window, causal)
    else:
        _prefill_bounded(out, query, key, value, bounds, sinks, scale, soft_cap, window, causal)
    return out


def _decode(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    soft_cap: float,
    window: int,
) -> None:
    batch, heads, _, dim = query.shape
    _, kv_heads, rows, _ = key.shape
    strided = bounds is None or bounds.shape[-1] == 2
    max_len = capacity(rows) if strided else rows
    spec = _decoder(
        max_len, dim, heads, kv_heads, _kind(query), scale, soft_cap, min(window, max_len), sinks is not None, strided
    )
    tensors = {"q": query.view(batch, heads, dim) if query.is_contiguous() else query.reshape(batch, heads, dim)}
    tensors |= {"k_cache": key, "v_cache": value, "out": out.view(batch, heads, dim)}
    if sinks is not None:
        tensors["sinks"] = sinks
    if not strided:
        assert bounds is not None
        tensors["seq_lens"] = bounds.view(batch)
        _launch(spec, tensors, {"batch": batch})
        return
    if bounds is None:
        tensors["starts"], tensors["seq_lens"] = constant(query.device, batch, 0), constant(query.device, batch, ALL)
    else:
        tensors["starts"], tensors["seq_lens"] = (bounds[:, 0, 0, i].contiguous() for i in range(2))
    capacities = {"batch": batch, "n_keys": rows if query.device.type == "cpu" else max_len}
    _launch(spec, tensors, capacities, {"kv_rows": rows}, growing=("k_cache", "v_cache"))


def _prefill_all(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor | None,
    scale: float,
    soft_cap: float,
    window: int,
    causal: bool,
) -> Tensor:
    """Every key counts: a batch is so many heads more."""
    batch, heads, queries, dim = query.shape
    _, kv_heads, keys, _ = key.shape
    spec = MultiHeadAttention(
        head_dim=dim, n_heads=batch * heads, n_kv_heads=batch * kv_heads, q_dtype=_kind(query), kv_dtype=_kind(key),
        layout="heads", causal=causal, scale=scale, soft_cap=soft_cap, window=window if causal else 0,
        sinks=sinks is not None,
    )  # fmt: skip
    out = query.new_empty((batch, heads, queries, dim))
    tensors = {"q": query.contiguous().view(batch * heads, queries, dim), "out": out.view(batch * heads, queries, dim)}
    tensors |= {"k": key.view(batch * kv_heads, keys, dim), "v": value.view(batch * kv_heads, keys, dim)}
    if sinks is not None:
        tensors["sinks"] = sinks.repeat(batch)
    scalars = {"q_len": queries, "kv_len": keys, "q_rows": queries, "kv_rows": keys}
    _launch(spec, tensors, {"n_tokens": queries, "n_keys": keys}, scalars)
    return out.transpose(1, 2).contiguous()


def _prefill_bounded(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    soft_cap: float,
    window: int,
    causal: bool,
) -> None:
    """Sequence by sequence up to its end. Padding on the left goes to the right of copies of K and V; its own queries
    stand before position 0 then, see nothing and give zeros."""
    batch, heads, queries, dim = query.shape
    _, kv_heads, keys, _ = key.shape
    max_len = keys
    if bounds is None or bounds.shape[-1] == 2:
        max_len = capacity(keys)
        first = torch.zeros(batch, 1, dtype=torch.int64, device=query.device)
        if bounds is not None:
            first = bounds[:, 0, :, 0].long()
        rows = torch.arange(max_len, device=query.device) + first
        at = rows.clamp(max=keys - 1)[:, None, :, None].expand(-1, kv_heads, -1, dim)
        key, value = key.gather(2, at), value.gather(2, at)
        lengths = (keys if bounds is None else bounds[:, 0, :, 1]) - first.int()
        lengths = lengths.int().reshape(batch)
    else:
        lengths = bounds.reshape(batch)
    spec = MultiHeadAttention(
        head_dim=dim, n_heads=heads, n_kv_heads=kv_heads, q_dtype=_kind(query), kv_dtype=_kind(key), max_len=max_len,
        batched=True, causal=causal, scale=scale, soft_cap=soft_cap, window=window if causal else 0,
        sinks=sinks is not None,
    )  # fmt: skip
    starts = torch.arange(0, (batch + 1) * queries, queries, dtype=torch.int32, device=query.device)
    tensors = {"q": query.transpose(1, 2).reshape(batch * queries, heads, dim), "k": key, "v": value}
    tensors |= {"out": out.view(batch * queries, heads, dim), "q_starts": starts, "kv_lens": lengths}
    if sinks is not None:
        tensors["sinks"] = sinks
    _launch(spec, tensors, {"n_tokens": batch * queries, "batch": batch}, {"n_sequences": batch})


@torch.library.custom_op("ptxgen::paged_attention", mutates_args=())
def attend_pages(
    query: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    q_starts: Tensor,
    lengths: Tensor,
    sinks: Tensor | None,
    scale: float,
    soft_cap: float,
    window: int,
    single: bool,
) -> Tensor:
    """query and out `[tokens, heads, dim]`, of requests one after the other: request r has tokens q_starts[r] …
    q_starts[r + 1] and lengths[r] keys, in the pages `[pages, page_size, kv_heads, dim]` of its row of the table.
    `single`: a token each."""
    return attend_pages_now(query, k, v, table, q_starts, lengths, sinks, scale, soft_cap, window, single)


@attend_pages.register_fake
def _(query: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def attend_pages_now(
    query: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    q_starts: Tensor,
    lengths: Tensor,
    sinks: Tensor | None,
    scale: float,
    soft_cap: float,
    window: int,
    single: bool,
) -> Tensor:
    """`attend_pages` without torch's dispatcher."""
    out = query.new_zeros(query.shape)  # tokens that no request has
    attend_paged(
        query, k, v, out, table, q_starts.int(), lengths.int(), sinks, scale=scale, soft_cap=soft_cap, window=window,
        single=single,
    )  # fmt: skip
    return out


@lru_cache(maxsize=1024)
def _decoder(
    max_len: int, dim: int, heads: int, kv_heads: int, dtype: str, scale: float, soft_cap: float, window: int,
    sinks: bool, strided: bool,
) -> IncrementalAttention:  # fmt: skip
    return IncrementalAttention(
        max_len=max_len, head_dim=dim, n_heads=heads, n_kv_heads=kv_heads, q_dtype=dtype, kv_dtype=dtype, batched=True,
        scale=scale, soft_cap=soft_cap, window=window, sinks=sinks, strided=strided,
    )  # fmt: skip


def capacity(rows: int) -> int:
    """What a cache of so many rows is taken to hold: a power of two."""
    return max(SHORTEST, 1 << (rows - 1).bit_length())


@lru_cache(maxsize=256)
def constant(device: torch.device, count: int, value: int) -> Tensor:
    """int32 `[count]`, kept as long as the process lives."""
    return torch.full((count,), value, dtype=torch.int32, device=device)
