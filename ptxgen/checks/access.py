"""Rules for ptxgen's own text about what instructions touch: memory at known offsets, registers not written yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from ptxgen.isa import lookup, special_register, type_bits
from ptxgen.isa.form import is_type
from ptxgen.nodes import (
    Address,
    Group,
    Immediate,
    Instruction,
    Label,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
)
from ptxgen.nodes.sizes import variable_bytes

Finding = tuple[int, str]
Items = list[Instruction | Label]

# Bytes of an access that the type does not tell (PTX ISA, "ldmatrix", "mbarrier"); a bulk copy's ends are 16-aligned.
_FIXED = {"ldmatrix": 16, "stmatrix": 16, "mbarrier": 8}
_BULK_BELL = 3  # the operand of a bulk copy or reduction that is its mbarrier
_TYPED = frozenset({"ld", "ldu", "st", "atom", "red"})


@cache
def access_bytes(opcode: str) -> int:
    """Bytes that one thread's access moves, of which its address must be a multiple; 0 where that is not known."""
    name, *words = opcode.split(".")
    if name == "cp":
        return 16 if "bulk" in words and "tensor" not in words else 0
    if name not in _TYPED or "bulk" in words:
        return _FIXED.get(name, 0)
    count = next((int(word[1:]) for word in words if word in ("v2", "v4", "v8")), 1)
    types = [word for word in words if is_type(word)]
    return count * type_bits(types[-1]) // 8 if types else 0


def wild_accesses(items: Items, variables: Mapping[str, Variable]) -> Iterator[Finding]:
    """Offsets that no aligned address can have, and accesses outside of the variable that they name.

    An address register is taken to be aligned for its accesses, as every pointer is by the launch contract.
    """
    for item in items:
        if type(item) is not Instruction:
            continue
        for position, operand in enumerate(item.operands):
            if type(operand) is Address and (operand.offset or type(operand.base) is Symbol):
                size = access_bytes(item.opcode) or _copied(item)
                if position == _BULK_BELL and item.opcode.startswith(("cp.async.bulk", "cp.reduce.async.bulk")):
                    size = min(size, _FIXED["mbarrier"])
                what = _wild(operand, size, variables) if size else None
                if what:
                    yield item.line, f"{item.opcode}: {what}"


def _copied(item: Instruction) -> int:
    """Bytes of a `cp.async`: its third operand."""
    count = item.operands[2] if item.opcode.startswith("cp.async.c") and len(item.operands) > 2 else None
    return int(count.value) if isinstance(count, Immediate) else 0


def _wild(address: Address, size: int, variables: Mapping[str, Variable]) -> str | None:
    offset = address.offset
    if offset % size:
        return f"an offset must be a multiple of {size}, the bytes of the access (got {address})"
    base = address.base
    variable = variables.get(base.name) if isinstance(base, Symbol) else None
    length = variable_bytes(variable) if variable is not None else 0
    if length and not 0 <= offset <= length - size:
        return f"bytes {offset} to {offset + size - 1} are not in {variable.name}, which has {length}"  # type: ignore[union-attr]
    return None


def unwritten_reads(items: Items) -> Iterator[Finding]:
    """Registers that are read where no path can have written them; a write under a guard counts."""
    reads, written, labels, back = _uses(items)
    for name, (at, line) in reads.items():
        first = written.get(name)
        if first is None:
            yield line, f"register {name} is read but no instruction writes it"
        elif not any(branch >= first and labels[label] <= at for branch, label in back):
            yield line, f"register {name} is read before anything can have written it (line {items[first].line} does)"


Uses = tuple[dict[str, tuple[int, int]], dict[str, int], dict[str, int], list[tuple[int, str]]]


def _uses(items: Items) -> Uses:
    """Reads before the first write (name → index, line), first writes, labels, and branches back to one of them."""
    reads: dict[str, tuple[int, int]] = {}
    written: dict[str, int] = {}
    labels: dict[str, int] = {}
    back: list[tuple[int, str]] = []
    for index, item in enumerate(items):
        if isinstance(item, Label):
            labels[item.name] = index
            continue
        guard = item.guard
        if guard is not None and guard.register not in written:
            reads.setdefault(guard.register, (index, item.line))
        results = _results(item.opcode)
        for position, operand in enumerate(item.operands):
            if position in results:
                continue
            for name in (operand.name,) if type(operand) is Register else registers_of(operand):
                if name not in written:
                    reads.setdefault(name, (index, item.line))
        for position in results:
            result = item.operands[position]
            for name in (result.name,) if type(result) is Register else registers_of(result):
                written.setdefault(name, index)
        if item.opcode.startswith("bra"):
            target = item.operands[0]
            if isinstance(target, Symbol) and target.name in labels:
                back.append((index, target.name))
    return {name: place for name, place in reads.items() if not _predefined(name)}, written, labels, back


@cache
def _results(opcode: str) -> tuple[int, ...]:
    """Positions of the operands that an opcode writes (none that may be absent)."""
    return tuple(position for position, slot in enumerate(lookup(opcode).operands) if slot.writes)


def registers_of(operand: Operand) -> Iterator[str]:
    """Registers of an operand, those of its address included."""
    if isinstance(operand, Register):
        yield operand.name
    elif isinstance(operand, (Vector, Group)):
        for item in operand.items:
            yield from registers_of(item)
    elif isinstance(operand, Address):
        yield from registers_of(operand.base)
        if operand.coordinates is not None:
            yield from registers_of(operand.coordinates)
    elif isinstance(operand, Negated):
        yield from registers_of(operand.operand)
    elif isinstance(operand, Pair):
        yield from registers_of(operand.first)
        yield from registers_of(operand.second)


def _predefined(name: str) -> bool:
    return name == "_" or special_register(name) is not None
