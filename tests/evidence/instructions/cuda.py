"""A CUDA device for recording: cuda.bindings alone, so that the evidence does not rest on the runtime under test.

`array`, `module(text)[entry].launch(grid=, block=, args=, shared=, cluster=)`, as the tests' other devices have.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


class LoadError(Exception):
    """The driver refused a text; the message has its log."""


class LaunchError(Exception):
    """A launch failed; the context can no longer be used."""


def check(result: tuple, error: type[Exception] = LaunchError) -> Any:
    """The value of a driver call, or `error` with its status."""
    status, *values = result
    if int(status) != 0:
        raise error(str(status))
    return values[0] if values else None


class CudaDevice:
    """The first GPU, in its primary context."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver = driver
        check(driver.cuInit(0))
        self.handle = check(driver.cuDeviceGet(0))
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(self.handle))))

    def describe(self) -> str:
        """Name and driver version."""
        name = check(self.driver.cuDeviceGetName(128, self.handle))
        text = name.decode() if isinstance(name, bytes) else str(name)
        return f"{text.partition(chr(0))[0].strip()}, CUDA driver {check(self.driver.cuDriverGetVersion())}"

    def array(self, source: np.ndarray) -> CudaArray:
        """A copy of `source` on the device."""
        return CudaArray(self, source)

    def module(self, text: str) -> CudaModule:
        """PTX through the driver's compiler; raises `LoadError`."""
        return CudaModule(self, text)


class CudaArray:
    """Device memory that holds a copy of a NumPy array."""

    def __init__(self, device: CudaDevice, source: np.ndarray) -> None:
        self.device, self.like = device, np.ascontiguousarray(source)
        driver = device.driver
        self.pointer = int(check(driver.cuMemAlloc(max(self.like.nbytes, 16))))
        check(driver.cuMemcpyHtoD(self.pointer, self.like.ctypes.data, self.like.nbytes))

    def numpy(self) -> np.ndarray:
        """Its present contents."""
        out = np.empty_like(self.like)
        check(self.device.driver.cuMemcpyDtoH(out.ctypes.data, self.pointer, out.nbytes))
        return out

    def __del__(self) -> None:
        # After a failed launch this fails too, and nothing is left to save.
        self.device.driver.cuMemFree(self.pointer)


class CudaModule:
    """A loaded module."""

    def __init__(self, device: CudaDevice, text: str) -> None:
        self.device = device
        option, size = device.driver.CUjit_option, 8192
        log = bytes(size)  # the bindings take a bytes object, and the driver writes into it
        options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        image = np.frombuffer(text.encode() + b"\0", np.uint8)
        values = [log, size]
        status, self.handle = device.driver.cuModuleLoadDataEx(image.ctypes.data, 2, options, values)
        if int(status) != 0:
            raise LoadError(f"{status}: {log.rstrip(bytes(1)).decode(errors='replace').strip()[:400]}")

    def __getitem__(self, entry: str) -> CudaKernel:
        return CudaKernel(self, check(self.device.driver.cuModuleGetFunction(self.handle, entry.encode())))


class CudaKernel:
    """One entry."""

    def __init__(self, module: CudaModule, handle: Any) -> None:
        self.module, self.handle = module, handle

    def launch(self, grid, block, args, shared=0, cluster=(1, 1, 1)) -> None:
        """Launches and waits."""
        driver = self.module.device.driver
        blobs = [_bytes(a) for a in args]
        buffers = [ctypes.create_string_buffer(b, len(b)) for b in blobs]
        pointers = (ctypes.c_void_p * max(len(buffers), 1))(*(ctypes.addressof(b) for b in buffers))
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
        config.sharedMemBytes = shared
        if tuple(cluster) != (1, 1, 1):
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = attribute.value.clusterDim
            size.x, size.y, size.z = (*cluster, 1, 1)[:3]
            config.attrs, config.numAttrs = [attribute], 1
        check(driver.cuLaunchKernelEx(config, self.handle, ctypes.addressof(pointers), 0))
        check(driver.cuCtxSynchronize())


def _bytes(value: object) -> bytes:
    if isinstance(value, CudaArray):
        return value.pointer.to_bytes(8, "little")
    return value if isinstance(value, bytes) else np.asarray(value).tobytes()
