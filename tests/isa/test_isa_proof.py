"""The instruction table against the assembler: every row is accepted where it says, and refused one step lower."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from random import Random

import pytest

from ptxgen import isa
from ptxgen.assembler import available_assemblers, supported_targets
from ptxgen.errors import AssembleError, IsaError
from ptxgen.isa import Form, Slot, storage_type
from ptxgen.isa.pattern import Compiled
from ptxgen.targets import ALL_TARGETS, IsaVersion, Target, driver_for_ptx, target
from tests.support import sweep
from tests.support.isa_samples import BANKS, all_forms, combinations, literal, module, operand, statement
from tests.support.marks import needs_assembler

VERSIONS = [v for v in ((m, n) for m in range(6, 10) for n in range(10)) if driver_for_ptx(v) and v <= (9, 0)]
OLDEST_HERE = target("sm_75")

# Where nvJitLink and ptxas take what the document (PTX ISA 9.0) does not give yet: the row's start, and why it is
# stated higher here.
LAX_VERSION = {
    "mbarrier arrive_drop": "the sink _ for the state came with 7.1; arrive_drop takes it from 7.0 on",
    "cp async c": "shared::cta came with 7.8 for every instruction; cp.async takes the word from 7.0 on",
}
LAX_TARGET = {
    "cvt rm|rp bf16 f32": "the document gives cvt.{rm,rp}.bf16 from 7.8 and sm_90; taken from sm_80 on, as .rn is",
    "mma sync aligned m16n8k32 row col kind::f8f6f4": "the document gives kind::f8f6f4 for sm_120 alone; sm_100 and "
    "sm_103 take its e4m3 and e5m2",
}


def rows(name: str) -> Iterator[tuple[Compiled, Form, str]]:
    """Every sample of an opcode's rows, as a statement, with each number of optional operands."""
    for compiled, form in all_forms(iter(isa.rows(name))):
        for optional in range(form.optional + 1):
            yield compiled, form, statement(form, optional)


ALL = [each for name in isa.opcodes() for each in rows(name)]
Group = dict[tuple[IsaVersion, Target], list[tuple[Compiled, Form, str]]]


def assemblable() -> list[Target]:
    """Targets that the first assembler found knows, sm_75 and later."""
    known = supported_targets(available_assemblers()[0])
    return [t for t in ALL_TARGETS if t in known and t.includes(OLDEST_HERE)]


def home(form: Form) -> list[Target]:
    """The lowest targets that have a form: each alternative, and sm_75 where any target has it."""
    named = [target(name) for name in form.sm] or [OLDEST_HERE]
    return list(dict.fromkeys(t if t.includes(OLDEST_HERE) else OLDEST_HERE for t in named))


def refusals(statements: list[str], version: IsaVersion, where: Target) -> dict[int, str]:
    """The statements that the assembler refuses for a reason of their own, with its words."""
    from ptxgen.assembler import assemble

    refused: dict[int, str] = {}
    while left := [i for i in range(len(statements)) if i not in refused]:
        text, numbers = module([statements[i] for i in left], version, where.name)
        try:
            assemble(text, where)
        except AssembleError as error:
            log = str(error)
        else:
            break
        said = re.findall(r"line (\d+); (?:error|fatal)\s*: (.*)", log)
        index = dict(zip(numbers, left, strict=True))
        named = {index[int(line)]: words for line, words in said if int(line) in index}
        if not named:
            pytest.fail(f"no statement is named:\n{log}")
        refused.update(named)
    return refused


def by_level(keep: Callable[[Form, Target], IsaVersion | None], places: Callable[[Form], list[Target]]) -> Group:
    groups: Group = defaultdict(list)
    for each in ALL:
        for where in places(each[1]):
            version = keep(each[1], where)
            if version is not None:
                groups[version, where].append(each)
    return groups


