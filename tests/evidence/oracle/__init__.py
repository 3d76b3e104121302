"""An independent PTX interpreter in NumPy: whole grids in lock-step, simple rather than fast. Shares only the parser.

`run` launches on plain arrays; `Oracle` is a device with the calls that the tests' cases use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxgen import nodes
from ptxgen.parser import parse
from tests.evidence.oracle import access, asynchronous, fields, floating, integer, matrix, select, tensor, warp  # noqa: F401  (HANDLERS)
from tests.evidence.oracle.machine import Machine
from tests.evidence.oracle.memory import Memory, OracleFault
from tests.evidence.oracle.program import Program


def launch(module: nodes.Module, entry: str, grid, block, args, shared=0, cluster=(1, 1, 1), memory=None) -> None:
    """Runs one entry; `args` are raw bytes, NumPy scalars or addresses (int) in `memory`. Raises `OracleFault`."""
    memory = memory if memory is not None else Memory()
    program = Program(module, entry, memory, shared)
    if len(args) != len(program.param_sizes):
        raise OracleFault(f"{entry} takes {len(program.param_sizes)} arguments, not {len(args)}")
    for value, address, size in zip(args, program.param_addresses, program.param_sizes, strict=True):
        scalar = np.uint64(value) if isinstance(value, int) else value
        data = scalar if isinstance(scalar, bytes) else scalar.tobytes()
        if len(data) != size:
            raise OracleFault(f"{entry}: an argument of {len(data)} bytes for a parameter of {size}")
        memory.write(address, np.frombuffer(data, np.uint8))
    machine = Machine(program, memory, *((*np.atleast_1d(d).tolist(), 1, 1)[:3] for d in (grid, block, cluster)))
    machine.run()
    machine.spaces.finish()


def run(module: nodes.Module, entry: str, grid, block, args, shared=0, cluster=(1, 1, 1)) -> None:
    """As `launch`, with NumPy arrays among the arguments: each is copied in, and filled with the result."""
    memory = Memory()
    addresses = [memory.add(a) if isinstance(a, np.ndarray) else a for a in args]
    launch(module, entry, grid, block, addresses, shared, cluster, memory)
    for array, address in zip(args, addresses, strict=True):
        if isinstance(array, np.ndarray):
            array[...] = memory.read(address, array)


@dataclass(frozen=True)
class Array:
    """A buffer in the oracle's memory."""

    memory: Memory
    pointer: int
    like: np.ndarray

    def numpy(self) -> np.ndarray:
        """A copy of its present contents."""
        return self.memory.read(self.pointer, self.like)


class Oracle:
    """A device: `array`, `module(text)[entry].launch(grid=, block=, args=, shared=, cluster=)`."""

    def __init__(self) -> None:
        self.memory = Memory()

    def array(self, source: np.ndarray) -> Array:
        """A copy of `source` in global memory."""
        return Array(self.memory, self.memory.add(source), np.empty_like(source, order="C"))

    def tensor_map(self, source: Array, box: tuple[int, ...], **options: object) -> tensor.Map:
        """A tensor map of an array; `element_strides`, `swizzle`, `oob_fill` as `Device.tensor_map` has them."""
        return tensor.make(self.memory, source, box, **options)

    def module(self, text: str) -> OracleModule:
        """Any PTX the oracle can run."""
        return OracleModule(self, parse(text, "<oracle>"))


@dataclass(frozen=True)
class OracleModule:
    """A parsed module on an oracle."""

    device: Oracle
    parsed: nodes.Module

    def __getitem__(self, entry: str) -> OracleKernel:
        return OracleKernel(self, entry)


@dataclass(frozen=True)
class OracleKernel:
    """One entry."""

    module: OracleModule
    entry: str

    def launch(self, grid, block, args, shared=0, cluster=(1, 1, 1)) -> None:
        """Runs to the end."""
        plain = [a.pointer if isinstance(a, Array) else a.data if isinstance(a, tensor.Map) else a for a in args]
        launch(self.module.parsed, self.entry, grid, block, plain, shared, cluster, self.module.device.memory)
