"""The executor without the runtime around it, as a device: `array(ndarray)`, and
`module(text)[entry].launch(grid=, block=, args=, shared=, cluster=)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxgen.dtypes import dtype
from ptxgen.parser import parse
from ptxgen.runtime.arrays.tensormap import tiling
from ptxgen.runtime.cpu.native.tensormap_bytes import encode
from ptxgen.runtime.cpu.program import Program
from ptxgen.runtime.cpu.run.global_memory import Memory


class ExecutorDevice:
    """The executor without the runtime around it, in one mode."""

    def __init__(self, mode: str = "fast", seed: int = 1, threads: int | None = None) -> None:
        self.mode, self.seed, self.threads = mode, seed, threads
        self.memory = Memory(track=mode == "check")

    def array(self, source: np.ndarray) -> ExecutorArray:
        """A copy of `source` in an allocation of its own, which counts as written."""
        source = np.ascontiguousarray(source)
        begin = self.memory.allocate(max(source.nbytes, 1))
        made = ExecutorArray(self, begin, source)
        made.view()[...] = source.reshape(-1).view(np.uint8)
        self.memory.written(begin, source.nbytes)
        return made

    def tensor_map(self, source: ExecutorArray, box: tuple[int, ...], **options: Any) -> bytes:
        """A tensor map of an array, as a kernel's argument; options as `Device.tensor_map` has them."""
        return encode(tiling(source.pointer, source.like.shape, dtype(source.like.dtype), box, **options))

    def module(self, text: str) -> ExecutorModule:
        """Any PTX of the supported families."""
        return ExecutorModule(self, Program(parse(text), mode=self.mode, seed=self.seed, threads=self.threads))


@dataclass(frozen=True)
class ExecutorArray:
    """An allocation with the dtype and shape of `like`."""

    device: ExecutorDevice
    pointer: int
    like: np.ndarray

    def view(self) -> np.ndarray:
        """Its bytes, in place."""
        block: Any = self.device.memory.find(self.pointer).keep
        start = self.pointer - block.ctypes.data
        return block[start : start + self.like.nbytes]

    def numpy(self) -> np.ndarray:
        """A copy of its present contents."""
        return self.view().copy().view(self.like.dtype).reshape(self.like.shape)


@dataclass(frozen=True)
class ExecutorModule:
    """A program on a device."""

    device: ExecutorDevice
    program: Program

    def __getitem__(self, entry: str) -> ExecutorKernel:
        return ExecutorKernel(self, entry)


@dataclass(frozen=True)
class ExecutorKernel:
    """One entry."""

    module: ExecutorModule
    entry: str

    def launch(self, grid, block, args, shared=0, cluster=(1, 1, 1)) -> None:
        """Runs to the end."""
        plain = [a.pointer if isinstance(a, ExecutorArray) else a for a in args]
        program, memory = self.module.program, self.module.device.memory
        program.launch(self.entry, grid, block, plain, shared=shared, cluster=cluster, memory=memory)
