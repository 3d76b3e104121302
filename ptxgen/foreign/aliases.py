"""`.alias f, g`: a second name of a function, under which it is declared but has no body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ptxgen.nodes import Address, Directive, Function, Instruction, Module, Operand, Scope, Statement, Symbol, Vector


def by_one_name(module: Module) -> Module:
    """The module with every function called by the name that has a body; aliases and their declarations are gone."""
    names = {}
    for item in module.items:
        if isinstance(item, Directive) and item.name == "alias":
            alias, _, aliased = (part.strip() for part in item.text.rstrip("; \t").partition(","))
            names[alias] = aliased
    if not names:
        return module
    items = []
    for item in module.items:
        if isinstance(item, Function):
            if item.body is None and item.name in names:
                continue
            if item.body is not None:
                item = replace(item, body=tuple(_statement(each, names) for each in item.body))
        elif isinstance(item, Directive) and item.name == "alias":
            continue
        items.append(item)
    return replace(module, items=tuple(items))


def _statement(item: Statement, names: Mapping[str, str]) -> Statement:
    if isinstance(item, Scope):
        return Scope(tuple(_statement(each, names) for each in item.items), item.line)
    if isinstance(item, Instruction):
        return replace(item, operands=tuple(_operand(each, names) for each in item.operands))
    return item


def _operand(operand: Operand, names: Mapping[str, str]) -> Operand:
    if isinstance(operand, Symbol) and operand.name in names:
        return Symbol(names[operand.name], operand.offset)
    if isinstance(operand, Vector):
        return Vector(tuple(_operand(item, names) for item in operand.items))
    if isinstance(operand, Address) and isinstance(operand.base, Symbol) and operand.base.name in names:
        return replace(operand, base=Symbol(names[operand.base.name], operand.base.offset))
    return operand
