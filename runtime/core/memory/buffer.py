"""`Buffer`: a typed, contiguous view of device memory. Owns no memory: that is `Allocation`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.dtypes import DType
from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import CudaError, SpecError
from ptxgen.integers import as_index
from ptxgen.runtime.core.backend import Copy
from ptxgen.runtime.core.memory.allocation import Allocation
from ptxgen.runtime.core.scalars import pack_scalar
from ptxgen.runtime.core.stream import Stream

if TYPE_CHECKING:
    from ptxgen.runtime.core.device_base import DeviceBase


class Buffer:
    """A C-contiguous array in device memory: `shape`, `dtype`, `pointer` (its address on the device).

    Without a `stream`, reads and writes wait for all earlier work on the buffer and are complete on return. With one,
    they are ordered in that stream, and the host goes on as soon as the driver allows. Slices by leading ints and one
    slice share memory with the buffer. A `stream` is one of the device, or another library's.
    """

    __slots__ = ("__weakref__", "_pointer", "allocation", "dtype", "nbytes", "shape")

    def __init__(self, allocation: Allocation, pointer: int, shape: tuple[int, ...], dtype: DType) -> None:
        self.allocation = allocation
        self._pointer = pointer
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.bytes

    @property
    def device(self) -> DeviceBase:
        """The device whose memory this is."""
        return self.allocation.device

    @property
    def pointer(self) -> int:
        """Address of the first element on the device; raises `CudaError` after `free`."""
        if self.allocation.lost is not None:
            gone = "was freed" if self.allocation.freed else self.allocation.lost
            raise CudaError(f"{self!r}: {gone}; allocate a new one")
        return self._pointer

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def readonly(self) -> bool:
        """Whether the producer of this memory forbids writing it."""
        return self.allocation.readonly

    def free(self) -> None:
        """Give the memory back; this buffer, its views and what was bound to them raise when used again."""
        self.allocation.free()

    def numpy(self, out: np.ndarray | None = None, stream: object = None) -> np.ndarray:
        """A host copy `[shape]`; with `out` (contiguous, same dtype and shape) it is filled and returned.

        With a `stream`, page-locked `out` (see `Device.pinned`) is filled asynchronously.
        """
        if out is None:
            out = np.empty(self.shape, self.dtype.numpy)
        self._check_host("numpy(out)", out)
        check_writable("Buffer.numpy(out)", out)
        stream = self.device._given(stream)
        if self.nbytes:
            self._copy(Copy("out", out.ctypes.data, self.pointer, self.nbytes), stream, keep=out)
            if stream is not None and not stream.capturing and not self.device._is_pinned(out):
                stream.synchronize()
        return out

    def reader(self, out: np.ndarray, stream: Stream) -> Callable[[], None]:
        """Checks `out` once; every call then copies the buffer to it on `stream`, and where `out` is page-locked only
        submits that."""
        self._check_host("reader(out)", out)
        check_writable("Buffer.reader(out)", out)
        copy = Copy("out", out.ctypes.data, self.pointer, self.nbytes)
        self._note(stream)
        again = self.device._prepared_copy(copy, stream)

        def read() -> None:
            if self.allocation.lost is not None:
                _ = self.pointer  # says what is wrong
            again()

        return read

    def copy_from(self, source: object, stream: object = None) -> Buffer:
        """Overwrite with a NumPy array or a buffer of the same dtype and shape; returns the buffer itself.

        A host array may be changed as soon as this returns, unless it is page-locked and a `stream` is given; recorded,
        it is read at every replay. From another device it goes through the host, complete on return.
        """
        if self.readonly:
            raise SpecError(f"Buffer.copy_from: the buffer must be writable (got {self!r} over read-only memory)")
        if not isinstance(source, Buffer | np.ndarray):
            source = self.device.wrap(source)
            assert isinstance(source, Buffer)
        stream = self.device._given(stream)
        if isinstance(source, Buffer) and source.device is self.device:
            self._check_like("copy_from", source.shape, source.dtype)
            if self.nbytes:
                self._copy(Copy("on", self.pointer, source.pointer, self.nbytes), stream, source)
            return self
        if isinstance(source, Buffer) or not source.flags.c_contiguous:  # a replay would copy what it holds now
            self.device._uncaptured(stream, "Buffer.copy_from", "give a C-contiguous array, or one of this device")
        host = source.numpy() if isinstance(source, Buffer) else source
        array = np.ascontiguousarray(host).reshape(host.shape)
        self._check_host("copy_from", array)
        if self.nbytes:
            self._copy(Copy("in", self.pointer, array.ctypes.data, self.nbytes), stream, keep=array)
        return self

    def fill(self, value: float, stream: object = None) -> Buffer:
        """Set every element to `value`, one number that the dtype has; returns the buffer.

        Elements of 8 bytes take only values of one repeated byte, such as 0.
        """
        if self.readonly:
            raise SpecError(f"Buffer.fill: the buffer must be writable (got {self!r} over read-only memory)")
        pattern = pack_scalar("Buffer.fill", value, self.dtype)
        if len(set(pattern)) == 1:
            pattern = pattern[:1]
        if len(pattern) == 8:
            raise SpecError(f"Buffer.fill: 8-byte elements can only be filled with one repeated byte (got {value!r})")
        stream = self.device._given(stream)
        if self.nbytes:
            after = self._note(stream)
            self.device._fill(self.pointer, pattern, self.nbytes // len(pattern), stream, after)
        return self

    def zero(self, stream: object = None) -> Buffer:
        """Set every byte to zero; returns the buffer."""
        return self.fill(0, stream)

    def view(self, shape: int | tuple[int, ...], dtype: object = None, offset: int = 0) -> Buffer:
        """The same memory from `offset` bytes on, as `shape` of `dtype` (default: this one's); bounds are checked."""
        kind = self.dtype if dtype is None else to_dtype(dtype)
        dims = as_shape("Buffer.view", shape)
        if as_index(offset) is None:
            raise SpecError(f"Buffer.view: offset must be an int, in bytes (got {offset!r})")
        if offset < 0 or offset + math.prod(dims) * kind.bytes > self.nbytes:
            need = f"{dims} of {kind} at offset {offset}"
            raise SpecError(f"Buffer.view: must lie within {self.nbytes} bytes (got {need})")
        return Buffer(self.allocation, self.pointer + offset, dims, kind)

    def reshape(self, *shape: int) -> Buffer:
        """The same elements in another shape."""
        dims = as_shape("Buffer.reshape", shape)
        if math.prod(dims) != self.size:
            raise SpecError(f"Buffer.reshape: must keep {self.size} elements (got {shape})")
        return self.view(dims)

    def __getitem__(self, index: object) -> Buffer:
        parts = index if isinstance(index, tuple) else (index,)
        start, dims = 0, list(self.shape)
        for position, part in enumerate(parts):
            if not dims or (isinstance(part, slice) and position != len(parts) - 1):
                raise SpecError(f"Buffer[...]: takes ints, then at most one slice (got {index!r} for {self.shape})")
            extent, inner = dims[0], math.prod(dims[1:])
            if isinstance(part, slice):
                low, high, step = part.indices(extent)
                if step != 1:
                    raise SpecError(f"Buffer[...]: a slice must have step 1 (got {part!r})")
                start, dims[0] = start + low * inner, max(high - low, 0)
            else:
                if (at := as_index(part)) is None:
                    raise SpecError(f"Buffer[...]: an index must be an int or a slice (got {part!r})")
                at += extent if at < 0 else 0
                if not 0 <= at < extent:
                    raise SpecError(f"Buffer[...]: index must be within 0 … {extent - 1} (got {part!r})")
                start, dims = start + at * inner, dims[1:]
        return self.view(tuple(dims), offset=start * self.dtype.bytes)

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        from ptxgen.runtime.core.memory import export

        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"__dlpack__: gives its own memory only (got copy={copy}, dl_device={dl_device})")
        return export.export_dlpack(self, stream, max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        from ptxgen.runtime.core.memory import export

        return export.dlpack_device(self.device)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        from ptxgen.runtime.core.memory import export

        return export.export_cuda_interface(self)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("Buffer: device memory cannot become a NumPy array without a copy")
        host = self.numpy()
        return host if dtype is None else host.astype(np.dtype(dtype))  # type: ignore[call-overload]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("Buffer: a single element has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Buffer]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        state = ", freed" if self.allocation.freed else ""
        return f"Buffer({list(self.shape)} {self.dtype} on {self.device.name}{state})"

    def _note(self, stream: Stream | None, *others: Buffer, keep: object = None) -> tuple[Stream, ...]:
        """Without a stream: those to wait for. With one: remember it, for the buffer and the others."""
        touched = [b.allocation for b in (self, *others)]
        if stream is None:
            return tuple({h: s for a in touched for h, s in tuple(a.streams.items())}.values())
        if stream.graph is not None:
            stream.graph.own(touched, keep)
            return ()
        for allocation in touched:
            allocation.used_on(stream)
        return ()

    def _copy(self, copy: Copy, stream: Stream | None, *others: Buffer, keep: object = None) -> None:
        self.device._copy(copy, stream, self._note(stream, *others, keep=keep))

    def _check_like(self, verb: str, shape: tuple[int, ...], dtype: DType) -> None:
        if shape != self.shape or dtype != self.dtype:
            want, got = f"{list(self.shape)} {self.dtype}", f"{list(shape)} {dtype}"
            raise SpecError(f"Buffer.{verb}: must be {want} (got {got})")

    def check_device(self, label: str, device: DeviceBase) -> None:
        """`SpecError` under the name `label` unless the buffer is on this very device."""
        if self.device is not device:
            other = ", of another device object" if self.device.name == device.name else ""
            raise SpecError(f"{label}: must be on {device.name} (got {self!r}{other}); device.array(x) copies")

    def _check_host(self, verb: str, array: object) -> None:
        if not isinstance(array, np.ndarray):
            raise SpecError(f"Buffer.{verb}: must be a NumPy array (got {type(array).__name__})")
        self._check_like(verb, array.shape, to_dtype(array.dtype))
        if not array.flags.c_contiguous:
            raise SpecError(f"Buffer.{verb}: must be C-contiguous (got strides {array.strides})")


def check_writable(label: str, array: np.ndarray) -> None:
    """A host array that will be filled."""
    if not array.flags.writeable:
        raise SpecError(f"{label}: must be writable (got a read-only array)")


def as_shape(label: str, shape: object) -> tuple[int, ...]:
    """An int or a sequence of ints ≥ 0 as a tuple."""
    one = as_index(shape)
    found = [one] if one is not None else [as_index(d) for d in shape] if isinstance(shape, Iterable) else [None]
    dims = tuple(d for d in found if d is not None)
    if len(dims) != len(found):
        raise SpecError(f"{label}: shape must be ints (got {shape!r})")
    if any(d < 0 for d in dims):
        raise SpecError(f"{label}: shape must not be negative (got {shape!r})")
    return dims
