"""Prefill attention of others: torch's SDPA and FlashInfer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.cases.prefill import Inputs, sequences

WORKSPACE = 384 << 20  # bytes that FlashInfer's batches take


@dataclass
class Ready:
    """An implementation on a case: a call for each set, and where the first leaves its result, a tensor `[heads,
    tokens, head_dim]` for every sequence. `comparable`: it computes what is asked for."""

    calls: Sequence[Callable[[], Any]]
    result: Callable[[], Sequence[Any]]
    close: Callable[[], None] = lambda: None
    comparable: bool = True


Prepare = Callable[[Inputs], Ready]


class Declined(Exception):
    """An implementation is not for this case."""


def sdpa(backend: str, masked: bool = True) -> Prepare:
    """torch's scaled_dot_product_attention with one of its backends; not `masked`: a chunk without its mask."""

    def prepare(inputs: Inputs) -> Ready:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.bias import causal_lower_right

        [(tokens, keys), *_] = lengths = sequences(inputs.case)
        is_chunk = any(n != m for n, m in lengths)
        if is_chunk != (not masked) and backend != "FLASH_ATTENTION":
            raise Declined
        causal = inputs.case.get("causal", True)
        how: dict[str, Any] = {"is_causal": causal}
        if is_chunk:
            how = {"attn_mask": causal_lower_right(tokens, keys)} if masked else {}

        def call(each: Sequence[Sequence[Any]]) -> list[Any]:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                attend = torch.nn.functional.scaled_dot_product_attention
                return [attend(q, k, v, enable_gqa=True, **how)[0] for q, k, v in each]

        calls = [partial(call, each) for each in inputs.sets]
        return Ready(calls, lambda: calls[0](), comparable=masked)

    return prepare


def varlen(inputs: Inputs) -> Ready:
    """torch's FlashAttention 2 of all sequences in one launch, one after the other in memory."""
    import torch

    lengths = sequences(inputs.case)
    bounds, starts = (
        torch.tensor(list(itertools.accumulate((each[n] for each in lengths), initial=0)), device="cuda").int()
        for n in (0, 1)
    )
    longest = [max(each[n] for each in lengths) for n in (0, 1)]
    causal = inputs.case.get("causal", True)

    def call(q: Any, k: Any, v: Any) -> Any:
        attend = torch.ops.aten._flash_attention_forward
        return attend(q, k, v, bounds, starts, *longest, 0.0, causal, False)[0]

    def joined(some: Sequence[Sequence[Any]], n: int) -> Any:
        """`[tokens, heads, head_dim]` of all sequences."""
        return torch.cat([each[n][0].transpose(0, 1) for each in some]).contiguous()

    calls = [partial(call, *(joined(some, n) for n in range(3))) for some in inputs.sets]

    def result() -> list[Any]:
        out, at = calls[0](), bounds.tolist()
        return [out[a:b].transpose(0, 1) for a, b in itertools.pairwise(at)]

    return Ready(calls, result)


def flashinfer(inputs: Inputs) -> Ready:
    """FlashInfer's single prefill, or its batch prefill over rows or pages; it picks its own template."""
    import flashinfer as peers

    if "lengths" in inputs.case:
        return flashinfer_batch(inputs)
    sets = [[x[0].transpose(0, 1).contiguous() for x in each] for [each] in inputs.sets]
    causal = inputs.case.get("causal", True)
    calls = [partial(peers.single_prefill_with_kv_cache, *each, causal=causal) for each in sets]
    return Ready(calls, lambda: [calls[0]().transpose(0, 1)])


def flashinfer_batch(inputs: Inputs) -> Ready:
    """Sequences one after the other, over rows or over pages in no order."""
    import flashinfer as peers
    import torch

    case = inputs.case
    lengths, page = case["lengths"], case.get("page_size", 0)
    bounds = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    starts = torch.tensor(bounds, device="cuda", dtype=torch.int32)
    heads = (case["n_heads"], case["n_kv_heads"], case["head_dim"])
    types = {"causal": True, "q_data_type": inputs.sets[0][0][0].dtype, "kv_data_type": inputs.sets[0][0][1].dtype}
    room = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")
    if page:
        counts = [-(-length // page) for length in lengths]
        ends = torch.tensor([sum(counts[:n]) for n in range(len(counts) + 1)], device="cuda", dtype=torch.int32)
        table = torch.randperm(sum(counts), device="cuda")
        last = torch.tensor(
            [length - (count - 1) * page for length, count in zip(lengths, counts, strict=True)],
            device="cuda", dtype=torch.int32,
        )  # fmt: skip
        wrapper = peers.BatchPrefillWithPagedKVCacheWrapper(room, "HND")
        wrapper.plan(starts, ends, table.to(torch.int32), last, *heads, page, **types)

        def keys(rows: Sequence[Any]) -> Any:
            """`[pages, heads, page, head_dim]`."""
            cut = [torch.nn.functional.pad(x[0], (0, 0, 0, -x.shape[2] % page)).unflatten(1, (-1, page)) for x in rows]
            in_order = torch.cat([x.transpose(0, 1) for x in cut])
            return torch.empty_like(in_order).index_copy_(0, table, in_order)

    else:
        wrapper = peers.BatchPrefillWithRaggedKVCacheWrapper(room, "NHD")
        wrapper.plan(starts, starts, *heads, **types)

        def keys(rows: Sequence[Any]) -> Any:
            """`[keys, heads, head_dim]`."""
            return torch.cat([x[0].transpose(0, 1) for x in rows])

    calls: list[Callable[[], Any]] = []
    for each in inputs.sets:
        q = torch.cat([q[0].transpose(0, 1) for q, _, _ in each])
        k, v = (keys([rows[x] for rows in each]) for x in (1, 2))
        calls.append(partial(wrapper.run, q, (k, v)) if page else partial(wrapper.run, q, k, v))

    def result() -> list[Any]:
        out = calls[0]()
        return [out[a:b].transpose(0, 1) for a, b in itertools.pairwise(bounds)]

    return Ready(calls, result)
