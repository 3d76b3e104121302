"""Variables of global and constant memory that are declared inside a function, as variables of the module."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ptxgen.nodes import Address, Function, Instruction, Operand, Scope, Statement, Symbol, Variable, Vector

_OUTSIDE = ("global", "const")


def lifted(function: Function) -> tuple[list[Variable], Function]:
    """The variables, each under the function's name and its own, and the function that names them so."""
    outside: list[Variable] = []

    def within(items: Iterable[Statement], outer: dict[str, str]) -> tuple[Statement, ...]:
        names, kept = dict(outer), []
        for item in items:
            if isinstance(item, Variable) and item.space.partition("[")[0] in _OUTSIDE:
                names[item.name] = f"{function.name}${item.name}${len(outside)}"
                outside.append(replace(item, name=names[item.name], init=_renamed(item.init, names)))
            elif isinstance(item, Scope):
                kept.append(Scope(within(item.items, names), item.line))
            elif isinstance(item, Instruction) and names:
                kept.append(replace(item, operands=_renamed(item.operands, names)))
            else:
                kept.append(item)
        return tuple(kept)

    body = within(function.body or (), {})
    return outside, replace(function, body=body) if outside else function


def _renamed(operands: tuple[Operand, ...] | None, names: dict[str, str]) -> tuple[Operand, ...] | None:
    return None if operands is None else tuple(_one(operand, names) for operand in operands)


def _one(operand: Operand, names: dict[str, str]) -> Operand:
    if isinstance(operand, Symbol) and operand.name in names:
        return Symbol(names[operand.name], operand.offset)
    if isinstance(operand, Address):
        return replace(operand, base=_one(operand.base, names))
    if isinstance(operand, Vector):
        return Vector(tuple(_one(item, names) for item in operand.items))
    return operand
