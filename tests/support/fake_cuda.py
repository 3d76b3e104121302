"""A CUDA driver in host memory: it records every call, copies and fills truly, and keeps what was launched.

It stands in for `cuda.bindings.driver` (whose enums and structures it uses). Kernels do not run, unless a test sets
`binding.execute`.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

real = pytest.importorskip("cuda.bindings.driver", reason="the CUDA bindings are not installed")

from ptxgen.runtime import open_device  # noqa: E402
from ptxgen.runtime.core.diskcache import DiskCache  # noqa: E402
from ptxgen.runtime.core.memory.buffer import Buffer  # noqa: E402
from ptxgen.runtime.core.param_block import Slot  # noqa: E402
from ptxgen.runtime.cuda.device import CudaDevice  # noqa: E402
from ptxgen.runtime.cuda.driver import Driver  # noqa: E402
from ptxgen.runtime.cuda.launch import Config  # noqa: E402
from tests.support.fake_order import Launched, Order  # noqa: E402

_SLACK = 256  # bytes of an allocation that only align it
# Around other calls: not logged.
_CONTEXT = ("cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode")
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}
TEXT = """.version 7.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .f32 by, .param .u32 n)
{
    ret;
}
.visible .entry nothing()
{
    ret;
}
"""


def entry_slots(text: str, name: str) -> tuple[Slot, ...]:
    """Parameters of an entry, all of them scalars."""
    found = re.search(rf"\.entry\s+{name}\s*\((.*?)\)", text, re.DOTALL)
    slots, end = [], 0
    for bits in re.findall(r"\.param\s+\.[a-z]+(\d+)", found[1] if found else ""):
        size = _SIZES[bits]
        end = -(-end // size) * size
        slots.append(Slot(end, size))
        end += size
    return tuple(slots)


def fake_device(
    binding: Binding | None = None, cubins: DiskCache | None = None, index: int = 0
) -> tuple[CudaDevice, Binding]:
    """A device over a fake driver, with a cache in memory unless one is given."""
    made = Binding() if binding is None else binding
    return CudaDevice(index, Driver(made), DiskCache(None) if cubins is None else cubins), made


def running_device() -> CudaDevice:
    """A device over a fake driver whose kernels run, on the CPU executor."""
    device, binding = fake_device()
    cpu: Any = open_device("cpu")
    modules: dict[str, Any] = {}

    def execute(text: str, launch: Launched) -> None:
        module = modules.get(text) or modules.setdefault(text, cpu.module(text))
        live = [(pointer, len(raw) - _SLACK) for pointer, raw in binding.memory.items()]
        for pointer, size in live:
            cpu._adopt(pointer, size)
        cluster = launch.attributes.get(4, (1, 1, 1))
        module[launch.name].launch(launch.grid, launch.block, launch.arguments, launch.shared, cluster)
        for pointer, size in live:
            cpu._disown(pointer, size)

    binding.execute = execute
    return device


class Tensor:
    """A buffer as an array of torch, whose current stream `torch_on` sets."""

    __module__ = "torch"

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.__dlpack_device__ = buffer.__dlpack_device__

    def __dlpack__(self, **given: Any) -> object:
        return self.buffer.__dlpack__(**given)


def torch_on(monkeypatch: pytest.MonkeyPatch, stream: int) -> None:
    """As if torch were imported, and its current stream this one."""
    inner = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda index: stream)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(_C=inner))


class Binding(Order):
    """Functions by their driver names; all else is the real module's. `fail[name]` is a list of codes to return."""

    def __init__(self, capability: tuple[int, int] = (9, 0), version: int = 13000, devices: int = 1) -> None:
        super().__init__()
        self.capability = capability
        self.version = version
        self.devices = devices
        self.multiprocessors, self.held_by_each = 132, 1  # and how many CTAs of any kernel each of them holds
        self.log: list[str] = []
        self.fail: dict[str, list[int]] = {}
        self.launched: list[Launched] = []
        self.memory: dict[int, Any] = {}
        self.free_bytes = 1 << 30
        self.texts: dict[int, str] = {}
        self.functions: dict[int, tuple[str, str]] = {}
        self._of_thread = threading.local()
        self.driver_compiles = True
        self.refuses_line = 5  # where it does not
        self.link_options: set[str] = set()  # of the last link
        self.execute: Callable[[str, Launched], None] = lambda text, launch: None
        counts = {"cuGraphLaunch": 2, "cuMemcpyDtoHAsync": 4, "cuStreamSynchronize": 1}
        self._native = {name: self._natively(name, count) for name, count in counts.items()}
        self._native["cuLaunchKernelEx"] = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(self._launch)
        self._keep: list[Any] = []
        self._error_logs: dict[int, Any] = {}  # of each link; several threads link at once
        self._images: dict[int, bytes] = {}

    # how a call is made -------------------------------------------------------------------------------------------
    def __getattr__(self, name: str) -> Any:
        if re.match(r"cu[A-Z]", name):
            function = getattr(type(self), f"_{name}", None)
            if function is None:
                raise AttributeError(f"the fake driver has no {name}")
            return lambda *args: self._called(name, function, args)
        return getattr(real, name)

    def _called(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
        if name not in _CONTEXT:
            self.log.append(name)
        waiting = self.fail.get(name)
        code = waiting.pop(0) if waiting else 0
        if code:
            return (real.CUresult(code), None)
        result = function(self, *args)
        if isinstance(result, real.CUresult):
            return (result, None)
        if result is None:
            return (real.CUresult.CUDA_SUCCESS,)
        return (real.CUresult.CUDA_SUCCESS, *(result if isinstance(result, tuple) else (result,)))

    # device and context -------------------------------------------------------------------------------------------
    def _cuInit(self, flags: int) -> None: ...
    def _cuDriverGetVersion(self) -> int:
        return self.version

    def _cuDeviceGetCount(self) -> int:
        return self.devices

    def _cuDeviceGet(self, index: int) -> int:
        return index

    def _cuDeviceGetName(self, length: int, device: int) -> bytes:
        return b"Fake GPU\0\0"

    def _cuDevicePrimaryCtxRetain(self, device: int) -> int:
        return 0xC0 + device

    def _cuDevicePrimaryCtxRelease(self, device: int) -> None: ...
    def _cuCtxSynchronize(self) -> None: ...
    def _cuGetErrorString(self, code: Any) -> bytes:
        return b"said by the driver"

    def _cuDeviceGetAttribute(self, attribute: Any, device: int) -> int:
        name = attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        major, minor = self.capability
        return {"COMPUTE_CAPABILITY_MAJOR": major, "COMPUTE_CAPABILITY_MINOR": minor,
                "MULTIPROCESSOR_COUNT": self.multiprocessors,
                "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 * 1024}[name]  # fmt: skip

    @property
    def contexts(self) -> list[int]:
        """The contexts of this thread, the current one last."""
        return self._of_thread.__dict__.setdefault("contexts", [])

    def _cuCtxGetCurrent(self) -> int:
        return self.contexts[-1] if self.contexts else 0

    def _cuCtxPushCurrent(self, context: int) -> None:
        self.contexts.append(int(context))

    def _cuCtxPopCurrent(self) -> int:
        return self.contexts.pop()

    def _cuCtxSetCurrent(self, context: int) -> None:
        self.contexts[:] = [int(context)]

    # memory -------------------------------------------------------------------------------------------------------
    def _cuDeviceGetDefaultMemPool(self, device: int) -> int:
        return 0x900

    def _cuMemPoolGetAttribute(self, pool: int, attribute: Any) -> int:
        return 0 if "THRESHOLD" in attribute.name else sum(map(len, self.memory.values()))

    def _cuMemPoolSetAttribute(self, pool: int, attribute: Any, value: Any) -> None: ...
    def _cuMemGetInfo(self) -> tuple[int, int]:
        return (self.free_bytes, 1 << 30)

    def _cuTensorMapEncodeTiled(self, dtype: Any, rank: int, address: int, *lists_and_modes: Any) -> Any:
        """A map that the CPU executor understands, from what the driver would get."""
        from ptxgen.runtime.arrays import tensormap
        from ptxgen.runtime.cpu.native.tensormap_bytes import encode

        dims, strides, box, steps = (tuple(map(int, numbers)) for numbers in lists_and_modes[:4])
        tables: list[dict[Any, int]] = [
            tensormap.INTERLEAVES, tensormap.SWIZZLES, tensormap.PROMOTIONS, tensormap.FILLS
        ]  # fmt: skip
        modes = [
            {number: name for name, number in table.items()}[int(mode)]
            for table, mode in zip(tables, lists_and_modes[4:], strict=True)
        ]
        kind = {number: name for name, number in tensormap.DATA_TYPES.items()}[int(dtype)]
        data = encode(tensormap.Tiling(address, kind, dims, strides[: rank - 1], box, steps, *modes))
        made = real.CUtensorMap()
        ctypes.memmove(int(made.getPtr()), data, len(data))
        return made

    def _cuMemAllocAsync(self, size: int, stream: object) -> Any:
        if size > self.free_bytes:
            return real.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        raw = (ctypes.c_ubyte * (size + _SLACK))()
        pointer = -(-ctypes.addressof(raw) // 256) * 256
        self.memory[pointer] = raw
        self.made_in[pointer] = self._cuCtxGetCurrent()
        return pointer

    def memory_at(self, pointer: int, size: int) -> bytes:
        """Bytes of device memory."""
        return ctypes.string_at(pointer, size)

    def _cuMemFreeAsync(self, pointer: int, stream: Any) -> None:
        def job() -> None:
            del self.memory[int(pointer)]

        if (recording := self.capturing.get(int(stream))) is None:
            job()
        else:
            recording.append(job)

    def _cuMemFree(self, pointer: int) -> None:
        del self.memory[int(pointer)]

    def _cuMemHostAlloc(self, size: int, flags: int) -> int:
        raw = ctypes.create_string_buffer(size)
        self._keep.append(raw)
        self.pinned = (ctypes.addressof(raw), size)
        return ctypes.addressof(raw)

    def _cuMemFreeHost(self, pointer: int) -> None: ...

    def _cuPointerGetAttribute(self, attribute: Any, pointer: int) -> Any:
        if attribute == real.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            for start, raw in self.memory.items():
                if start <= pointer < start + len(raw):
                    return self.made_in[start] - 0xC0
        start, size = getattr(self, "pinned", (0, 0))
        return 1 if start <= pointer < start + size else real.CUresult.CUDA_ERROR_INVALID_VALUE

    def _move(self, dst: int, src: int, size: int, stream: object) -> None:
        self._submit(stream, lambda: ctypes.memmove(int(dst), int(src), size) and None)

    _cuMemcpyHtoDAsync = _cuMemcpyDtoHAsync = _cuMemcpyDtoDAsync = _move

    def _cuMemcpy2DAsync(self, spec: Any, stream: object) -> None:
        host = real.CUmemorytype.CU_MEMORYTYPE_HOST
        src = int(spec.srcHost if spec.srcMemoryType == host else spec.srcDevice)
        dst = int(spec.dstHost if spec.dstMemoryType == host else spec.dstDevice)
        width, rows, to, back = spec.WidthInBytes, spec.Height, spec.dstPitch, spec.srcPitch

        def job() -> None:
            for row in range(rows):
                ctypes.memmove(dst + row * to, src + row * back, width)

        self._submit(stream, job)

    def _set(self, width: int, pointer: int, value: int, count: int, stream: object) -> None:
        data = int(value).to_bytes(width, "little") * count
        self._submit(stream, lambda: ctypes.memmove(int(pointer), data, len(data)) and None)

    def _cuMemsetD8Async(self, *args: Any) -> None:
        self._set(1, *args)

    def _cuMemsetD16Async(self, *args: Any) -> None:
        self._set(2, *args)

    def _cuMemsetD32Async(self, *args: Any) -> None:
        self._set(4, *args)

    # code ---------------------------------------------------------------------------------------------------------
    def _cuLinkCreate(self, count: int, keys: list[Any], values: list[Any]) -> int:
        options = dict(zip(keys, values, strict=True))
        self.link_options = {key.name for key in keys}
        state = self.handle()
        self._error_logs[state] = options[real.CUjit_option.CU_JIT_ERROR_LOG_BUFFER]
        return state

    def _cuLinkAddData(self, state: int, kind: Any, data: bytes, size: int, name: bytes, *_: Any) -> Any:
        assert data.endswith(b"\0")
        assert size == len(data)
        if not self.driver_compiles:
            said = f"ptxas application ptx input, line {self.refuses_line}; fatal : Unsupported .version".encode()
            self._error_logs[state][: len(said)] = said
            return real.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        self._images[state] = b"CUBIN" + data[:-1]
        return None

    def _cuLinkComplete(self, state: int) -> tuple[int, int]:
        raw = ctypes.create_string_buffer(self._images[state])
        self._keep.append(raw)
        return ctypes.addressof(raw), len(self._images[state])

    def _cuLinkDestroy(self, state: int) -> None:
        del self._error_logs[state]
        self._images.pop(state, None)

    def _cuModuleLoadData(self, image: bytes) -> Any:
        if re.match(rb"(\s|//[^\n]*\n)*\.version", image):  # a text, which the driver compiles
            if not self.driver_compiles:
                return real.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            image = b"CUBIN" + image[:-1]
        if not image.startswith(b"CUBIN"):
            return real.CUresult.CUDA_ERROR_INVALID_IMAGE
        module = self.handle()
        self.texts[module] = image[5:].decode()
        return module

    def _cuModuleUnload(self, module: int) -> None:
        del self.texts[module]

    def _cuModuleGetFunction(self, module: int, name: bytes) -> Any:
        if not re.search(rf"\.entry\s+{name.decode()}\b", self.texts[module]):
            return real.CUresult.CUDA_ERROR_NOT_FOUND
        function = self.handle()
        self.functions[function] = (self.texts[module], name.decode())
        return function

    def _cuFuncGetAttribute(self, attribute: Any, function: int) -> int:
        return {"NUM_REGS": 40, "LOCAL_SIZE_BYTES": 0, "SHARED_SIZE_BYTES": 512,
                "MAX_THREADS_PER_BLOCK": 512}[attribute.name.removeprefix("CU_FUNC_ATTRIBUTE_")]  # fmt: skip

    def _cuFuncLoad(self, function: int) -> None: ...
    def _cuFuncSetAttribute(self, function: int, attribute: Any, value: int) -> None: ...

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function: int, threads: int, shared: int) -> int:
        return self.held_by_each

    def _cuFuncGetParamInfo(self, function: int, index: int) -> Any:
        slots = entry_slots(*self.functions[function])
        return tuple(slots[index]) if index < len(slots) else real.CUresult.CUDA_ERROR_INVALID_VALUE

    # launches -----------------------------------------------------------------------------------------------------
    def _cuGetProcAddress(self, name: bytes, version: int, flags: int) -> tuple[int, Any]:
        found = real.CUdriverProcAddressQueryResult.CU_GET_PROC_ADDRESS_SUCCESS
        native = self._native[name.decode()]
        return ctypes.cast(native, ctypes.c_void_p).value or 0, found

    def _natively(self, name: str, count: int) -> Any:
        """A function of `count` words as C calls it."""
        call = lambda *words: int(getattr(self, name)(*(word or 0 for word in words))[0])  # noqa: E731
        return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * count)(call)

    def _arguments(self, function: int, pointers: int) -> tuple[bytes, ...]:
        slots = entry_slots(*self.functions[function])
        array = (ctypes.c_void_p * max(len(slots), 1)).from_address(pointers)
        return tuple(ctypes.string_at(array[i], slot.size) for i, slot in enumerate(slots))

    def _launch(self, config: int, function: int, pointers: int, extra: int) -> int:
        self.log.append("cuLaunchKernelEx")
        waiting = self.fail.get("cuLaunchKernelEx")
        if waiting and (code := waiting.pop(0)):
            return code
        c = Config.from_address(config)
        attributes = {c.attributes[i].id: tuple(c.attributes[i].value[:3]) for i in range(c.count)}
        text, name = self.functions[function]
        made = Launched(name, tuple(c.grid), tuple(c.block), c.shared, c.stream or 0, attributes,
                        self._arguments(function, pointers))  # fmt: skip
        self._submit(made.stream, lambda: self._run(text, made))
        return 0

    def _run(self, text: str, launch: Launched) -> None:
        self.launched.append(launch)
        self.execute(text, launch)
