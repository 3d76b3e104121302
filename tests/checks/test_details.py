"""The checks at their edges: the last value that passes and the first that does not, one way at a time."""

from __future__ import annotations

import pytest

from ptxgen import checks
from ptxgen.checks import check
from ptxgen.checks.access import access_bytes
from ptxgen.checks.comparisons import facts_of
from ptxgen.checks.largest import ANY, HALF, LOADED, RULES
from ptxgen.errors import IsaError
from ptxgen.nodes import Address, Immediate, Instruction, Operand, Pair, Register, Vector, written
from ptxgen.parser import parse
from ptxgen.parser.limits import MOST_FINDINGS
from ptxgen.targets import newest_ptx
from tests.checks.test_checks import ADDRESS, FIRST_LINE, findings, linted, text


# the report -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("count", "last"), [(MOST_FINDINGS, None), (MOST_FINDINGS + 1, 1), (MOST_FINDINGS + 1234, 1234)]
)
def test_a_report_has_so_many_findings_and_says_how_many_more(count: int, last: int | None) -> None:
    found = findings("bra nowhere;\n" * count)
    assert len(found) == MOST_FINDINGS + (last is not None)
    assert found[-1].startswith("<ptx>: and ") == (last is not None)
    if last is not None:
        assert found[-1] == f"<ptx>: and {last:,} more"


def test_an_architecture_that_is_not_known_is_shown_in_part() -> None:
    found = findings("ret;", where="sm_" + "9" * 100)
    assert any(f"(got sm_{'9' * 57})" in each for each in found), found


def test_the_newest_version_is_known() -> None:
    assert findings("ret;", ".".join(map(str, newest_ptx()))) == []


def test_what_python_cannot_read_is_a_finding_of_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: object) -> None:
        raise OverflowError("too large; by far")

    monkeypatch.setattr(checks._FunctionCheck, "instruction", fail)
    (found,) = findings("ret;")
    assert found == f"kernel k, <ptx>:{FIRST_LINE}: cannot be read (a value in it is beyond what can be counted) | ret;"


def test_the_second_of_two_labels_is_the_finding() -> None:
    (found,) = findings("a:\nb:\na:\nret;")
    assert found.startswith(f"kernel k, <ptx>:{FIRST_LINE + 2}: label a is declared twice")


# launches -------------------------------------------------------------------------------------------------------------
THREADS = "must be from 1 to 1024, 1024, 64 threads, 1024 together"
CTAS = "must be from 1 to 16, 16, 16 CTAs, 16 together"
LAUNCHES = [
    *[(word, good, THREADS, bad) for word in ("reqntid", "maxntid") for good, bad in (
        ("1024", "1025"), ("1, 1024", "1, 1025"), ("1, 1, 64", "1, 1, 65"), ("32, 32", "41, 25"),
        ("1, 1, 1", "1, 1, 0"),
    )],
    *[("reqnctapercluster", good, CTAS, bad) for good, bad in (
        ("16", "17"), ("1, 16", "1, 17"), ("1, 1, 16", "1, 1, 17"), ("4, 4", "6, 3"), ("1, 1, 1", "1, 1, 0"),
    )],
]  # fmt: skip


@pytest.mark.parametrize(("word", "good", "said", "bad"), LAUNCHES)
def test_the_largest_launch_passes_and_the_next_does_not(word: str, good: str, said: str, bad: str) -> None:
    head = ".version 8.0\n.target sm_90\n.entry k() .{} {} {{ ret; }}"
    check(parse(head.format(word, good)))
    with pytest.raises(IsaError, match=rf"\.{word}: {said} \(got {bad}\)"):
        check(parse(head.format(word, bad)))


