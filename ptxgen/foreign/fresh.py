"""Registers that a rewriting needs, and instructions of text with operands put in. Owns no rule of PTX."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ptxgen.nodes import Function, Guard, Instruction, Statement, Variable


class Fresh:
    """Names of registers that no text has (`%$3`), and their declarations."""

    def __init__(self) -> None:
        self.declared: list[Variable] = []

    def register(self, type: str) -> str:
        """The name of one more register."""
        name = f"%${len(self.declared)}"
        self.declared.append(Variable("reg", type, name))
        return name

    def into(self, function: Function) -> Function:
        """The function with these registers declared."""
        return replace(function, body=(*self.declared, *(function.body or ()))) if self.declared else function


def instruction(opcode: str, *operands: str, line: int, guard: Guard | None = None) -> Instruction:
    """An instruction of an opcode and the texts of its operands."""
    from ptxgen.parser.operand import parse_operand

    return Instruction(opcode, tuple(map(parse_operand, operands)), guard, line)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Statement, ...]:
    from ptxgen.parser import parse

    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    module = parse(f"{head}.func f() {{\n{text}\n}}")
    return module.functions["f"].body or ()


def statements(text: str, line: int) -> list[Statement]:
    """The statements of a text, all of one line."""
    return [_on_line(item, line) for item in _parsed(text)]


def _on_line(item: Statement, line: int) -> Statement:
    from ptxgen.nodes import Scope

    if isinstance(item, Scope):
        return Scope(tuple(_on_line(each, line) for each in item.items), line)
    return replace(item, line=line)
