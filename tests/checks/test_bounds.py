"""The lint on addresses follows largest values through loops, guards and rewritten registers, and says why it refuses.

Every body leaves an index in %r3, which becomes a byte offset into global memory.
"""

from __future__ import annotations

import pytest

from tests.checks.test_checks import ADDRESS, FIRST_LINE, linted

LOAD = "ld.global.u32 %r1, [%rd1];"
SAFE = {
    "a register written twice": "mov.u32 %r1, 5; add.u32 %r1, %r1, 1; mul.lo.u32 %r3, %r1, 128;",
    "a counter that a compare ends": """
        mov.u32 %r1, 0; mov.u32 %r3, 0;
        top: mul.lo.u32 %r3, %r1, 4096; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 1000; @%p1 bra top;""",
    "a counter of large steps": """
        mov.u32 %r1, %tid.x; mov.u32 %r3, 0;
        top: mul.lo.u32 %r3, %r1, 1024; add.u32 %r1, %r1, 256; setp.lt.u32 %p1, %r1, 100000; @%p1 bra top;""",
    "a loop guarded at its head": f"""
        {LOAD} setp.lt.u32 %p1, %r1, 500; mov.u32 %r3, 0; @!%p1 bra end;
        top: mul.lo.u32 %r3, %r1, 4096; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 500; @%p1 bra top; end:""",
    "nested loops": """
        mov.u32 %r1, 0; mov.u32 %r3, 0;
        outer: mov.u32 %r2, 0;
        inner: mad.lo.u32 %r3, %r1, 64, %r2; mul.lo.u32 %r3, %r3, 64;
        add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 64; @%p1 bra inner;
        add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 64; @%p2 bra outer;""",
    "nested loops, the inner one of several blocks": """
        mov.u32 %r1, 0; mov.u32 %r3, 0;
        outer: mov.u32 %r2, 0;
        inner: mad.lo.u32 %r3, %r1, 64, %r2; mul.lo.u32 %r3, %r3, 64;
        setp.eq.u32 %p3, %r2, 5; @%p3 bra skip; mov.u32 %r4, 1;
        skip: add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 64; @%p1 bra inner;
        add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 64; @%p2 bra outer;""",
    "an unsigned minimum of itself": f"{LOAD} min.u32 %r1, %r1, 1000; mul.lo.u32 %r3, %r1, 1024;",
    "a signed clamp": f"{LOAD} max.s32 %r1, %r1, 0; min.s32 %r1, %r1, 1000; mul.lo.u32 %r3, %r1, 1024;",
    "a choice of two": f"{LOAD} setp.eq.u32 %p1, %r1, 3; selp.b32 %r2, 7, 9, %p1; mul.lo.u32 %r3, %r2, 4096;",
    "a choice by a compare": f"""{LOAD} mov.u32 %r2, 0; setp.lt.u32 %p1, %r1, 1000; @%p1 mov.u32 %r2, %r1;
        mul.lo.u32 %r3, %r2, 4096;""",
    "a guarded increment": """mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 100; @%p1 add.u32 %r1, %r1, 1;
        mul.lo.u32 %r3, %r1, 4096;""",
    "a region behind a branch": f"""{LOAD} mov.u32 %r3, 0; setp.ge.u32 %p1, %r1, 4096; @%p1 bra over;
        mul.lo.u32 %r3, %r1, 4096; over:""",
    "two compares at once": f"""{LOAD} mov.u32 %r3, 0; setp.lt.u32 %p1, %r1, 4096; setp.ne.and.u32 %p2, %r1, 7, %p1;
        @!%p2 bra over; mul.lo.u32 %r3, %r1, 4096; over:""",
    "a subtraction that its guard keeps above zero": """mov.u32 %r1, %ctaid.y; setp.ge.u32 %p1, %r1, 64;
        @%p1 sub.u32 %r1, %r1, 64; mul.lo.u32 %r3, %r1, 32768;""",
    "a product that is thrown away": f"{LOAD} mul.lo.u32 %r3, %r1, 128; mov.u32 %r3, 5;",
    "half a word": "ld.global.u16 %r1, [%rd1]; mul.lo.u32 %r3, %r1, 32767;",
    "a subtraction of another register": f"""{LOAD} mov.u32 %r2, 900; min.u32 %r1, %r1, 900; setp.le.u32 %p1, %r1, %r2;
        @%p1 sub.u32 %r2, %r2, %r1; mul.lo.u32 %r3, %r2, 4096;""",
    "a branch that is always taken": f"""{LOAD} min.u32 %r1, %r1, 9; bra over; over: mul.lo.u32 %r3, %r1, 4096;""",
    "a byte": "ld.global.u8 %r1, [%rd1]; mul.lo.u32 %r3, %r1, 65536;",
    "just below a compare's number": f"""{LOAD} mov.u32 %r3, 0; setp.lt.u32 %p1, %r1, 524288; @!%p1 bra over;
        mul.lo.u32 %r3, %r1, 4096; over:""",
    "a compare that never holds": f"""{LOAD} mov.u32 %r3, 0; setp.lt.u32 %p1, %r1, 0; @!%p1 bra over;
        mul.lo.u32 %r3, %r1, 4000000000; over:""",
    "nothing but zero": f"""{LOAD} mov.u32 %r3, 0; setp.le.u32 %p1, %r1, 0; @!%p1 bra over;
        mul.lo.u32 %r3, %r1, 4000000000; over:""",
}
UNSAFE = {
    "a counter that nothing ends": """mov.u32 %r1, 0; mov.u32 %r3, 0;
        top: mul.lo.u32 %r3, %r1, 4096; add.u32 %r1, %r1, 1; setp.eq.u32 %p1, %r3, 77; @%p1 bra top;""",
    "a bound that is only known below zero": f"""{LOAD} mov.u32 %r3, 0; setp.lt.s32 %p1, %r1, 4096; @!%p1 bra over;
        mul.lo.u32 %r3, %r1, 4096; over:""",
    "a minimum that may be negative": f"{LOAD} min.s32 %r1, %r1, 1000; mul.lo.u32 %r3, %r1, 1024;",
    "the other arm": f"""{LOAD} mov.u32 %r3, 0; setp.lt.u32 %p1, %r1, 4096; @%p1 bra over;
        mul.lo.u32 %r3, %r1, 4096; over:""",
    "a compare of what was there before": f"""{LOAD} mov.u32 %r3, 0; setp.lt.u32 %p1, %r1, 4096;
        ld.global.u32 %r1, [%rd1]; @!%p1 bra over; mul.lo.u32 %r3, %r1, 4096; over:""",
    "a guarded bound": f"{LOAD} setp.eq.u32 %p1, %r1, 3; @%p1 mov.u32 %r1, 5; mul.lo.u32 %r3, %r1, 4096;",
    "a subtraction below zero": "mov.u32 %r1, %tid.x; sub.u32 %r1, %r1, 1; mul.lo.u32 %r3, %r1, 4096;",
    "a shift by a register": "mov.u32 %r1, -1; mov.u32 %r2, %tid.x; shr.u32 %r1, %r1, %r2; mul.lo.u32 %r3, %r1, 9;",
    "one of two ways here": f"""mov.u32 %r2, 0; {LOAD} setp.eq.u32 %p1, %r1, 3; @%p1 bra over; mov.u32 %r2, %r1;
        over: mul.lo.u32 %r3, %r2, 4096;""",
    "either compare": f"""{LOAD} mov.u32 %r3, 0; setp.eq.u32 %p1, %r1, 7; setp.lt.or.u32 %p2, %r1, 4096, %p1;
        @%p2 bra over; mul.lo.u32 %r3, %r1, 4096; over:""",
    "the first number above a compare's": f"""{LOAD} mov.u32 %r3, 0; setp.lt.u32 %p1, %r1, 524289; @!%p1 bra over;
        mul.lo.u32 %r3, %r1, 4096; over:""",
    "the least negative number": f"""{LOAD} and.b32 %r1, %r1, 1; shl.b32 %r1, %r1, 31; mov.u32 %r3, 0;
        setp.lt.s32 %p1, %r1, 5; @!%p1 bra over; mul.lo.u32 %r3, %r1, 4096; over:""",
    "the largest positive number": f"""{LOAD} shr.u32 %r1, %r1, 1; ld.global.u32 %r2, [%rd1]; mov.u32 %r3, 0;
        setp.le.s32 %p1, %r1, %r2; @!%p1 bra over; mad.lo.u32 %r3, %r1, 1, 1; over:""",
    "a loop that is entered behind its head": f"""{LOAD} mov.u32 %r3, 0; mov.u32 %r2, 0; setp.ne.u32 %p2, %r1, 3;
        @%p2 bra mid; min.u32 %r1, %r1, 9; top: mul.lo.u32 %r3, %r1, 4096;
        mid: add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 9; @%p1 bra top;""",
    "a register in braces": """mov.u32 %r1, 5; ld.global.v2.u32 {%r2, %r1}, [%rd1]; mul.lo.u32 %r3, %r1, 4096;""",
    "a guarded subtraction of what may be zero": f"""{LOAD} and.b32 %r2, %r1, 3; min.u32 %r1, %r1, 524288;
        mov.u32 %r4, 0; setp.ge.u32 %p1, %r1, %r2; @%p1 sub.u32 %r4, %r1, %r2; mul.lo.u32 %r3, %r4, 4096;""",
    "a subtraction that a guard on another keeps nowhere": f"""{LOAD} mov.u32 %r2, %ctaid.y; mov.u32 %r4, 0;
        setp.ge.u32 %p1, %r1, 64; @%p1 sub.u32 %r4, %r2, 64; mul.lo.u32 %r3, %r4, 32768;""",
}


