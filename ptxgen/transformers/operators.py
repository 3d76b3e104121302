"""Attention over tensors as transformers has them: which kernel type serves a call, with what arguments.

| queries | keys | kernel |
| --- | --- | --- |
| one | a whole buffer of which the ends count (static caches) | `IncrementalAttention` of that length |
| one | all keys (of caches that grow, by themselves or in larger tensors), or padding on the left | the same, strided |
| more | all keys | `MultiHeadAttention` over heads; the batch's heads are heads |
| more | ends, or padding on the left | `MultiHeadAttention` of a ragged batch, padding moved to the right |
"""

# No `from __future__ import annotations`: torch reads the annotations as types.
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ptxgen.errors import SpecError
from ptxgen.kernels import IncrementalAttention, MultiHeadAttention
from ptxgen.torch import _is_capturing, _kind, _launch, _Prepared
from ptxgen.torch_pages import attend as attend_paged
from ptxgen.torch_pages import made
from ptxgen.transformers.launches import (
    Repeat,
    again,
    capacity,
    constant,
    held,
    kind_of,
    remember,
    repeat,
    repeated,
    same_ends,
    site_of,
)  # fmt: skip

MOST_HEADS = 1024  # of MultiHeadAttention
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
    found = repeated(query, key, value, scale, soft_cap, window) if bounds is None and sinks is None else None
    return found if found is not None else attend_now(query, key, value, bounds, sinks, scale, soft_cap, window, causal)


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
    """`attend` without torch's dispatcher, of a call that is not like one before."""
    if sinks is not None and sinks.requires_grad:
        sinks = sinks.detach()
    plain = bounds is None and sinks is None and query.shape[2] == 1
    check(query, key, value, bounds, sinks)
    out = query.new_empty((query.shape[0], query.shape[2], query.shape[1], query.shape[3]))
    if not out.numel():
        return out
    given = query, key, value
    query, key, value = aligned(query), aligned(key), aligned(value)
    sinks = None if sinks is None else aligned(sinks)
    pitch = pitch_of(key, value)
    if not pitch:
        key, value, pitch = key.contiguous(), value.contiguous(), key.shape[2]
    options = scale, soft_cap, window
    window = 0 if window >= key.shape[2] else window
    if query.shape[2] == 1:
        launched = _decode(out, query, key, value, pitch, bounds, sinks, scale, soft_cap, window)
        as_given = query is given[0] and key is given[1] and value is given[2] and query.is_contiguous()
        if launched is not None and plain and as_given:
            repeat(kind_of(*given, *options), launched)
    elif bounds is None and query.shape[0] * query.shape[1] <= MOST_HEADS:
        _prefill_all(out, query, key, value, pitch, sinks, scale, soft_cap, window, causal)
    else:
        key, value = key.contiguous(), value.contiguous()
        _prefill_bounded(out, query, key, value, bounds, sinks, scale, soft_cap, window, causal)
    return out


def check(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor | None, sinks: Tensor | None) -> None:
    """Whether all go together. Calls that share a launch only write addresses: this is looked at in each of them.
    Raises `SpecError`."""
    batch, heads, _, dim = query.shape
    shape = key.shape
    if shape[0] != batch or shape[3] != dim or heads % max(shape[1], 1) or not shape[1]:
        wanted = f"[{batch}, kv_heads, keys, {dim}], kv_heads a divisor of {heads}"
        raise SpecError(f"attention(key): must be {wanted} (got {list(shape)})")
    if value.shape != shape:
        raise SpecError(f"attention(value): must be shaped as keys, {list(shape)} (got {list(value.shape)})")
    if not query.dtype == key.dtype == value.dtype or not query.device == key.device == value.device:
        got = ", ".join(f"{x.dtype} on {x.device}" for x in (query, key, value))
        raise SpecError(f"attention: query, key and value must be of one type on one device (got {got})")
    if sinks is not None and (sinks.shape != (heads,) or sinks.dtype != torch.float32 or sinks.device != query.device):
        got = f"{sinks.dtype} {list(sinks.shape)} on {sinks.device}"
        raise SpecError(f"attention(sinks): must be f32 [{heads}] on {query.device} (got {got})")
    if bounds is not None and (bounds.shape[0] != batch or bounds.device != query.device):
        wanted = f"of {batch} sequences on {query.device}"
        raise SpecError(f"attention(bounds): must be {wanted} (got {list(bounds.shape)} on {bounds.device})")


