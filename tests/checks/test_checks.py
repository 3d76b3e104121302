"""The checks: each rule finds its fault, names kernel, line and text, and leaves good text alone."""

from __future__ import annotations

import pytest

from ptxgen.checks import check
from ptxgen.errors import IsaError
from ptxgen.parser import parse
from ptxgen.targets import target

DECLARATIONS = """    .reg .pred %p<4>;
    .reg .b16 %h<4>;
    .reg .b32 %r<8>;
    .reg .f32 %f<8>;
    .reg .b64 %rd<8>;
    .reg .u32 %kv2<4>;
    .reg .f64 %double;
    .shared .align 16 .b8 tile[256];
    .local .b8 stack[16];"""
FIRST_LINE = 16  # of the body's first statement


def text(body: str, version: str = "8.0", where: str = "sm_90") -> str:
    return (
        f".version {version}\n.target {where}\n.address_size 64\n.global .b8 table[64];\n"
        f".visible .entry k(.param .u64 out)\n{{\n{DECLARATIONS}\n{body}\n}}\n"
    )


def findings(body: str, version: str = "8.0", where: str = "sm_90", **options: object) -> list[str]:
    module = parse(text(body, version, where))
    try:
        check(module, **options)
    except IsaError as error:
        return str(error).splitlines()
    return []


GOOD = [
    "mov.u32 %r1, %tid.x;",
    "@%p1 add.s32 %r1, %r2, -5;",
    "@!%p1 bra done; done: ret;",
    "ld.global.v4.f32 {%f0, %f1, %f2, _}, [%rd1+16];",
    "ld.shared.b32 %r1, [%r2];",
    "ld.shared.b32 %r1, [tile+4];",
    "ld.local.b32 %r1, [stack];",
    "ld.param.u64 %rd1, [out];",
    "st.global.v2.b32 [table], {%r1, 7};",
    "mov.b64 {%r1, %f2}, %rd1;",
    "mov.b64 {%r1, _}, %rd1;",
    "mov.b64 %rd1, {%h0, %h1, %h2, %h3};",
    "mov.u32 %r1, tile;",
    "add.u64 %rd1, %rd2, table;",
    "cvta.to.global.u64 %rd1, %rd1;",
    "ld.global.u8 %h1, [%rd1];",
    "ld.global.u8 %r1, [%rd1];",
    "setp.lt.and.s32 %p1|%p2, %r1, 7, !%p3;",
    "setp.lt.s32 _|%p2, %r1, 7;",
    "shfl.sync.bfly.b32 %f1|%p1, %f2, 16, 31, -1;",
    "fma.rn.f32 %f1, %f2, 0f3F800000, %f3;",
    "mov.b32 %r1, 0f3F800000;",
    "mov.f32 %f1, 1.0;",
    "mov.b32 %f1, 1;",
    "bar.sync 15, 96;",
    "barrier.arrive %r1, 32;",
    "bfe.u32 %r1, %r2, 255, 1;",
    "cp.async.ca.shared.global [%r1], [%rd1], 8;",
    "mov.u32 %kv23, %kv20;",
    "and.pred %p1, %p2, !%p3;",
    "bar.sync 0, 64;",
    "bar.red.popc.u32 %r1, 0, %p1;",
    "bar.red.popc.u32 %r1, 0, 64, %p1;",
    "cp.async.cg.shared.global [%r1], [%rd1], 16, %p1;",
    "cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;",
    "{ .reg .b32 %t; mov.b32 %t, 1; } ret;",
    "@%p1 call (%r1), k2, (%r2, 5);",
    "atom.global.add.u32 _, [%rd1], 1;",
    "{ inner: bra inner2; inner2: bra.uni inner2; }",
]


@pytest.mark.parametrize("body", GOOD)
def test_legal_text_is_left_alone(body: str) -> None:
    callee = ".func (.reg .u32 r) k2(.reg .u32 a, .reg .u32 b);\n"
    check(parse(text(body).replace(".visible .entry k(", f"{callee}.visible .entry k(")))


