"""Buffers as arrays of other libraries: DLPack, and the CUDA array interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ptxgen.runtime.arrays import dlpack
from ptxgen.runtime.core.memory.stream_order import after_others
from ptxgen.runtime.core.stream import Stream

if TYPE_CHECKING:
    from ptxgen.dtypes import DType
    from ptxgen.runtime.core.device_base import DeviceBase
    from ptxgen.runtime.core.memory.allocation import Allocation


class Exported(Protocol):
    """What is asked of a buffer: `Buffer` has it."""

    allocation: Allocation
    shape: tuple[int, ...]
    dtype: DType

    @property
    def device(self) -> DeviceBase:
        """The device whose memory it is."""

    @property
    def pointer(self) -> int:
        """Address of its first element."""

    @property
    def readonly(self) -> bool:
        """Whether it must not be written."""


def export_dlpack(buffer: Exported, stream: object, max_version: tuple[int, int] | None) -> object:
    """`Buffer.__dlpack__`: the consumer's stream waits for all work on the buffer (None: legacy; -1: no wait)."""
    device = buffer.device
    if device.kind == "cuda" and stream != -1:
        consumer = device._consumer_stream(1 if stream is None else stream)  # 1 is CU_STREAM_LEGACY
        after_others(consumer, (buffer.allocation,))
        buffer.allocation.used_on(consumer)
    versioned = max_version is not None and max_version[0] >= 1
    where = dlpack_device(device)
    return dlpack.give(_Shared(buffer), buffer.pointer, buffer.shape, buffer.dtype, where, buffer.readonly, versioned)


class _Shared:
    """A buffer in a consumer's hands; it cannot be freed by hand meanwhile."""

    def __init__(self, buffer: Exported) -> None:
        self.buffer = buffer
        buffer.allocation.exports += 1

    def __del__(self) -> None:
        self.buffer.allocation.exports -= 1


def dlpack_device(device: DeviceBase) -> tuple[int, int]:
    """The array's device as DLPack has it: (DLDeviceType, index)."""
    return (dlpack.CUDA, device.index) if device.kind == "cuda" else (dlpack.CPU, 0)


def export_cuda_interface(buffer: Exported) -> dict[str, object]:
    """`Buffer.__cuda_array_interface__`, version 3. Element types that it cannot name are an `AttributeError`."""
    device = buffer.device
    if device.kind != "cuda" or buffer.dtype.numpy.kind not in "iuf":
        raise AttributeError(f"__cuda_array_interface__: not for {buffer.dtype} on {device.name}")
    ready: Stream = device.default_stream
    after_others(ready, (buffer.allocation,))
    return {
        "shape": buffer.shape,
        "typestr": buffer.dtype.numpy.str,
        "data": (buffer.pointer, buffer.readonly),
        "version": 3,
        "strides": None,
        "stream": ready.handle,
    }
