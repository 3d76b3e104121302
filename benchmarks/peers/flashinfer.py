"""FlashInfer in the decode attention benchmark: single, batch on pages of 16, with and without tensor cores, and XQA.

FlashInfer compiles a module for each element type and head_dim (XQA: also group and page size) when it is first used,
which takes nvcc minutes. So only the types and sizes below take part, and `prepare` compiles them side by side.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from benchmarks.cases.decode import Case, Inputs
from benchmarks.peers.decode import Implementation, Measured, Refused, timed

PAGE = 16
HEAD_DIMS = (64, 128)
XQA = (128, 4)  # head_dim, group
WORKSPACE = 384 << 20  # bytes


def why_not() -> str:
    """Why FlashInfer cannot take part; nothing when it can."""
    try:
        import flashinfer  # noqa: F401
    except ImportError as missing:
        return f"not installed ({missing})"
    except Exception as broken:  # it looks at CUDA, nvcc and cuDNN when it is imported
        return f"cannot be imported ({str(broken).splitlines()[0]})"
    return ""


def refusal(case: Case, kind: str) -> str:
    """Why the case is not run by this kind of kernel; nothing when it is."""
    if case.kv_dtype not in ("f16", "e4m3"):
        return "measured in f16 and e4m3 (each element type is minutes of nvcc)"
    if kind == "xqa" and (case.head_dim, case.group) != XQA:
        return "measured for head_dim 128 and groups of 4 (each shape is minutes of nvcc)"
    if case.head_dim not in HEAD_DIMS:
        return "head_dim: 64, 128 and 256 are supported" if case.head_dim % 64 else "measured for head_dim 64 and 128"
    if case.capacity:
        return "measured where the cache is full"
    if kind.startswith("single") and (case.batch > 1 or case.page_size or case.kv_dtype != "f16"):
        return "one sequence that is not paged, f16"
    if kind == "xqa" and case.page_size not in (0, PAGE):
        return "measured on pages of 16"
    return ""


@dataclass(frozen=True)
class Work:
    """Calls to time: one for each of `caches`; `out` is where they write, if they do not return it."""

    call_of: Callable[[Any], Callable[[], Any]]
    caches: list[Any]
    out: Any = None


def flashinfer(kind: str) -> Implementation:
    """One of FlashInfer's ways: single, single-tc, batch, batch-tc, xqa."""

    def measure(inputs: Inputs) -> Measured:
        reason = why_not() or refusal(inputs.case, kind)
        if reason:
            raise Refused(reason)
        work = _work(inputs, kind)
        return timed(inputs, work.call_of, work.caches, work.out)

    return measure


def _work(inputs: Inputs, kind: str) -> Work:
    if kind.startswith("single"):
        return _single(inputs, tensor_cores=kind.endswith("-tc"))
    return _xqa(inputs) if kind == "xqa" else _batch(inputs, tensor_cores=kind.endswith("-tc"))


def _single(inputs: Inputs, *, tensor_cores: bool) -> Work:
    from flashinfer import single_decode_with_kv_cache

    def call(kv: dict[str, Any]) -> Callable[[], Any]:
        k, v = kv["k_cache"][0], kv["v_cache"][0]
        return lambda: single_decode_with_kv_cache(inputs.q[0], k, v, kv_layout="HND", use_tensor_cores=tensor_cores)

    return Work(call, inputs.caches)


def _batch(inputs: Inputs, *, tensor_cores: bool) -> Work:
    import torch
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    case, page = inputs.case, inputs.case.page_size or PAGE
    counts = [-(-length // page) for length in case.lengths]
    starts = torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device="cuda")
    tails = [length - (count - 1) * page for length, count in zip(case.lengths, counts, strict=True)]
    last, indices = torch.tensor(tails, dtype=torch.int32, device="cuda"), _indices(inputs, counts)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda"), "HND", use_cuda_graph=True,
        use_tensor_cores=tensor_cores, paged_kv_indptr_buffer=starts.clone(), paged_kv_indices_buffer=indices.clone(),
        paged_kv_last_page_len_buffer=last.clone(),
    )  # fmt: skip
    kind = inputs.caches[0]["k_cache"].dtype
    wrapper.plan(
        starts, indices, last, case.n_heads, case.n_kv_heads, case.head_dim, page, pos_encoding_mode="NONE",
        kv_data_type=kind, q_data_type=inputs.q.dtype,
    )  # fmt: skip
    return Work(lambda kv: lambda: wrapper.run(inputs.q, kv), list(_paged(inputs, counts, page)))


