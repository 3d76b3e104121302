"""The parser: foreign texts read and printed back, each construct to its node, errors with file, line and text."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgen.assembler import available_assemblers, supported_targets
from ptxgen.checks import check
from ptxgen.errors import IsaError
from ptxgen.nodes import (
    Address,
    Directive,
    Function,
    Group,
    Guard,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Pair,
    Register,
    Scope,
    Symbol,
    Variable,
    Vector,
)
from ptxgen.parser import parse
from ptxgen.parser.operand import evaluate, parse_operand
from ptxgen.targets import target
from tests.support.marks import needs_assembler

FOREIGN = sorted((Path(__file__).parents[1] / "data" / "foreign_ptx").glob("*.ptx"))
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"


def plain(node: Any) -> Any:
    """A node as nested tuples, without lines, source and file."""
    if dataclasses.is_dataclass(node):
        fields = (f.name for f in dataclasses.fields(node) if f.compare and f.name not in ("line", "source", "file"))
        return (type(node).__name__, *((name, plain(getattr(node, name))) for name in fields))
    if isinstance(node, (tuple, list)):
        return tuple(map(plain, node))
    if isinstance(node, dict):
        return tuple(sorted((key, plain(value)) for key, value in node.items()))
    return node


def body(text: str) -> tuple[Any, ...]:
    """The statements of a kernel with this body."""
    found = parse(f"{HEAD}.visible .entry k()\n{{\n{text}\n}}\n").entries["k"].body
    assert found is not None
    return found


def outside(text: str) -> tuple[Any, ...]:
    return parse(HEAD + text).items


@pytest.mark.parametrize("path", FOREIGN, ids=lambda p: p.stem)
def test_a_foreign_text_prints_back_to_itself(path: Path) -> None:
    text = path.read_text()
    module = parse(text, path.name)
    assert module.entries
    assert plain(parse(str(module))) == plain(module)


@pytest.mark.parametrize("path", FOREIGN, ids=lambda p: p.stem)
def test_a_foreign_text_passes_the_checks(path: Path) -> None:
    check(parse(path.read_text(), path.name))


@needs_assembler
@pytest.mark.parametrize("path", FOREIGN, ids=lambda p: p.stem)
def test_a_printed_text_assembles_to_the_same_code(path: Path) -> None:
    from ptxgen.assembler import assemble

    text = path.read_text()
    module = parse(text, path.name)
    if target(module.targets[0]) not in supported_targets(available_assemblers()[0]):
        pytest.skip(f"{available_assemblers()[0]} does not know {module.targets[0]}")
    before, after = assemble(text), assemble(str(module))
    assert after.resources == before.resources
    if ".loc" not in text:  # line tables name the text's own lines
        assert after.cubin == before.cubin


def test_every_foreign_text_is_different_ground() -> None:
    """The corpus covers architectures from sm_75 to sm_100a and the words that a parser stumbles over."""
    targets = {parse(path.read_text()).targets[0] for path in FOREIGN}
    assert {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120"} <= targets
    together = "\n".join(path.read_text() for path in FOREIGN)
    for word in (".loc", ".section", ".file", ".pragma", ".extern .shared", ".callprototype", ".branchtargets",
                 "brx.idx", "begin inline asm", ".weak", ".alias", ".ptr .global .align", "call.uni", ".noreturn", "/*",
                 ".const",
                 ".minnctapersm", ".explicitcluster", ".local", "[3] = {", "_,"):  # fmt: skip
        assert word in together, word


INSTRUCTIONS = {
    "@!%p1 bra.uni $L__BB0_2;": Instruction("bra.uni", (Symbol("$L__BB0_2"),), Guard("%p1", True)),
    "@ %p1 ret;": Instruction("ret", (), Guard("%p1")),
    "mov.u32 %r1,%tid.x;": Instruction("mov.u32", (Register("%r1"), Register("%tid.x"))),
    "mov.u64 \t%rd1, table+8;": Instruction("mov.u64", (Register("%rd1"), Symbol("table", 8))),
    "ld.global.nc.v4.f32 {%f1, %f2, _, %f4}, [%rd1+-16];": Instruction(
        "ld.global.nc.v4.f32",
        (Vector((Register("%f1"), Register("%f2"), Register("_"), Register("%f4"))), Address(Register("%rd1"), -16)),
    ),
    "st.shared.v2.b32 [ %r1 + 0x10 ], { %r2, 7 };": Instruction(
        "st.shared.v2.b32", (Address(Register("%r1"), 16), Vector((Register("%r2"), Immediate("7"))))
    ),
    "ld.param.u64 %rd1, [p_0+8];": Instruction("ld.param.u64", (Register("%rd1"), Address(Symbol("p_0"), 8))),
    "ld.local.b32 %r1, [100];": Instruction("ld.local.b32", (Register("%r1"), Address(Immediate("100")))),
    "ld.global.b32 %r1, [%rd1].unified;": Instruction(
        "ld.global.b32", (Register("%r1"), Address(Register("%rd1"), unified=True))
    ),
    "setp.eq.and.u32 %p1|%p2, %r1, -3, !%p3;": Instruction(
        "setp.eq.and.u32",
        (Pair(Register("%p1"), Register("%p2")), Register("%r1"), Immediate("-3"), Negated(Register("%p3"))),
    ),
    "call.uni (retval0), f, (param0, 5);": Instruction(
        "call.uni", (Group((Symbol("retval0"),)), Symbol("f"), Group((Symbol("param0"), Immediate("5"))))
    ),
    "call f, ();": Instruction("call", (Symbol("f"), Group(()))),
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, 4}], [%r2];": Instruction(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group",
        (
            Address(Register("%rd1"), 0, Vector((Register("%r1"), Immediate("4")))),
            Address(Register("%r2")),
        ),
    ),
    "add.f32 %f1, %f1, 0f3F800000;": Instruction(
        "add.f32", (Register("%f1"), Register("%f1"), Immediate("0f3F800000"))
    ),
    "add.u32 %r1, %r2, (1 << 4) | 3;": Instruction("add.u32", (Register("%r1"), Register("%r2"), Immediate("19"))),
    "add.u32 %r1, %r2, WARP_SZ;": Instruction("add.u32", (Register("%r1"), Register("%r2"), Immediate("32"))),
    "mad.lo.s32\n\t%r1,\n\t%r2,\n\t%r3,\n\t-4U;": Instruction(
        "mad.lo.s32", (Register("%r1"), Register("%r2"), Register("%r3"), Immediate("-4U"))
    ),
}


@pytest.mark.parametrize("text", INSTRUCTIONS)
def test_an_instruction_becomes_its_node(text: str) -> None:
    (found,) = body(text)
    assert plain(found) == plain(INSTRUCTIONS[text])


def test_names_without_percent_are_registers_where_they_are_declared() -> None:
    scope, after = body("{ .reg .u32 t<2>; .reg .pred p; @p mov.b64 {t0, t1}, addr; }\n mov.u32 %r1, t0;")
    assert isinstance(scope, Scope)
    move = scope.items[2]
    assert plain(move) == plain(
        Instruction("mov.b64", (Vector((Register("t0"), Register("t1"))), Symbol("addr")), Guard("p"))
    )
    assert after.operands[1] == Symbol("t0")  # out of scope: a variable's name


def test_statements_keep_their_source_lines() -> None:
    module = parse(f"{HEAD}.entry k()\n{{ /* two\nlines */ .reg .b32 %r<3>; // why\n  mov.b32 %r1,\n 5; L: ret; }}\n")
    items = module.entries["k"].body or ()
    assert [(type(item).__name__, item.line) for item in items] == [
        ("Variable", 6), ("Instruction", 7), ("Label", 8), ("Instruction", 8),
    ]  # fmt: skip
    assert module.source_line(7) == "mov.b32 %r1,"


def test_comments_are_not_looked_for_in_strings() -> None:
    pragma, *_ = body('.pragma "nounroll // all /* of */ it"; /* one */ ret; // end')
    assert pragma == Directive("pragma", '"nounroll // all /* of */ it"', 6)


def test_labels_directives_and_branch_tables() -> None:
    text = "T: .branchtargets A, B;\n.loc 1 12 3, function_name $str, inlined_at 1 5 3\nA: ret;"
    table, listed, loc, label, _ = body(text)
    assert (table, label) == (Label("T", 6), Label("A", 8))
    assert listed == Directive("branchtargets", "A, B", 6)
    assert loc == Directive("loc", "1 12 3, function_name $str, inlined_at 1 5 3", 7)


VARIABLES = {
    ".reg .b32 %r<45>;": Variable("reg", "b32", "%r", count=45),
    ".extern .shared .align 16 .b8 smem[];": Variable("shared", "b8", "smem", (0,), 16, linkage=("extern",)),
    ".visible .global .align 4 .b8 x[3] = {1, -2, 0xF};": Variable(
        "global", "b8", "x", (3,), 4, init=(Immediate("1"), Immediate("-2"), Immediate("0xF")), linkage=("visible",)
    ),
    ".const .f32 pi = 0f40490FDB;": Variable("const", "f32", "pi", init=(Immediate("0f40490FDB"),)),
    ".global .v4 .f32 quad;": Variable("global", "f32", "quad", vector=4),
    ".common .global .u32 t;": Variable("global", "u32", "t", linkage=("common",)),
    ".weak .global .u64 p[2] = {generic(x)+8, x};": Variable(
        "global", "u64", "p", (2,), init=(Symbol("generic(x)+8"), Symbol("x")), linkage=("weak",)
    ),
    ".global .b8 m[2][3] = {{1}, {4, 5, 6}};": Variable(
        "global", "b8", "m", (2, 3), init=tuple(map(Immediate, ("1", "0", "0", "4", "5", "6")))
    ),
    ".global .b8 n[] = {1, 2};": Variable("global", "b8", "n", (2,), init=(Immediate("1"), Immediate("2"))),
    ".shared .align 8 .b64 bars[2 * 3 + 1];": Variable("shared", "b64", "bars", (7,), 8),
    ".global .attribute(.managed) .s32 g;": Variable("global", "s32", "g", attributes=".attribute(.managed)"),
}


@pytest.mark.parametrize("text", VARIABLES)
def test_a_declaration_becomes_its_node(text: str) -> None:
    (found,) = outside(text)
    assert plain(found) == plain(VARIABLES[text])


def test_one_declaration_of_several_names() -> None:
    assert [v.name for v in body(".reg .pred p, %q, r<3>;")] == ["p", "%q", "r"]


def test_an_entry_with_everything() -> None:
    (entry,) = outside(
        ".weak .entry k(\n.param .u64 .ptr .global .align 16 out,\n.param .align 64 .b8 map[128]\n)\n"
        '.maxntid 128, 2, 1\n.minnctapersm 3\n.pragma "nounroll";\n.reqnctapercluster 2, 1, 1\n{ ret; }'
    )
    assert isinstance(entry, Function)
    assert (entry.kind, entry.name, entry.linkage) == ("entry", "k", ("weak",))
    assert entry.performance == {"maxntid": (128, 2, 1), "minnctapersm": (3,), "reqnctapercluster": (2, 1, 1)}
    assert plain(entry.params) == plain(
        (
            Variable("param", "u64", "out", attributes=".ptr .global .align 16"),
            Variable("param", "b8", "map", (128,), 64),
        )
    )
    assert entry.body is not None
    assert [type(item) for item in entry.body] == [Directive, Instruction]


def test_functions_declared_and_defined() -> None:
    declared, defined = outside(
        ".extern .func (.param .b32 r) f\n(\n.param .b64 a\n)\n;\n.func g(.reg .u32 %x) .noreturn { exit; }"
    )
    assert declared.body is None
    assert [v.name for v in (*declared.returns, *declared.params)] == ["r", "a"]
    assert defined.noreturn
    assert defined.params[0].space == "reg"


def test_the_header() -> None:
    module = parse("// first\n.version 8.7\n.target sm_100a, debug // here\n.address_size 64\n.entry k { ret; }")
    assert (module.version, module.targets, module.address_size) == ((8, 7), ("sm_100a", "debug"), 64)
    assert parse(".version 7.0 .target sm_80\n.entry k() { ret; }").address_size == 32


ERRORS = {
    "mov.u32 %r1, %r2": ("6", "; is missing"),
    "mov.u32 %r1, ?;": ("6", "not a number in a constant expression: '?'"),
    "mov.u32 %r1, 3 + ;": ("6", "a constant expression breaks off"),
    "mov.u32 %r1, a b;": ("6", "not an operand: 'a b'"),
    "ld.global.b32 %r1, [%rd1;": ("6", "unbalanced brackets"),
    "ld.global.b32 %r1, [%rd1]x;": ("6", "[ without ]"),
    "mov.u32 %r1, 1 + 09x;": ("6", "not an operand"),
    "ret;\n}\n{ ret;": ("8", "expected a directive"),
    "ret;\n?;": ("7", "not a statement"),
    ".reg %r1;": ("6", "a state space and a type"),
    ".shared .b32 .b64 x;": ("6", "unknown word .b64"),
    "{ ret;": ("6", "{ without }"),
    "add.u32 %r1, %r2, 1/0;": ("6", "division by zero"),
    "mov.b64 {%r1, %r2, %rd1;": ("6", "unbalanced"),
}


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_names_file_line_and_text(text: str) -> None:
    line, what = ERRORS[text]
    closing = "" if text.startswith("{ ret") else "\n}"
    with pytest.raises(IsaError) as error:
        parse(f"{HEAD}.entry k()\n{{\n{text}{closing}\n", "mine.ptx")
    assert re.match(rf"(kernel k, )?mine\.ptx:{line}: ", str(error.value))
    assert what in str(error.value)


def test_every_statement_that_cannot_be_read_is_named() -> None:
    body = "mov.u32 %r1, ?;\n{ ?; mov.u32 %r1, 1/0;\n}\n.reg %r1;\nret;\nadd.u32 %r1, %r2"
    with pytest.raises(IsaError) as error:
        parse(f"{HEAD}.entry k()\n{{\n{body}\n}}\n.entry j()\n{{\n7;\n}}\n", "mine.ptx")
    places = [re.match(r"kernel (\w), mine\.ptx:(\d+): ", line) for line in str(error.value).splitlines()]
    assert [(place[1], int(place[2])) for place in places if place] == [
        ("k", 6), ("k", 7), ("k", 7), ("k", 9), ("k", 11), ("j", 15),
    ]  # fmt: skip


def test_a_text_without_end_of_wrong_statements_is_cut() -> None:
    with pytest.raises(IsaError) as error:
        parse(f"{HEAD}.entry k()\n{{\n" + "?;\n" * 5000 + "}\n")
    assert len(str(error.value).splitlines()) == 200


UNREADABLE = {
    "scopes without end": f"{HEAD}.entry k()\n{{\n{'{' * 20_000}",
    "a count without end": f"{HEAD}.entry k()\n{{\n.reg .b32 %r<{'9' * 5000}>;\n}}\n",
    "a literal without end": f"{HEAD}.entry k()\n{{\nmov.u32 %r1, {'9' * 5000};\n}}\n",
    "brackets without end": f"{HEAD}.entry k()\n{{\nmov.u32 %r1, {'(' * 20_000}1{')' * 20_000};\n}}\n",
    "empty brackets": f"{HEAD}.entry k()\n{{\nld.global.u32 %r1, [];\n}}\n",
    "a shift without end": f"{HEAD}.entry k()\n{{\nmov.u32 %r1, 1 << -1;\n}}\n",
}


@pytest.mark.parametrize("how", UNREADABLE)
def test_what_cannot_be_read_is_an_error_with_its_place(how: str) -> None:
    with pytest.raises(IsaError, match=r"^kernel k, mine\.ptx:\d+: "):
        parse(UNREADABLE[how], "mine.ptx")


def test_an_offset_that_begins_with_0_is_octal() -> None:
    module = parse(f"{HEAD}.entry k()\n{{\nld.global.u32 %r1, [%rd1+024];\nret;\n}}\n")
    assert str((module.entries["k"].body or ())[0].operands[1]) == str(parse_operand("[%rd1+20]"))
    with pytest.raises(IsaError, match=r"digits up to 7 \(got 08\)"):
        parse_operand("[%rd1+08]")


def test_an_operand_that_cannot_be_read_is_found_in_its_line() -> None:
    with pytest.raises(IsaError, match=r"^kernel k, mine\.ptx:6: not an address: '\[\]' \| ld\.global\.u32 %r1, \[\];"):
        parse(f"{HEAD}.entry k()\n{{\nld.global.u32 %r1, [];\n\nret;\n}}\n", "mine.ptx")


@pytest.mark.parametrize("text", ["", "hello", ".version 8.0\n.entry k() { ret; }", ".target sm_90"])
def test_a_text_without_header_is_refused(text: str) -> None:
    with pytest.raises(IsaError, match=r"begins with \.version and \.target"):
        parse(text)


def _combined(parts: tuple[tuple[str, int], str, tuple[str, int]]) -> tuple[str, int]:
    (left, a), op, (right, b) = parts
    if op in ("<<", ">>"):
        right, b = str(abs(b) % 8), abs(b) % 8
    value = {"+": a + b, "-": a - b, "*": a * b, "|": a | b, "&": a & b, "^": a ^ b}.get(op)
    if value is None:
        value = a << b if op == "<<" else a >> b
    return f"({left} {op} {right})", value


NUMBERS = st.integers(0, 1 << 10).map(lambda n: (str(n) if n % 8 else hex(n), n))  # six of them multiply to 60 bits
OPERATORS = st.sampled_from(["+", "-", "*", "|", "&", "^", "<<", ">>"])
EXPRESSIONS = st.recursive(NUMBERS, lambda inner: st.tuples(inner, OPERATORS, inner).map(_combined), max_leaves=6)


@given(EXPRESSIONS)
def test_constant_expressions_are_evaluated(expression: tuple[str, int]) -> None:
    text, value = expression
    assert evaluate(text) == value


def test_precedence_is_that_of_c() -> None:
    assert evaluate("1 + 2 * 3 << 1 | 1") == 15
    assert evaluate("-7 / 2") == -3
    assert evaluate("-7 % 3") == -1
    assert evaluate("1 < 2 ? 010 : 0xA") == 8
    assert evaluate("!0 && ~0") == 1


def test_equal_operands_are_one_node() -> None:
    assert parse_operand("%accumulator7") is parse_operand("%accumulator7")


def test_a_long_list_of_literals_has_the_nodes_of_each() -> None:
    literals = ["0", "-17", "4294967295", "0x1F", "0XaB", "0f3F800000", "0d3FF0000000000000", "2.5", "-1.5e-3"] * 50
    expected = Vector(tuple(map(parse_operand, literals)))
    for between in (",", ", ", " ,\n"):
        assert parse_operand("{" + between.join(literals) + "}") == expected
    assert parse_operand("{" + ",".join([*literals, "{1, x+4}"]) + "}").items[-1] == parse_operand("{1, x+4}")


@pytest.mark.parametrize("wrong", ["08", "0f3F8", "1 2", "9" * 90, "", "0x"])
def test_a_long_list_of_literals_with_a_wrong_one(wrong: str) -> None:
    with pytest.raises(IsaError):
        parse_operand("{" + ",".join(["7"] * 999 + [wrong] + ["7"] * 999) + "}")


def test_a_module_prints_what_its_nodes_say() -> None:
    module = Module((8, 0), ("sm_90",), 64, (Function("entry", "k", body=(Instruction("ret"),)),))
    assert str(module) == ".version 8.0\n.target sm_90\n.address_size 64\n.entry k()\n{\nret;\n}\n"