BAD = {
    "frobnicate.u32 %r1, %r2;": "unknown opcode 'frobnicate'",
    "ad.u32 %r1, %r2, %r3;": "nearest: ",
    "add.u128 %r1, %r2, %r3;": "modifier .u128 is unknown or misplaced; nearest: add.u16x2, add.u16",
    "ld.global.v3.f32 %f1, [%rd1];": "nearest: ld.global.cv.f32, ld.global.v2.f32",
    "add.s32 %r1, %r2;": "takes 3 operands (got 2)",
    "bar.red.popc.u32 %r1, 0, 1, 2, %p1;": "takes 3 or 4 operands (got 5)",
    "add.s32 %f1, %r2, %r3;": "operand 1 must be .s32 (got %f1, a .f32 register)",
    "add.f32 %f1, %f2, %rd3;": "operand 3 must be .f32 (got %rd3, a .b64 register)",
    "add.f32 %f1, %f2, 1;": "operand 3 must be a floating-point literal",
    "mov.f32 %f1, 1;": "operand 2 must be a floating-point literal",
    "st.global.v2.f32 [%rd1], {%f1, 1};": "operand 2 has an element that must be a floating-point literal",
    "bar.sync 16;": "operand 1 must be an integer from 0 to 15 (got 16)",
    "bar.sync 0, 33;": "operand 2 must be a multiple of 32 of at least 0 (got 33)",
    "bar.arrive 0, 0;": "operand 2 must be a multiple of 32 of at least 32 (got 0)",
    "pmevent 16;": "must be an integer from 0 to 15 (got 16)",
    "cp.async.cg.shared.global [%r1], [%rd1], 8;": "operand 3 must be 16 (got 8)",
    "cp.async.ca.shared.global [%r1], [%rd1], 12;": "operand 3 must be 4 or 8 or 16 (got 12)",
    "bfe.u32 %r1, %r2, 256, 1;": "operand 3 must be an integer from 0 to 255 (got 256)",
    "add.s32 %r1, %r2, 1.5;": "operand 3 must be an integer (got 1.5)",
    "mov.b32 %r1, 1.5;": "operand 2 must be an integer (got 1.5)",
    "add.s32 %r1, %r2, 5000000000;": "does not fit 32 bits (got 5000000000)",
    "shl.b16 %h1, %h2, -3000000000;": "does not fit 32 bits",
    "mul.wide.s32 %r1, %r2, %r3;": "operand 1 must be .s64 (got %r1, a .b32 register)",
    "ld.global.v2.f32 {%f0, %f1, %f2}, [%rd1];": "operand 1 must have 2 elements (got 3)",
    "ld.global.v2.f32 %f0, [%rd1];": "operand 1 must be {2 × .f32}",
    "ld.global.f32 {%f0, %f1}, [%rd1];": "operand 1 must be .f32 register",
    "ld.global.v2.f32 {%f0, %p1}, [%rd1];": "an element that does not fit .f32 (got %p1, a .pred register)",
    "st.global.v2.f32 [%rd1], {%f0, _};": "cannot hold the sink _",
    "mov.b64 {%r1, %r2, %r3}, %rd1;": "of 64 bits cannot be packed from 3 elements",
    "mov.b64 {%h1, %h2}, %rd1;": "an element that does not fit .b64 (got %h1, a .b16 register)",
    "add.s32 _, %r1, %r2;": "operand 1 cannot be the sink _",
    "mov.u32 %tid.x, %r1;": "operand 1 %tid.x is read-only",
    "mov.u32 %r1, %tid.w2;": "register %tid.w2 is not declared",
    "mov.u32 %r8, %r1;": "register %r8 is not declared; there are %r<8>",
    "mov.u32 %acc, %r1;": "register %acc is not declared",
    "@%q bra done; done:": "register %q is not declared",
    "@%r1 bra done; done:": "guard %r1 must be a predicate (got .b32)",
    "bra nowhere;": "names nowhere, which is not declared",
    "{ inner: } bra inner;": "names inner, which is not declared",
    "again: again:": "label again is declared twice",
    ".reg .b32 %x; .reg .b32 %x;": "%x is declared twice",
    "{ .reg .b32 %t; } mov.b32 %t, 1;": "register %t is not declared",
    "ld.shared.b32 %r1, [nothing];": "names nothing, which is not declared",
    "ld.shared.b32 %r1, [table];": "must be in .shared (got table, which is in .global)",
    "ld.global.b32 %r1, [%r2];": "operand 2 must be a [global address]: a .u64 register (got %r2, a .b32 register)",
    "ld.global.b32 %r1, %rd1;": "operand 2 must be [global address] (got register %rd1)",
    "add.u32 %r1, %r2, [%rd1];": "operand 3 must be .u32 register or immediate (got [%rd1])",
    "setp.lt.s32 %p1|%r1, %r1, 7;": "with a predicate (got %r1, a .b32 register)",
    "add.s32 %r1|%p1, %r2, 3;": "cannot be a pair",
    "add.s32 %r1, !%p1, 3;": "operand 2 cannot be negated",
    "lop3.b32 %r1, %r2, %r3, %r4, %r5;": "operand 5 must be .b32 immediate (got register %r5)",
    "mov.u64 %rd1, unknown;": "names unknown, which is not declared",
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1}], [%r2];": "must have 2 coordinates (got 1)",
    "ld.global.b32 %r1, [%rd1, {%r1}];": "takes no coordinates",
    "@%p1 call nobody;": "names nobody, which is not declared",
}


