"""Arrays of other libraries as buffers, without importing any of them. The opposite is `export.py`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.dtypes import DType
from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import SpecError
from ptxgen.runtime.arrays import dlpack
from ptxgen.runtime.arrays.interop import REFUSALS, checked, contiguous, library, take
from ptxgen.runtime.core.memory.allocation import Allocation
from ptxgen.runtime.core.memory.buffer import Buffer

if TYPE_CHECKING:
    from ptxgen.runtime.core.device_base import DeviceBase

_WITH_CURRENT_STREAM = frozenset({"torch", "cupy"})  # libraries that work on a current stream per device


def import_buffer(device: DeviceBase, source: object) -> Buffer:
    """See `Device.wrap`."""
    if isinstance(source, Buffer):
        source.check_device("wrap", device)
        return source
    device.check()
    if isinstance(source, np.ndarray):
        return _from_numpy(device, source)
    if hasattr(source, "__dlpack__"):
        return _from_dlpack(device, source)
    if device.kind == "cuda" and hasattr(source, "__cuda_array_interface__"):
        return _from_cuda_interface(device, source)
    protocols = "__dlpack__ or __cuda_array_interface__" if device.kind == "cuda" else "__dlpack__"
    raise SpecError(f"wrap: must be a Buffer, or have {protocols} (got {type(source).__name__})")


def argument(device: DeviceBase, label: str, source: object) -> Buffer:
    """`Device.wrap` of an argument; what is wrong with it is said under its name."""
    try:
        return import_buffer(device, source)
    except SpecError as wrong:
        raise SpecError(f"{label}: {str(wrong).removeprefix('wrap: ')}") from None


def _from_numpy(device: DeviceBase, array: np.ndarray) -> Buffer:
    if device.kind != "cpu":
        raise SpecError(f"wrap: must be memory of {device.name} (got a NumPy array; device.array(x) copies it)")
    if not array.flags.c_contiguous:
        raise SpecError(f"wrap: must be C-contiguous (got shape {array.shape}, strides {array.strides})")
    return _buffer(device, array, array.ctypes.data, array.shape, to_dtype(array.dtype), not array.flags.writeable)


def _from_dlpack(device: DeviceBase, source: Any) -> Buffer:
    kind, index = source.__dlpack_device__()
    wanted = (dlpack.CUDA, dlpack.CUDA_MANAGED) if device.kind == "cuda" else (dlpack.CPU,)
    if kind not in wanted or (device.kind == "cuda" and index != device.index):
        where = {dlpack.CPU: "host memory", dlpack.CUDA: f"cuda:{index}"}.get(kind, f"DLPack device {kind}:{index}")
        raise SpecError(f"wrap: must be memory of {device.name} (got {type(source).__name__} in {where})")
    stream = None
    if device.kind == "cuda":  # -1: no synchronisation, for libraries whose current stream is used or waited for
        stream = -1 if library(source) in _WITH_CURRENT_STREAM else device.default_stream.handle
    try:
        taken = take(source, stream)
    except REFUSALS as refused:
        return _from_pointer(device, source, refused)
    dtype, _ = checked("wrap", source, taken)
    buffer = _buffer(device, source, taken.pointer, taken.shape, dtype, taken.readonly, taken)
    if stream not in (None, -1):
        buffer.allocation.used_on(device.default_stream)  # it waits for the producer, and readers wait for it
    return buffer


def _from_pointer(device: DeviceBase, source: Any, refused: Exception) -> Buffer:
    """A tensor whose library has no DLPack code for its element type, but says address, shape and type (torch fp8)."""
    if not hasattr(source, "data_ptr") or getattr(source, "requires_grad", False):
        raise SpecError(f"wrap: {type(source).__name__} gives no memory: {refused}") from refused
    if not source.is_contiguous():
        raise SpecError(f"wrap: must be C-contiguous (got shape {tuple(source.shape)}, strides {source.stride()})")
    dtype = to_dtype(str(source.dtype).rpartition(".")[2])
    return _buffer(device, source, source.data_ptr(), tuple(source.shape), dtype, False)


def _from_cuda_interface(device: DeviceBase, source: Any) -> Buffer:
    """CUDA Array Interface, versions 2 and 3 (Numba documentation)."""
    said = source.__cuda_array_interface__
    if said.get("mask") is not None:
        raise SpecError("wrap: must have no mask (got a __cuda_array_interface__ with one)")
    dtype, shape = to_dtype(np.dtype(said["typestr"])), tuple(said["shape"])
    strides = said.get("strides")
    if strides is not None and not contiguous(shape, tuple(s // dtype.bytes for s in strides)):
        raise SpecError(f"wrap: must be C-contiguous (got shape {shape}, strides {strides} bytes)")
    pointer, readonly = said["data"]
    if pointer and 0 not in shape:
        device._check_memory(type(source).__name__, pointer)
    buffer = _buffer(device, source, pointer or 0, shape, dtype, bool(readonly))
    stream = said.get("stream")
    if stream is not None and library(source) not in _WITH_CURRENT_STREAM:
        device.check()
        device.default_stream.wait(device._foreign_stream(stream))
        buffer.allocation.used_on(device.default_stream)
    return buffer


def _buffer(
    device: DeviceBase,
    source: object,
    pointer: int,
    shape: tuple[int, ...],
    dtype: DType,
    readonly: bool,
    keep: object = None,
) -> Buffer:
    nbytes = max(math.prod(shape) * dtype.bytes, 1)
    allocation = Allocation(device, pointer, nbytes, (source, keep), readonly)
    device._adopt(pointer, nbytes, readonly)
    producer = library(source)
    if device.kind == "cuda" and producer in _WITH_CURRENT_STREAM:
        allocation.library = producer
        allocation.used_on(device._current_stream_of(producer))
    return Buffer(allocation, pointer, tuple(int(n) for n in shape), dtype)
