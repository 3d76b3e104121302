"""CUDA memory: stream-ordered allocation, copies, fills, page-locked host memory. Owns no lifetimes."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.errors import CudaError
from ptxgen.runtime.core.backend import Copy, MemoryUse
from ptxgen.runtime.core.stream import Event, Stream
from ptxgen.runtime.cuda.driver import DriverError
from ptxgen.runtime.cuda.stream import CudaStream

if TYPE_CHECKING:
    from ptxgen.runtime.core.memory.allocation import Allocation
    from ptxgen.runtime.cuda.gpu import Gpu

_PITCH_LIMIT = 2**31 - 1  # CU_DEVICE_ATTRIBUTE_MAX_PITCH on every device so far
_KEEP_BYTES = 256 << 20  # what the pool keeps for reuse when no threshold is set
_OUT_OF_MEMORY = 2


class CudaMemory:
    """Memory of one device, from its default pool, which it shares with every library of the process.

    Three streams of its own keep order without waiting: allocation, release, and copies without a stream.
    """

    def __init__(self, device: Gpu) -> None:
        self.device = device
        self.lent: set[int] = set()  # page-locked arrays; when the device is closed, also what DLPack has given out
        self._allocating, self._releasing, self._copying = (CudaStream(device) for _ in range(3))
        self._pool = device.call("cuDeviceGetDefaultMemPool", device.raw)
        self._released: deque[tuple[int, tuple[Stream, ...]]] = deque()  # not freed yet
        self._threshold = device.api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        if int(device.call("cuMemPoolGetAttribute", self._pool, self._threshold)) == 0:
            value = device.api.cuuint64_t(_KEEP_BYTES)
            device.call("cuMemPoolSetAttribute", self._pool, self._threshold, value)

    def allocate(self, nbytes: int, stream: Stream | None) -> int:
        """See `Device._allocate`."""
        self.reap()
        where = self._allocating if stream is None else stream
        try:
            pointer = int(self.device.call("cuMemAllocAsync", nbytes, where.handle))
        except DriverError as error:
            if error.code != _OUT_OF_MEMORY:
                raise
            use = self.use()
            raise CudaError(
                f"{self.device.name}: out of memory: asked for {nbytes:,} bytes, {use.free:,} of {use.total:,} are "
                f"free, this process's pool has {use.used:,} in use; up to about {use.available:,} would fit"
            ) from error
        if stream is None:
            self._allocating.synchronize()
        return pointer

    def release(self, pointer: int, streams: tuple[Stream, ...]) -> None:
        """See `Device._release`. A device that is lost has nothing left to free."""
        if pointer in self.lent:
            self._returned("cuMemFree", pointer)
        elif self.device.dead is None:
            self._released.append((pointer, streams))
            self.reap()

    def reap(self) -> None:
        """Free what was released, where that can be now. May run in finalisers and any thread: there are no locks."""
        if self.device.dead is not None or not self._released:
            return
        with self.device.relaxed():  # a finaliser may come while another library captures
            for _ in range(len(self._released)):
                try:
                    pointer, streams = self._released.popleft()
                except IndexError:  # another thread was faster
                    return
                if self._order(streams):
                    self.device.call("cuMemFreeAsync", pointer, self._releasing.handle)
                else:
                    self._released.append((pointer, streams))

    def close(self, held: Iterable[Allocation]) -> None:
        """Free all that has no other owner; no work is under way."""
        for allocation in held:
            if allocation.exports:
                self.lent.add(allocation.pointer)
            else:
                self.device.quiet("cuMemFreeAsync", allocation.pointer, self._releasing.handle)
        self.device.quiet("cuStreamSynchronize", self._releasing.handle)

    def _returned(self, free: str, address: int) -> None:
        """The last reference to memory that others held has gone, in any thread."""
        self.lent.discard(address)
        self.device.quiet(free, address)
        self.device.let_go()

    def after(self, streams: tuple[Stream, ...]) -> Event | None:
        """See `CudaDevice.after`."""
        return self._releasing.record() if self._order(streams) else None

    def _order(self, streams: tuple[Stream, ...]) -> bool:
        """Let the releasing stream wait for others; false, with nothing done, while another library captures one of
        them: to wait for it would pull us into its capture."""
        if any(stream.captured_by_others() for stream in streams):
            return False
        for stream in streams:
            self._releasing.wait(stream)
        return True

    def copy(self, copy: Copy, stream: Stream | None, after: tuple[Stream, ...]) -> None:
        """See `Device._copy`."""
        with self._ordered(stream, after) as where:
            if copy.height == 1 or copy.dst_pitch == copy.src_pitch == copy.width:
                self._linear(copy, copy.dst, copy.src, copy.width * copy.height, where)
            elif max(copy.dst_pitch, copy.src_pitch) > _PITCH_LIMIT:
                for row in range(copy.height):
                    dst, src = copy.dst + row * copy.dst_pitch, copy.src + row * copy.src_pitch
                    self._linear(copy, dst, src, copy.width, where)
            else:
                self._strided(copy, where)

    def fill(self, pointer: int, pattern: bytes, count: int, stream: Stream | None, after: tuple[Stream, ...]) -> None:
        """See `Device._fill`."""
        name = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}[len(pattern)]
        with self._ordered(stream, after) as where:
            self.device.call(name, pointer, int.from_bytes(pattern, "little"), count, where)

    def _linear(self, copy: Copy, dst: int, src: int, nbytes: int, stream: int) -> None:
        name = {"in": "cuMemcpyHtoDAsync", "out": "cuMemcpyDtoHAsync", "on": "cuMemcpyDtoDAsync"}[copy.direction]
        self.device.call(name, dst, src, nbytes, stream)

    def _strided(self, copy: Copy, stream: int) -> None:
        api = self.device.api
        host, device = api.CUmemorytype.CU_MEMORYTYPE_HOST, api.CUmemorytype.CU_MEMORYTYPE_DEVICE
        spec = api.CUDA_MEMCPY2D()
        spec.WidthInBytes, spec.Height = copy.width, copy.height
        spec.srcPitch, spec.dstPitch = copy.src_pitch, copy.dst_pitch
        if copy.direction == "in":
            spec.srcMemoryType, spec.srcHost = host, copy.src
        else:
            spec.srcMemoryType, spec.srcDevice = device, copy.src
        if copy.direction == "out":
            spec.dstMemoryType, spec.dstHost = host, copy.dst
        else:
            spec.dstMemoryType, spec.dstDevice = device, copy.dst
        self.device.call("cuMemcpy2DAsync", spec, stream)

    def _ordered(self, stream: Stream | None, after: tuple[Stream, ...]) -> _Ordered:
        return _Ordered(self._copying, stream, after)

    def pinned(self, nbytes: int) -> np.ndarray:
        """See `Device._pinned`."""
        flags = self.device.api.CU_MEMHOSTALLOC_PORTABLE
        address = int(self.device.call("cuMemHostAlloc", max(nbytes, 1), flags))
        memory = (ctypes.c_uint8 * max(nbytes, 1)).from_address(address)
        self.lent.add(address)
        weakref.finalize(memory, self._returned, "cuMemFreeHost", address).atexit = False
        return np.frombuffer(memoryview(memory).cast("B"), np.uint8)[:nbytes]

    def is_pinned(self, array: np.ndarray) -> bool:
        """Whether the driver knows the array's memory as page-locked."""
        attribute = self.device.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        code, _ = self.device.ask("cuPointerGetAttribute", attribute, array.ctypes.data)
        return code == 0

    def use(self) -> MemoryUse:
        """Free and total memory of the device, and this process's use of the pool."""
        attributes = self.device.api.CUmemPool_attribute
        free, total = self.device.call("cuMemGetInfo")
        used, reserved = (
            int(self.device.call("cuMemPoolGetAttribute", self._pool, a))
            for a in (attributes.CU_MEMPOOL_ATTR_USED_MEM_CURRENT, attributes.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        )
        return MemoryUse(int(free), int(total), used, reserved)


class _Ordered:
    """The stream for a copy: the one given; else the copying stream, after `after`, synchronised at the end."""

    def __init__(self, copying: CudaStream, stream: Stream | None, after: tuple[Stream, ...]) -> None:
        self._copying = copying
        self._stream = stream
        self._after = after

    def __enter__(self) -> int:
        if self._stream is not None:
            return self._stream.handle
        for stream in self._after:
            if stream.captured_by_others():
                raise CudaError(f"a copy needs a stream: {stream} has this memory, and another library captures it")
            self._copying.wait(stream)
        return self._copying.handle

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._stream is None and kind is None:
            self._copying.synchronize()
