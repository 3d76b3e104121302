"""Modifiers in the table's order: `ld.u32.global` is `ld.global.u32`, `div.ftz.rn.f32` is `div.rn.ftz.f32`."""

from __future__ import annotations

from functools import cache

from ptxgen.isa import rows
from ptxgen.isa.pattern import in_row_order, match


@cache
def in_order(opcode: str) -> str:
    """The opcode with its modifiers as a row of the table has them; itself where none fits."""
    name, *words = opcode.split(".")
    known = rows(name)
    for compiled in known:
        if match(compiled, words)[0] is not None:
            return opcode
    for compiled in known:
        ordered = in_row_order(compiled, words)
        if match(compiled, ordered)[0] is not None:
            return ".".join([name, *ordered])
    return opcode
