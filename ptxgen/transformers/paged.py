"""What transformers' continuous batching calls: attention over its paged cache, whose blocks are our pages in the
layout "nhd"."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ptxgen.errors import SpecError
from ptxgen.transformers.attention import unfit
from ptxgen.transformers.launches import capacity
from ptxgen.transformers.operators import attend_pages, attend_pages_now

MOST_PAGE = 1 << 16  # positions of a page of the kernels


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    *,
    cache: Any = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | dict[str, Tensor] | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int | dict[str, int] = 0,
    read_index: list[Tensor] | None = None,
    write_index: list[Tensor] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Write the tokens' keys and values to the cache, and attend: query `[1, heads, tokens, dim]`, key and value
    `[1, kv_heads, tokens, dim]` of all requests one after the other; out `[1, tokens, heads, dim]`."""
    if cache is None or cu_seq_lens_q is None or cu_seq_lens_k is None or read_index is None or write_index is None:
        raise SpecError('attn_implementation="paged|ptxgen" is for continuous batching; use "ptxgen" for a forward')
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    reason = unfit(query, key, value, None, dropout, scale, None, s_aux)
    if reason:
        raise SpecError(f'paged attention: {reason}; use attn_implementation="paged|sdpa"')
    index: int = module.layer_idx
    window = 0 if cache.sliding_windows[index] == 1 else cache.sliding_windows[index]
    kind = "sliding_attention" if window else "full_attention"
    ends = cu_seq_lens_k[kind] if isinstance(cu_seq_lens_k, dict) else cu_seq_lens_k
    longest = max_seqlen_k[kind] if isinstance(max_seqlen_k, dict) else max_seqlen_k
    group, layer = cache.layer_index_to_group_indices[index]
    rows = capacity(int(longest))
    if not window and cache.block_size % 16 == 0 and read_index[group].numel():
        for pages, new in ((cache.key_cache, key), (cache.value_cache, value)):
            pages[layer].index_copy_(0, write_index[group], new.transpose(1, 2)[0])
        shape = (-1, cache.block_size, *cache.key_cache[layer].shape[1:])
        k, v = cache.key_cache[layer].view(shape), cache.value_cache[layer].view(shape)
        table = _blocks(read_index[group], ends, cache.block_size, -(-rows // cache.block_size))
    else:
        packed = cache.update(key, value, index, read_index, write_index)
        (k, v), table = _as_pages(packed, ends, rows)
    tokens = query.transpose(1, 2)[0]
    sinks = None if s_aux is None else s_aux.float()
    run = attend_pages if torch.compiler.is_compiling() else attend_pages_now
    single = max_seqlen_q == 1 and tokens.shape[0] == table.shape[0]
    lengths = ends[1:] - ends[:-1]
    out = run(tokens, k, v, table, cu_seq_lens_q, lengths, sinks, scale, softcap or 0.0, window, single)
    return out[None], None


def _blocks(read: Tensor, ends: Tensor, block: int, entries: int) -> Tensor:
    """The page table `[requests, entries]`, from the places of all requests' keys: a page is where a block begins."""
    at = ends[:-1, None].long() + torch.arange(0, entries * block, block, device=ends.device)
    table = read[at.clamp(max=read.shape[0] - 1)] // block
    return torch.where(at < ends[1:, None], table, -1).int()


def _as_pages(packed: tuple[Tensor, Tensor], ends: Tensor, rows: int) -> tuple[list[Tensor], Tensor]:
    """Keys and values `[keys of all requests, kv_heads, dim]` in pages of their own, and the page table."""
    page = min(rows, MOST_PAGE)
    at = ends[:-1, None].long() + torch.arange(rows, device=ends.device)
    requests = at.shape[0]
    pages = [x[at.clamp(max=x.shape[0] - 1)].view(-1, page, *x.shape[1:]) for x in packed]
    numbers = torch.arange(requests * (rows // page), dtype=torch.int32, device=ends.device)
    return pages, numbers.view(requests, -1)
