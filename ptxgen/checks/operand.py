"""What is wrong with one operand in its slot: kind, type, vector length, state space, undeclared names."""

from __future__ import annotations

from functools import lru_cache

from ptxgen.checks.names import Names
from ptxgen.isa import Form, Slot
from ptxgen.isa.form import accepted_registers, type_bits
from ptxgen.nodes import (
    Address,
    Group,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
)

_PREDICATE = frozenset({"pred"})


def fault(names: Names, operand: Operand, slot: Slot, form: Form, line: int) -> str | None:
    """A sentence's end such as `must be .f32 (got %r1, a .b32 register)`, or None; undeclared names are reported."""
    kinds = slot.kinds
    if isinstance(operand, Register):
        return _register(names, operand, slot, line)
    if isinstance(operand, Immediate):
        return _immediate(operand, slot) if "imm" in kinds else _must(slot, operand)
    if isinstance(operand, Address):
        return _address(names, operand, slot, line)
    if isinstance(operand, Vector):
        return _vector(names, operand, slot, line)
    if isinstance(operand, Symbol):
        return _symbol(names, operand, slot, form)
    if isinstance(operand, Negated):
        negatable = "pred" in kinds
        return _register(names, operand.operand, slot, line) if negatable else f"cannot be negated (got {operand})"
    if isinstance(operand, Pair):
        return _pair(names, operand, slot, line)
    return _group(names, operand, line) if "group" in kinds else _must(slot, operand)


def choose(names: Names, form: Form, operands: tuple[Operand, ...], line: int) -> Form | None:
    """The form of an opcode (itself, or one of `also`) that these operands fit best; None when their number fits none.

    Reports nothing but names that are not declared.
    """
    fitting = [each for each in (form, *form.also) if each.takes(len(operands))]
    for each in fitting[:-1]:
        pairs = zip(operands, each.operands, strict=False)
        if not any([fault(names, operand, slot, each, line) for operand, slot in pairs]):  # noqa: C419
            return each
    return fitting[-1] if fitting else None


def _must(slot: Slot, operand: Operand) -> str:
    register = "register " if isinstance(operand, Register) else ""
    return f"must be {slot} (got {register}{operand})"


def _register(names: Names, operand: Register, slot: Slot, line: int) -> str | None:
    if operand.name == "_":
        return None if slot.kinds >= {"sink", "reg"} or slot.kinds == {"sink"} else "cannot be the sink _"
    declared = names.type_of(operand.name, line)
    if declared is None or declared == f"v{slot.vector}.{slot.type}":
        return None
    if "label" in slot.kinds:
        return None if "reg" in slot.kinds else f"must be a label (got {operand})"
    if slot.vector or not slot.kinds & {"reg", "pred", "vec"}:
        return _must(slot, operand)
    if declared not in slot.accepts:
        return f"must be .{slot.type} (got {operand}, a .{declared} register)"
    return None


def _pair(names: Names, operand: Pair, slot: Slot, line: int) -> str | None:
    if "pair" not in slot.kinds:
        return f"cannot be a pair (got {operand})"
    if operand.first.name == "_" and "sink" not in slot.kinds:
        return f"cannot begin with the sink _ (got {operand})"
    if operand.second.name == "_" and "reg" not in slot.kinds:
        return f"must have a predicate (got {operand})"
    for part, accepts in ((operand.first, slot.accepts), (operand.second, _PREDICATE)):
        declared = None if part.name == "_" else names.type_of(part.name, line)
        if declared is not None and declared not in accepts:
            return f"must be .{slot.type} with a predicate (got {part}, a .{declared} register)"
    return None


def _vector(names: Names, operand: Vector, slot: Slot, line: int) -> str | None:
    if "vec" not in slot.kinds:
        return _must(slot, operand)
    count, accepts = len(operand.items), slot.accepts
    if slot.vector and count != slot.vector:
        return f"must have {slot.vector} elements (got {count})"
    if not slot.vector:
        if not count:
            return "must have elements (got {})"
        bits, left = divmod(type_bits(slot.type), count)
        if left or bits not in (8, 16, 32, 64):
            return f"of {type_bits(slot.type)} bits cannot be packed from {count} elements"
        accepts = accepted_registers(f"b{bits}", False)
    registers = names.registers
    for item in operand.items:
        if type(item) is Register and registers.get(item.name) in accepts:
            continue
        wrong = _element(names, item, slot, accepts, line)
        if wrong:
            return wrong
    return None