@needs_assembler
def test_every_row_is_accepted_at_its_stated_version_and_target() -> None:
    known = set(assemblable())
    groups = by_level(lambda form, where: max(form.ptx_on(where), where.lowest_ptx),
                      lambda form: [t for t in home(form) if t in known])  # fmt: skip
    wrong = []
    for (version, where), members in groups.items():
        refused = refusals([text for *_, text in members], version, where)
        wrong += [f"{version} {where}: {members[i][2]}: {words}" for i, words in refused.items()]
    assert not wrong, "\n".join(wrong)
    assert sum(map(len, groups.values())) >= len(ALL)


@needs_assembler
def test_words_of_a_row_may_be_combined() -> None:
    known = set(assemblable())
    groups: dict[tuple[IsaVersion, Target], list[str]] = defaultdict(list)
    for name in isa.opcodes():
        for compiled in isa.rows(name):
            for opcode in combinations(compiled, 24):
                form = isa.lookup(opcode)
                where = next(t for t in home(form) if t in known)
                groups[max(form.ptx_on(where), where.lowest_ptx), where].append(statement(form))
    wrong = []
    for (version, where), statements in groups.items():
        refused = refusals(statements, version, where)
        wrong += [f"{version} {where}: {statements[i]} {said}" for i, said in refused.items()]
    assert not wrong, "\n".join(wrong)
    assert sum(map(len, groups.values())) > 5000


@needs_assembler
def test_modifiers_in_another_order_are_taken_where_the_table_takes_them() -> None:
    """Rows marked loose, their words shuffled: what `lookup` knows, the assembler knows."""
    known = set(assemblable())
    groups: dict[tuple[IsaVersion, Target], list[str]] = defaultdict(list)
    for compiled in (c for name in isa.opcodes() for c in isa.rows(name) if c.row.loose):
        for opcode in combinations(compiled, 12, seed=1):
            name, *words = opcode.split(".")
            Random(opcode).shuffle(words)
            try:
                form = isa.lookup(".".join([name, *words]))
            except IsaError:
                continue
            where = next(t for t in home(form) if t in known)
            groups[max(form.ptx_on(where), where.lowest_ptx), where].append(statement(form))
    for (version, where), statements in groups.items():
        assert not refusals(statements, version, where)
    assert sum(map(len, groups.values())) > 800


@needs_assembler
def test_the_proof_notices_a_wrong_statement() -> None:
    statements = ["add.f32 %f1, %f2, %f3;", "max.NaN.f32 %f1, %f2, %f3;", "add.f32 %r1, %r2, %u3;"]
    assert set(refusals(statements, (6, 5), OLDEST_HERE)) == {1, 2}


def unlisted(accepted: list[tuple[Compiled, str]], lax: dict[str, str]) -> list[str]:
    return [text for compiled, text in accepted if not any(compiled.row.pattern.startswith(start) for start in lax)]


def accepted(groups: Group) -> Iterator[tuple[Compiled, str]]:
    for (version, where), members in groups.items():
        refused = refusals([text for *_, text in members], version, where)
        for i, (compiled, _, text) in enumerate(members):
            if i not in refused:
                yield compiled, f"{version} {where}: {text}"


def check_refused(groups: Group, lax: dict[str, str]) -> None:
    found = list(accepted(groups))
    assert not unlisted(found, lax), "accepted one step lower:\n" + "\n".join(unlisted(found, lax))
    for start in lax:
        assert any(c.row.pattern.startswith(start) for c, _ in found), f"{start!r} is refused: take it off the list"


def drawn(groups: Group, lax: dict[str, str]) -> Group:
    """Those that are drawn, and all rows of the list."""
    every = [(level, each) for level, members in groups.items() for each in members]
    listed = {n for n, (_, (compiled, *_)) in enumerate(every) if compiled.row.pattern.startswith(tuple(lax))}
    made: Group = defaultdict(list)
    for n in sorted(listed | set(sweep.drawn(range(len(every))))):
        level, each = every[n]
        made[level].append(each)
    return made


@needs_assembler
def test_no_row_is_accepted_one_version_lower() -> None:
    known = set(assemblable())

    def one_lower(form: Form, where: Target) -> IsaVersion | None:
        lower = [v for v in VERSIONS if where.lowest_ptx <= v < form.ptx_on(where)]
        return max(lower, default=None)

    groups = by_level(one_lower, lambda form: [t for t in home(form) if t in known])
    assert len(groups) > 15
    check_refused(groups, LAX_VERSION)


