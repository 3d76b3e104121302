"""Operands that ptxas takes and the table's slots do not, one instruction at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from ptxgen.errors import IsaError
from ptxgen.foreign.fresh import Fresh, instruction
from ptxgen.foreign.order import in_order
from ptxgen.isa import Slot, lookup, special_register, type_bits
from ptxgen.nodes import (
    Address,
    Function,
    Immediate,
    Instruction,
    Operand,
    Register,
    Scope,
    Statement,
    Symbol,
    Variable,
    Vector,
)
from ptxgen.nodes.scoped import Scoped

_ACCESSES = {"ld", "ldu", "st", "atom", "red"}
_SHORT_SPACES = {"shared", "local", "param"}  # whose addresses have 32 bits
_WITHOUT_SYNC = ("shfl.", "vote.")  # before sm_70 they had no member mask
_NARROW = {"mov.u16": "cvt.u16.u32", "mov.s16": "cvt.s16.u32"}  # where a special register has 32 bits
_OF_REGISTERS = ("mov.", "shfl.", "vote.")  # written otherwise even where all operands are registers
_REGISTERS = frozenset({Register})
_NUMBERED = (Immediate, Vector)


def rewritten(function: Function, fresh: Fresh, older: bool) -> Function:
    """The function with every operand in the form that the table has; `older`: of an architecture before sm_70."""
    types: Scoped[str] = Scoped()
    for variable in (*function.params, *function.returns):
        if variable.space == "reg":
            types.declare(variable, variable.type)
    body = tuple(_body(function.body or (), types, fresh, older))
    return fresh.into(replace(function, body=body))


def _body(items: Iterable[Statement], outer: Scoped[str], fresh: Fresh, older: bool) -> Iterator[Statement]:
    types = Scoped(outer)
    for item in items:
        if isinstance(item, Instruction):
            opcode = in_order(item.opcode)
            if _REGISTERS.issuperset(map(type, item.operands)) and not opcode.startswith(_OF_REGISTERS):
                yield item if opcode == item.opcode else replace(item, opcode=opcode)
            else:
                yield from _instruction(item, opcode, types, fresh, older)
            continue
        if isinstance(item, Variable) and item.space == "reg":
            types.declare(item, item.type)
        yield Scope(tuple(_body(item.items, types, fresh, older)), item.line) if isinstance(item, Scope) else item


def _instruction(
    item: Instruction, opcode: str, types: Scoped[str], fresh: Fresh, older: bool
) -> Iterator[Instruction]:
    operands = list(item.operands)
    for n, operand in enumerate(operands):
        if isinstance(operand, Symbol) and operand.offset and (kind := types.find(operand.name)):
            name = fresh.register(kind)
            yield instruction(f"add.u{type_bits(kind)}", name, operand.name, str(operand.offset), line=item.line,
                              guard=item.guard)  # fmt: skip
            operands[n] = Register(name)
        elif isinstance(operand, Address) and _is_wide(opcode) and _is_short(operand, types):
            name = fresh.register("u64")
            yield instruction("cvt.u64.u32", name, str(operand.base), line=item.line, guard=item.guard)
            operands[n] = replace(operand, base=Register(name))
    if older and opcode.startswith(_WITHOUT_SYNC) and "sync" not in (words := opcode.split(".")):
        mask = fresh.register("b32")
        yield instruction("activemask.b32", mask, line=item.line, guard=item.guard)
        opcode = ".".join([words[0], "sync", *words[1:]])
        operands.append(Register(mask))
    if opcode in _NARROW and len(operands) == 2 and _is_short_special(operands[1]):
        opcode = _NARROW[opcode]
    slots = _slots(opcode, len(operands))
    if slots is not None:
        for n, (operand, slot) in enumerate(zip(operands, slots, strict=True)):
            if isinstance(operand, _NUMBERED):
                operands[n] = _fitted(operand, slot)
    changed = opcode != item.opcode or len(operands) != len(item.operands)
    if changed or any(now is not before for now, before in zip(operands, item.operands, strict=True)):
        item = replace(item, opcode=opcode, operands=tuple(operands))
    yield item


@cache
def _is_wide(opcode: str) -> bool:
    """Whether an access takes addresses of 64 bits: of global memory, or generic ones."""
    words = opcode.replace("::", ".").split(".")
    return words[0] in _ACCESSES and _SHORT_SPACES.isdisjoint(words)


def _is_short(operand: Address, types: Scoped[str]) -> bool:
    """Whether an address stands in a register of 32 bits, which is extended with zeros."""
    kind = types.find(operand.base.name) if isinstance(operand.base, Register) else None
    return kind not in (None, "pred") and type_bits(kind) == 32


def _is_short_special(operand: Operand) -> bool:
    """Whether an operand is a special register of 32 bits."""
    found = special_register(operand.name) if isinstance(operand, Register) else None
    return found is not None and found.type == "u32"


@cache
def _slots(opcode: str, count: int) -> tuple[Slot, ...] | None:
    try:
        return lookup(opcode).layout(count)
    except IsaError:
        return None


def _fitted(operand: Operand, slot: Slot) -> Operand:
    """One register in braces without them; an integer as its lowest bits, as many as the operand has."""
    if isinstance(operand, Vector) and len(operand.items) == 1 and not slot.vector and slot.kinds & {"reg", "imm"}:
        operand = operand.items[0]
    if isinstance(operand, Immediate) and "imm" in slot.kinds and slot.type[:1] in ("u", "s", "b") and not slot.allowed:
        value = operand.value
        bits = type_bits(slot.type)
        if isinstance(value, int) and bits < 64 and not -(1 << (bits - 1)) <= value < 1 << bits:
            written = str(value & ((1 << bits) - 1))
            return operand if operand.text == written else Immediate(written)
    return operand
