"""The calls of the CUDA driver: every call, its status, and what a status means. Owns no handles."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from ptxgen.errors import CudaError

# What a failure means for the caller, where the driver's own words do not say it (CUDA driver API, CUresult).
_MEANING = {
    1: "an argument is outside what the driver accepts",
    2: "out of device memory",
    3: "the driver is not initialised here; a process forked after CUDA was used must be spawned instead",
    34: "the driver library is a stub: no real driver is installed",
    100: "no GPU is visible (none present, or hidden by CUDA_VISIBLE_DEVICES)",
    101: "no GPU has this index",
    201: "no context of this device is current in this thread",
    209: "the module holds no code for this GPU",
    218: "the PTX could not be compiled",
    221: "the driver's PTX compiler was not found",
    222: "the PTX is of a newer ISA version than this driver knows",
    400: "a handle (stream, function, event) is not valid, or was destroyed",
    700: "a kernel used an address outside of allocated memory",
    701: "too many registers or too much shared memory for this CTA size",
    702: "a kernel ran longer than the display watchdog allows",
    710: "an assertion failed in a kernel",
    715: "a kernel ran an instruction that this GPU does not have",
    716: "a kernel used an address that is not aligned to the access",
    717: "a kernel used an address of another state space",
    718: "a kernel jumped outside of its code",
    719: "a kernel failed",
    803: "the driver is older than the CUDA libraries of this process",
    900: "this is not possible while a stream is being captured",
    901: "the capture failed earlier",
}
NATIVE = (
    "cuGraphLaunch",
    "cuMemcpyDtoHAsync",
    "cuStreamSynchronize",
)  # called through ctypes (runtime/cuda/prepared.py)
SINCE = 12000  # the CUDA version whose signatures these have
# After these the context is lost for the whole process ("sticky"): every later call fails with the same code.
STICKY = frozenset({4, 46, 214, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720, 721, 999})


class DriverError(CudaError):
    """A driver call that failed: `call` its name, `code` the CUresult as a number, `status` its name."""

    def __init__(self, call: str, code: int, status: str, text: str) -> None:
        meaning = _MEANING.get(code)
        super().__init__(f"{call}: {status} ({code}): {meaning or text}")
        self.call = call
        self.code = code
        self.status = status


def import_binding() -> Any:
    """`cuda.bindings.driver`. Raises `CudaError` where it is not installed."""
    try:
        import cuda.bindings.driver as binding
    except ImportError as missing:
        raise CudaError(f"CUDA bindings: are not installed: pip install 'ptxgen[cuda]' ({missing})") from None
    return binding


def build_of_driver(maps: Path = Path("/proc/self/maps")) -> str:
    """The driver's library as this process has it: file name, which ends with the full version, and size in bytes.

    "" where the system does not say what a process has mapped.
    """
    try:
        found = re.search(rb"/.*/libcuda\.so.*$", maps.read_bytes(), re.MULTILINE)
        path = Path("" if found is None else found[0].decode())
        return f"{path.name} {path.stat().st_size}" if path.name else ""
    except (OSError, ValueError):
        return ""


class Driver:
    """The driver API. `binding` is `cuda.bindings.driver`, or what stands in for it in a test.

    `version` is 13000 for CUDA 13.0, whichever driver of that release it is; `build` tells those apart. Raises
    `CudaError` where there is no driver or it does not start.
    """

    def __init__(self, binding: Any = None) -> None:
        self.api: Any = import_binding() if binding is None else binding
        try:
            self.call("cuInit", 0)
        except DriverError:
            raise
        except Exception as missing:  # the binding has its own classes for a library that is not there
            raise CudaError(f"cuInit: no CUDA driver is installed: {missing}") from None
        self.version: int = self.call("cuDriverGetVersion")
        self.build = build_of_driver()

    def ask(self, name: str, *args: object) -> tuple[int, Any]:
        """Call and return (code, result), for the few calls whose failure is an answer."""
        status, *values = getattr(self.api, name)(*args)
        return int(status), values[0] if len(values) == 1 else tuple(values)

    def call(self, name: str, *args: object) -> Any:
        """Call a driver function; its one result, a tuple of several, or `()` for none. Raises `DriverError`."""
        code, result = self.ask(name, *args)
        if code:
            raise self.error(name, code)
        return result

    def error(self, name: str, code: int) -> DriverError:
        """The error for a code that a call returned."""
        try:
            status = self.api.CUresult(code).name
            _, text = self.api.cuGetErrorString(self.api.CUresult(code))
        except ValueError:
            status, text = "CUDA_ERROR", b"unknown to this version of the bindings"
        return DriverError(name, code, status, (text or b"no description").decode())

    def has(self, name: str) -> bool:
        """Whether the bindings know a function (older ones lack newer functions)."""
        return hasattr(self.api, name)

    def native(self, name: str, since: int) -> Any:
        """The driver's own function as a ctypes callable that returns the status and converts no argument.

        `since`: the CUDA version whose signature is wanted, 12000 for 12.0. Arguments must be `ctypes.byref` objects,
        the cheapest that ctypes passes on.
        """
        address, found = self.call("cuGetProcAddress", name.encode(), since, 0)
        if not address:
            raise CudaError(f"{name}: the driver (version {self.version}) does not have it ({found})")
        return ctypes.CFUNCTYPE(ctypes.c_int)(int(address))
