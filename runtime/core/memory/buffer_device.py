"""A device as far as buffers go: how they are made, of this library's memory and of others'."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import SpecError
from ptxgen.runtime.core.device_base import DeviceBase
from ptxgen.runtime.core.memory.allocation import Allocation
from ptxgen.runtime.core.memory.buffer import Buffer, as_shape
from ptxgen.runtime.core.memory.tensor_map import TensorMap, tensor_map


class BufferDevice(DeviceBase):
    """See `Device`, which is what users have."""

    def empty(self, shape: int | tuple[int, ...], dtype: object, stream: object = None) -> Buffer:
        """An uninitialised buffer of `shape` (a number: of one dimension) and `dtype` (a name, such as "f16", or
        NumPy's); with a `stream` (not a captured one) it exists in the order of that stream only. Raises `SpecError`,
        and `CudaError` where the memory is not there."""
        stream = self._uncaptured(stream, "Device.empty", "allocate before, without this stream")
        dims, kind = as_shape("Device.empty", shape), to_dtype(dtype)
        nbytes = math.prod(dims) * kind.bytes
        pointer = self._allocate(max(nbytes, 1), stream)
        allocation = Allocation(self, pointer, max(nbytes, 1))
        if stream is not None:
            allocation.used_on(stream)
        return Buffer(allocation, pointer, dims, kind)

    def zeros(self, shape: int | tuple[int, ...], dtype: object, stream: object = None) -> Buffer:
        """A buffer of zeros; all else as `empty`."""
        return self.empty(shape, dtype, stream).zero(stream)

    def array(self, source: object, dtype: object = None, stream: object = None) -> Buffer:
        """A new buffer with a copy of `source`: a NumPy array or scalar, nested lists, a buffer of any device, or
        anything with `__dlpack__` or `__cuda_array_interface__`. `dtype` converts host data only.
        """
        if not isinstance(source, Buffer | np.ndarray) and _is_device_array(source):
            from ptxgen.runtime.arrays.interop import host_array

            host = host_array(source)
            source = self.wrap(source) if host is None else host
        if not isinstance(source, Buffer):
            wanted = None if dtype is None else to_dtype(dtype).numpy
            try:
                source = np.asarray(source, wanted)
            except (ValueError, TypeError, OverflowError) as bad:
                raise SpecError(f"Device.array: must be an array, or numbers in lists that make one ({bad})") from None
        kind = to_dtype(source.dtype)
        if dtype is not None and to_dtype(dtype) != kind:
            raise SpecError(f"Device.array: a device array keeps its dtype {kind} (got dtype={dtype!r})")
        return self.empty(source.shape, kind, stream).copy_from(source, stream)

    def pointers(self, targets: Sequence[Buffer]) -> Buffer:
        """A u64 array of addresses for "pointers" parameters; it keeps its targets alive, and goes bad with them.

        Raises `SpecError` for what is no buffer of this device.
        """
        if not isinstance(targets, Sequence):
            raise SpecError(f"Device.pointers: must be a list of buffers (got {targets!r})")
        for target in targets:
            if not isinstance(target, Buffer) or target.device is not self:
                raise SpecError(f"Device.pointers: must be buffers on {self.name} (got {target!r})")
        made = self.array(np.array([t.pointer for t in targets], np.uint64))
        made.allocation.point_to({id(t.allocation): t.allocation for t in targets}.values())
        return made

    def wrap(self, source: object) -> Buffer:
        """A buffer over the memory of `source`, without a copy; `source` is kept alive by it.

        Takes a `Buffer`, `__dlpack__`, `__cuda_array_interface__`, and on the CPU device NumPy arrays. The memory must
        be this device's and C-contiguous; `SpecError` says what was expected and what came.
        """
        from ptxgen.runtime.core.memory.wrap import import_buffer

        return import_buffer(self, source)

    def pinned(self, shape: int | tuple[int, ...], dtype: object) -> np.ndarray:
        """An uninitialised page-locked host array, which copies run to and from asynchronously."""
        dims, kind = as_shape("Device.pinned", shape), to_dtype(dtype)
        return self._pinned(math.prod(dims) * kind.bytes).view(kind.numpy).reshape(dims)

    def tensor_map(
        self,
        array: object,
        box: Sequence[int],
        *,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        element_strides: Sequence[int] | None = None,
        dtype: object = None,
        swizzle: int = 0,
        interleave: int = 0,
        oob_fill: str = "zero",
        l2_promotion: int = 0,
    ) -> TensorMap:
        """A descriptor for `cp.async.bulk.tensor` in tile mode, to be passed as a kernel's 128-byte parameter.

        `array`: a buffer, or what `wrap` takes; `box`: elements of a copy, 1 … 256 a dimension. All lists are in the
        array's order, outermost dimension first (PTX's coordinates are innermost first). `shape`, `strides` (bytes, of
        all but the last dimension) and `dtype` describe another view of the same memory. `element_strides`: every n-th
        element is copied. `swizzle` and `interleave` in bytes (0: none); `oob_fill`: "zero" or "nan" outside of the
        array; `l2_promotion`: bytes (a hint). The same `SpecError`s on every device; see cuTensorMapEncodeTiled.
        """
        return tensor_map(
            self, array, box, shape=shape, strides=strides, element_strides=element_strides, dtype=dtype,
            swizzle=swizzle, interleave=interleave, oob_fill=oob_fill, l2_promotion=l2_promotion,
        )  # fmt: skip


def _is_device_array(source: object) -> bool:
    return hasattr(source, "__dlpack__") or hasattr(source, "__cuda_array_interface__")