@pytest.mark.parametrize("what", SAFE)
def test_what_is_bounded_on_every_way_passes(what: str) -> None:
    assert linted(f"{SAFE[what]} {ADDRESS}") == []


@pytest.mark.parametrize("what", UNSAFE)
def test_what_may_be_large_on_one_way_is_refused(what: str) -> None:
    (found,) = linted(f"{UNSAFE[what]} {ADDRESS}")
    assert "32-bit product; multiply in 64 bits" in found


def test_a_product_that_the_next_turn_of_a_loop_uses_is_found() -> None:
    body = f"""{LOAD} mov.u64 %rd4, %rd1; mov.u32 %r2, 0;
        top: ld.global.f32 %f1, [%rd4]; mul.lo.u32 %r3, %r1, 128; cvt.u64.u32 %rd3, %r3; add.u64 %rd4, %rd1, %rd3;
        add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 9; @%p1 bra top;"""
    assert len(linted(body)) == 1


def test_the_message_names_the_factors_where_they_come_from_and_the_remedy() -> None:
    (found,) = linted(f"{LOAD} mov.u32 %r2, %tid.x; mul.lo.u32 %r3, %r1, %r2; {ADDRESS}")
    assert "multiply in 64 bits (mul.wide.u32 of the same factors, into a 64-bit register)" in found
    assert "or bound %r1 before it (min, and, rem, or a compare that guards it)" in found
    assert "%r1 may be anything up to 2^32-1 since line" in found
    assert "(ld.global.u32 %r1, [%rd1];)" in found
    assert "%r2 is at most 1023" in found


