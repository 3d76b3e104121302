"""The module's own variables (`.global`, `.const`) in host memory, initialised."""

from __future__ import annotations

from weakref import WeakSet

import numpy as np

from ptxgen.runtime.cpu.compile.variable_images import GlobalVariable
from ptxgen.runtime.cpu.run.global_memory import Memory


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
                block[: len(variable.image)] = np.frombuffer(variable.image, np.uint8)
            self._blocks.append(block)
            if block is not None:
                self.table[len(self._blocks) - 1] = block.ctypes.data
        for variable, block in zip(variables, self._blocks, strict=True):
            if variable.addresses:
                assert block is not None
                offsets, numbers, addends = np.array(variable.addresses, np.int64).T
                pointers = self.table[numbers] + addends.astype(np.uint64)
                block[offsets[:, None] + np.arange(8)] = pointers.view(np.uint8).reshape(-1, 8)
            if variable.bytes_of:
                assert block is not None
                offsets, numbers, addends, shifts = np.array(variable.bytes_of, np.int64).T
                pointers = self.table[numbers] + addends.astype(np.uint64)
                block[offsets] = (pointers >> shifts.astype(np.uint64)).astype(np.uint8)
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
