"""PTX made from the instruction table itself: opcodes that use every word of a row, and statements with operands."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from ptxgen.isa import Form, Slot, lookup, storage_type
from ptxgen.isa.pattern import Compiled

# Registers that every sample may use: eight of each type.
BANKS = {
    "pred": "%p", "b8": "%bb", "b16": "%h", "b32": "%r", "b64": "%d", "b128": "%q", "f32": "%f", "f64": "%fd",
    "f16": "%hf", "f16x2": "%hx", "u8": "%uc", "s8": "%sc", "u16": "%us", "s16": "%ss", "u32": "%u", "s32": "%s",
    "u64": "%ud", "s64": "%sd",
}  # fmt: skip
_WIDE_BANK = 160
# Literals that mean something to the instruction: by the opcode's start and position, where 1 is not legal and the row
# cannot say so.
_LITERALS = {
    ("lop3", 4): "0x96", ("createpolicy.f", 1): "0f3F000000", ("createpolicy.r", 2): "128", ("shfl", 3): "31",
    ("shfl", 4): "-1", ("mma", 5): "0", ("mma", 7): "0",
}  # fmt: skip


def literal(form: Form, position: int) -> str:
    """An immediate operand that means something at this place of a form."""
    slot = form.operands[position]
    plain = {"f32": "0f3F800000", "f64": "0d3FF0000000000000"}.get(slot.type, "1")
    if slot.allowed is not None:
        values = slot.allowed.values
        plain = str(values[-1] if isinstance(values, tuple) else values[1])
    known = (text for (start, at), text in _LITERALS.items() if at == position and form.opcode.startswith(start))
    return next(known, plain)


_TABLES = (
    "table: .branchtargets label;",
    "prototype: .callprototype (.param .b32 _) _ (.param .b32 _);",
    "mov.u64 %d0, giving;",
)
_CALLS = ("callee", "taking, (7)", "(%r0), giving, (7)", "(%r0), %d0, (7), prototype")


def samples(compiled: Compiled) -> list[str]:
    """Opcodes of a row: the barest, and for every word of every position one that has it."""
    bare = [None if token.optional else token.listed[0] for token in compiled.tokens]
    name = compiled.row.pattern.split()[0]
    chosen = [bare]
    for index, token in enumerate(compiled.tokens):
        for word in token.listed[0 if token.optional else 1 :]:
            chosen.append([*bare[:index], word, *bare[index + 1 :]])
    return list(dict.fromkeys(".".join([name, *filter(None, words)]) for words in chosen))


def combinations(compiled: Compiled, count: int, seed: int = 0) -> list[str]:
    """Up to so many opcodes of a row with words chosen at random at every position, the same ones every time."""
    chance = Random(f"{compiled.row.pattern} {seed}")
    name = compiled.row.pattern.split()[0]
    choices = [[*token.listed, ""] if token.optional else [*token.listed] for token in compiled.tokens]
    chosen = ([chance.choice(each) for each in choices] for _ in range(count))
    return list(dict.fromkeys(".".join([name, *filter(None, words)]) for words in chosen))


def _bank(type: str, index: int) -> str:
    return f"{BANKS[storage_type(type)]}{index}"


def _scalar(form: Form, position: int, slot: Slot, used: int) -> str:
    if "label" in slot.kinds:
        return {"call": "callee", "brx": "table"}.get(form.name, "label")
    if "reg" in slot.kinds or "pair" in slot.kinds:
        first = _bank(slot.type, used)
        return first if "reg" in slot.kinds else f"{first}|%p1"
    if "imm" in slot.kinds:
        return literal(form, position)
    return "_"


def operand(form: Form, position: int, slot: Slot) -> str:
    """An operand of the slot's own kind: a register where one may stand."""
    used = position + 1
    if "addr" in slot.kinds:
        # Shared addresses are 32 bits wide, all others 64.
        base = f"%r{used}" if slot.space.startswith("shared") else f"%d{used}"
        if slot.space.startswith("param"):
            return "[result]" if form.name == "st" else "[given]" if slot.space == "param::func" else "[parameter]"
        if slot.vector:
            return f"[{base}, {{{', '.join(f'%r{i}' for i in range(slot.vector))}}}]"
        return f"[{base}]"
    if slot.vector:
        start = 0 if slot.writes else 1
        return "{" + ", ".join(_bank(slot.type, start + i) for i in range(slot.vector)) + "}"
    return _scalar(form, position, slot, used)


def statement(form: Form, optional: int = 0) -> str:
    """One instruction of a form, with so many of its optional operands."""
    slots = form.operands[: len(form.operands) - form.optional + optional]
    if form.name == "call":
        return f"{form.opcode} {_CALLS[optional]};"
    return f"{form.opcode} {', '.join(operand(form, i, slot) for i, slot in enumerate(slots))};".replace(" ;", ";")


def module(statements: list[str], version: tuple[int, int], target: str) -> tuple[str, list[int]]:
    """A module with every statement on its own line, and those lines' numbers.

    Statements that name a function's parameters stand in a device function, all others in one kernel.
    """
    registers = [f".reg .{type} {name}<{_WIDE_BANK}>;" for type, name in BANKS.items() if type != "b128"]
    if any("%q" in each for each in statements):
        registers.append(f".reg .b128 %q<{_WIDE_BANK}>;")
    parameters = "(.param .align 16 .b8 result[64]) inside (.param .align 16 .b8 given[64])"
    head = [f".version {version[0]}.{version[1]}", f".target {target}", ".address_size 64", ".func callee() { ret; }",
            ".func taking(.param .b32 given) { ret; }",
            ".func (.param .b32 result) giving(.param .b32 given) { st.param.b32 [result], 1; ret; }"]  # fmt: skip
    lines: list[str] = [*head, f".func {parameters}", "{", *registers]
    numbers = [0] * len(statements)
    for in_function in (True, False):
        for index, each in enumerate(statements):
            if ("[result]" in each or "[given]" in each) == in_function:
                lines.append(each)
                numbers[index] = len(lines)
        if in_function:
            entry = ".visible .entry kernel(.param .align 16 .b8 parameter[64])"
            lines += ["ret;", "}", entry, "{", *registers, *_TABLES]
    return "\n".join([*lines, "label:", "ret;", "}", ""]), numbers


def all_forms(rows: Iterator[Compiled]) -> Iterator[tuple[Compiled, Form]]:
    """Every sample of every row, and of its further operand lists."""
    for compiled in rows:
        for opcode in samples(compiled):
            form = lookup(opcode)
            yield from ((compiled, each) for each in (form, *form.also))
