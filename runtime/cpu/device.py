"""`CpuDevice`: the device protocol on the executor. Work runs at once, in the calling thread and its helpers."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from ptxgen.errors import CudaError, IsaError, ModuleLoadError
from ptxgen.runtime.arrays.tensormap import Tiling
from ptxgen.runtime.core.backend import (
    Code,
    Copy,
    FirstUse,
    Function,
    Geometry,
    Launcher,
    MemoryUse,
    Resources,
    Stopped,
)
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.core.launches.graph import Graph
from ptxgen.runtime.core.launches.immediate import ImmediateGraph, ImmediateLauncher, ImmediateStream, immediate
from ptxgen.runtime.core.launches.modulecache import ModuleCache
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.param_block import ParamBlock, Slot
from ptxgen.runtime.core.stream import Stream
from ptxgen.runtime.cpu.compile import support_objects
from ptxgen.runtime.cpu.compile.entry import Entry
from ptxgen.runtime.cpu.native.tensormap_bytes import encode
from ptxgen.runtime.cpu.program import Program
from ptxgen.runtime.cpu.run.geometry import fitted
from ptxgen.runtime.cpu.run.global_memory import Memory
from ptxgen.runtime.cpu.run.options import Options
from ptxgen.targets import Target, target


class CpuFunction:
    """One entry of a program."""

    def __init__(self, code: CpuCode, entry: Entry) -> None:
        self.code, self.entry = code, entry
        self.name = entry.name
        self.slots = tuple(Slot(offset, size) for _, _, offset, size in entry.params)

    @property
    def resources(self) -> Resources:
        """Local and shared memory; a CPU has no registers to count."""
        most = self.entry.limit("reqntid") or self.entry.limit("maxntid")
        threads = int(np.prod(most)) if most else 1024
        return Resources(0, self.entry.local_bytes, self.entry.static_shared, threads)


class CpuCode:
    """A text that the executor has loaded: the device's `Code`."""

    def __init__(self, device: CpuDevice, program: Program) -> None:
        self.device, self.program = device, program
        self.unloaded = False

    @property
    def origin(self) -> str:
        """Always the executor; its own cache works below this."""
        return "executor"

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entries."""
        return self.program.entries

    def function(self, name: str) -> Function:
        """The entry, compiled; `ModuleLoadError` for a name there is not, or an instruction the executor lacks."""
        if name not in self.program.entries:
            raise ModuleLoadError(f"module: has no entry {name!r} (it has {', '.join(self.program.entries) or 'none'})")
        try:
            return CpuFunction(self, self.program.entry(name))
        except IsaError as error:
            raise ModuleLoadError(str(error)) from error

    def unload(self) -> None:
        """Drop the code once nothing launches it any more."""
        self.unloaded = True
        self.program.globals.remove(self.device.bytes)


class CpuDevice(Device):
    """The CPU executor as a device, with `Options`; its `seed` may be changed.

    It runs PTX of every target, and generates for sm_90a unless asked otherwise.
    """

    kind: ClassVar[str] = "cpu"

    def __init__(
        self,
        mode: str = "fast",
        seed: int = 0,
        threads: int | None = None,
        time_limit: float | None = None,
        most_findings: int = 20,
        equal_stores: str = "note",
    ) -> None:
        self.options = Options(mode, seed, threads, time_limit, most_findings, equal_stores)
        self.name = "cpu"
        self.target = target("sm_90a")
        self.mode, self.threads = mode, threads
        self.bytes = Memory(track=mode == "check")
        self.default_stream = ImmediateStream()
        self.modules = ModuleCache(self)
        support_objects.prepare(mode == "check")

    @property
    def seed(self) -> int:
        """Of the order in random mode."""
        return self.options.seed

    @seed.setter
    def seed(self, value: int) -> None:
        self.options = replace(self.options, seed=value)

    def synchronize(self) -> None:
        """Nothing is ever pending."""
        self.check()

    def memory(self) -> MemoryUse:
        """Physical memory of the machine, what of it a process can have, and what this device has allocated; zeros
        where the system does not say."""
        self.check()
        page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
        total = page * os.sysconf("SC_PHYS_PAGES") if page else 0
        free = _available() or (page * os.sysconf("SC_AVPHYS_PAGES") if page else 0)
        used = self.bytes.owned
        return MemoryUse(free, total, used, used)

    def close(self) -> None:
        """Every later use raises; memory goes with the last reference to it."""
        self.closed = True
        self.modules = ModuleCache(self)

    def check(self) -> None:
        """Raise if the device was closed."""
        if self.closed:
            raise CudaError("cpu was closed")

    # what `Device` asks of a backend ------------------------------------------------------------------------------
    def _runs(self, target: Target) -> bool:
        return True

    def _allocate(self, nbytes: int, stream: Stream | None) -> int:
        self.check()
        try:
            return self.bytes.allocate(nbytes)
        except (MemoryError, OverflowError, ValueError):  # the last two: more than a program can address
            use = self.memory()
            said = f"asked for {nbytes:,} bytes, {use.free:,} are free; up to about {use.available:,} would fit"
            raise CudaError(f"cpu: out of memory: {said}") from None

    def _release(self, pointer: int, nbytes: int, streams: tuple[Stream, ...]) -> None:
        self.bytes.free(pointer)

    def _adopt(self, pointer: int, nbytes: int, readonly: bool = False) -> None:
        self.bytes.adopt(pointer, max(nbytes, 1), read_only=readonly)

    def _disown(self, pointer: int, nbytes: int, readonly: bool = False) -> None:
        self.bytes.disown(pointer, max(nbytes, 1), read_only=readonly)

    def _copy(self, copy: Copy, stream: Stream | None, after: tuple[Stream, ...]) -> None:
        self._submit(stream, lambda: self._move(copy))

    def _move(self, copy: Copy) -> None:
        for row in range(copy.height):
            dst, src = copy.dst + row * copy.dst_pitch, copy.src + row * copy.src_pitch
            ctypes.memmove(dst, src, copy.width)
            if copy.direction == "in":
                self.bytes.written(dst, copy.width)
            elif copy.direction == "on":
                self.bytes.copied(dst, src, copy.width)

    def _fill(self, pointer: int, pattern: bytes, count: int, stream: Stream | None, after: tuple[Stream, ...]) -> None:
        def job() -> None:
            size = len(pattern) * count
            block = memoryview((ctypes.c_uint8 * size).from_address(pointer))
            np.frombuffer(block, np.uint8).reshape(count, len(pattern))[:] = np.frombuffer(pattern, np.uint8)
            self.bytes.written(pointer, size)

        self._submit(stream, job)

    def _submit(self, stream: Stream | None, job: Callable[[], None]) -> None:
        self.check()
        where = immediate(self.default_stream if stream is None else stream)
        where.submit(lambda: self._run_job(where, job))

    @staticmethod
    def _run_job(stream: ImmediateStream, job: Callable[[], None]) -> None:
        stream.latest = 0
        job()

    def _pinned(self, nbytes: int) -> np.ndarray:
        return np.empty(nbytes, np.uint8)

    def _is_pinned(self, array: np.ndarray) -> bool:
        return False

    def _encode(self, tiling: Tiling) -> bytes:
        return encode(tiling)

    def _load_foreign(self, text: str, label: str) -> Code:
        return self._load(text, label, verify=True)  # on a GPU the driver's compiler does

    def _load(self, text: str, label: str, verify: bool = False) -> Code:
        self.check()
        try:
            program = Program.from_text(text, label, verify, mode=self.mode, threads=self.threads)
        except IsaError as error:
            said = str(error)  # most begin with the line
            raise ModuleLoadError(said if said.startswith(f"{label}:") else f"{label}: {said}") from error
        return CpuCode(self, program)

    def _prepare(
        self, function: Function, geometry: Geometry, block: ParamBlock, first_use: FirstUse, stopped: Stopped
    ) -> Launcher:
        self.check()
        assert isinstance(function, CpuFunction)
        program, entry = function.code.program, function.entry
        compiled = program.compiled(entry.name, self.mode == "check")
        made = fitted(entry, geometry)

        def run(params: ParamBlock, stream: ImmediateStream) -> None:
            self.check()
            if function.code.unloaded:
                raise CudaError(f"launch: {entry.name} was unloaded")
            block = (ctypes.c_uint8 * max(params.size, 1)).from_address(params.address)
            data = np.frombuffer(memoryview(block), np.uint8)
            beside, stream.latest = stream.latest if geometry.programmatic else 0, 0
            stream.latest = program.launch_packed(compiled, made, data, self.bytes, self.options, beside)

        assert isinstance(self.default_stream, ImmediateStream)
        return ImmediateLauncher(self.default_stream, run, block, first_use, stopped)

    def launch_that_writes(self, buffers: Iterable[Buffer]) -> None:
        """In check mode: as if a kernel on the default stream had just written these buffers, with what is in them. A
        programmatic launch behind it must wait before it reads them."""
        if self.mode == "check":
            assert isinstance(self.default_stream, ImmediateStream)
            places = [(buffer.pointer, buffer.nbytes) for buffer in buffers]
            self.default_stream.latest = self.bytes.launch_that_writes(places)

    def _new_stream(self) -> Stream:
        return ImmediateStream()

    def _foreign_stream(self, foreign: object) -> Stream:
        return immediate(foreign)

    def _check_memory(self, label: str, pointer: int) -> None:
        """The process has one memory."""

    def _new_graph(self) -> Graph:
        return ImmediateGraph(self)


def _available() -> int:
    """Bytes that Linux can give without swapping: free ones, and those that only cache files. 0 elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0]) if found else 0
