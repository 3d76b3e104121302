"""Modifiers in the table's order: `ld.u32.global` is `ld.global.u32`, `div.ftz.rn.f32` is `div.rn.ftz.f32`."""

from __future__ import annotations

from functools import cache

from ptxgen.isa import rows
from ptxgen.isa.form import is_type
from ptxgen.isa.pattern import Compiled, match


@cache
def in_order(opcode: str) -> str:
    """The opcode with its modifiers as a row of the table has them; itself where none fits."""
    name, *words = opcode.split(".")
    known = rows(name)
    for compiled in known:
        if match(compiled, words)[0] is not None:
            return opcode
    for compiled in known:
        ordered = _ordered(compiled, words)
        if ordered is not None:
            return ".".join([name, *ordered])
    return opcode


def _ordered(compiled: Compiled, words: list[str]) -> list[str] | None:
    """The words in the places that the row has for them, types in their own order; None where one is left."""
    left, found = list(words), []
    for token in compiled.tokens:
        kind = next((word for word in left if is_type(word)), None)
        word = next((word for word in left if word in token.choices and (not is_type(word) or word == kind)), None)
        if word is not None:
            found.append(word)
            left.remove(word)
        elif not token.optional:
            return None
    return None if left else found
