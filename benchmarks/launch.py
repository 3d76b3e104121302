"""Host time of one kernel launch, by number of arguments: ours beside C and every other way that is installed.

python -m benchmarks.launch [--arguments 2,5,20,40] [--report [--run ID]]      needs a GPU, and for C a C compiler
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.sentence import in_a_sentence
from ptxgen.runtime import open_device
from ptxgen.runtime.core.backend import Geometry
from ptxgen.runtime.core.param_block import ParamBlock
from ptxgen.runtime.cuda.launch import config

LAUNCHES, ROUNDS = 400, 15
Job = Callable[[], object]

C_SOURCE = """
typedef int (*launch_t)(const void *config, void *function, void **params, void **extra);
int loop(launch_t launch, const void *config, void *function, void **params, int n) {
    for (int i = 0; i < n; i++) { int code = launch(config, function, params, 0); if (code) return code; }
    return 0;
}
"""


def empty_kernel(count: int) -> str:
    """An entry with `count` parameters that returns at once: pointers, and one 32-bit integer at the end."""
    params = ", ".join([*(f".param .u64 a{i}" for i in range(count - 1)), ".param .u32 n"])
    return f".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty({params})\n{{\n    ret;\n}}\n"


class Bench:
    """One number of arguments: the kernel, its arguments, and a job per way to launch it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.device: Any = open_device("cuda")
        self.buffers = [self.device.zeros(4, "f32") for _ in range(count - 1)]
        self.entry = self.device.module(empty_kernel(count))["empty"]
        self.stream = self.device.stream()

    def ours(self) -> Job:
        """A launch of ptxgen's, bound before."""
        bound = self.entry.bind(1, 32, [*self.buffers, np.uint32(5)])
        return lambda: bound.launch(self.stream)

    def c(self) -> Callable[[int], int]:
        """A loop in C around cuLaunchKernelEx; takes the number of launches."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise ImportError("no C compiler")
        folder = Path(tempfile.mkdtemp())
        (folder / "loop.c").write_text(C_SOURCE)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "loop.c", "-o", "loop.so"], cwd=folder, check=True)
        loop = ctypes.CDLL(str(folder / "loop.so")).loop
        address = ctypes.cast(self.device.native_launch, ctypes.c_void_p)
        made, block = config(Geometry.of(1, 32), self.stream.handle), self.block()
        function = ctypes.c_void_p(self.entry.function.handle)
        arguments = (address, ctypes.byref(made), function, ctypes.c_void_p(block.pointers))
        self.keep = (made, block)
        return lambda n: int(loop(*arguments, ctypes.c_int(n)))

    def block(self) -> ParamBlock:
        """The parameter block with this launch's arguments."""
        block = ParamBlock(self.entry.function.slots)
        for i, buffer in enumerate(self.buffers):
            block.set(i, buffer.pointer.to_bytes(8, "little"))
        block.set(self.count - 1, (5).to_bytes(4, "little"))
        return block

    def bindings_prebuilt(self) -> Job:
        """cuda.bindings with an array of pointers made before."""
        from cuda.bindings import driver

        block, function = self.block(), self.entry.function.raw
        stream, launch = driver.CUstream(self.stream.handle), driver.cuLaunchKernel
        return lambda: (launch(function, 1, 1, 1, 32, 1, 1, 0, stream, block.pointers, 0), block)

    def bindings_tuple(self) -> Job:
        """cuda.bindings with a tuple of values and types."""
        from cuda.bindings import driver

        values = (*(b.pointer for b in self.buffers), 5)
        arguments = (values, (ctypes.c_void_p,) * (self.count - 1) + (ctypes.c_uint32,))
        function, stream = self.entry.function.raw, driver.CUstream(self.stream.handle)
        return lambda: driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments, 0)

    def plain_ctypes(self) -> Job:
        """ctypes with argument types."""
        launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
        launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
        block, function, stream = self.block(), self.entry.function.handle, self.stream.handle
        return lambda: (launch(function, 1, 1, 1, 32, 1, 1, 0, stream, block.pointers, None), block)

    def core(self) -> Job:
        """cuda.core's `launch`."""
        from cuda.core import Device, LaunchConfig, ObjectCode, launch

        device = Device(0)
        device.set_current()
        stream, setup = device.create_stream(), LaunchConfig(grid=1, block=32)
        kernel = ObjectCode.from_ptx(empty_kernel(self.count).encode()).get_kernel("empty")
        arguments = (*(b.pointer for b in self.buffers), np.uint32(5))
        return lambda: launch(stream, setup, kernel, *arguments)

    def cupy(self) -> Job:
        """CuPy's RawKernel."""
        import cupy

        params = ", ".join([*(f"float* a{i}" for i in range(self.count - 1)), "unsigned n"])
        kernel = cupy.RawKernel(f'extern "C" __global__ void empty({params}) {{}}', "empty")
        arguments = (*(cupy.zeros(4, dtype=cupy.float32) for _ in self.buffers), np.uint32(5))
        return lambda: kernel((1,), (32,), arguments)

    def triton(self) -> Job:
        """A Triton kernel."""
        import torch
        import triton  # noqa: F401

        names = ", ".join([*(f"a{i}" for i in range(self.count - 1)), "n"])
        source = f"import triton\n\n@triton.jit\ndef empty({names}):\n    pass\n"
        path = Path(tempfile.mkdtemp()) / f"empty_{self.count}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        arguments = [*(torch.zeros(4, device="cuda") for _ in self.buffers), 5]
        grid = module.empty[(1,)]
        return lambda: grid(*arguments)