def aligned(x: Tensor) -> Tensor:
    """The same, in memory that begins at a multiple of 16 bytes, as the kernels read it."""
    return x.clone(memory_format=torch.contiguous_format) if x.data_ptr() & 15 else x


def pitch_of(key: Tensor, value: Tensor) -> int:
    """Rows from head to head of both, `[batch, kv_heads, keys, dim]`: as many as there are, more where they are the
    beginning of larger tensors, 0 where they lie otherwise."""
    batch, heads, rows, dim = key.shape
    if key.is_contiguous() and value.is_contiguous():
        return int(rows)
    strides = key.stride()
    pitch = strides[1 if heads > 1 else 0] // dim
    if strides != value.stride() or strides[2:] != (dim, 1) or pitch < rows:
        return 0
    if (heads > 1 and strides[1] != pitch * dim) or (batch > 1 and strides[0] != heads * pitch * dim):
        return 0
    return int(pitch) if batch * heads * pitch * dim <= min(held(key), held(value)) else 0


def whole(x: Tensor, pitch: int) -> Tensor:
    """The tensor `[batch, kv_heads, pitch, dim]` that these are the beginning of."""
    batch, heads, rows, dim = x.shape
    return x if rows == pitch else x.as_strided((batch, heads, pitch, dim), (heads * pitch * dim, pitch * dim, dim, 1))


def _decode(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pitch: int,
    bounds: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    soft_cap: float,
    window: int,
) -> Repeat | None:
    """One query a sequence. A call like one before on its stream only writes addresses: time on the host counts. On a
    GPU what a call repeats that is alike."""
    rows = key.shape[2]
    width = 0 if bounds is None else bounds.shape[-1]
    if width == 1 and pitch != rows:
        key, value, pitch = key.contiguous(), value.contiguous(), rows
    max_len = rows if width == 1 else capacity(pitch)
    tensors = [query if query.is_contiguous() else query.contiguous(), key, value, out]
    if sinks is not None:
        tensors.append(sinks)
    if bounds is not None:
        columns = bounds[:, 0, 0]
        tensors += [bounds] if width == 1 else [columns[:, i].contiguous() for i in range(2)]
    scalars: tuple[int, ...] = () if width == 1 else (pitch,)
    batch, heads, _, dim = query.shape
    device = query.device
    if not width:  # also those that stay: a call of another pitch is alike, and shares the launch
        tensors += [constant(device, batch, 0)]
        tensors += [constant(device, batch, ALL) if pitch == rows else same_ends(device, batch, rows)]
    alike = (query.shape, key.shape[1], max_len, query.dtype, width, sinks is None, scale, soft_cap, window)
    site = site_of(device, "decode", *alike)
    rest = tuple(tensors[4:])
    repeat_of = partial(_repeat, device, rest, scalars, 0 if pitch == rows else batch * key.shape[1] * pitch * dim)
    if (launched := again(site, tensors, scalars)) is not None:
        return repeat_of(launched)
    options = {"scale": scale, "soft_cap": soft_cap, "window": min(window, max_len), "sinks": sinks is not None}
    spec = _decode_spec(query, key, max_len, strided=width != 1, **options)
    tensors[1:3] = whole(key, pitch), whole(value, pitch)
    names = ["q", "k_cache", "v_cache", "out", *(["sinks"] if sinks is not None else [])]
    names += ["seq_lens"] if width == 1 else ["starts", "seq_lens"]
    shaped = dict(zip(names, tensors, strict=True))
    shaped |= {"q": tensors[0].view(batch, heads, dim), "out": out.view(batch, heads, dim)}
    shaped["seq_lens"] = shaped["seq_lens"].view(batch)
    if width == 1:
        launched = _launch(spec, shaped, {"batch": batch})
    else:
        keys = max_len if device.type == "cuda" else pitch
        growing = ("k_cache", "v_cache", *(("starts", "seq_lens") if bounds is None else ()))
        launched = _launch(spec, shaped, {"batch": batch, "n_keys": keys}, {"kv_rows": pitch}, growing)
    remember(site, launched)
    return repeat_of(launched)


