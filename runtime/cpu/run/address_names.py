"""Where an address lies, in words: a variable of shared memory, an allocation and the argument that holds it."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass

import numpy as np

from ptxgen.runtime.cpu.compile.entry import Entry
from ptxgen.runtime.cpu.native import layout
from ptxgen.runtime.cpu.native.layout import LOCAL_WINDOW, SHARED_BASE, SHARED_WINDOW
from ptxgen.runtime.cpu.run.global_memory import Allocation, Memory

_SMALL = (layout.MAX_CLUSTER + 1) << layout.RANK_SHIFT  # addresses of shared memory are below, those of the host above
_LOCAL_NAME = re.compile(r"_ZZ.+?E(?P<length>\d+)(?P<rest>\w+)")


@dataclass(frozen=True)
class Places:
    """What there is to name: an entry's variables, the memory, and the launch's parameter block."""

    entry: Entry
    memory: Memory
    params: np.ndarray

    def text(self, instruction: str, address: int, size: int, valid: bool) -> str:
        """The place of an access of `size` bytes; `valid`: it lies in some memory, though it may be wrong."""
        space = self._space(instruction, address, valid)
        if space == "shared":
            return self._shared(address & (1 << layout.WINDOW_SHIFT) - 1, size)
        if space == "local":
            address &= (1 << layout.WINDOW_SHIFT) - 1
            return f"address {address:#x} of local memory ({self.entry.local_bytes} bytes a thread)"
        found = self.memory.find(address)
        if found is not None:
            where = f"byte {address - found.begin} of {found.describe()}{self._argument(found)}"
            return f"address {address:#x} ({size} bytes): {where}"
        near = self.memory.nearest(address, size)
        argument = self._argument(near) if near else ""
        return f"address {address:#x} ({size} bytes): {self.memory.explain(address, size)}{argument}"

    def buffer(self, instruction: str, address: int, size: int, valid: bool) -> str:
        """The name of the variable or argument that an access is of; "" where it has none."""
        if self._space(instruction, address, valid) == "shared":
            inner = address & (1 << layout.RANK_SHIFT) - 1
            named = [v for v in self.entry.variables if v[1] <= inner]
            return readable(max(named, key=lambda v: v[1])[0]) if named else ""
        found = self.memory.find(address) or self.memory.nearest(address, size)
        return "" if found is None else self._parameter(found) or found.name

    def read_only(self, address: int, size: int) -> bool:
        """Whether bytes that may be read, but not written, lie there."""
        found = self.memory.find(address)
        return found is not None and found.read_only and address + size <= found.end

    def string(self, address: int, most: int = 1000) -> str:
        """The characters up to a zero byte, as far as memory goes; `?` where there is none."""
        found = self.memory.find(address)
        if found is None:
            return "?"
        data = ctypes.string_at(address, min(found.end - address, most))
        return data.partition(b"\0")[0].decode("utf-8", "replace")

    def _space(self, instruction: str, address: int, valid: bool) -> str:
        """The space of an access; a copy names two of them, of which shared memory has the small addresses."""
        words = instruction.split()
        opcode = words[1 if words[0].startswith("@") else 0] if words else ""
        bases = [word.partition("::")[0].rstrip(";") for word in opcode.split(".")]
        named = [base for base in bases if base in ("shared", "local", "global", "const", "param")]
        if {"shared", "global"} <= set(named):
            return "shared" if address < _SMALL else "global"
        if named:
            return named[0]
        if address >= SHARED_WINDOW:
            return "local" if address & LOCAL_WINDOW else "shared"
        return "shared" if valid and SHARED_BASE <= address < _SMALL else "generic"

    def _shared(self, address: int, size: int) -> str:
        rank, address = address >> layout.RANK_SHIFT, address & (1 << layout.RANK_SHIFT) - 1
        owner = f"CTA {rank - 1} of the cluster" if rank else "the CTA"
        offset = address - SHARED_BASE
        named = [v for v in self.entry.variables if v[1] <= address]
        where = "no variable"
        if named:
            name, begin, length = max(named, key=lambda v: v[1])
            where = f"byte {address - begin} of {readable(name)}" + (f" ({length} bytes)" if length else "")
        return f"shared address {address:#x} ({size} bytes), offset {offset} of {owner}'s shared memory: {where}"

    def _argument(self, allocation: Allocation) -> str:
        """`, argument 2 (out)` for the parameter that points into an allocation."""
        name = self._parameter(allocation)
        return f", argument {[p[0] for p in self.entry.params].index(name)} ({name})" if name else ""

    def _parameter(self, allocation: Allocation) -> str:
        """The parameter that points into an allocation."""
        for name, _, offset, size in self.entry.params:
            if size == 8 and offset + 8 <= self.params.nbytes:
                value = int.from_bytes(self.params[offset : offset + 8].tobytes(), "little")
                if allocation.begin <= value < allocation.end:
                    return name
        return ""


def readable(name: str) -> str:
    """`tile` for the compiler's `_ZZ6kernelE4tile`, a variable inside of a function."""
    match = _LOCAL_NAME.fullmatch(name)
    return match["rest"][: int(match["length"])] if match else name
