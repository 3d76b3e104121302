"""Writing to, and attending over, a paged cache in the layout "nhd", as torch tensors: what engines with one call.

Importing this imports torch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torch import Tensor

from ptxgen.kernel import KernelType
from ptxgen.kernels import IncrementalAttention, KvCacheScatter, MultiHeadAttention
from ptxgen.torch import _kind, _launch


@lru_cache(maxsize=1024)
def made(kind: type[KernelType], **fields: Any) -> Any:
    """A spec, made once: making one checks all its rules."""
    return kind(**fields)


def append(key: Tensor, value: Tensor, k: Tensor, v: Tensor, page: Tensor, row: Tensor) -> None:
    """key, value `[tokens, kv_heads, dim]` to rows `row` of pages `page` `[tokens, 1]` of the caches `[pages,
    page_size, kv_heads, dim]`; what is below 0, or past the tokens, writes nothing."""
    tokens, kv_heads, dim = key.shape
    page_size = k.shape[1]
    spec = made(
        KvCacheScatter,
        max_len=page_size,
        head_dim=dim,
        n_kv_heads=kv_heads,
        kv_dtype=_kind(k),
        src_dtype=_kind(key),
        batched=True,
        page_size=page_size,
        page_layout="nhd",
    )
    tensors = {"k": key.contiguous(), "v": value.contiguous(), "k_cache": k, "v_cache": v}
    tensors |= {"positions": row[:tokens], "page_table": page[:tokens]}
    _launch(spec, tensors, {"rows": tokens, "pages": k.shape[0]}, {"n_pages": k.shape[0]})


def attend(
    query: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    table: Tensor,
    q_starts: Tensor,
    lengths: Tensor,
    sinks: Tensor | None,
    *,
    scale: float,
    soft_cap: float = 0.0,
    window: int = 0,
    single: bool = False,
    invariant: bool = False,
) -> None:
    """Attention of a ragged batch over pages: query, out `[tokens, heads, dim]`, request r's tokens from q_starts[r]
    on, its lengths[r] keys in the pages of row r of the table. `single`: a token each; `invariant`: whatever the batch.
    """
    tokens, heads, dim = query.shape
    page_size = k.shape[1]
    max_len = table.shape[1] * page_size
    fields: dict[str, Any] = {"head_dim": dim, "n_heads": heads, "n_kv_heads": k.shape[2], "max_len": max_len}
    fields |= {"q_dtype": _kind(query), "kv_dtype": _kind(k), "page_size": page_size, "page_layout": "nhd"}
    fields |= {"scale": scale, "soft_cap": soft_cap, "window": 0 if window >= max_len else window, "batched": True}
    fields["sinks"] = sinks is not None
    tensors = {"q": query.contiguous(), "page_table": table.contiguous(), "out": out}
    if sinks is not None:
        tensors["sinks"] = sinks
    capacities = {"batch": table.shape[0], "pages": k.shape[0]}
    if single:
        tensors |= {"k_cache": k, "v_cache": v, "seq_lens": lengths}
        _launch(made(IncrementalAttention, batch_invariant=invariant, **fields), tensors, capacities)
        return
    tensors |= {"k": k, "v": v, "kv_lens": lengths, "q_starts": q_starts}
    _launch(
        made(MultiHeadAttention, **fields), tensors, {**capacities, "n_tokens": tokens}, {"n_sequences": table.shape[0]}
    )
