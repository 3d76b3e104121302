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
        names = dict(outer)
        kept: list[Statement] = []
        for item in items:
            if isinstance(item, Variable) and item.space.partition("[")[0] in _OUTSIDE:
                names[item.name] = f"{function.name}${item.name}${len(outside)}"
                outside.append(replace(item, name=names[item.name], init=_renamed(item.init, names)))
            elif isinstance(item, Scope):
                kept.append(Scope(within(item.items, names), item.line))
            elif isinstance(item, Instruction) and names:
                kept.append(replace(item, operands=tuple(_one(operand, names) for operand in item.operands)))
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
        base = _one(operand.base, names)
        return replace(operand, base=base) if isinstance(base, Symbol) else operand
    if isinstance(operand, Vector):
        return Vector(tuple(_one(item, names) for item in operand.items))
    return operand
