"""Vector registers (`.reg .v4 .u32 %v`) as scalar ones that are named by their parts, and moves of whole vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ptxgen.isa.registers import special_register
from ptxgen.nodes import Function, Instruction, Operand, Register, Scope, Statement, Symbol, Variable, Vector, flat

_PARTS = "xyzw"
_COLOURS = {"r": "x", "g": "y", "b": "z", "a": "w"}
Known = dict[str, int]  # vector registers in scope, and their lengths


def in_scalars(function: Function) -> Function:
    """The function without vector registers."""
    body = function.body or ()
    return replace(function, body=tuple(_scalars(body, {}))) if any(map(_is_concerned, flat(body))) else function


def _is_concerned(item: Statement) -> bool:
    if isinstance(item, Instruction):
        return item.opcode.startswith("mov.v")
    return isinstance(item, Variable) and item.vector > 0


def _scalars(items: Iterable[Statement], outer: Known) -> Iterator[Statement]:
    known = dict(outer)
    for item in items:
        if isinstance(item, Scope):
            yield Scope(tuple(_scalars(item.items, known)), item.line)
        elif isinstance(item, Variable) and item.space == "reg" and item.vector:
            names = [f"{item.name}{n}" for n in range(item.count)] if item.count else [item.name]
            for name in names:
                known[name] = item.vector
                for part in _PARTS[: item.vector]:
                    yield replace(item, name=f"{name}.{part}", vector=0, count=0)
        elif isinstance(item, Instruction):
            if known:
                item = replace(item, operands=tuple(_operand(each, known) for each in item.operands))
            yield from _moves(item)
        else:
            yield item


def _operand(operand: Operand, known: Known) -> Operand:
    name = operand.name if isinstance(operand, Register | Symbol) else ""
    if name in known:
        return Vector(tuple(Register(f"{name}.{part}") for part in _PARTS[: known[name]]))
    stem, dot, part = name.rpartition(".")
    if dot and stem in known and part in _COLOURS:
        return Register(f"{stem}.{_COLOURS[part]}")
    if isinstance(operand, Vector):
        return Vector(tuple(_operand(item, known) for item in operand.items))
    return operand


def _moves(item: Instruction) -> Iterator[Instruction]:
    """`mov.v4.u16 {…}, %tid` part by part; every other instruction as it is."""
    words = item.opcode.split(".")
    if words[0] != "mov" or len(words) != 3 or words[1] not in ("v2", "v4") or len(item.operands) != 2:
        yield item
        return
    count = int(words[1][1:])
    targets, sources = (_items(operand, count) for operand in item.operands)
    if targets is None or sources is None:
        yield item
        return
    for to, from_ in zip(targets, sources, strict=True):
        yield Instruction(f"mov.{words[2]}", (to, from_), item.guard, item.line)


def _items(operand: Operand, count: int) -> tuple[Operand, ...] | None:
    if isinstance(operand, Vector) and len(operand.items) == count:
        return operand.items
    if isinstance(operand, Register) and special_register(f"{operand.name}.x"):
        return tuple(Register(f"{operand.name}.{part}") for part in _PARTS[:count])
    return None
