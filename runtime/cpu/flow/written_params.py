"""Which parameters of an entry may lead to what it writes: check mode follows the reads of that memory, too.

Addresses are followed through registers, whatever the order of instructions, from 64-bit parameters to the addresses of
stores and atomics. What was loaded from memory as 64 bits may lead anywhere.
"""

from __future__ import annotations

import numpy as np

from ptxgen import nodes
from ptxgen.runtime.cpu.flow.blocks import Block, Op
from ptxgen.runtime.cpu.flow.symbols import TYPE_BITS, Reg, Var

ANYWHERE = -1  # instead of an offset in the parameter block
_LOADS = ("ld", "ldu", "atom")
_ELSEWHERE = ("shared", "local", "param", "const")  # not global memory


def written_params(blocks: list[Block]) -> tuple[int, ...]:
    """Offsets in the parameter block of the pointers through which an entry may write, or (`ANYWHERE`,)."""
    ops = [op for block in blocks for op in block.ops]
    origins: dict[int, int] = {}  # of a register: bit 0 for anywhere, bit n + 1 for the parameter at byte 8 · n
    changed = True
    while changed:
        changed = False
        for op in ops:
            bits = _origin(op, origins)
            for reg in op.writes if bits else ():
                if reg.bits > 1 and bits & ~origins.get(reg.index, 0):
                    origins[reg.index] = origins.get(reg.index, 0) | bits
                    changed = True
    found = 0
    for op in ops:
        for reg in _targets(op):
            found |= origins.get(reg.index, 0)
    if found & 1:
        return (ANYWHERE,)
    return tuple(8 * (n - 1) for n in range(1, found.bit_length()) if found >> n & 1)


def _origin(op: Op, origins: dict[int, int]) -> int:
    if op.words[0] in _LOADS:
        if TYPE_BITS.get(op.words[-1], 0) < 64 or op.words[-1] == "f64":
            return 0
        named = _parameter(op)
        if named is None:
            return 1
        variable, first = named
        if not variable.words:
            count = len(op.operands[0].items) if isinstance(op.operands[0], nodes.Vector) else 1
            return sum(1 << n // 8 + 1 for n in range(first, first + 8 * count, 8))
    bits = 0
    for reg in op.reads:
        bits |= origins.get(reg.index, 0)
    return bits


def _parameter(op: Op) -> tuple[Var, int] | None:
    """The entry's or a call's parameter that is loaded by name, and from which byte of the entry's block."""
    place = op.operands[1]
    if isinstance(place, nodes.Address) and isinstance(place.base, nodes.Symbol):
        named = op.scope.find(place.base.name)
        if isinstance(named, Var) and named.space == "param":
            return named, named.offset + place.base.offset + place.offset
    return None


def _targets(op: Op) -> list[Reg]:
    """The registers of the addresses of global memory that an instruction writes."""
    words = [word.partition("::")[0] for word in op.words]
    if words[0] == "cp":
        spaces = [word for word in words if word in ("global", "shared")]
        if spaces[:1] != ["global"]:
            return []
    elif words[0] not in ("st", "atom", "red") or any(space in words for space in _ELSEWHERE):
        return []
    place = next((operand for operand in op.operands if isinstance(operand, nodes.Address)), None)
    base = place.base if place is not None else None
    found = op.scope.find(base.name) if isinstance(base, nodes.Register) else base
    return [found] if isinstance(found, Reg) else []


def pointers(params: np.ndarray, written: tuple[int, ...]) -> list[int] | None:
    """The pointers in a parameter block through which a launch may write; None for anywhere."""
    if ANYWHERE in written:
        return None
    return [int.from_bytes(params[offset : offset + 8].tobytes(), "little") for offset in written]