@pytest.mark.parametrize("body", BAD)
def test_a_fault_is_found_with_kernel_line_and_text(body: str) -> None:
    found = findings(body)
    assert found, "no finding"
    assert all(each.startswith(f"kernel k, <ptx>:{FIRST_LINE}: ") for each in found), found
    assert all(each.endswith(f" | {body}") for each in found)
    assert any(BAD[body] in each for each in found), found


def test_all_findings_come_at_once() -> None:
    found = findings("add.f32 %f1, %f2, 1;\nmov.u32 %zz, 1;\nbra away;\nret;")
    assert [each.split(": ")[0] for each in found] == [f"kernel k, <ptx>:{FIRST_LINE + i}" for i in range(3)]


def test_an_error_in_a_device_function_names_it() -> None:
    module = parse(".version 8.0\n.target sm_90\n.func f() { mov.u32 %r1, 1; ret; }")
    with pytest.raises(IsaError, match=r"function f, <ptx>:3: register %r1 is not declared"):
        check(module)


LACKING = [
    ("cp.async.commit_group;", "7.0", "sm_75", "needs PTX ISA 7.0, sm_80 because of cp; the target is sm_75"),
    ("ld.global.L2::cache_hint.b32 %r1, [%rd1], %rd2;", "7.0", "sm_80",
     "needs PTX ISA 7.4, sm_80 because of .L2::cache_hint; .version is 7.0"),
    ("ld.global.v8.b32 {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, [%rd1];", "8.6", "sm_90",
     "needs PTX ISA 8.8, sm_100 because of ld; .version is 8.6 and the target is sm_90"),
    ("wgmma.fence.sync.aligned;", "8.0", "sm_90", "needs PTX ISA 8.0, sm_90a"),
    ("wgmma.fence.sync.aligned;", "8.6", "sm_100a", "needs PTX ISA 8.0, sm_90a"),
    ("mov.u32 %r1, %cluster_ctarank;", "7.8", "sm_89", "%cluster_ctarank needs PTX ISA 7.8, sm_90"),
    ("fence.acq_rel.cluster;", "7.8", "sm_89", "because of .cluster"),
    ("max.f32 %f1, %f2, %f3, %f4;", "8.6", "sm_90", "needs PTX ISA 8.8, sm_100"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "version", "where", "said"), LACKING)
def test_a_form_that_version_or_target_lacks_names_the_word(body: str, version: str, where: str, said: str) -> None:
    (found,) = findings(body, version, where)
    assert said in found


def test_fp8_conversion_is_in_7_8_on_sm_90_but_in_8_1_on_sm_89() -> None:
    body = "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;"
    assert findings(body, "7.8", "sm_90") == []
    assert findings(body, "8.1", "sm_89") == []
    assert "needs PTX ISA 8.1, sm_89" in findings(body, "7.8", "sm_89")[0]


def test_the_header_must_fit_the_target_asked_for() -> None:
    module = parse(text("ret;"))
    with pytest.raises(IsaError, match=r"^<ptx>:2: \.target: must be sm_80 \(got sm_90\) \| \.target sm_90$"):
        check(module, target("sm_80"))
    assert any("needs at least 8.0 (got 7.8)" in each for each in findings("ret;", "7.8", "sm_90a"))
    assert any(".version: at most 9.3 is known (got 9.4)" in each for each in findings("ret;", "9.4", "sm_90a"))
    assert any("unknown architecture" in each for each in findings("ret;", "8.0", "sm_42"))