# operands -------------------------------------------------------------------------------------------------------------
CALLEE = ".func (.reg .u32 r) k2(.reg .u32 a, .reg .u32 b);\n.func k3(.param .b32 a);\n"
GOOD = [
    "{ mov.u32 %r7, 1; mov.f64 %double, 0d3FF0000000000000; }",
    ".reg .v4 .f32 %v; mov.f32 %f1, %v.x; mov.f32 %v.w, %f1;",
    ".reg .b8 %b<4>; mov.b32 %r1, {%b0, %b1, %b2, %b3};",
    "mov.b64 %rd1, 0d3FF0000000000000;",
    "mov.b64 %rd1, 0D3FF0000000000000;",
    "add.s32 %r1, %r2, -2147483648;",
    "add.s32 %r1, %r2, 4294967295;",
    "add.u64 %rd1, %rd2, 18446744073709551615;",
    "st.global.u8 [%rd1], 300;",
    "and.pred %p1, %p2, 2;",
    "{ .param .b32 one; call k3, (one); }",
    "call (_), k2, (%r2, 5);",
]
BAD = {
    "mov.u32 %r5, 0; lop3.b32 %r1, %r2, %r3, %r4, %r5;": "operand 5 must be .b32 immediate (got register %r5)",
    ".reg .b8 %b<8>; mov.b32 %r1, {%b0, %b1, %b2, %b3, %b4, %b5, %b6, %b7};": "of 32 bits cannot be packed from 8",
    "stmatrix.sync.aligned.m8n8.x2.shared.b16 [tile], {%r1, 7};": "has an element that is no register (got 7)",
    "mov.b64 %rd1, 1.5;": "must be an integer (got 1.5)",
    "add.s32 %r1, %r2, -2147483649;": "does not fit 32 bits (got -2147483649)",
    "add.s32 %r1, %r2, 4294967296;": "does not fit 32 bits (got 4294967296)",
    "add.u64 %rd1, %rd2, 18446744073709551616;": "does not fit 64 bits (got 18446744073709551616)",
    "call k3, (nothing);": "names nothing, which is not declared",
    "call (%r1), k2, (%zz, 5);": "register %zz is not declared",
    "{ .reg .b32 %inner; } { mov.u32 %inner, 1; }": "register %inner is not declared",
    ".reg .v4 .f32 %v; mov.u32 %r1, %v.x;": "operand 2 must be .u32 (got %v.x, a .f32 register)",
}


@pytest.mark.parametrize("body", GOOD)
def test_what_just_fits_is_left_alone(body: str) -> None:
    check(parse(text(body).replace(".visible .entry k(", f"{CALLEE}.visible .entry k(")))


@pytest.mark.parametrize("body", BAD)
def test_what_just_does_not_fit_is_found(body: str) -> None:
    with pytest.raises(IsaError) as caught:
        check(parse(text(body).replace(".visible .entry k(", f"{CALLEE}.visible .entry k(")))
    assert BAD[body] in str(caught.value)


def test_a_vector_of_words_fills_128_bits() -> None:
    assert findings(".reg .b128 %q; mov.b128 %q, {%rd1, %rd2};", "8.3") == []
    (found,) = findings(".reg .b128 %q; mov.b128 %q, {%rd1};", "8.3")
    assert "of 128 bits cannot be packed from 1 elements" in found


# memory and registers -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("opcode", "size"), [
    ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 16), ("stmatrix.sync.aligned.m8n8.x1.shared.b16", 16),
    ("mbarrier.init.shared.b64", 8), ("ld.global.v8.f32", 32), ("ld.global.v4.f64", 32), ("st.shared.v2.b8", 2),
    ("prefetch.global.L2", 0), ("st.bulk.weak.shared::cta", 0), ("ld.global", 0), ("atom.global.cas.b128", 16),
    ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", 16), ("cp.async.ca.shared.global", 0),
    ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group", 0),
])  # fmt: skip
def test_an_access_has_so_many_bytes(opcode: str, size: int) -> None:
    assert access_bytes(opcode) == size


@pytest.mark.parametrize("body", [
    "prefetch.global.L1 [table+64];",
    "createpolicy.range.global.L2::evict_last.b64 %rd2, [%rd1+4], 32, 64;",
    "ld.global.b8 %h1, [table];",
])  # fmt: skip
def test_lint_lets_pass_what_moves_no_known_number_of_bytes(body: str) -> None:
    assert linted(body) == []


def test_lint_measures_an_access_at_a_variables_beginning() -> None:
    (found,) = linted("{ .shared .b32 one; ld.shared.b64 %rd2, [one]; }")
    assert "bytes 0 to 7 are not in one, which has 4" in found


@pytest.mark.parametrize(("body", "register"), [
    ("call (%r1), k2, (%r2, 5);", "%r2"),
    ("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1, {%r2}], [tile];", "%r2"),
])  # fmt: skip
def test_lint_sees_registers_in_calls_and_coordinates(body: str, register: str) -> None:
    whole = text(f"ld.param.u64 %rd1, [out]; {body}")
    with pytest.raises(IsaError) as caught:
        check(parse(whole.replace(".visible .entry k(", f"{CALLEE}.visible .entry k(")), lint=True)
    assert f"register {register} is read but no instruction writes it" in str(caught.value)


# loops and addresses --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("branch", ["bra", "bra.uni"])
def test_lint_refuses_either_branch_back(branch: str) -> None:
    (found,) = linted(f"top: mov.u32 %r1, 1; {branch} top; ret;")
    assert "branch back to top is not predicated" in found