WAYS: dict[str, Callable[[Bench], Any]] = {
    "c": Bench.c,
    "ptxgen": Bench.ours,
    "cuda.bindings, prebuilt pointers": Bench.bindings_prebuilt,
    "cuda.bindings, tuples": Bench.bindings_tuple,
    "ctypes": Bench.plain_ctypes,
    "cuda.core": Bench.core,
    "cupy": Bench.cupy,
    "triton": Bench.triton,
}


def jobs(bench: Bench) -> Iterator[tuple[str, Any]]:
    """Every way that is installed; the others are named on stderr with the reason."""
    for name, make in WAYS.items():
        try:
            job = make(bench)
            job(1) if name == "c" else job()
        except Exception as missing:  # a peer that does not install or does not run is not a failure of ours
            print(f"{name}: {type(missing).__name__}: {missing}", file=sys.stderr)
            continue
        yield name, job


def seconds(name: str, job: Any) -> float:
    """Time of one launch, the queue being short."""
    start = time.perf_counter()
    if name == "c":
        job(LAUNCHES)
    else:
        for _ in range(LAUNCHES):
            job()
    return (time.perf_counter() - start) / LAUNCHES


def measure(count: int, run: Run) -> None:
    """All ways in turn, several rounds; a row holds the best round and the median."""
    bench = Bench(count)
    ways = list(jobs(bench))
    times: dict[str, list[float]] = {name: [] for name, _ in ways}
    for _ in range(ROUNDS):
        for name, job in ways:
            bench.device.synchronize()
            times[name].append(seconds(name, job))
    best_c = min(times.get("c", [float("nan")]))
    for name, measured in times.items():
        best = min(measured)
        median = float(np.median(measured)) * 1e6
        row = run.add({"arguments": count}, name, us=best * 1e6, median_us=median, of_c=best / best_c)
        print(f"{count:3d} arguments  {name:34s} {row['us']:7.2f} µs  {row['of_c']:5.2f} × C", flush=True)


def main() -> None:
    counts = ("--arguments", {"default": "2,5,20,40", "help": "numbers of arguments (default %(default)s)"})
    command("launch", __doc__, lambda run, given: measure_all(run, given.arguments), counts, device=gpu, at_once=True)


def measure_all(run: Run, counts: str) -> None:
    """For every number of arguments."""
    for count in map(int, counts.split(",")):
        measure(count, run)


if __name__ == "__main__":
    in_a_sentence(main)