def test_static_shared_memory_stops_at_48_kib() -> None:
    assert findings(".shared .b8 more[48896]; mov.u32 %r1, more; mov.u32 %r1, tile;") == []
    (found,) = findings(".shared .b8 more[48897]; mov.u32 %r1, more;")
    assert "static shared memory: at most 49152 bytes (got 49153)" in found
    outside = text("mov.u32 %r1, pool;").replace(".global .b8 table", ".shared .b8 pool[49152];\n.global .b8 table")
    with pytest.raises(IsaError, match="got 49408"):
        check(parse(outside))
    unused = text("ret;").replace(".global .b8 table", ".shared .b8 pool[49152];\n.global .b8 table")
    check(parse(unused))  # another kernel's


LOOP = "top: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 9; {} bra top; ret;"


# what the bodies below read and do not write
WRITTEN = "ld.param.u64 %rd1, [out]; mov.f32 %f1, 1.0; "


def linted(body: str, **options: object) -> list[str]:
    return findings(WRITTEN + body, lint=True, **options)


def test_lint_refuses_an_unpredicated_branch_back() -> None:
    assert linted(LOOP.format("@%p1")) == []
    assert findings(LOOP.format(""), lint=False) == []
    (found,) = linted(LOOP.format(""))
    assert "branch back to top is not predicated" in found
    assert linted("bra.uni over; over: ret;") == []


ADDRESS = "cvt.u64.u32 %rd3, %r3; shl.b64 %rd3, %rd3, 2; add.u64 %rd4, %rd1, %rd3; ld.global.f32 %f1, [%rd4+4];"
UNSAFE = [
    "ld.global.u32 %r1, [%rd1]; mul.lo.u32 %r3, %r1, 128;",
    "ld.global.u32 %r1, [%rd1]; mad.lo.s32 %r3, %r1, 128, 7;",
    "mov.u32 %r1, %ctaid.y; mul.lo.u32 %r3, %r1, 65536;",
    "mov.u32 %r1, %tid.x; mul.lo.u32 %r2, %r1, %r1; mul.lo.u32 %r3, %r2, 4096;",
    "ld.global.u32 %r1, [%rd1]; mul.lo.u32 %r2, %r1, 128; add.u32 %r3, %r2, 1;",
]
SAFE = [
    "mov.u32 %r1, %tid.x; mul.lo.u32 %r3, %r1, 1024;",
    "mov.u32 %r1, %ctaid.y; mul.lo.u32 %r3, %r1, 32768;",
    "ld.global.u32 %r1, [%rd1]; and.b32 %r2, %r1, 1023; mul.lo.u32 %r3, %r2, 1024;",
    "ld.global.u32 %r1, [%rd1]; shr.u32 %r2, %r1, 20; mad.lo.u32 %r3, %r2, 65536, 3;",
    "ld.global.u32 %r3, [%rd1];",
    "ld.global.u32 %r1, [%rd1]; mul.lo.u32 %r2, %r1, 128; rem.u32 %r3, %r2, 7;",
]


@pytest.mark.parametrize("body", UNSAFE)
def test_lint_refuses_a_wide_32_bit_product_in_a_global_address(body: str) -> None:
    found = linted(f"{body} {ADDRESS}")
    assert len(found) == 1
    assert "32-bit product; multiply in 64 bits" in found[0]
    assert findings(f"{body} {ADDRESS}") == []


@pytest.mark.parametrize("body", SAFE)
def test_lint_lets_bounded_products_and_plain_indices_pass(body: str) -> None:
    assert linted(f"{body} {ADDRESS}") == []


def test_lint_takes_the_launchs_limits() -> None:
    body = f"mov.u32 %r1, %ctaid.x; mul.lo.u32 %r3, %r1, 65536; {ADDRESS}"
    assert len(linted(body)) == 1
    assert linted(body, limits={"%ctaid.x": 1023}) == []


def test_lint_follows_the_mark_through_mul_wide() -> None:
    body = "ld.global.u32 %r1, [%rd1]; mul.lo.u32 %r3, %r1, 128; mul.wide.u32 %rd3, %r3, 4; add.u64 %rd4, %rd1, %rd3;"
    assert len(linted(f"{body} st.global.f32 [%rd4], %f1;")) == 1
    assert linted(f"{body} st.shared.f32 [%rd4], %f1;") == []
    wide = "ld.global.u32 %r1, [%rd1]; mul.wide.u32 %rd3, %r1, 512; add.u64 %rd4, %rd1, %rd3;"
    assert linted(f"{wide} st.global.f32 [%rd4], %f1;") == []


BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
REDUCE = "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32"
WILD = {
    "ld.global.v4.f32 {%f2, %f3, %f4, %f5}, [%rd1+4];": "an offset must be a multiple of 16, the bytes of the access",
    "ld.global.v2.f32 {%f2, %f3}, [%rd1+-4];": "a multiple of 8, the bytes of the access (got [%rd1+-4])",
    "ld.global.b16 %h1, [%rd1+3];": "a multiple of 2",
    "st.shared.f32 [tile+256], %f1;": "bytes 256 to 259 are not in tile, which has 256",
    "st.shared.v4.f32 [tile+248], {%f1, %f1, %f1, %f1};": "a multiple of 16",
    "ld.shared.b32 %r1, [tile+-4];": "bytes -4 to -1 are not in tile",
    "ld.global.b64 %rd2, [table+64];": "bytes 64 to 71 are not in table",
    "ld.param.u64 %rd2, [out+8];": "bytes 8 to 15 are not in out",
    "mbarrier.inval.shared.b64 [tile+4];": "a multiple of 8",
    "cp.async.cg.shared.global [tile], [%rd1+8], 16;": "a multiple of 16",
    "cp.async.ca.shared.global [tile+4], [%rd1+8], 8;": "a multiple of 8, the bytes of the access (got [tile+4])",
    "cp.async.bulk.global.shared::cta.bulk_group [%rd1+8], [tile], 64;": "a multiple of 16",
    f"{BULK} [tile+8], [%rd1], 64, [tile+128];": "a multiple of 16, the bytes of the access (got [tile+8])",
    f"{BULK} [tile], [%rd1], 64, [tile+132];": "a multiple of 8, the bytes of the access (got [tile+132])",
    f"{REDUCE} [tile], [tile+64], 64, [tile+132];": "a multiple of 8, the bytes of the access (got [tile+132])",
}
TAME = [
    f"{REDUCE} [tile], [tile+64], 64, [tile+136];",
    "ld.global.v4.f32 {%f2, %f3, %f4, %f5}, [%rd1+16];",
    "ld.shared.v4.f32 {%f2, %f3, %f4, %f5}, [tile+240];",
    "ld.global.b8 %h1, [table+63];",
    "cp.async.ca.shared.global [tile+4], [%rd1+8], 4;",
    "red.global.add.u32 [%rd1+4], 1;",
    f"{BULK} [tile], [%rd1], 64, [tile+136];",
]


@pytest.mark.parametrize("body", WILD)
def test_lint_refuses_offsets_that_are_misaligned_or_outside(body: str) -> None:
    (found,) = linted(body)
    assert WILD[body] in found
    assert findings(WRITTEN + body) == []  # legal PTX: the fault is ours to find


@pytest.mark.parametrize("body", TAME)
def test_lint_lets_aligned_offsets_inside_pass(body: str) -> None:
    assert linted(body) == []


def test_lint_measures_variables_of_inner_scopes_and_parameters() -> None:
    (found,) = linted("{ .shared .b32 one; st.shared.b32 [one+4], 1; }")
    assert "bytes 4 to 7 are not in one, which has 4" in found


EARLY = {
    "add.f32 %f3, %f2, %f1; mov.f32 %f2, 1.0;": "register %f2 is read before anything can have written it (line",
    "mov.f32 %f2, %f3;": "register %f3 is read but no instruction writes it",
    "@%p1 bra over; over: setp.eq.s32 %p1, 1, 2;": "register %p1 is read before",
    "st.global.v2.f32 [%rd1], {%f1, %f2};": "register %f2 is read but",
    "ld.global.f32 %f2, [%rd2];": "register %rd2 is read but",
    "add.u32 %r1, %r1, 1;": "register %r1 is read before anything can have written it",
    "mov.u32 %r1, 5; top: add.u32 %r2, %r3, %r1; setp.lt.u32 %p1, %r2, 9; @%p1 bra top; mov.u32 %r3, 1;": "%r3 is read",
}
LATE = [
    "mov.f32 %f2, 1.0; add.f32 %f3, %f2, %f1;",
    "setp.eq.f32 %p1, %f1, %f1; @%p1 mov.f32 %f2, 1.0; add.f32 %f3, %f2, %f1;",
    "bra.uni second; first: mov.f32 %f3, %f2; second: mov.f32 %f2, 1.0; setp.eq.f32 %p1, %f1, %f1; @%p1 bra first;",
    "top: @%p1 mov.f32 %f3, %f2; mov.f32 %f2, 1.0; setp.eq.f32 %p1, %f1, %f1; @%p1 bra top;",
    "ld.global.v2.f32 {%f2, %f3}, [%rd1]; st.global.v2.f32 [%rd1], {%f3, %f2};",
]