def test_the_message_names_the_step_of_a_loop_without_a_bound() -> None:
    (found,) = linted(f"{UNSAFE['a counter that nothing ends']} {ADDRESS}")
    assert "(add.u32 %r1, %r1, 1;)" in found
    assert "4096 is a number" in found


def test_a_sum_with_a_product_is_told_to_use_mad_wide() -> None:
    (found,) = linted(f"{LOAD} mad.lo.s32 %r3, %r1, 128, 7; {ADDRESS}")
    assert "mad.wide.s32" in found


def test_one_product_is_one_finding_and_a_number_is_not_what_to_bound() -> None:
    (found,) = linted(f"mov.u32 %r1, %ctaid.y; mul.lo.u32 %r3, %r1, 131072; {ADDRESS} ld.global.f32 %f2, [%rd4];")
    assert "bound %r1 before it" in found
    assert "%r1 is at most 65534 and 131072 is a number, so the product may pass 2^31" in found


def test_the_launchs_limit_bounds_a_special_register_that_is_read_in_a_loop() -> None:
    body = f"""mov.u32 %r2, 0;
        top: mov.u32 %r1, %ctaid.x; mul.lo.u32 %r3, %r1, 65536; {ADDRESS}
        add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 9; @%p1 bra top;"""
    (found,) = linted(body)
    assert "(mov.u32 %r1, %ctaid.x;)" in found
    assert linted(body, limits={"%ctaid.x": 1023}) == []


SINCE = {
    "a load": (1, "ld.global.u32 %r1, [%rd1+4];"),
    "a copy of it": (0, "mov.u32 %r1, %r2;"),
    "a sum of it": (0, "add.u32 %r1, %r2, 1;"),
    "a sum that is too large by itself": (1, "add.u32 %r1, %r4, 4294967295;"),
    "a guarded load over another": (1, "mov.u32 %r1, %r2; setp.eq.u32 %p1, %r2, 7;\n@%p1 ld.global.u32 %r1, [%rd1+4];"),
    "a compare with what is no smaller": (0, "mov.u32 %r1, %r2; ld.global.u32 %r5, [%rd1]; mov.u32 %r3, 0;"
                                          "setp.le.u32 %p2, %r1, %r5; @!%p2 bra over;"),
}  # fmt: skip


@pytest.mark.parametrize("what", SINCE)
def test_the_reason_names_the_line_since_which_nothing_is_known(what: str) -> None:
    behind, lines = SINCE[what]
    body = (
        "ld.global.u32 %r2, [%rd1]; min.u32 %r4, %r2, 100;\n" + lines + f"\nmul.lo.u32 %r3, %r1, 128; over: {ADDRESS}"
    )
    (found,) = linted(body)
    line = FIRST_LINE + (behind and lines.count("\n") + behind)
    assert f"%r1 may be anything up to 2^32-1 since line {line} (" in found
