"""`torch.library` operators on our kernels: decode attention, KV append, RoPE, argmax. Importing this imports torch.

All run on torch's current stream, allocate only their results, and can be captured in a `torch.cuda.graph` and compiled
with `torch.compile(fullgraph=True)`. CPU tensors run on the CPU executor. Nothing is differentiable. Calls of the same
shapes on one stream share scratch memory, also where they are captured: do not replay two such graphs at a time.
"""

# No `from __future__ import annotations`: torch reads the annotations as types.
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ptxgen.errors import SpecError
from ptxgen.kernel import KernelType
from ptxgen.kernels import ArgMax, IncrementalAttention, KvCacheScatter, Rope
from ptxgen.models.attention import program_of
from ptxgen.runtime import BoundKernel, Device, open_device
from ptxgen.runtime.core.step import Step

_lock = threading.Lock()
_cpu: list[Device] = []
_bound: "dict[tuple[Any, ...], _Prepared]" = {}
_captured: list[BoundKernel] = []  # what a torch graph was recorded with lives as long as the process
_REMEMBERED = 512


@torch.library.custom_op("ptxgen::decode_attention", mutates_args=())
def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens: Tensor,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    page_table: Tensor | None = None,
    scale: float | None = None,
    soft_cap: float = 0.0,
    window: int = 0,
) -> Tensor:
    """softmax(scale · q·Kᵀ)·V over the first `seq_lens` positions of each sequence; like q.

    q `[batch, n_heads, head_dim]`, caches `[batch, n_kv_heads, max_len, head_dim]`, seq_lens int32 `[batch]`; paged:
    caches `[pages, n_kv_heads, page_size, head_dim]` and page_table int32 `[batch, entries]`; int8 caches with f16
    scales. Options as `IncrementalAttention` has them.
    """
    _check_rank("decode_attention", 3, q=q)
    _check_rank("decode_attention", 4, k_cache=k_cache, v_cache=v_cache)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    spec = IncrementalAttention(
        head_dim=q.shape[2], n_heads=q.shape[1], n_kv_heads=k_cache.shape[1], q_dtype=_kind(q), kv_dtype=_kind(k_cache),
        batched=True, scale=scale, soft_cap=soft_cap, window=window, **_storage(k_cache, page_table),
    )  # fmt: skip
    tensors = {"q": q.contiguous(), "k_cache": k_cache, "v_cache": v_cache, "out": out, "seq_lens": seq_lens}
    optional = {"k_scales": k_scales, "v_scales": v_scales, "page_table": page_table}
    capacities = {"batch": q.shape[0]} | ({} if page_table is None else {"pages": k_cache.shape[0]})
    _launch(spec, tensors | {n: t for n, t in optional.items() if t is not None}, capacities)
    return out


