"""The instruction table: which forms PTX has, their operands, and the lowest PTX ISA version and target of each.

Rows live one file a family; a form is made from its row when it is first asked for.
Source: PTX ISA 9.0. Proven by tests/test_isa_proof.py against the assembler.
"""

from __future__ import annotations

import difflib
from functools import cache

from ptxgen.errors import IsaError
from ptxgen.isa import (
    address,
    arith,
    async_copy,
    atomics,
    barrier,
    control,
    convert,
    logic,
    matrix,
    memory,
    warp,
    wgmma,
)
from ptxgen.isa.form import REGISTER_TYPES, Form, Slot, slot_accepts, storage_type, type_bits
from ptxgen.isa.pattern import Compiled, Row, compile_row, in_row_order, make_form, match
from ptxgen.isa.registers import SPECIAL_REGISTERS, SpecialRegister, special_register

_FAMILIES = (arith, logic, convert, memory, address, atomics, async_copy, warp, matrix, wgmma, barrier, control)


def _by_name() -> dict[str, list[tuple[Row, str]]]:
    names: dict[str, list[tuple[Row, str]]] = {}
    for family in _FAMILIES:
        for section, rows in family.SECTIONS.items():
            for row in rows:
                names.setdefault(row.pattern.partition(" ")[0], []).append((row, section))
    return names


_ROWS = _by_name()


@cache
def rows(name: str) -> tuple[Compiled, ...]:
    """The rows of one opcode's first word, ready for matching; none for an unknown word."""
    return tuple(compile_row(row, section) for row, section in _ROWS.get(name, ()))


@cache
def lookup(opcode: str) -> Form:
    """The form of an opcode with all its modifiers (`ld.global.nc.L1::no_allocate.v4.b32`).

    Raises `IsaError` that names the unknown opcode or modifier and the nearest known form.
    """
    name, *words = opcode.split(".")
    known = rows(name)
    for compiled in known:
        found, _ = match(compiled, words)
        if found is not None:
            return make_form(opcode, compiled, found, words)
    for compiled in known:
        if compiled.row.loose:
            found, _ = match(compiled, in_row_order(compiled, words))
            if found is not None:
                return make_form(opcode, compiled, found, words)
    raise IsaError(_unknown(opcode, name, words, known))


def _unknown(opcode: str, name: str, words: list[str], known: tuple[Compiled, ...]) -> str:
    if not known:
        near = difflib.get_close_matches(name, _ROWS, 3, 0.5)
        return f"{opcode}: unknown opcode {name!r}" + (f"; nearest: {', '.join(near)}" if near else "")
    reached = max(match(compiled, words)[1] for compiled in known)
    best = [compiled for compiled in known if match(compiled, words)[1] == reached]
    wanted: dict[str, None] = {}
    for compiled in best:
        wanted.update(dict.fromkeys(_expected(compiled, words)))
    here = ".".join([name, *words[:reached]])
    got = f"modifier .{words[reached]} is unknown or misplaced" if reached < len(words) else "a modifier is missing"
    choices = difflib.get_close_matches(words[reached], wanted, 6, 0.3) if reached < len(words) else []
    listed = choices or list(wanted)[:12]
    tail = f"; after {here} the table knows {', '.join('.' + w for w in listed)}" if listed else f"; nearest: {here}"
    return f"{opcode}: {got}{tail}"


def _expected(compiled: Compiled, words: list[str]) -> list[str]:
    """Words that could stand where the match of a row broke off."""
    at = 0
    open_words: list[str] = []
    for token in compiled.tokens:
        if at < len(words) and words[at] in token.choices:
            at += 1
            open_words = []
            continue
        open_words += token.listed
        if not token.optional:
            break
    return open_words


def opcodes() -> tuple[str, ...]:
    """Every first word of the table, sorted."""
    return tuple(sorted(_ROWS))


__all__ = [
    "REGISTER_TYPES",
    "SPECIAL_REGISTERS",
    "Form",
    "IsaError",
    "Slot",
    "SpecialRegister",
    "lookup",
    "opcodes",
    "rows",
    "slot_accepts",
    "special_register",
    "storage_type",
    "type_bits",
]