@needs_assembler
def test_no_row_is_accepted_on_a_target_below_its_own() -> None:
    targets = assemblable()

    def below(form: Form) -> list[Target]:
        return [t for t in targets if not t.includes_any(form.sm)]

    groups = by_level(lambda form, where: max(form.ptx, where.lowest_ptx), below)
    assert len(groups) > 50
    check_refused(drawn(groups, LAX_TARGET), LAX_TARGET)


def layouts() -> Iterator[tuple[Compiled, Form]]:
    """One form for every operand list of every row."""
    seen = set()
    for compiled, form, _ in ALL:
        key = (compiled.row, tuple(slot.type for slot in form.operands))
        if key not in seen and form.name != "call":
            seen.add(key)
            yield compiled, form


def typed() -> Iterator[tuple[Compiled, Form, int, str, str]]:
    """Every scalar register slot of every third operand list (in a sweep of all), with a register of every type."""
    every = list(layouts())
    for compiled, form in every if sweep.ALL else every[::3]:
        operands = [operand(form, i, slot) for i, slot in enumerate(form.operands)]
        for position, slot in enumerate(form.operands):
            for type in BANKS if "reg" in slot.kinds else ():
                if type != "b128":
                    changed = [*operands[:position], f"{BANKS[type]}7", *operands[position + 1 :]]
                    yield compiled, form, position, type, f"{form.opcode} {', '.join(changed)};"


# Slots where the assembler takes more than the document: integers for predicates, any register for a lane mask.
LAX_TYPES = {
    "activemask", "and", "bar", "cp", "cvt", "fns", "isspacep", "match", "mma", "mov", "movmatrix", "not", "or", "shfl",
    "st", "tensormap", "vote", "xor",
}  # fmt: skip


@needs_assembler
def test_register_types_are_taken_as_the_assembler_takes_them() -> None:
    groups: dict[tuple[IsaVersion, Target], list[tuple[Form, int, str, str]]] = defaultdict(list)
    known = set(assemblable())
    for _, form, position, type, text in typed():
        where = next(t for t in home(form) if t in known)
        groups[max(form.ptx_on(where), where.lowest_ptx), where].append((form, position, type, text))
    too_lax, too_strict = [], []
    for (version, where), members in groups.items():
        refused = refusals([text for *_, text in members], version, where)
        for i, (form, position, type, text) in enumerate(members):
            slot = form.operands[position]
            accepts = isa.slot_accepts(slot, type)
            half_as_integer = type == "f16x2" and slot.type[0] in "us"
            if accepts and i in refused:
                too_lax.append(text)
            elif not accepts and i not in refused and not half_as_integer:
                too_strict.append(text)
    assert not too_lax
    lax = {text.split(".")[0].split(" ")[0] for text in too_strict}
    assert lax == LAX_TYPES if sweep.ALL else lax <= LAX_TYPES


def _other_kinds(form: Form, position: int, slot: Slot) -> Iterator[str]:
    """What else than a register the table lets stand in a slot."""
    if "imm" in slot.kinds and not slot.vector:
        yield literal(form, position)
    if "pred" in slot.kinds:
        yield "!%p7"
    if slot.kinds >= {"sink", "reg"} or slot.kinds == {"sink"}:
        yield "_"
    if "pair" in slot.kinds:
        yield f"{BANKS[storage_type(slot.type)]}7|%p6"
        if "reg" in slot.kinds:
            yield f"{BANKS[storage_type(slot.type)]}7|_"
        if "sink" in slot.kinds:
            yield "_|%p6"
    if "vec" in slot.kinds and slot.vector:
        items = operand(form, position, slot)[1:-1].split(", ")
        if slot.writes and form.name in ("ld", "ldu", "atom"):
            yield "{" + ", ".join(["_", *items[1:]]) + "}"
        if "imm" in slot.kinds:
            yield "{" + ", ".join([literal(form, position)] * slot.vector) + "}"
    if "vec" in slot.kinds and not slot.vector and slot.type in ("b32", "b64"):
        yield {"b32": "{%h1, %h2}", "b64": "{%r1, %r2}"}[slot.type]


