"""The primary context of a GPU: calls in it, its health, and its release. Owns no memory, code or streams."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ptxgen.errors import CudaError
from ptxgen.runtime.cuda.driver import NATIVE, SINCE, STICKY, Driver, DriverError

log = logging.getLogger("ptxgen.runtime")
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT


class CudaContext:
    """A retained primary context, and the one way to call the driver in it, from any thread.

    `dead` is None, or the reason why nothing can run any more; `lost` if that is a fault, after which the driver has
    given up the context.
    """

    closed: bool = False

    def __init__(self, index: int, driver: Driver) -> None:
        self.dead: str | None = None
        self.lost = False
        self.index = index
        self.name = f"cuda:{index}"
        self._pid = os.getpid()
        self.driver = driver
        self.api: Any = driver.api
        count = int(driver.call("cuDeviceGetCount"))
        if not 0 <= index < count:
            raise CudaError(f"open_device: index must be below the number of GPUs, {count} (got {index})")
        self.raw = driver.call("cuDeviceGet", index)
        self.capability = (self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR"))
        self.model = driver.call("cuDeviceGetName", 96, self.raw).split(b"\0")[0].decode()
        self._context = driver.call("cuDevicePrimaryCtxRetain", self.raw)
        self._retained = True
        self._warned = False
        self.natives = {name: driver.native(name, SINCE) for name in NATIVE}

    def attribute(self, name: str) -> int:
        """A CU_DEVICE_ATTRIBUTE by the rest of its name."""
        attribute = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.driver.call("cuDeviceGetAttribute", attribute, self.raw))

    def call(self, name: str, *args: object) -> Any:
        """`Driver.call` in this device's context; a sticky error makes the device `dead`."""
        code, result = self.ask(name, *args)
        if code:
            raise self.failed(name, code)
        return result

    def ask(self, name: str, *args: object) -> tuple[int, Any]:
        """`Driver.ask` in this device's context."""
        self.check()
        return self._ask(name, *args)

    def _ask(self, name: str, *args: object) -> tuple[int, Any]:
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
            self._ask(name, *args)
            return
        with self.relaxed():
            self._ask(name, *args)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Let this thread do what a capture elsewhere (another library's, another thread's) forbids meanwhile."""
        mode = self.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        name = "cuThreadExchangeStreamCaptureMode"
        code, before = self._ask(name, mode)
        if code:
            raise self.failed(name, code)
        try:
            yield
        finally:
            self._ask(name, before)

    @property
    def usable(self) -> bool:
        """Whether there is still a context to give something back to."""
        return self._retained and not self.lost and os.getpid() == self._pid

    def failed(self, name: str, code: int) -> DriverError:
        """The error for a code; remembers it when it is one after which the context is lost."""
        error = self.driver.error(name, code)
        if code in STICKY and self.dead is None:
            self.lost = True
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

    def take_thread(self) -> bool:
        """Whether our context is this thread's current one; a thread that has none gets it."""
        self.check()
        current = int(self.driver.call("cuCtxGetCurrent"))
        if current == 0:
            self.driver.call("cuCtxSetCurrent", self._context)
        return current in (0, int(self._context))

    def in_context(self, job: Callable[[], int]) -> int:
        """Run a native call in a thread where another context is the current one, and stays it."""
        if not self._warned:
            self._warned = True
            log.warning(
                "launches on %s run in a thread whose current context is another device's: each takes some "
                "microseconds longer (torch.cuda.set_device or cuCtxSetCurrent makes it the current one)",
                self.name,
            )
        self.driver.call("cuCtxPushCurrent", self._context)
        try:
            return job()
        finally:
            self.driver.ask("cuCtxPopCurrent")

    def again(self, code: int, call: Callable[[], int]) -> int:
        """Make a native call again that failed with `code`, where our context was not the current one; its code."""
        self.check()
        current = int(self.driver.call("cuCtxGetCurrent"))
        if current == 0 and code == _NO_CONTEXT:
            self.driver.call("cuCtxSetCurrent", self._context)
            return call()
        return code if current in (0, int(self._context)) else self.in_context(call)

    def release_context(self) -> None:
        """Let go of the context, once."""
        if self._retained and os.getpid() == self._pid:
            self._retained = False
            self.driver.ask("cuDevicePrimaryCtxRelease", self.raw)  # a lost one may refuse