@decode_attention.register_fake
def _(q: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


# No defaults: torch counts versions of mutated arguments by position, and trailing defaults are not passed on.
@torch.library.custom_op("ptxgen::kv_append", mutates_args=("k_cache", "v_cache", "k_scales", "v_scales"))
def _kv_append(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    positions: Tensor,
    k_scales: Tensor | None,
    v_scales: Tensor | None,
    page_table: Tensor | None,
) -> None:
    _check_rank("kv_append", 3, k=k, v=v)
    _check_rank("kv_append", 4, k_cache=k_cache, v_cache=v_cache)
    spec = KvCacheScatter(
        head_dim=k.shape[2], n_kv_heads=k.shape[1], kv_dtype=_kind(k_cache), src_dtype=_kind(k), batched=True,
        **_storage(k_cache, page_table),
    )  # fmt: skip
    tensors = {"k": k.contiguous(), "v": v.contiguous(), "k_cache": k_cache, "v_cache": v_cache, "positions": positions}
    optional = {"k_scales": k_scales, "v_scales": v_scales, "page_table": page_table}
    capacities, scalars = {"rows": k.shape[0]}, {}
    if page_table is not None:
        capacities["pages"] = scalars["n_pages"] = k_cache.shape[0]
    _launch(spec, tensors | {n: t for n, t in optional.items() if t is not None}, capacities, scalars)


@_kv_append.register_fake
def _(*_: Any, **__: Any) -> None:
    return None


def kv_append(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    positions: Tensor,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    page_table: Tensor | None = None,
) -> None:
    """Write k, v `[batch, n_kv_heads, head_dim]` to each sequence's cache at positions int32 `[batch]`, in place.

    Caches, scales and pages as `decode_attention` has them. A position outside the cache writes nothing.
    """
    _kv_append(k, v, k_cache, v_cache, positions, k_scales, v_scales, page_table)


@torch.library.custom_op("ptxgen::rope", mutates_args=())
def rope(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    theta: float = 10000.0,
    style: str = "neox",
    rotary_dim: int | None = None,
    scaling: str = "default",
    factor: float = 1.0,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    original_max_len: int = 8192,
) -> tuple[Tensor, Tensor]:
    """q `[rows, n_heads, head_dim]` and k `[rows, n_kv_heads, head_dim]` rotated to positions int32 `[rows]`.

    Options as `Rope` has them: style "neox" (split halves) or "norm" (adjacent pairs), scaling "llama3" and others.
    """
    _check_rank("rope", 3, q=q, k=k)
    outs = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k)]
    spec = Rope(
        head_dim=q.shape[2], n_heads=q.shape[1], n_kv_heads=k.shape[1], dtype=_kind(q), theta=theta, style=style,
        rotary_dim=rotary_dim, scaling=scaling, factor=factor, low_freq_factor=low_freq_factor,
        high_freq_factor=high_freq_factor, original_max_len=original_max_len, in_place=False, batched=True,
    )  # fmt: skip
    tensors = {"q": q.contiguous(), "k": k.contiguous(), "q_out": outs[0], "k_out": outs[1], "positions": positions}
    _launch(spec, tensors, {"rows": q.shape[0]})
    return outs[0], outs[1]


@rope.register_fake
def _(q: Tensor, k: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    layout = torch.contiguous_format
    return torch.empty_like(q, memory_format=layout), torch.empty_like(k, memory_format=layout)


@torch.library.custom_op("ptxgen::argmax", mutates_args=())
def argmax(x: Tensor) -> Tensor:
    """Index of the largest of the last axis, int32; the lowest among equals, and a NaN counts as largest."""
    if not x.dim():
        raise SpecError("ptxgen::argmax: x must have an axis (got a scalar)")
    out = x.new_empty(x.shape[:-1], dtype=torch.int32)
    rows = x.contiguous().view(-1, x.shape[-1])
    _launch(ArgMax(n=x.shape[-1], dtype=_kind(x)), {"x": rows, "out": out.view(-1)}, {"rows": rows.shape[0]})
    return out


@argmax.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.int32)