def _decode_spec(query: Tensor, key: Tensor, max_len: int, **options: Any) -> IncrementalAttention:
    """The kernel for one query a sequence."""
    return made(
        IncrementalAttention,
        max_len=max_len,
        head_dim=query.shape[3],
        n_heads=query.shape[1],
        n_kv_heads=key.shape[1],
        q_dtype=_kind(query),
        kv_dtype=_kind(key),
        batched=True,
        **options,
    )


def _repeat(
    device: torch.device, rest: tuple[Any, ...], scalars: tuple[int, ...], reach: int, launched: _Prepared | None
) -> Repeat | None:
    """What a call repeats, of a launch over these tensors behind query, key, value and out; nothing where there is no
    GPU, and of a graph that is captured, whose tensors are its own."""
    if launched is None or device.type != "cuda" or _is_capturing(device.index):
        return None
    return Repeat(launched, rest, (*(x.data_ptr() for x in rest), *scalars), reach)


def _prefill_all(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pitch: int,
    sinks: Tensor | None,
    scale: float,
    soft_cap: float,
    window: int,
    causal: bool,
) -> None:
    """Every key counts: a batch is so many heads more, those of a sequence side by side in q and out, as projections
    leave and want them."""
    batch, heads, queries, dim = query.shape
    _, kv_heads, keys, _ = key.shape
    tensors = {"q": query.transpose(1, 2).contiguous(), "k": key, "v": value, "out": out}
    if sinks is not None:
        tensors["sinks"] = sinks if batch == 1 else sinks.repeat(batch)
    scalars = {"q_len": queries, "kv_len": keys, "q_rows": queries, "kv_rows": pitch}
    site = site_of(query.device, "prefill", query.shape, key.shape, pitch, query.dtype, sinks is None, scale, soft_cap,
                   window, causal)  # fmt: skip
    if again(site, tensors.values(), scalars.values()) is None:
        spec = made(
            MultiHeadAttention,
            head_dim=dim,
            n_heads=batch * heads,
            n_kv_heads=batch * kv_heads,
            q_dtype=_kind(query),
            kv_dtype=_kind(key),
            layout="heads",
            heads_inside=heads,
            causal=causal,
            scale=scale,
            soft_cap=soft_cap,
            window=window if causal else 0,
            sinks=sinks is not None,
        )
        flat = {name: whole(tensor, pitch).view(-1, pitch, dim) for name, tensor in (("k", key), ("v", value))}
        remember(site, _launch(spec, tensors | flat, {"n_tokens": queries, "n_keys": pitch}, scalars))


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
    spec = made(
        MultiHeadAttention,
        head_dim=dim,
        n_heads=heads,
        n_kv_heads=kv_heads,
        q_dtype=_kind(query),
        kv_dtype=_kind(key),
        max_len=max_len,
        batched=True,
        causal=causal,
        scale=scale,
        soft_cap=soft_cap,
        window=window if causal else 0,
        sinks=sinks is not None,
    )
    starts = torch.arange(0, (batch + 1) * queries, queries, dtype=torch.int32, device=query.device)
    tensors = {"q": query.transpose(1, 2).contiguous().view(batch * queries, heads, dim), "k": key, "v": value}
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
    if sinks is not None and sinks.requires_grad:
        sinks = sinks.detach()
    out = query.new_zeros(query.shape)  # tokens that no request has
    attend_paged(
        query, k, v, out, table, q_starts.int(), lengths.int(), sinks, scale=scale, soft_cap=soft_cap, window=window,
        single=single,
    )  # fmt: skip
    return out
