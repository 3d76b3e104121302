"""What a predicate says about registers: the comparisons that hold where it is true, and where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ptxgen.nodes import Immediate, Instruction, Negated, Operand, Register


@dataclass(frozen=True, slots=True)
class Less:
    """`low < high`, or with `equal` `low ≤ high`; both are register names or numbers, compared as `signed` has it."""

    low: str | int
    high: str | int
    equal: bool
    signed: bool


Facts = tuple[tuple[Less, ...], tuple[Less, ...]]  # of a predicate: what holds where it is true, and where it is not


def side_of(operand: Operand) -> str | int | None:
    """A side of a comparison: a register's name or a number; None for anything else."""
    if isinstance(operand, Register):
        return operand.name
    return operand.value if isinstance(operand, Immediate) and isinstance(operand.value, int) else None


def mentions(facts: Facts, name: str) -> bool:
    """Whether a register is a side of any of the comparisons."""
    return any(name in (fact.low, fact.high) for side in facts for fact in side)


def facts_of(item: Instruction, known: Mapping[str, Facts]) -> Facts | None:
    """What the predicate that an instruction writes says, true and false."""
    words = item.opcode.split(".")
    if words[-1] == "pred":
        return _of_logic(words[0], item.operands[1:], known)
    if words[0] != "setp" or words[-1] not in ("u32", "s32", "b32") or len(item.operands) < 3:
        return None
    a, b = (side_of(operand) for operand in item.operands[1:3])
    if a is None or b is None:
        return None
    holds, fails = _compared(words[1], a, b, words[-1] == "s32")
    if len(words) == 3:
        return holds, fails
    other = _of(item.operands[3], known)
    return {"and": (holds + other[0], ()), "or": ((), fails + other[1])}.get(words[2])


def _compared(word: str, a: str | int, b: str | int, signed: bool) -> Facts:
    less, most = Less(a, b, False, signed), Less(a, b, True, signed)
    more, least = Less(b, a, False, signed), Less(b, a, True, signed)
    both = (Less(a, b, True, False), Less(b, a, True, False))
    table: dict[str, Facts] = {
        "lt": ((less,), (least,)), "le": ((most,), (more,)), "gt": ((more,), (most,)), "ge": ((least,), (less,)),
        "lo": ((less,), (least,)), "ls": ((most,), (more,)), "hi": ((more,), (most,)), "hs": ((least,), (less,)),
        "eq": (both, ()), "ne": ((), both),
    }  # fmt: skip
    return table[word]


def _of(operand: Operand, known: Mapping[str, Facts]) -> Facts:
    if isinstance(operand, Negated):
        holds, fails = _of(operand.operand, known)
        return fails, holds
    return known.get(operand.name, ((), ())) if isinstance(operand, Register) else ((), ())


def _of_logic(word: str, sources: Sequence[Operand], known: Mapping[str, Facts]) -> Facts | None:
    each = [_of(source, known) for source in sources]
    if word == "and":
        return each[0][0] + each[1][0], ()
    if word == "or":
        return (), each[0][1] + each[1][1]
    return {"not": (each[0][1], each[0][0]), "mov": each[0]}.get(word)
