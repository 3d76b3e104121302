"""`CudaDevice`: one GPU through its primary context. Owns the parts that do the work, and closes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from ptxgen.errors import SpecError
from ptxgen.runtime.arrays.tensormap import Tiling
from ptxgen.runtime.core.backend import Code, Copy, FirstUse, Function, Geometry, Launcher, MemoryUse, Stopped
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.core.diskcache import DiskCache
from ptxgen.runtime.core.launches.graph import Graph
from ptxgen.runtime.core.launches.modulecache import ModuleCache
from ptxgen.runtime.core.memory.allocation import Allocation
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.param_block import ParamBlock
from ptxgen.runtime.core.stream import Event, Stream
from ptxgen.runtime.cuda.driver import SINCE, Driver
from ptxgen.runtime.cuda.gpu import Gpu
from ptxgen.runtime.cuda.graph import CudaGraph
from ptxgen.runtime.cuda.launch import CudaLauncher
from ptxgen.runtime.cuda.load import Loader, Retired
from ptxgen.runtime.cuda.memory import CudaMemory
from ptxgen.runtime.cuda.prepared import prepared
from ptxgen.runtime.cuda.stream import CudaStream, as_ours, current_of
from ptxgen.runtime.cuda.tensormap import encode
from ptxgen.targets import Target, target_of_capability


class CudaDevice(Gpu, Device):
    """A GPU. Its primary context is shared with every other library of the process (torch, CuPy, JAX).

    Calls may come from any thread. `dead` is None, or the reason why nothing can run any more: the first error after
    which the driver has given up the context. `driver` and `cubins` can be replaced for tests.
    """

    kind: ClassVar[str] = "cuda"

    def __init__(self, index: int = 0, driver: Driver | None = None, cubins: DiskCache | None = None) -> None:
        super().__init__(index, Driver() if driver is None else driver)
        self.target = target_of_capability(*self.capability)
        self.multiprocessors = self.attribute("MULTIPROCESSOR_COUNT")
        self.shared_limit = self.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self._allocations: WeakValueDictionary[int, Allocation] = WeakValueDictionary()
        self._memory = CudaMemory(self)
        self.retired = Retired(self)
        self._loader = Loader(self, cubins)
        self.native_launch = self.driver.native("cuLaunchKernelEx", SINCE)
        self.default_stream = CudaStream(self)
        self._foreign: WeakValueDictionary[int, CudaStream] = WeakValueDictionary()  # memory that they work on has them
        self.modules = ModuleCache(self)

    def after(self, streams: tuple[Stream, ...]) -> Event | None:
        """An event after the work submitted to these streams so far; nothing waits for it. None while another library
        captures one of them: ask again."""
        return self._memory.after(streams)

    def retire(self, code: Any, streams: tuple[Stream, ...]) -> None:
        """See `Gpu.retire`."""
        self.retired.add(code, streams)

    def unload_retired(self) -> None:
        """See `Gpu.unload_retired`."""
        self.retired.reap()

    # public -------------------------------------------------------------------------------------------------------
    def synchronize(self) -> None:
        """Block until all work in this context is done, other libraries' included."""
        self.call("cuCtxSynchronize")
        self._memory.reap()
        self.unload_retired()

    def memory(self) -> MemoryUse:
        """Device memory, and this process's use of the device's default pool."""
        return self._memory.use()

    def close(self) -> None:
        """Give back memory, code, streams, graphs and the primary context; every later use of this object raises.

        What others still hold stays theirs: memory given out through DLPack and page-locked arrays, each until its last
        reference goes, and the context until the last of them. Other libraries keep their own hold on the context.
        """
        if self.closed:
            return
        if self.dead is None:
            self.synchronize()
            self.modules = ModuleCache(self)
            self._memory.close(a for a in _alive(self._allocations) if not a.freed)
            for part in _alive(self._parts):
                part.close(f"{self.name} was closed")
            self.unload_retired()
            self.dead = f"{self.name} was closed"
        self.closed = True
        self.let_go()

    def let_go(self) -> None:
        """Release the context of a closed device as soon as no memory in it is held."""
        if self.closed and not self._memory.lent:
            self.release_context()

    # what `Device` asks of a backend ------------------------------------------------------------------------------
    def empty(self, shape: int | tuple[int, ...], dtype: object, stream: object = None) -> Buffer:
        """See `Device.empty`."""
        made = super().empty(shape, dtype, stream)
        self._allocations[id(made.allocation)] = made.allocation
        return made

    def _runs(self, target: Target) -> bool:
        return target.runs_on(self.capability)

    def _allocate(self, nbytes: int, stream: Stream | None) -> int:
        return self._memory.allocate(nbytes, stream)

    def _release(self, pointer: int, nbytes: int, streams: tuple[Stream, ...]) -> None:
        if os.getpid() == self._pid:
            self._memory.release(pointer, streams)

    def _adopt(self, pointer: int, nbytes: int, readonly: bool = False) -> None:
        """A GPU needs no bookkeeping for memory that others own."""

    def _disown(self, pointer: int, nbytes: int, readonly: bool = False) -> None:
        """The opposite of `_adopt`."""

    def _copy(self, copy: Copy, stream: Stream | None, after: tuple[Stream, ...]) -> None:
        self._memory.copy(copy, stream, after)

    def _prepared_copy(self, copy: Copy, stream: Stream) -> Callable[[], None]:
        if copy.height != 1 or copy.direction != "out":
            return super()._prepared_copy(copy, stream)
        return prepared(self, "cuMemcpyDtoHAsync", copy.dst, copy.src, copy.width, stream.handle)

    def _fill(self, pointer: int, pattern: bytes, count: int, stream: Stream | None, after: tuple[Stream, ...]) -> None:
        self._memory.fill(pointer, pattern, count, stream, after)

    def _pinned(self, nbytes: int) -> np.ndarray:
        return self._memory.pinned(nbytes)

    def _is_pinned(self, array: np.ndarray) -> bool:
        return self._memory.is_pinned(array)

    def _encode(self, tiling: Tiling) -> bytes:
        return encode(self, tiling)

    def _load(self, text: str, label: str) -> Code:
        return self.part(self._loader.load(text, label))

    def _at_hand(self, text: str) -> bool:
        return self._loader.key(text) in self._loader.cubins

    def _prepare(
        self, function: Function, geometry: Geometry, block: ParamBlock, first_use: FirstUse, stopped: Stopped
    ) -> Launcher:
        return self.part(CudaLauncher(self, function, geometry, block, first_use))

    def _new_stream(self) -> Stream:
        return CudaStream(self)

    def _foreign_stream(self, foreign: object) -> Stream:
        return as_ours(self, foreign)

    def _check_memory(self, label: str, pointer: int) -> None:
        ordinal = self.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        code, found = self.ask("cuPointerGetAttribute", ordinal, pointer)
        index = -1 if code else int(found)
        if index != self.index:
            where = "memory that is no GPU's" if index < 0 else f"cuda:{index}"
            raise SpecError(f"wrap: must be memory of {self.name} (got {label} in {where})")

    def _current_stream_of(self, library: str) -> Stream:
        handle, owner = current_of(library, self.index)
        found = self._foreign.get(handle)
        if found is None:
            found = self._foreign[handle] = CudaStream(self, handle, owner)
        return found

    def _consumer_stream(self, consumer: object) -> Stream:
        if "cupy" in sys.modules and current_of("cupy", self.index)[0] == consumer:
            return self._current_stream_of("cupy")  # which CuPy destroys with its last reference
        return self._foreign_stream(consumer)

    def _new_graph(self) -> Graph:
        return self.part(CudaGraph(self))


def _alive(table: WeakValueDictionary[int, Any]) -> list[Any]:
    """What is left, while other threads may add more."""
    return [found for entry in table.valuerefs() if (found := entry()) is not None]