LARGE = "ld.global.u32 %r1, [%rd1]; mul.lo.u32 %r3, %r1, 128; "
WIDE = LARGE + "cvt.u64.u32 %rd3, %r3; "
CARRIED = {
    "cvt": WIDE + "ld.global.f32 %f1, [%rd3];",
    "sub": WIDE + "sub.s64 %rd4, %rd1, %rd3; ld.global.f32 %f1, [%rd4];",
    "mov": WIDE + "mov.u64 %rd4, %rd3; ld.global.f32 %f1, [%rd4];",
    "mad": LARGE + "mad.wide.u32 %rd4, %r3, 4, %rd1; ld.global.f32 %f1, [%rd4];",
    "mul": LARGE + "mul.wide.u32 %rd4, %r3, 4; ld.global.f32 %f1, [%rd4];",
    "shl": WIDE + "shl.b64 %rd4, %rd3, 2; ld.global.f32 %f1, [%rd4];",
    "cvta": WIDE + "cvta.to.global.u64 %rd4, %rd3; ld.global.f32 %f1, [%rd4];",
    "selp": WIDE + "setp.eq.u32 %p1, %r1, 3; selp.b64 %rd4, %rd3, %rd1, %p1; ld.global.f32 %f1, [%rd4];",
    "behind a number": WIDE + "add.u64 %rd4, 4096, %rd3; ld.global.f32 %f1, [%rd4];",
    "beside an unpacked pair": WIDE + "mov.b64 {%r4, %r5}, %rd1; add.u64 %rd4, %rd1, %rd3; st.global.f32 [%rd4], %f1;",
    "the source of a copy": WIDE + "cp.async.ca.shared.global [tile], [%rd3], 4;",
    "of a float's bits": "mov.b32 %r1, 0f3F800000; mul.lo.u32 %r3, %r1, 128; " + ADDRESS,
    "round a loop of two blocks": """mov.u32 %r3, 0; mov.u32 %r2, 0;
        top: setp.eq.u32 %p2, %r2, 3; @%p2 bra mid; mov.f32 %f2, 1.0; mid: """ + ADDRESS
        + LARGE + "add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 9; @%p1 bra top;",
}  # fmt: skip
NOT_CARRIED = {
    "the destination of a copy": WIDE + "cp.async.ca.shared.global [%rd3], [%rd1], 4;",
    "a hint": WIDE + "discard.global.L2 [%rd3], 128;",
    "a generic access": WIDE + "ld.f32 %f1, [%rd3];",
}


@pytest.mark.parametrize("way", CARRIED)
def test_lint_follows_a_product_into_an_address(way: str) -> None:
    (found,) = linted(CARRIED[way])
    assert "32-bit product; multiply in 64 bits" in found


@pytest.mark.parametrize("way", NOT_CARRIED)
def test_lint_lets_other_uses_of_a_product_pass(way: str) -> None:
    assert linted(NOT_CARRIED[way]) == []


@pytest.mark.parametrize(("product", "large"), [
    ("mul.lo.u32 %r3, %r1, 2147483647;", False), ("mad.lo.u32 %r3, %r1, 2147483647, 0;", False),
    ("mad.lo.u32 %r3, %r1, 2147483647, 1;", True), ("mul.lo.u32 %r3, %r1, 2147483648;", True),
])  # fmt: skip
def test_a_product_is_large_from_half_of_all_values_on(product: str, large: bool) -> None:
    found = linted(f"mov.u32 %r1, %ctaid.x; {product} {ADDRESS}", limits={"%ctaid.x": 1})
    assert bool(found) is large


def test_a_product_without_a_sum_has_nothing_added() -> None:
    clamped = "mov.u32 %r1, %ctaid.x; min.u32 %r1, %r1, 1; "  # written twice: no quick look is enough
    assert linted(f"{clamped} mul.lo.u32 %r3, %r1, 2147483647; {ADDRESS}") == []
    assert linted(f"{clamped} mad.lo.u32 %r3, %r1, 2147483647, %r1; {ADDRESS}") != []


@pytest.mark.parametrize(("target", "names"), [
    (Register("%r1"), ["%r1"]), (Pair(Register("%r1"), Register("%p1")), ["%r1", "%p1"]),
    (Vector((Register("%r1"), Register("%r2"))), ["%r1", "%r2"]), (Address(Register("%rd1")), []),
])  # fmt: skip
def test_what_an_instruction_may_write(target: Operand, names: list[str]) -> None:
    assert written(Instruction("shfl.sync.bfly.b32", (target, Register("%r3")))) == names
    assert written(Instruction("ret")) == []


@pytest.mark.parametrize(("factors", "worst"), [("%r1, %r2", "%r2"), ("%r2, %r1", "%r2"), ("%r1, 4000000000", "%r1")])
def test_the_larger_register_is_the_one_to_bound(factors: str, worst: str) -> None:
    body = f"mov.u32 %r1, %tid.x; ld.global.u32 %r2, [%rd1]; mul.lo.u32 %r3, {factors}; {ADDRESS}"
    (found,) = linted(body)
    assert f"or bound {worst} before it" in found


LOAD = "ld.global.u32 %r1, [%rd1]; "