def _xqa(inputs: Inputs) -> Work:
    import torch
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    case, page = inputs.case, inputs.case.page_size or PAGE
    counts = [-(-length // page) for length in case.lengths]
    table = torch.zeros(case.batch, max(counts), dtype=torch.int32, device="cuda")
    indices, start = _indices(inputs, counts), 0
    for row, count in enumerate(counts):
        table[row, :count] = indices[start : start + count]
        start += count
    lengths = torch.tensor(case.lengths, dtype=torch.int32, device="cuda").view(torch.uint32)
    workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device="cuda")
    out = torch.empty_like(inputs.q)

    def call(kv: tuple[Any, Any]) -> Callable[[], Any]:
        return lambda: xqa_batch_decode_with_kv_cache(
            inputs.q, kv, workspace, table, lengths, max(counts) * page, bmm1_scale=1 / math.sqrt(case.head_dim),
            bmm2_scale=1.0, out=out, kv_layout="HND",
        )  # fmt: skip

    return Work(call, list(_paged(inputs, counts, page)), out)


def _indices(inputs: Inputs, counts: list[int]) -> Any:
    """Page numbers of all sequences, one after the other."""
    import torch

    if not inputs.case.page_size:
        return torch.arange(sum(counts), dtype=torch.int32, device="cuda")
    return torch.cat([row[:count] for row, count in zip(inputs.table, counts, strict=True)])


def _paged(inputs: Inputs, counts: list[int], page: int) -> Iterator[tuple[Any, Any]]:
    """K and V of every set as `[pages, n_kv_heads, page, head_dim]`; caches that are not paged are cut up."""
    import torch

    case = inputs.case

    def pages(cache: Any) -> Any:
        if case.page_size:
            return cache
        cut = (rows[:, : n * page].unflatten(1, (n, page)) for rows, n in zip(cache, counts, strict=True))
        return torch.cat([rows.transpose(0, 1) for rows in cut]).contiguous()

    for kv in inputs.caches:
        yield pages(kv["k_cache"]), pages(kv["v_cache"])


KINDS = ("single", "single-tc", "batch", "batch-tc", "xqa")
IMPLEMENTATIONS: dict[str, Implementation] = {f"flashinfer-{kind}": flashinfer(kind) for kind in KINDS}


def prepare(cases: Iterable[Case], kinds: Iterable[str] = KINDS) -> list[str]:
    """Compile what these cases need, side by side; returns what failed, one line each."""
    if why_not():
        return []
    os.environ.setdefault("MAX_JOBS", "2")  # of each ninja: there is one for every module
    wanted: dict[tuple[str, int, str], Case] = {}
    for case in cases:
        for kind in kinds:
            if not refusal(case, kind):
                small = Case(case.n_heads, case.n_kv_heads, case.head_dim, 1, 64, case.kv_dtype)
                wanted.setdefault((kind, case.head_dim, case.kv_dtype), small)

    def compile_one(job: tuple[tuple[str, int, str], Case]) -> str:
        (kind, head_dim, dtype), case = job
        try:
            work = _work(Inputs(case), kind)
            work.call_of(work.caches[0])()
        except Exception as failed:  # whatever a compiler or a driver says
            return f"flashinfer-{kind} head_dim {head_dim} {dtype}: {str(failed).splitlines()[0]}"
        return ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(filter(None, pool.map(compile_one, wanted.items())))
