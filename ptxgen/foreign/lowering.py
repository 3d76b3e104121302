"""Instructions spelled out in others: video instructions, wmma, tensormap. One instruction, one scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ptxgen.foreign.fresh import statements
from ptxgen.foreign.tensormap import tensormap
from ptxgen.foreign.video import VIDEO, video
from ptxgen.foreign.wmma import wmma
from ptxgen.nodes import Function, Instruction, Module, Scope, Statement

_Spell = Callable[[Instruction, list[str], str], "str | None"]


def without_video(function: Function) -> Function:
    """The function without video instructions, which the table does not know."""
    return replace(function, body=_body(function.body or (), _video))


def spelled_out(module: Module) -> Module:
    """The module without wmma and tensormap instructions, as far as others can do the same."""
    items = tuple(
        replace(item, body=_body(item.body, _others)) if isinstance(item, Function) and item.body else item
        for item in module.items
    )
    return replace(module, items=items)


def _video(item: Instruction, words: list[str], guard: str) -> str | None:
    return video(words, [str(each) for each in item.operands], guard) if words[0] in VIDEO else None


def _others(item: Instruction, words: list[str], guard: str) -> str | None:
    if words[0] == "tensormap":
        return tensormap(words, item.operands, guard)
    return wmma(words, item.operands, guard) if words[0] == "wmma" else None


def _body(items: Iterable[Statement], spell: _Spell) -> tuple[Statement, ...]:
    return tuple(_statement(item, spell) for item in items)


def _statement(item: Statement, spell: _Spell) -> Statement:
    if isinstance(item, Scope):
        return Scope(_body(item.items, spell), item.line)
    if isinstance(item, Instruction) and item.opcode[0] in "tvw":
        guard = f"{item.guard} " if item.guard is not None else ""
        text = spell(item, item.opcode.split("."), guard)
        return item if text is None else Scope(tuple(statements(text, item.line)), item.line)
    return item