def _check_rank(operator: str, rank: int, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dim() != rank:
            raise SpecError(f"ptxgen::{operator}: {name} must have {rank} axes (got shape {list(tensor.shape)})")


def _kind(tensor: Tensor) -> str:
    """The element type's name, as our dtypes know it."""
    return _name(tensor.dtype)


@lru_cache
def _name(kind: object) -> str:
    return str(kind).rpartition(".")[2]


def _storage(cache: Tensor, page_table: Tensor | None) -> dict[str, int]:
    """`max_len` and `page_size` of a contiguous or paged cache."""
    if page_table is None:
        return {"max_len": cache.shape[2]}
    return {"max_len": page_table.shape[1] * cache.shape[2], "page_size": cache.shape[2]}


def _launch(
    spec: KernelType, tensors: dict[str, Tensor], capacities: dict[str, int], scalars: dict[str, int] | None = None,
    growing: tuple[str, ...] = (),
) -> "_Prepared | None":  # fmt: skip
    """One launch on torch's current stream. Bound kernels and their workspaces are kept per stream; tensors that are
    `growing` may have another shape in the next call, within the capacities. On a GPU what was launched, for callers
    that know when a call is like the one before."""
    first = next(iter(tensors.values()))
    for name, tensor in tensors.items():
        if tensor.device != first.device or not tensor.is_contiguous():
            want = f"contiguous, on {first.device}"
            raise SpecError(f"{spec.kernel_name}({name}): must be {want} (got {tensor.device}, {tensor.stride()})")
    if first.device.type == "cpu":
        _step(_on_cpu(), spec, tensors, capacities, scalars or {}).launch()
        return None
    index = first.device.index
    stream = torch._C._cuda_getCurrentRawStream(index)
    addresses = [tensor.data_ptr() for tensor in tensors.values()]
    layout = tuple(
        (name, t.dtype, None if name in growing else t.shape, address & 15)
        for (name, t), address in zip(tensors.items(), addresses, strict=True)
    )
    key = (spec, index, stream, layout, *capacities.items())  # what bind has checked holds for all of the same layout
    prepared = _bound.get(key)
    if prepared is None:
        device: Any = open_device(f"cuda:{index}")
        relaxed = device.relaxed() if _is_capturing(index) else nullcontext()  # what it does is not on captured streams
        with _lock, relaxed:
            prepared = _Prepared(device, spec, tensors, capacities, scalars or {}, growing)
            if len(_bound) >= _REMEMBERED:
                _bound.clear()
            _bound[key] = prepared
    prepared.launch([*addresses, *(scalars or {}).values()], index, stream)
    return prepared


class _Prepared:
    """A bound launch, and where its block has the arguments that change from call to call."""

    def __init__(
        self, device: Device, spec: KernelType, tensors: Mapping[str, Tensor], capacities: dict[str, int],
        scalars: Mapping[str, int], growing: tuple[str, ...],
    ) -> None:  # fmt: skip
        given = {name: t.data_ptr() if name in growing else t for name, t in tensors.items()}
        step = _step(device, spec, given, capacities, scalars)
        step.update(**{name: t.data_ptr() for name, t in tensors.items()})  # addresses alone: no tensor is kept alive
        self.bound = step.launches[0]
        index = {param.name: i for i, param in enumerate(spec.params())}
        self._write = self.bound.block.writer([index[name] for name in (*tensors, *scalars)])

    def launch(self, values: Sequence[int], index: int, stream: int) -> None:
        """With tensors at these addresses, in the order of the first ones, and behind them scalars within the
        capacities, on a stream of the device `index`."""
        if _is_capturing(index) and self.bound not in _captured:
            _captured.append(self.bound)
        self.launch_uncaptured(values, stream)

    def launch_uncaptured(self, values: Sequence[int], stream: int) -> None:
        """The same on a stream that is not being captured."""
        with _lock:  # another thread may launch the same on this stream
            self._write(values)
            self.bound.launch(stream)


def _is_capturing(index: int) -> bool:
    """Whether the current stream of a device is being captured; torch answers for the current device alone."""
    if torch._C._cuda_getDevice() == index:  # without torch.cuda's check that CUDA is initialised: tensors are there
        return bool(torch._C._cuda_isCurrentStreamCapturing())
    with torch.cuda.device(index):
        return bool(torch.cuda.is_current_stream_capturing())


def _step(
    device: Device, spec: KernelType, tensors: Mapping[str, Tensor | int], capacities: dict[str, int],
    scalars: Mapping[str, int],
) -> Step:  # fmt: skip
    """A kernel over these tensors, as the one launch of a Program."""
    return Step(device, program_of((spec.kernel_name, spec), sizes=capacities), {**tensors, **scalars})


def _on_cpu() -> Device:
    with _lock:
        if not _cpu:
            _cpu.append(open_device("cpu"))
        return _cpu[0]
