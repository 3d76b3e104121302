"""Operands of the DSL against the slots of an instruction: what they are, what is wrong with them, how they print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ptxgen.builder.values import Addr, Not, Or, Reg, Shared, Sink, Table, immediate
from ptxgen.isa import Slot, slot_accepts, special_register, type_bits

_ADDRESS_TYPES = frozenset({"u64", "s64", "b64", "u32", "s32", "b32"})


def fault(
    types: Mapping[str, str], opcode: str, slot: Slot, kind: str, operand: Any, registers: tuple[Reg, ...]
) -> str | None:
    """What is wrong with an operand of this kind and with its registers, as the end of a sentence, or None.

    `types` are those of the registers that are declared.
    """
    if kind not in slot.kinds:
        meant = kind == "reg" and "addr" in slot.kinds and operand.type in _ADDRESS_TYPES
        address = f"; {operand.name}[0] is the address it holds" if meant else ""
        return f" must be {slot} (got {kind} {_show(operand)}){address}"
    if kind == "imm" and slot.allowed is not None and operand not in slot.allowed.values:
        return f" must be {slot.allowed} (got {operand})"
    if kind == "imm" and isinstance(operand, float) and slot.type[:1] in "us":
        return f" is .{slot.type} (got the float {operand})"
    for reg in registers:
        wrong = _register(types, opcode, slot, kind, operand, reg)
        if wrong:
            return wrong
    return _vector(slot, operand) if kind == "vec" else None


def _register(types: Mapping[str, str], opcode: str, slot: Slot, kind: str, operand: Any, reg: Reg) -> str | None:
    """One register of an operand: declared here, and of a type that fits."""
    declared = types.get(reg.name)
    if declared is None:
        if special_register(f"%{reg.name}") is None:
            return f": register {reg} is not declared"
        if opcode.split(".")[0] not in ("mov", "cvt"):
            return f": only mov and cvt read special registers (got {reg})"
    elif declared != reg.type:
        return f": {reg} is declared .{declared} (got a .{reg.type})"
    if kind == "addr":
        fits = reg.type in _ADDRESS_TYPES
        return None if fits else f": an address is a 32- or 64-bit integer (got {reg}, a .{reg.type} register)"
    packs = kind == "vec" and not slot.vector  # braces that pack a scalar: sizes are checked together
    second = kind == "pair" and reg is operand.second
    if reg.type == "pred" if second else packs or slot_accepts(slot, reg.type):
        return None
    return f" is .{'pred' if second else slot.type} (got {reg}, a .{reg.type} register)"


def _vector(slot: Slot, items: tuple[Any, ...]) -> str | None:
    """A vector has as many elements as the instruction moves; packing braces hold a scalar in equal parts."""
    if slot.vector:
        return None if len(items) == slot.vector else f" takes {slot.vector} elements (got {len(items)})"
    parts = [type_bits(item.type) for item in items if isinstance(item, Reg)]
    whole = type_bits(slot.type)
    if all(part * len(items) == whole for part in parts):
        return None
    return f" packs {whole} bits in equal parts (got {_show(items)}: {' + '.join(map(str, parts))} bits)"


def kind_of(operand: Any) -> str:
    """The kind of slot that an operand fits (see `isa.Slot`); the name of its type where it fits none."""
    if isinstance(operand, Reg):
        return "reg"
    if isinstance(operand, tuple):
        return "vec"
    if isinstance(operand, Addr):
        return "addr"
    if isinstance(operand, (int, float)):
        return "imm"
    if isinstance(operand, (Shared, Table)):
        return "sym"
    if isinstance(operand, Not):
        return "pred"
    if isinstance(operand, Or):
        return "pair"
    return "sink" if isinstance(operand, Sink) else type(operand).__name__


def _show(operand: Any) -> str:
    return "{" + ", ".join(map(str, operand)) + "}" if isinstance(operand, tuple) else str(operand)


def text_of(operand: Any, slot: Slot) -> str:
    """The operand as PTX. Raises `OverflowError` for a number that the slot's type does not hold."""
    if isinstance(operand, (int, float)):
        return immediate(operand, slot.type)
    if isinstance(operand, tuple):
        return "{" + ", ".join(text_of(item, slot) for item in operand) + "}"
    return str(operand)


def registers_of(operand: Any) -> tuple[Reg, ...]:
    """Every register of an operand, those of its address included."""
    if isinstance(operand, Reg):
        return (operand,)
    if isinstance(operand, tuple):
        return tuple(reg for item in operand for reg in registers_of(item))
    if isinstance(operand, Addr):
        own = (operand.base,) if isinstance(operand.base, Reg) else ()
        return own + tuple(c for c in operand.coordinates if isinstance(c, Reg))
    if isinstance(operand, Not):
        return (operand.reg,)
    if isinstance(operand, Or):
        return (operand.first, operand.second)
    return ()