def _element(names: Names, item: Operand, slot: Slot, accepts: frozenset[str], line: int) -> str | None:
    if isinstance(item, Register):
        if item.name == "_":
            return None if slot.writes else "cannot hold the sink _"
        declared = names.type_of(item.name, line)
        if declared is None or declared in accepts:
            return None
        return f"has an element that does not fit .{slot.type} (got {item}, a .{declared} register)"
    if isinstance(item, Immediate) and "imm" in slot.kinds:
        wrong = _immediate(item, slot)
        return f"has an element that {wrong}" if wrong else None
    return f"has an element that is no register (got {item})"


def _address(names: Names, operand: Address, slot: Slot, line: int) -> str | None:
    if "addr" not in slot.kinds:
        return _must(slot, operand)
    given = len(operand.coordinates.items) if operand.coordinates else 0
    if given != slot.vector:
        return f"must have {slot.vector} coordinates (got {given})" if slot.vector else "takes no coordinates"
    base = operand.base
    if isinstance(base, Register):
        declared = names.type_of(base.name, line)
        if declared is not None and declared not in slot.accepts:
            return f"must be a {slot}: a .u64 register (got {base}, a .{declared} register)"
    elif isinstance(base, Symbol):
        return _based_on(names, base, slot)
    return None


def _based_on(names: Names, base: Symbol, slot: Slot) -> str | None:
    variable = names.variable(base.name)
    if variable is None:
        return f"names {base.name}, which is not declared"
    space = slot.space.partition("::")[0]
    if space and isinstance(variable, Variable) and variable.space.partition("[")[0] != space:
        return f"must be in .{space} (got {base.name}, which is in .{variable.space})"
    return None


def _symbol(names: Names, operand: Symbol, slot: Slot, form: Form) -> str | None:
    name = operand.name
    if "label" in slot.kinds:
        known = names.is_label(name) or (form.name == "call" and names.variable(name) is not None)
        return None if known else f"names {name}, which is not declared"
    if not ({"imm", "sym"} & slot.kinds) or slot.type[0] == "f" or type_bits(slot.type) < 32:
        return _must(slot, operand)
    return None if names.knows(operand) else f"names {name}, which is not declared"


def _group(names: Names, operand: Group, line: int) -> str | None:
    for each in operand.items:
        if isinstance(each, Symbol) and names.variable(each.name) is None:
            return f"names {each.name}, which is not declared"
        if isinstance(each, Register) and each.name != "_":
            names.type_of(each.name, line)
    return None


@lru_cache(maxsize=1 << 14)
def _literal(text: str) -> tuple[int | None, bool]:
    """The value of an integer literal, None for a float; and whether a float is given by its bit pattern."""
    literal = Immediate(text)
    if literal.is_float:
        return None, text.lower().lstrip("-")[:2] in ("0f", "0d")
    return int(literal.value), False


def _immediate(operand: Immediate, slot: Slot) -> str | None:
    """Whether a literal fits: floats for float types, integers of no more bits than the type has, or than allowed."""
    kind = slot.type[0]
    value, exact = _literal(operand.text)
    if value is None:
        return None if kind == "f" or (kind == "b" and exact) else f"must be an integer (got {operand})"
    if kind == "f":
        return f"must be a floating-point literal, such as 0f3F800000 (got {operand})"
    if slot.type == "pred" or slot.relaxed:
        return None
    bits = type_bits(slot.type)
    if not -(1 << bits - 1) <= value < 1 << bits:
        return f"does not fit {bits} bits (got {operand})"
    if slot.allowed is not None and value not in slot.allowed.values:
        return f"must be {slot.allowed} (got {operand})"
    return None