@pytest.mark.parametrize("end", ["ret;", "exit;", "trap;"])
def test_nothing_follows_an_instruction_that_ends(end: str) -> None:
    body = f"""{LOAD} setp.lt.u32 %p1, %r1, 4096; @%p1 bra fine; mov.u32 %r3, 0; {end}
        fine: mul.lo.u32 %r3, %r1, 4096; {ADDRESS}"""
    assert linted(body) == []
    (found,) = linted(body.replace(end, "mov.u32 %r2, 0;"))
    assert "32-bit product" in found


@pytest.mark.parametrize("end", ["ret", "exit", "trap"])
def test_a_guarded_end_is_followed_by_what_its_guard_leaves(end: str) -> None:
    body = f"{LOAD} setp.ge.u32 %p1, %r1, 4096; @%p1 {end}; mul.lo.u32 %r3, %r1, 4096; {ADDRESS}"
    assert linted(body) == []
    (found,) = linted(body.replace("@%p1", "@!%p1"))
    assert "32-bit product" in found


@pytest.mark.parametrize("compare", ["setp.lt.u32 %p1, %r2, %r1;", "setp.lt.and.u32 %p1, %r2, %r1, %p2;"])
def test_a_compare_with_a_register_that_is_written_later_says_nothing(compare: str) -> None:
    first = "ld.global.u32 %r2, [%rd1]; setp.ne.u32 %p2, %r2, 77; mov.u32 %r1, {}; mov.u32 %r3, 0; " + compare
    use = f"@!%p1 bra over; mul.lo.u32 %r3, %r2, 4096; over: {ADDRESS}"
    assert linted(f"{first.format(400000)} {use}") == []
    (found,) = linted(f"{first.format(4000000)} mov.u32 %r1, 5; {use}")
    assert "32-bit product" in found


def test_equality_of_bits_bounds_too() -> None:
    body = f"{LOAD} mov.u32 %r2, 7; mov.u32 %r3, 0; setp.eq.b32 %p1, %r1, %r2; @!%p1 bra over;"
    assert linted(f"{body} mul.lo.u32 %r3, %r1, 4096; over: {ADDRESS}") == []


def test_what_is_not_known_of_predicates_says_nothing() -> None:
    p1, p2 = Register("%p1"), Register("%p2")
    for word in ("and", "or"):
        assert facts_of(Instruction(f"{word}.pred", (p1, p2, Immediate("1"))), {}) == ((), ())
    assert facts_of(Instruction("mov.pred", (p1, p2)), {}) == ((), ())
    assert facts_of(Instruction("xor.pred", (p1, p2, p2)), {}) is None


# the table of largest results -----------------------------------------------------------------------------------------
def test_the_rules_are_of_these_instructions() -> None:
    assert set(RULES) == {
        "mov.u32", "mov.s32", "mov.b32", "cvt.u32.u32", "cvt.s32.s32", "shfl.sync.bfly.b32", "shfl.sync.idx.b32",
        "add.u32", "add.s32", "mul.lo.u32", "mul.lo.s32", "mad.lo.u32", "mad.lo.s32", "and.b32", "min.u32", "or.b32",
        "xor.b32", "selp.u32", "selp.s32", "selp.b32", "max.u32", "redux.sync.max.u32", "redux.sync.min.u32", "shr.u32",
        "shr.b32", "popc.b32", "clz.b32", "min.s32", "max.s32", "shl.b32", "rem.u32", "div.u32", "bfe.u32", "sub.u32",
    }  # fmt: skip
    assert LOADED == {"u8": 255, "b8": 255, "u16": 65535, "b16": 65535}


@pytest.mark.parametrize(("opcode", "sources", "largest"), [
    ("and.b32", (3, 7), 3), ("and.b32", (7, 3), 3), ("min.u32", (7, 3), 3), ("max.s32", (HALF, 5), HALF - 1),
    ("max.s32", (HALF - 1, 5), HALF - 1), ("max.s32", (HALF, HALF), ANY), ("min.s32", (HALF, 5), ANY),
    ("min.s32", (HALF - 1, 5), 5), ("rem.u32", (7, 1), 0), ("rem.u32", (7, 0), 0), ("rem.u32", (7, 5), 4),
    ("rem.u32", (3, 9), 3),
    ("popc.b32", (ANY,), 32), ("clz.b32", (0,), 32), ("shr.u32", (ANY, 31), 1), ("shr.u32", (ANY, 32), 0),
    ("shl.b32", (1, 31), HALF), ("bfe.u32", (ANY, 0, 8), 255), ("bfe.u32", (ANY, 0, 32), ANY),
])  # fmt: skip
def test_a_rule_at_an_edge(opcode: str, sources: tuple[int, ...], largest: int) -> None:
    assert RULES[opcode](list(sources), [True] * 3) == largest
