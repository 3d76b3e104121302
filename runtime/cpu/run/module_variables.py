"""The module's own variables (`.global`, `.const`) in host memory, initialised."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from weakref import WeakSet

import numpy as np

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.runtime.cpu.flow.calls import function_address
from ptxgen.runtime.cpu.flow.flow import module_variables
from ptxgen.runtime.cpu.flow.symbols import bits_of, variable_align, variable_bytes
from ptxgen.runtime.cpu.run.global_memory import Memory


@dataclass(frozen=True, slots=True)
class GlobalVariable:
    """A variable's image. `addresses` are (offset, symbol number, addend) of pointers to fill in."""

    name: str
    space: str
    size: int
    align: int
    image: bytes
    addresses: tuple[tuple[int, int, int], ...] = ()


def describe(module: nodes.Module) -> list[GlobalVariable]:
    """Every variable of the module, by symbol number; those in shared memory have no image."""
    variables = module_variables(module)
    numbers = {variable.name: number for number, variable in enumerate(variables)}
    found = []
    for variable in variables:
        size = variable_bytes(variable)
        image, addresses = bytearray(size if variable.space in ("global", "const") else 0), []
        step = bits_of(variable.type, variable.line) // 8
        for position, item in enumerate(variable.init or ()):
            if isinstance(item, nodes.Immediate):
                image[position * step : (position + 1) * step] = _encoded(item, variable.type, step)
            elif isinstance(item, nodes.Symbol) and function_address(module, item.name) is not None:
                image[position * step : (position + 1) * step] = _pointer(module, item.name, step)
            elif isinstance(item, nodes.Symbol) and item.name in numbers:
                addresses.append((position * step, numbers[item.name], item.offset))
            else:
                raise IsaError(
                    module.refusal(variable.line, f"initialiser {item} is not supported by the CPU executor")
                )
        found.append(
            GlobalVariable(
                variable.name, variable.space, size, variable_align(variable), bytes(image), tuple(addresses)
            )
        )
    return found


def _pointer(module: nodes.Module, name: str, step: int) -> bytes:
    return (function_address(module, name) or 0).to_bytes(8, "little")[:step]


def _encoded(item: nodes.Immediate, kind: str, step: int) -> bytes:
    if kind in ("f32", "f64", "f16"):
        return struct.pack({"f32": "<f", "f64": "<d", "f16": "<e"}[kind], float(item.value))
    value = item.value
    if isinstance(value, float):  # the bit pattern of a float in an untyped array
        return struct.pack("<f" if step == 4 else "<d", value)
    return (int(value) & ((1 << 8 * step) - 1)).to_bytes(step, "little")


class Globals:
    """The variables' memory, shared by all launches of a program, as on a device."""

    def __init__(self, variables: list[GlobalVariable]) -> None:
        self.variables = variables
        self.table = np.zeros(max(len(variables), 1), np.uint64)
        self._blocks: list[np.ndarray | None] = []
        for variable in variables:
            block = None
            if variable.space in ("global", "const") and variable.size:
                padded = np.zeros(variable.size + variable.align, np.uint8)
                skip = -padded.ctypes.data % variable.align
                block = padded[skip : skip + variable.size]
                block[:] = np.frombuffer(variable.image, np.uint8)
            self._blocks.append(block)
            if block is not None:
                self.table[len(self._blocks) - 1] = block.ctypes.data
        for variable, block in zip(variables, self._blocks, strict=True):
            for offset, number, addend in variable.addresses:
                assert block is not None
                block[offset : offset + 8].view(np.uint64)[0] = int(self.table[number]) + addend
        self._placed: WeakSet[Memory] = WeakSet()

    def place(self, memory: Memory) -> None:
        """Make the variables known to a memory; once for each memory."""
        if memory in self._placed:
            return
        for variable, block in zip(self.variables, self._blocks, strict=True):
            if block is not None:
                constant = variable.space == "const"
                memory.adopt(int(block.ctypes.data), block.nbytes, variable.name, keep=block, read_only=constant)
        self._placed.add(memory)

    def remove(self, memory: Memory) -> None:
        """The opposite of `place`."""
        if memory in self._placed:
            self._placed.discard(memory)
            for block in self._blocks:
                if block is not None:
                    memory.free(int(block.ctypes.data))

    def array(self, name: str) -> np.ndarray:
        """The bytes of a variable, to read or to set between launches."""
        for variable, block in zip(self.variables, self._blocks, strict=True):
            if variable.name == name and block is not None:
                return block
        raise KeyError(name)