@pytest.mark.parametrize("body", EARLY)
def test_lint_refuses_a_read_that_nothing_can_have_written(body: str) -> None:
    (found,) = linted(body)
    assert EARLY[body] in found
    assert findings(WRITTEN + body) == []


@pytest.mark.parametrize("body", LATE)
def test_lint_lets_reads_pass_that_some_path_has_written(body: str) -> None:
    assert linted(body) == []


SIZES = {
    ".reqntid 4096": "must be from 1 to 1024, 1024, 64 threads, 1024 together (got 4096)",
    ".reqntid 32, 64": "got 32, 64", ".maxntid 1, 1, 65": "got 1, 1, 65", ".maxntid 0": "got 0",
    ".reqnctapercluster 4, 5": "16 together (got 4, 5)",
}  # fmt: skip


@pytest.mark.parametrize("directive", SIZES)
def test_sizes_that_no_launch_can_have(directive: str) -> None:
    head = ".version 8.0\n.target sm_90\n.entry k()\n"
    with pytest.raises(IsaError, match=r"^kernel k, <ptx>:3: \.") as error:
        check(parse(f"{head}{directive}\n{{ ret; }}"))
    assert SIZES[directive] in str(error.value)
    for legal in (".reqntid 32, 32, 1", ".maxntid 1, 1, 64", ".reqnctapercluster 16", ".minnctapersm 4"):
        check(parse(f"{head}{legal}\n{{ ret; }}"))


@pytest.mark.parametrize(("body", "said"), [
    ("top: top: ret;", "label top is declared twice"),
    ("mov.b64 {%f1, %f2, %f3}, %rd1;", "cannot be packed from 3"),
    ("bra %r1;", "must be a label"), ("elect.sync %r1|_, -1;", "must have a predicate"),
    ("elect.sync _|%p1, -1;", ""), ("add.u32 %r1, %r1, tile;", ""),
    ("add.f32 %f1, %f1, tile;", "must be"),
    ("mov.b16 %h1, tile;", "must be"), ("add.u32 %r1, %r1;", "takes 3 operands"),
])  # fmt: skip
def test_operands_that_no_form_has(body: str, said: str) -> None:
    found = findings(body)
    assert bool(found) is bool(said)
    assert said in " ".join(found)


def test_a_label_of_two_scopes_is_two_labels_and_one_of_two_names_is_none() -> None:
    assert findings("{ top: ret; } { top: ret; }") == []
    assert findings("top: end: ret;") == []


def test_text_is_ascii_in_comments_too() -> None:
    source = text("ret; // größe")
    said = rf"^<ptx>:{FIRST_LINE}: PTX is ASCII, comments too \(got 'ö'\) \| ret; // größe$"
    with pytest.raises(IsaError, match=said):
        check(parse(source))


def test_what_a_text_is_stands_before_every_finding() -> None:
    """From the parser, the requirements and the checks: one form."""
    from ptxgen.requires import requirements

    about = "kernel k (templates/k.ptx.j2)"
    for body, judge in (("mov.u32 %r1, ;", parse), ("frob.u32 %r1;", requirements), ("mov.u32 %zz, 1;", check)):
        with pytest.raises(IsaError) as error:
            judge(parse(text(body), "k.ptx", about))
        assert str(error.value).startswith(f"{about}, k.ptx:{FIRST_LINE}: ")
        assert str(error.value).endswith(f" | {body}")
    with pytest.raises(IsaError, match=rf"^kernel k, k.ptx:{FIRST_LINE}: not an operand"):
        parse(text("mov.u32 %r1, ;"), "k.ptx")
