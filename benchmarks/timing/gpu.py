"""What the GPU benchmarks share: memory held by torch, kernels launched through the driver, calls timed as graph nodes.

A call list is captured once and replayed; the inputs rotate among enough sets that the L2 cache does not hold them.
"""

from __future__ import annotations

import ctypes
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

try:
    import torch
    from cuda.bindings import driver
except ImportError as missing:
    if __name__ == "__main__":
        raise SystemExit(f"gpu: {missing}; the benchmarks that need it are commands, this is not") from None
    raise

from ptxgen.generator import Ptx
from ptxgen.launch import evaluate

L2_BYTES = 400e6  # rotate among at least so many bytes: several times any L2
MOST_SETS = 400
# An H200 reads caches of which little is used 12 % slower for the first 10 to 25 ms of their use, which would count
# against the first implementation of a case only.
SETTLE_SECONDS = 0.04


def check(result: tuple[Any, ...]) -> Any:
    """The value of a driver call; an error raises."""
    if int(result[0]):
        raise RuntimeError(f"{result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]


class Loaded:
    """A generated kernel on the current device, with its workspaces; `cubin`: its machine code, if that is there."""

    def __init__(self, ptx: Ptx, cubin: bytes = b"", **capacities: int) -> None:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.ptx = ptx
        self.module = check(driver.cuModuleLoadData(cubin or ptx.text.encode() + b"\0"))
        self.function = check(driver.cuModuleGetFunction(self.module, ptx.entry.encode()))
        self.launch_at = ptx.launch.at(capacities)
        attribute = driver.CUfunction_attribute
        if self.launch_at.shared:  # beside static memory, any size may pass the limit
            name = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(self.function, name, self.launch_at.shared))
        if self.launch_at.cluster[0] > 8:
            name = attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            check(driver.cuFuncSetAttribute(self.function, name, 1))
        self.workspaces = {
            p.name: torch.zeros(max(p.nbytes(capacities), 16), dtype=torch.uint8, device="cuda")
            for p in ptx.params
            if p.access == "workspace"
        }

    def close(self) -> None:
        """Unload the kernel's module."""
        check(driver.cuModuleUnload(self.module))

    def bind(self, **arguments: Any) -> Callable[[], None]:
        """A call that launches on torch's current stream; arguments are tensors, or numbers for scalars."""
        values = {**self.workspaces, **arguments}
        boxes: list[Any] = []
        for param in self.ptx.params:
            value = values[param.name]
            if param.kind == "scalar":
                boxes.append(ctypes.c_uint32(int(value) & 0xFFFFFFFF))
            else:
                boxes.append(ctypes.c_uint64(value.data_ptr()))
        pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
        config = self._config()

        def call() -> None:
            config.hStream = torch.cuda.current_stream().cuda_stream
            check(driver.cuLaunchKernelEx(config, self.function, ctypes.addressof(pointers), 0))

        call.keep = (boxes, pointers, values)  # type: ignore[attr-defined]
        return call

    def _config(self) -> Any:
        at = self.launch_at
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = at.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = at.block
        config.sharedMemBytes = at.shared
        if at.programmatic:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        return config


def upload(array: np.ndarray) -> torch.Tensor:
    """The bytes of an array on the device, 256-byte aligned as torch allocates."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return torch.from_numpy(data.copy()).cuda() if data.size else torch.zeros(16, dtype=torch.uint8, device="cuda")


def download(tensor: torch.Tensor, like: np.ndarray) -> np.ndarray:
    """Device bytes as an array of that shape and type."""
    found: np.ndarray = tensor.cpu().numpy().view(np.uint8)[: like.nbytes].view(like.dtype).reshape(like.shape)
    return found


def sets_for(nbytes: int, budget: float = L2_BYTES) -> int:
    """How many input sets of that size to rotate among."""
    return int(max(2, min(MOST_SETS, -(-budget // nbytes))))


class Chain:
    """A graph that holds calls back to back."""

    def __init__(self, calls: Sequence[Callable[[], None]]) -> None:
        self.count = len(calls)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for call in calls[:2]:
                call()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for call in calls:
                call()

    def us(self, replays: int = 9, settle: float = SETTLE_SECONDS) -> float:
        """Microseconds per call: the median over replays, after it was replayed for so many seconds. One replay waits
        behind the other, so that pauses of the host do not count where a replay takes longer than its launch."""
        settled = time.perf_counter() + settle
        while True:
            self.graph.replay()
            torch.cuda.synchronize()
            if time.perf_counter() >= settled:
                break
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
        self.graph.replay()
        for mark in marks:
            mark.record()
            self.graph.replay()
        torch.cuda.synchronize()
        times = [start.elapsed_time(end) * 1e3 / self.count for start, end in itertools.pairwise(marks)]
        found: float = statistics.median(times)
        return found


def graph_us(calls: Sequence[Callable[[], None]], replays: int = 9, settle: float = SETTLE_SECONDS) -> float:
    """Microseconds per call of a graph that holds all calls; see `Chain.us`."""
    return Chain(calls).us(replays, settle)


def shape_of(ptx: Ptx, name: str, capacities: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a parameter for these capacities."""
    param = next(p for p in ptx.params if p.name == name)
    return tuple(evaluate(extent, capacities) for extent in param.shape)
