"""`CudaDevice`: one GPU through its primary context. Owns the context, its health, and the parts that do the work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from ptxgen.errors import CudaError, SpecError
from ptxgen.runtime.arguments import ParamBlock
from ptxgen.runtime.backend import Code, Copy, FirstUse, Function, Geometry, Launcher, MemoryUse
from ptxgen.runtime.cuda.driver import STICKY, Driver, DriverError
from ptxgen.runtime.cuda.graph import CudaGraph
from ptxgen.runtime.cuda.launch import CudaLauncher
from ptxgen.runtime.cuda.load import Loader, Retired
from ptxgen.runtime.cuda.memory import CudaMemory
from ptxgen.runtime.cuda.stream import CudaStream, as_ours, current_of
from ptxgen.runtime.cuda.tensormap import encode
from ptxgen.runtime.device import Device
from ptxgen.runtime.diskcache import DiskCache
from ptxgen.runtime.graph import Graph
from ptxgen.runtime.modulecache import ModuleCache
from ptxgen.runtime.stream import Event, Stream
from ptxgen.runtime.tensormap import Tiling
from ptxgen.targets import Target, target_of_capability


class CudaDevice(Device):
    """A GPU. Its primary context is shared with every other library of the process (torch, CuPy, JAX).

    Calls may come from any thread. `dead` is None, or the reason why nothing can run any more: the first error after
    which the driver has given up the context. `driver` and `cubins` can be replaced for tests.
    """

    kind: ClassVar[str] = "cuda"

    def __init__(self, index: int = 0, driver: Driver | None = None, cubins: DiskCache | None = None) -> None:
        self.dead: str | None = None
        self.index = index
        self.name = f"cuda:{index}"
        self._pid = os.getpid()
        self.driver = Driver() if driver is None else driver
        self.api: Any = self.driver.api
        count = int(self.driver.call("cuDeviceGetCount"))
        if not 0 <= index < count:
            raise CudaError(f"open_device: index must be below the number of GPUs, {count} (got {index})")
        self.raw = self.driver.call("cuDeviceGet", index)
        self.capability = (self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR"))
        self.target = target_of_capability(*self.capability)
        self.multiprocessors = self._attribute("MULTIPROCESSOR_COUNT")
        self.shared_limit = self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.model = self.driver.call("cuDeviceGetName", 96, self.raw).split(b"\0")[0].decode()
        with _importing("ptxgen.generator", "ptxgen.runtime.kernel"):  # takes as long, and the driver holds no lock
            self._context = self.driver.call("cuDevicePrimaryCtxRetain", self.raw)
        self._memory = CudaMemory(self)
        self.retired = Retired(self)
        self._loader = Loader(self, cubins)
        self.native_launch = self.driver.native("cuLaunchKernelEx", 12000)
        self.default_stream = CudaStream(self)
        self._foreign: dict[int, CudaStream] = {}
        self.modules = ModuleCache(self)

    # the funnel, with the context current and the device alive ----------------------------------------------------
    def call(self, name: str, *args: object) -> Any:
        """`Driver.call` in this device's context; a sticky error makes the device `dead`."""
        code, result = self.ask(name, *args)
        if code:
            raise self.failed(name, code)
        return result

    def ask(self, name: str, *args: object) -> tuple[int, Any]:
        """`Driver.ask` in this device's context."""
        self.check()
        driver = self.driver
        _, current = driver.ask("cuCtxGetCurrent")
        if int(current) == int(self._context):
            return driver.ask(name, *args)
        driver.call("cuCtxPushCurrent", self._context)
        try:
            return driver.ask(name, *args)
        finally:
            driver.ask("cuCtxPopCurrent")

    def quiet(self, name: str, *args: object) -> None:
        """For finalisers: give a handle back if there is still someone to give it to."""
        if not self.usable:
            return
        if name == "cuEventDestroy":  # the one that a capture under way allows, and that comes often
            self.ask(name, *args)
            return
        with self.relaxed():
            self.ask(name, *args)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Let this thread do what a capture elsewhere (another library's, another thread's) forbids meanwhile."""
        mode = self.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self.call("cuThreadExchangeStreamCaptureMode", mode)
        try:
            yield
        finally:
            self.ask("cuThreadExchangeStreamCaptureMode", before)

    @property
    def usable(self) -> bool:
        """Whether there is still a context to give something back to."""
        return self.dead is None and os.getpid() == self._pid

    def after(self, streams: tuple[Stream, ...]) -> Event | None:
        """An event after the work submitted to these streams so far; nothing waits for it. None while another library
        captures one of them: ask again."""
        return self._memory.after(streams)

    def failed(self, name: str, code: int) -> DriverError:
        """The error for a code; remembers it when it is one after which the context is lost."""
        error = self.driver.error(name, code)
        if code in STICKY and self.dead is None:
            self.dead = (
                f"{self.name} ({self.model}) cannot be used any more in this process: {error}. The fault is in work "
                f"submitted before that call; start a new process (compute-sanitizer finds the kernel)"
            )
        return error

    def check(self) -> None:
        """Raise if the device is lost, closed, or belongs to the parent process."""
        if self.dead is not None:
            raise CudaError(self.dead)
        if os.getpid() != self._pid:
            raise CudaError(
                f"{self.name} was opened in process {self._pid}, and a CUDA context does not survive a fork; open the "
                f"device in the child only, or start it with multiprocessing's 'spawn'"
            )

    def in_context(self, job: Callable[[], int]) -> int:
        """Run a native call that found another context current, or none; a thread without one keeps ours."""
        self.check()
        if int(self.driver.call("cuCtxGetCurrent")) == 0:
            self.driver.call("cuCtxSetCurrent", self._context)
            return job()
        self.driver.call("cuCtxPushCurrent", self._context)
        try:
            return job()
        finally:
            self.driver.ask("cuCtxPopCurrent")

    def _attribute(self, name: str) -> int:
        attribute = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.driver.call("cuDeviceGetAttribute", attribute, self.raw))

    # public -------------------------------------------------------------------------------------------------------
    def synchronize(self) -> None:
        """Block until all work in this context is done, other libraries' included."""
        self.call("cuCtxSynchronize")
        self.retired.reap()

    def memory(self) -> MemoryUse:
        """Device memory, and this process's use of the device's default pool."""
        return self._memory.use()

    def close(self) -> None:
        """Release the primary context. Other libraries keep theirs; every later use of this object raises."""
        if self.dead is None:
            self.synchronize()
            self.dead, self.closed = f"{self.name} was closed", True
            self.driver.call("cuDevicePrimaryCtxRelease", self.raw)

    # what `Device` asks of a backend ------------------------------------------------------------------------------
    def _runs(self, target: Target) -> bool:
        return target.runs_on(self.capability)

    def _allocate(self, nbytes: int, stream: Stream | None) -> int:
        return self._memory.allocate(nbytes, stream)

    def _release(self, pointer: int, nbytes: int, streams: tuple[Stream, ...]) -> None:
        if os.getpid() == self._pid:
            self._memory.release(pointer, streams)

    def _adopt(self, pointer: int, nbytes: int) -> None:
        """A GPU needs no bookkeeping for memory that others own."""

    def _disown(self, pointer: int, nbytes: int) -> None:
        """The opposite of `_adopt`."""

    def _copy(self, copy: Copy, stream: Stream | None, after: tuple[Stream, ...]) -> None:
        self._memory.copy(copy, stream, after)

    def _fill(self, pointer: int, pattern: bytes, count: int, stream: Stream | None, after: tuple[Stream, ...]) -> None:
        self._memory.fill(pointer, pattern, count, stream, after)

    def _pinned(self, nbytes: int) -> np.ndarray:
        return self._memory.pinned(nbytes)

    def _is_pinned(self, array: np.ndarray) -> bool:
        return self._memory.is_pinned(array)

    def _encode(self, tiling: Tiling) -> bytes:
        return encode(self, tiling)

    def _load(self, text: str, label: str) -> Code:
        return self._loader.load(text, label)

    def _at_hand(self, text: str) -> bool:
        return self._loader.key(text) in self._loader.cubins

    def _prepare(self, function: Function, geometry: Geometry, block: ParamBlock, first_use: FirstUse) -> Launcher:
        return CudaLauncher(self, function, geometry, block, first_use)

    def _new_stream(self) -> Stream:
        return CudaStream(self)

    def _foreign_stream(self, foreign: object) -> Stream:
        return as_ours(self, foreign)

    def _check_memory(self, label: str, pointer: int) -> None:
        ordinal = self.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        code, index = self.ask("cuPointerGetAttribute", ordinal, pointer)
        if code or int(index) != self.index:
            where = "memory that the driver does not know" if code else f"cuda:{int(index)}"
            raise SpecError(f"wrap: must be memory of {self.name} (got {label} in {where})")

    def _current_stream_of(self, library: str) -> Stream:
        handle = current_of(library, self.index)
        found = self._foreign.get(handle)
        if found is None:
            found = self._foreign[handle] = CudaStream(self, handle, library)
        return found

    def _new_graph(self) -> Graph:
        return CudaGraph(self)


@contextmanager
def _importing(*names: str) -> Iterator[None]:
    """Import modules in another thread meanwhile. One that fails is left to whoever needs it."""

    def work() -> None:
        with suppress(ImportError):
            for name in names:
                import_module(name)

    thread = threading.Thread(target=work, name="ptxgen-imports")
    thread.start()
    try:
        yield
    finally:
        thread.join()
