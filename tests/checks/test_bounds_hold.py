"""The bounds of random bodies hold: whatever runs, no register is ever larger than what is said of it there."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from ptxgen.checks.bounds import Flow, State
from ptxgen.nodes import Instruction, Label, Negated, Operand, Register, flat
from ptxgen.parser import parse
from tests.checks.test_checks import text

WORD = 1 << 32
REGISTERS = [f"%r{n}" for n in range(6)]
PREDICATES = ["%p0", "%p1", "%p2"]
TURNS = 60  # of all loops together


def _signed(value: int) -> int:
    return value - WORD if value >= WORD >> 1 else value


PAIRS: dict[str, Callable[[int, int], int]] = {
    "add.u32": operator.add, "sub.u32": operator.sub, "mul.lo.u32": operator.mul, "and.b32": operator.and_,
    "or.b32": operator.or_, "xor.b32": operator.xor, "min.u32": min, "max.u32": max,
    "min.s32": lambda a, b: min(_signed(a), _signed(b)), "max.s32": lambda a, b: max(_signed(a), _signed(b)),
    "shr.u32": lambda a, b: a >> min(b, 32), "shl.b32": lambda a, b: a << min(b, 32),
    "rem.u32": lambda a, b: a % b if b else 0, "div.u32": lambda a, b: a // b if b else 0,
}  # fmt: skip
COMPARES = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq,
            "ne": operator.ne}  # fmt: skip


def _body(rng: random.Random) -> str:
    """Registers from numbers and %tid.x, then instructions, regions and loops; a counter ends every loop."""
    names = count()
    lines = [f"mov.u32 {r}, {rng.choice(['%tid.x', '%ctaid.y', str(rng.choice(_NUMBERS))])};" for r in REGISTERS]
    lines += [f"setp.eq.u32 {p}, {REGISTERS[0]}, {n};" for n, p in enumerate(PREDICATES)] + ["mov.u32 %r7, 0;"]

    def some(depth: int) -> None:
        for _ in range(rng.randint(2, 7)):
            kind = rng.random()
            name = f"at{next(names)}"
            if depth and kind < 0.12:
                lines.append(f"@{rng.choice(['', '!'])}{rng.choice(PREDICATES)} bra {name};")
                some(depth - 1)
                lines.append(f"{name}:")
            elif depth and kind < 0.3:
                lines.append(f"{name}:")
                some(depth - 1)
                lines.extend(["add.u32 %r7, %r7, 1;", f"setp.lt.and.u32 %p3, %r7, {TURNS}, {rng.choice(PREDICATES)};"])
                lines.append(f"@%p3 bra {name};")
            else:
                lines.append(_line(rng))

    some(3)
    return "\n".join(lines)


_NUMBERS = [0, 1, 2, 3, 7, 31, 100, 4095, 65536, (1 << 31) - 1, 1 << 31, WORD - 1]


def _line(rng: random.Random) -> str:
    guard = f"@{rng.choice(['', '!'])}{rng.choice(PREDICATES)} " if rng.random() < 0.25 else ""
    a, b, c = (rng.choice([*REGISTERS, *REGISTERS, str(rng.choice(_NUMBERS))]) for _ in range(3))
    to = rng.choice(REGISTERS)
    kind = rng.random()
    if kind < 0.3:
        into, word, type = rng.choice(PREDICATES), rng.choice([*COMPARES]), rng.choice(["u32", "s32"])
        left = rng.choice(REGISTERS)
        if rng.random() < 0.4:
            other = rng.choice(["", "!"]) + rng.choice(PREDICATES)
            return f"{guard}setp.{word}.{rng.choice(['and', 'or'])}.{type} {into}, {left}, {b}, {other};"
        return f"{guard}setp.{word}.{type} {into}, {left}, {b};"
    if kind < 0.36:
        return f"{guard}selp.b32 {to}, {a}, {b}, {rng.choice(PREDICATES)};"
    if kind < 0.42:
        return f"{guard}mad.lo.u32 {to}, {rng.choice(REGISTERS)}, {b}, {c};"
    if kind < 0.46:
        p, q, r = (rng.choice(PREDICATES) for _ in range(3))
        return f"{rng.choice(['and', 'or'])}.pred {p}, {q}, {r};"
    return f"{guard}{rng.choice([*PAIRS])} {to}, {rng.choice(REGISTERS)}, {b};"


def _run(items: list[Instruction | Label], thread: int, cta: int) -> Iterator[tuple[Instruction, dict[str, int]]]:
    """Every instruction that is executed, with the registers before it."""
    values = {"%tid.x": thread, "%ctaid.y": cta}
    places = {item.name: n for n, item in enumerate(items) if isinstance(item, Label)}

    def of(operand: Operand) -> int:
        if isinstance(operand, Negated):
            return 1 - of(operand.operand)
        return values[operand.name] if isinstance(operand, Register) else int(operand.value) % WORD

    at = 0
    while at < len(items):
        item = items[at]
        at += 1
        if isinstance(item, Label) or (item.guard and bool(values[item.guard.register]) == item.guard.negated):
            continue
        yield item, values
        words, operands = item.opcode.split("."), item.operands
        if words[0] == "bra":
            at = places[operands[0].name]
            continue
        values[operands[0].name] = _result(item, words, [of(operand) for operand in operands[1:]])


def _result(item: Instruction, words: list[str], source: list[int]) -> int:
    if words[0] == "setp":
        sides = [_signed(s) if words[-1] == "s32" else s for s in source[:2]]
        holds = bool(COMPARES[words[1]](*sides))
        if len(words) == 4:
            holds = (holds and bool(source[2])) if words[2] == "and" else (holds or bool(source[2]))
        return int(holds)
    if words[-1] == "pred":
        return source[0] & source[1] if words[0] == "and" else source[0] | source[1]
    if words[0] == "selp":
        return source[0] if source[2] else source[1]
    if words[0] == "mad":
        return (source[0] * source[1] + source[2]) % WORD
    return source[0] if words[0] == "mov" else PAIRS[item.opcode](source[0], source[1]) % WORD


@pytest.mark.parametrize("seed", range(150))
def test_no_register_is_larger_than_its_bound(seed: int) -> None:
    rng = random.Random(seed)
    module = parse(text(_body(rng)))
    body = next(iter(module.entries.values())).body or ()
    items = [item for item in flat(body) if isinstance(item, (Instruction, Label))]
    flow = Flow(items, {})
    known: dict[int, State] = {}
    for number in range(len(flow.blocks)):
        for item, state in flow.visit_block(number):
            known[id(item)] = state.copy()
    checked = 0
    for thread in (0, 5, 1023):
        for item, values in _run(items, thread, rng.randrange(65535)):
            state = known[id(item)]  # whatever runs can be reached
            for name in REGISTERS:
                if name in values:
                    assert values[name] <= flow.bound(state, Register(name)).largest, (name, str(item), item.line)
                    checked += 1
    assert checked


def test_the_bounds_of_random_bodies_are_not_all_anything() -> None:
    """Otherwise the test above would hold of no bound at all."""
    tight = 0
    for seed in range(40):
        module = parse(text(_body(random.Random(seed))))
        body = next(iter(module.entries.values())).body or ()
        flow = Flow([item for item in flat(body) if isinstance(item, (Instruction, Label))], {})
        last = [state for n in range(len(flow.blocks)) for _, state in flow.visit_block(n)][-1]
        tight += sum(flow.bound(last, Register(name)).largest < 1 << 20 for name in REGISTERS)
    assert tight > 40