@needs_assembler
def test_every_kind_of_operand_that_a_slot_takes_is_taken() -> None:
    groups: dict[tuple[IsaVersion, Target], list[str]] = defaultdict(list)
    known = set(assemblable())
    for _, form in layouts():
        where = next(t for t in home(form) if t in known)
        operands = [operand(form, i, slot) for i, slot in enumerate(form.operands)]
        for position, slot in enumerate(form.operands):
            for other in _other_kinds(form, position, slot):
                changed = ", ".join([*operands[:position], other, *operands[position + 1 :]])
                groups[max(form.ptx_on(where), where.lowest_ptx), where].append(f"{form.opcode} {changed};")
    wrong = []
    for (version, where), statements in groups.items():
        distinct = list(dict.fromkeys(statements))
        wrong += [f"{version} {where}: {distinct[i]} {said}" for i, said in refusals(distinct, version, where).items()]
    assert not wrong, "\n".join(wrong)
    assert sum(map(len, groups.values())) > 2000


def limited() -> Iterator[tuple[Form, str, bool]]:
    """Every slot whose literals the table limits, with literals at its limits (True) and next to them (False)."""
    for _, form in layouts():
        operands = [operand(form, i, slot) for i, slot in enumerate(form.operands)]
        for position, slot in enumerate(form.operands):
            if slot.allowed is None:
                continue
            values = slot.allowed.values
            ends = [values[0]] if "..@" in f"{slot.allowed.text.split('/')[0]}@" else [values[0], values[-1]]
            between = values[0] + values.step // 2 if isinstance(values, range) else values[0] + 1
            outside = [ends[0] - 1, *(end + 1 for end in ends[1:]), between]
            for value in [*ends, *(v for v in outside if v not in values and v >= min(0, values[0]))]:
                changed = ", ".join([*operands[:position], str(value), *operands[position + 1 :]])
                yield form, f"{form.opcode} {changed};", value in values


@needs_assembler
def test_literals_are_limited_as_the_assembler_limits_them() -> None:
    groups: dict[tuple[IsaVersion, Target], dict[str, bool]] = defaultdict(dict)
    known = set(assemblable())
    for form, text, legal in limited():
        where = next(t for t in home(form) if t in known)
        groups[max(form.ptx_on(where), where.lowest_ptx), where][text] = legal
    wrong = []
    for (version, where), statements in groups.items():
        texts = list(statements)
        refused = refusals(texts, version, where)
        wrong += [f"{version} {where}: {t} {refused.get(i, 'is accepted')}" for i, t in enumerate(texts)
                  if statements[t] == (i in refused)]  # fmt: skip
    assert not wrong, "\n".join(wrong)
    assert sum(map(len, groups.values())) > 100


def _special(name: str, type: str) -> str:
    return f"mov.{type} {BANKS[type]}1, {name};"


@needs_assembler
@pytest.mark.parametrize("lower", [False, True], ids=["stated", "one step lower"])
def test_special_registers_need_what_the_table_says(lower: bool) -> None:
    groups: dict[tuple[IsaVersion, Target], list[str]] = defaultdict(list)
    for register in isa.SPECIAL_REGISTERS.values():
        where = target(register.sm[0]) if register.sm else OLDEST_HERE
        version = max(register.ptx, where.lowest_ptx)
        below = [v for v in VERSIONS if where.lowest_ptx <= v < version]
        if not lower:
            groups[version, where].append(_special(register.name, register.type))
        elif below:
            groups[max(below), where].append(_special(register.name, register.type))
        if lower and register.sm:
            less = target({"sm_90": "sm_89", "sm_80": "sm_75"}[register.sm[0]])
            groups[max(version, less.lowest_ptx), less].append(_special(register.name, register.type))
    assert groups
    for (version, where), statements in groups.items():
        refused = refusals(statements, version, where)
        assert len(refused) == (len(statements) if lower else 0), (version, where, refused)
