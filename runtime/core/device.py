"""The device protocol: Device / Buffer / Module-Kernel, the same for CUDA and the CPU executor.

Owns what both share; a backend is a subclass that supplies the underscored methods and nothing else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import CudaError, SpecError
from ptxgen.runtime.core.allocation import Allocation
from ptxgen.runtime.core.backend import Code, Copy, FirstUse, Function, Geometry, Launcher, MemoryUse
from ptxgen.runtime.core.buffer import Buffer, as_shape
from ptxgen.runtime.core.stream import Stream
from ptxgen.targets import Target

if TYPE_CHECKING:
    from ptxgen.kernel import KernelType
    from ptxgen.runtime.arrays.tensormap import Tiling
    from ptxgen.runtime.core.arguments import ParamBlock
    from ptxgen.runtime.core.graph import Graph
    from ptxgen.runtime.core.kernel import Kernel
    from ptxgen.runtime.core.module import Module
    from ptxgen.runtime.core.modulecache import ModuleCache
    from ptxgen.runtime.core.tensor_map import TensorMap


class Device(ABC):
    """A GPU, or the CPU executor. `target` is the most capable architecture it runs; `name` is "cuda:0" or "cpu".

    `strict`: from when it is set, `load` raises for a spec that is not loaded yet (see `warmup`).
    """

    kind: ClassVar[str]
    name: str
    index: int = 0
    target: Target
    default_stream: Stream
    modules: ModuleCache
    strict: bool = False
    closed: bool = False

    # memory -------------------------------------------------------------------------------------------------------
    def empty(self, shape: int | tuple[int, ...], dtype: object, stream: object = None) -> Buffer:
        """An uninitialised buffer; with a `stream` (not a captured one) it exists in the order of that stream only."""
        stream = self._uncaptured(stream, "Device.empty", "allocate before, without this stream")
        dims, kind = as_shape("Device.empty", shape), to_dtype(dtype)
        nbytes = math.prod(dims) * kind.bytes
        pointer = self._allocate(max(nbytes, 1), stream)
        allocation = Allocation(self, pointer, max(nbytes, 1))
        if stream is not None:
            allocation.used_on(stream)
        return Buffer(allocation, pointer, dims, kind)

    def zeros(self, shape: int | tuple[int, ...], dtype: object, stream: object = None) -> Buffer:
        """A buffer of zeros."""
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
            source = np.asarray(source, None if dtype is None else to_dtype(dtype).numpy)
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
        from ptxgen.runtime.core.wrap import import_buffer

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
        from ptxgen.runtime.core.tensor_map import tensor_map

        return tensor_map(
            self, array, box, shape=shape, strides=strides, element_strides=element_strides, dtype=dtype,
            swizzle=swizzle, interleave=interleave, oob_fill=oob_fill, l2_promotion=l2_promotion,
        )  # fmt: skip

    # code ---------------------------------------------------------------------------------------------------------
    def load(self, spec: KernelType, target: object = None, *, line_info: bool | None = None) -> Kernel:
        """The kernel of a spec for this device (or for an older `target`), through the module cache.

        `line_info`: with lines of Python and of templates, which profilers and debuggers show; default: as the
        environment's PTXGEN_LINE_INFO (0 or 1) was when the device was opened.
        Raises `SpecError` or `TargetError` where the spec has no such kernel, `ModuleLoadError` where it will not load.
        """
        return self.modules.load(spec, target, line_info)

    def module(self, text: str, name: str = "module") -> Module:
        """Any PTX text as a loaded module, which messages and findings call by this name (a file, say); raises
        `ModuleLoadError`."""
        from ptxgen.runtime.core.module import Module

        return Module(self, text, name)

    def warmup(
        self, specs: Iterable[KernelType], target: object = None, workers: int | None = None
    ) -> dict[KernelType, Kernel]:
        """Load all specs, compiling in parallel; after it `strict = True` guards against late compilation."""
        return self.modules.warmup(specs, target, workers)

    # order --------------------------------------------------------------------------------------------------------
    def stream(self, foreign: object = None) -> Stream:
        """A new stream; or a foreign one (`__cuda_stream__`, torch, CuPy, an int handle) as ours."""
        self.check()
        return self._new_stream() if foreign is None else self._foreign_stream(foreign)

    def graph(self) -> Graph:
        """An empty graph: `with` captures into it, `add` appends explicit nodes."""
        self.check()
        return self._new_graph()

    @abstractmethod
    def synchronize(self) -> None:
        """Block until all work of this device is done; raises what it failed with."""

    @abstractmethod
    def memory(self) -> MemoryUse:
        """Memory of the device and of this process's pool, in bytes."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; every later use raises. Does nothing the second time."""

    @abstractmethod
    def check(self) -> None:
        """Raise `CudaError` if the device cannot be used: closed, lost, or opened by the parent of a forked process."""

    # what a backend supplies --------------------------------------------------------------------------------------
    @abstractmethod
    def _allocate(self, nbytes: int, stream: Stream | None) -> int:
        """Address of `nbytes` ≥ 1 fresh bytes, aligned to 256; usable on any stream on return if `stream` is None.

        Raises `CudaError` that says how much was asked and how much is free.
        """

    @abstractmethod
    def _release(self, pointer: int, nbytes: int, streams: tuple[Stream, ...]) -> None:
        """Take back what `_allocate` gave, once the work submitted to `streams` is done. May run in any thread."""

    @abstractmethod
    def _adopt(self, pointer: int, nbytes: int, readonly: bool = False) -> None:
        """Memory that others own will be used by kernels (a bounds-checking device has to know it)."""

    @abstractmethod
    def _disown(self, pointer: int, nbytes: int, readonly: bool = False) -> None:
        """The opposite of `_adopt`."""

    @abstractmethod
    def _copy(self, copy: Copy, stream: Stream | None, after: tuple[Stream, ...]) -> None:
        """Copy in `stream`; without one: after the work in `after`, and complete on return."""

    def _prepared_copy(self, copy: Copy, stream: Stream) -> Callable[[], None]:
        """The same copy in a stream again and again; who asks keeps its ends alive."""
        return lambda: self._copy(copy, stream, ())

    @abstractmethod
    def _fill(self, pointer: int, pattern: bytes, count: int, stream: Stream | None, after: tuple[Stream, ...]) -> None:
        """Write `pattern` (1, 2 or 4 bytes) `count` times; ordered as `_copy`."""

    @abstractmethod
    def _pinned(self, nbytes: int) -> np.ndarray:
        """A one-dimensional uint8 array in page-locked memory (plain memory on the CPU), freed with its last view."""

    @abstractmethod
    def _is_pinned(self, array: np.ndarray) -> bool:
        """Whether copies to and from this array may still run when the call has returned."""

    @abstractmethod
    def _load(self, text: str, label: str) -> Code:
        """Machine code for PTX text; `label` names it in messages and logs. Raises `ModuleLoadError`.

        May run in several threads at once.
        """

    @abstractmethod
    def _encode(self, tiling: Tiling) -> bytes:
        """The 128 bytes of a tensor map whose rules have been checked."""

    def _at_hand(self, text: str) -> bool:
        """Whether `_load` of a text is likely to need no compiler."""
        return False

    def _load_foreign(self, text: str, label: str) -> Code:
        """`_load` of a text that has not been checked yet."""
        return self._load(text, label)

    @abstractmethod
    def _prepare(self, function: Function, geometry: Geometry, block: ParamBlock, first_use: FirstUse) -> Launcher:
        """Everything that can be done before a launch; the launcher calls `first_use` before a stream's first use."""

    def _runs(self, target: Target) -> bool:
        """Whether code for `target` runs here."""
        return target.runs_on((self.target.major, self.target.minor))

    @abstractmethod
    def _new_stream(self) -> Stream: ...

    @abstractmethod
    def _foreign_stream(self, foreign: object) -> Stream:
        """A stream of this device as it is, a foreign one as ours; `SpecError` for one of another device."""

    def _given(self, stream: object) -> Stream | None:
        """A stream as callers give it."""
        return None if stream is None else self._foreign_stream(stream)

    def _uncaptured(self, stream: object, what: str, instead: str) -> Stream | None:
        """The same for `what`, which cannot be recorded: `CudaError` while a graph, ours or another library's, captures
        the stream; `instead` is what works."""
        given = self._given(stream)
        if given is not None and (given.capturing or given.captured_by_others()):
            raise CudaError(f"{what}: is not possible while capturing; {instead}")
        return given

    @abstractmethod
    def _check_memory(self, label: str, pointer: int) -> None:
        """Raise `SpecError` if an address that `label` gives is not memory of this device."""

    def _consumer_stream(self, consumer: object) -> Stream:
        """The stream of a DLPack consumer, which says its address."""
        return self._foreign_stream(consumer)

    def _current_stream_of(self, library: str) -> Stream:
        """The current stream of another library on this device (only asked where there are such libraries)."""
        raise CudaError(f"{self.name}: {library} has no stream here")

    @abstractmethod
    def _new_graph(self) -> Graph: ...

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.target}>"


def _is_device_array(source: object) -> bool:
    return hasattr(source, "__dlpack__") or hasattr(source, "__cuda_array_interface__")
