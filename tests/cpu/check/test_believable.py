"""Check mode says what matters, all of it, and no more: equal stores, later findings, first writes, bytes, discards."""

import pytest

from ptxgen.errors import ExecutionError, ExecutionNote, SpecError
from ptxgen.runtime import open_device
from ptxgen.runtime.cpu.flow.flow import LONGEST_BLOCK
from tests.support.cpu_run import run, text_of, u32

SHARED = ".shared .align 16 .b8 s[1024];\n"


def check(body, *arrays, **given):
    run(body, *arrays, mode="check", before=SHARED, **given)


def finding(match, body, *arrays, **given):
    with pytest.raises(ExecutionError, match=f"(?s){match}") as caught:
        check(body, *arrays, **given)
    return caught.value.findings


# stores of equal values -----------------------------------------------------------------------------------------------
STORES = {
    "all lanes": "mov.u32 %r1, VALUE; st.shared.u32 [s], %r1; ret;",
    "a row": "shl.b32 %r2, %lane, 2; mov.u32 %r3, s; add.u32 %r2, %r2, %r3; mov.u32 %r1, VALUE; "
    "st.shared.u32 [%r2], %r1; ret;",
    "scattered": "shl.b32 %r2, %lane, 4; mov.u32 %r3, s; add.u32 %r2, %r2, %r3; mov.u32 %r1, VALUE; "
    "st.shared.u32 [%r2], %r1; ret;",
    "bytes": "mov.u32 %r1, VALUE; cvt.u16.u32 %h1, %r1; mov.u32 %r3, s; add.u32 %r3, %r3, %lane; "
    "st.shared.u8 [%r3], %h1; ret;",
    "vectors": "mov.u32 %r1, VALUE; st.shared.v2.u32 [s], {%r1, %r1}; ret;",
    "shared by some lanes": "and.b32 %r4, %lane, 7; shl.b32 %r2, %r4, 3; mov.u32 %r3, s; add.u32 %r2, %r2, %r3; "
    "mov.u32 %r1, VALUE; add.u32 %r4, %r4, %r1; st.shared.v2.u32 [%r2], {%r4, %r4}; ret;",
    "a matrix": "and.b32 %r2, %lane, 15; shl.b32 %r2, %r2, 4; mov.u32 %r3, s; add.u32 %r2, %r2, %r3; "
    "mov.u32 %r1, VALUE; stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r2], {%r1, %r1}; ret;",
    "halves shared by some lanes": "and.b32 %r4, %lane, 7; shl.b32 %r2, %r4, 1; mov.u32 %r3, s; add.u32 %r2, %r2, %r3; "
    "mov.u32 %r1, VALUE; add.u32 %r4, %r4, %r1; cvt.u16.u32 %h1, %r4; st.shared.b16 [%r2], %h1; ret;",
}


@pytest.mark.parametrize("way", STORES)
def test_stores_of_equal_values_are_a_note_and_others_a_race(way):
    with pytest.warns(ExecutionNote, match="(?s)unordered stores of equal values.*warp 0 has written"):
        check(STORES[way].replace("VALUE", "7"), block=96)
    finding("^race", STORES[way].replace("VALUE", "%warp"), block=96)


def test_lanes_that_differ_are_no_equal_stores_whichever_wins():
    finding("^race", "st.shared.u32 [s], %lane; ret;", block=64)


def test_one_value_of_a_row_that_differs_is_a_race():
    finding("^race.*lane 5", STORES["a row"].replace("VALUE", "0; setp.eq.u32 %p1, %tid, 37; selp.u32 %r1, 1, 0, %p1"),
            block=64)  # fmt: skip


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ExecutionNote")
def test_stores_that_are_equal_at_first_are_a_race_later():
    body = "mov.u32 %r1, 0; again: mul.lo.u32 %r2, %r1, %warp; st.shared.u32 [s], %r2; add.u32 %r1, %r1, 1; "
    finding("^race", body + "setp.lt.u32 %p1, %r1, 3; @%p1 bra again; ret;", block=64)


def test_an_option_makes_equal_stores_a_finding():
    finding("^unordered stores of equal values", STORES["all lanes"].replace("VALUE", "7"), block=64,
            equal_stores="finding")  # fmt: skip
    with pytest.raises(SpecError, match="equal_stores: must be"):
        open_device("cpu", mode="check", equal_stores="never")


@pytest.mark.parametrize("value", ["7", "%tid"])
def test_ctas_may_store_equal_values_to_global_memory(value):
    device = open_device("cpu", mode="check", threads=1)
    data = device.zeros(32, "u32")
    entry = device.module(text_of(f"mov.u32 %r1, {value}; st.global.u32 [%a0], %r1; ret;", 1))["k"]
    if value == "7":
        with pytest.warns(ExecutionNote, match=r"(?s)CTA .0, 0, 0., warp 0, of this launch has written"):
            entry.launch(3, 1, [data])
        assert data.numpy()[0] == 7
    else:
        with pytest.raises(ExecutionError, match=r"^race in kernel k"):
            entry.launch(3, 1, [data])


@pytest.mark.filterwarnings("error")
def test_a_store_beside_an_atomic_of_the_same_value_is_a_race():
    finding("^race", "setp.eq.u32 %p1, %warp, 0; @%p1 st.shared.u32 [s], 7; @%p1 bra done; "
            "atom.shared.exch.b32 %r1, [s], 7; done: ret;", block=64)  # fmt: skip


# all findings ---------------------------------------------------------------------------------------------------------
SEVERAL = """
  st.shared.u32 [s], %tid;
  setp.eq.u32 %p1, %lane, 3;
  @%p1 st.global.u32 [%a0+64], %lane;
  ld.global.u32 %r2, [%a0+2];
  bar.sync 0;
  st.global.u32 [%a0], %r9; ret;"""


def test_all_findings_of_a_launch_are_reported_each_place_once():
    found = finding("^out of bounds", SEVERAL, u32(4), block=96)
    assert [text.split(" in kernel")[0] for text in found] == [
        "out of bounds", "misaligned access", "race", "read of an uninitialised register",
    ]  # fmt: skip
    with pytest.raises(ExecutionError) as caught:
        check(SEVERAL, u32(4), block=96)
    assert str(caught.value) == "\n\n".join(caught.value.findings)


def test_an_option_stops_at_the_first_and_the_other_modes_do():
    assert len(finding("^out of bounds", SEVERAL, u32(4), block=96, most_findings=1)) == 1
    with pytest.raises(ExecutionError) as caught:
        run(SEVERAL, u32(4), before=SHARED, block=96)
    assert len(caught.value.findings) == 1


def test_a_deadlock_behind_a_finding_is_reported_too():
    found = finding("^race", "st.shared.u32 [s], %tid; setp.eq.u32 %p1, %warp, 0; @%p1 bar.sync 1, 96; ret;", block=64)
    assert [text.split(" in kernel")[0] for text in found] == ["race", "deadlock"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_without_end_behind_a_finding_does_not_hide_it(monkeypatch, threads):
    monkeypatch.setattr("ptxgen.runtime.cpu.run.launch._MORE_SECONDS", 0.2)
    body = "st.shared.u32 [s], %tid; mov.u64 %rd1, 0; again: add.u64 %rd1, %rd1, 1; setp.ne.u64 %p1, %rd1, 0; "
    assert len(finding("^race", body + "@%p1 bra again; ret;", block=64, grid=2, threads=threads)) == 1


# semaphores -----------------------------------------------------------------------------------------------------------
SEMAPHORE = """mov.u32 %r9, %tid.x; setp.eq.u32 %p1, %r9, 0; @%p1 INIT [s], 0; BARRIER
  setp.ne.u32 %p2, %lane, 0; @%p2 ret;
  fence.acq_rel.cta; ATOM.cta.shared.add.u32 %r1, [s], 1; fence.acq_rel.cta; ret;"""


@pytest.mark.parametrize("atom", ["atom.relaxed", "atom.acq_rel"])
@pytest.mark.parametrize("init", ["st.shared.u32", "st.volatile.shared.u32", "st.relaxed.cta.shared.u32"])
def test_the_barrier_behind_the_first_write_of_a_semaphore_is_missed(init, atom):
    body = SEMAPHORE.replace("INIT", init).replace("ATOM", atom)
    check(body.replace("BARRIER", "bar.sync 0;"), block=96)
    finding(r"^race.*atom.*warp 0 has written", body.replace("BARRIER", ""), block=96)


def test_the_first_write_is_the_ctas_own():
    """The next CTA in the same shared memory begins anew."""
    check(SEMAPHORE.replace("INIT", "st.shared.u32").replace("ATOM", "atom.acq_rel").replace("BARRIER", "bar.sync 0;"),
          block=96, grid=5)  # fmt: skip


# values that are read and discarded -----------------------------------------------------------------------------------
UNUSED = {
    "never read": "ld.shared.u32 %r1, [s]; ret;",
    "overwritten": "ld.shared.u32 %r1, [s]; mov.u32 %r1, 0; st.global.u32 [%a0], %r1; ret;",
    "through arithmetic": "ld.shared.u32 %r1, [s]; add.u32 %r2, %r1, 1; shl.b32 %r3, %r2, 4; ret;",
    "in a loop": "mov.u32 %r5, 0; again: ld.shared.u32 %r1, [s]; add.u32 %r2, %r2, %r1; add.u32 %r5, %r5, 1; "
    "setp.lt.u32 %p1, %r5, 4; @%p1 bra again; ret;",
    "a vector": "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [s]; ret;",
    "spread": "shl.b32 %r2, %lane, 3; mov.u32 %r3, s; add.u32 %r2, %r2, %r3; ld.shared.u32 %r1, [%r2]; ret;",
}
USED = {
    "stored": "ld.shared.u32 %r1, [s]; st.global.u32 [%a0], %r1; ret;",
    "decided by": "ld.shared.u32 %r1, [s]; setp.eq.u32 %p1, %r1, 0; @%p1 bra there; "
    "st.global.u32 [%a0], 1; there: ret;",
    "an address": "ld.shared.u32 %r1, [s]; and.b32 %r1, %r1, 0; mul.wide.u32 %rd1, %r1, 4; add.u64 %rd1, %a0, %rd1; "
    "ld.global.u32 %r2, [%rd1]; ret;",
    "behind a loop": "mov.u32 %r5, 0; again: ld.shared.u32 %r1, [s]; add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 4; "
    "@%p1 bra again; st.global.u32 [%a0], %r1; ret;",
    "one of a vector": "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [s]; st.global.u32 [%a0], %r3; ret;",
}


@pytest.mark.parametrize("way", UNUSED)
def test_a_value_that_comes_to_nothing_need_not_be_there(way):
    check(UNUSED[way], u32(1), block=1)


@pytest.mark.parametrize("way", USED)
def test_a_value_that_something_depends_on_must_be_there(way):
    finding("^read of uninitialised memory", USED[way], u32(1), block=1)


def test_so_it_is_with_global_memory():
    device = open_device("cpu", mode="check", threads=1)
    data, out = device.empty(64, "u32"), device.zeros(64, "u32")
    load = "add.u64 %rd1, %a0, %at4; ld.global.u32 %r1, [%rd1]; "
    device.module(text_of(load + "ret;", 2))["k"].launch(1, 32, [data, out])
    with pytest.raises(ExecutionError, match=r"^read of uninitialised memory"):
        device.module(text_of(load + "st.global.u32 [%a1], %r1; ret;", 2))["k"].launch(1, 1, [data, out])


def test_a_race_of_a_read_counts_whatever_becomes_of_it():
    finding("^race", "setp.eq.u32 %p1, %warp, 0; @%p1 st.shared.u32 [s], 1; @!%p1 ld.shared.u32 %r1, [s]; ret;",
            block=64)  # fmt: skip


# what is read and dropped by the other side ---------------------------------------------------------------------------
# lane n reads word n of `s`, of which the first 16 are written; %p1: those are the lower lanes
HALF = """setp.lt.u32 %p1, %lane, 16; shl.b32 %r9, %lane, 2; mov.u32 %r8, s; add.u32 %r9, %r9, %r8;
  @%p1 st.shared.u32 [%r9], %lane; bar.warp.sync -1; setp.ge.u32 %p2, %lane, 16; """
DROPPED = {
    "chosen by a predicate": "ld.shared.u32 %r1, [%r9]; selp.b32 %r2, %r1, 7, %p1; st.global.u32 [%rd1], %r2; ret;",
    "chosen by the opposite": "ld.shared.u32 %r1, [%r9]; selp.b32 %r2, 7, %r1, %p2; st.global.u32 [%rd1], %r2; ret;",
    "after arithmetic": "ld.shared.u32 %r1, [%r9]; mad.lo.u32 %r1, %r1, 3, 1; selp.b32 %r2, %r1, 7, %p1; "
    "st.global.u32 [%rd1], %r2; ret;",
    "false decides": "ld.shared.u32 %r1, [%r9]; setp.lt.u32 %p3, %r1, 8; and.pred %p3, %p3, %p1; @%p3 bra there; "
    "st.global.u32 [%rd1], 1; there: ret;",
    "false decides from the other side": "ld.shared.u32 %r1, [%r9]; setp.lt.u32 %p3, %r1, 8; and.pred %p3, %p1, %p3; "
    "selp.u32 %r2, 1, 0, %p3; st.global.u32 [%rd1], %r2; ret;",
    "true decides": "ld.shared.u32 %r1, [%r9]; setp.lt.u32 %p3, %r1, 8; or.pred %p3, %p2, %p3; @%p3 bra there; "
    "st.global.u32 [%rd1], 1; there: ret;",
    "a compare with another": "ld.shared.u32 %r1, [%r9]; setp.lt.and.u32 %p3, %r1, 8, %p1; @%p3 bra there; "
    "st.global.u32 [%rd1], 1; there: ret;",
    "in another block": "ld.shared.u32 %r1, [%r9]; @%p2 bra there; add.u32 %r1, %r1, 1; there: "
    "selp.b32 %r2, %r1, 7, %p1; st.global.u32 [%rd1], %r2; ret;",
    "round a loop": "mov.u32 %r5, 0; mov.u32 %r2, 9; again: ld.shared.u32 %r1, [%r9]; selp.b32 %r2, %r1, %r2, %p1; "
    "add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 3; @%p3 bra again; st.global.u32 [%rd1], %r2; ret;",
    "of a vector": "setp.eq.u32 %p4, %lane, 0; @%p4 st.shared.u32 [s+64], 5; bar.warp.sync -1; "
    "ld.shared.v2.u32 {%r1, %r2}, [s+64]; selp.b32 %r2, %r2, %r1, %p5; st.global.u32 [%rd1], %r2; ret;",
}
NOT_DROPPED = {
    "chosen by the other predicate": ("selp.b32 %r2, %r1, 7, %p2; st.global.u32 [%rd1], %r2; ret;", "16-31"),
    "true does not decide": ("setp.lt.u32 %p3, %r1, 8; and.pred %p3, %p3, %p2; @%p3 bra there; "
                             "st.global.u32 [%rd1], 1; there: ret;", "16-31"),
    "false does not decide": ("setp.lt.u32 %p3, %r1, 8; or.pred %p3, %p1, %p3; @%p3 bra there; "
                              "st.global.u32 [%rd1], 1; there: ret;", "16-31"),
    "undefined on both sides": ("setp.lt.u32 %p3, %r1, 8; setp.gt.u32 %p4, %r1, 9; and.pred %p3, %p3, %p4; "
                                "selp.u32 %r2, 1, 0, %p3; st.global.u32 [%rd1], %r2; ret;", "16-31"),
    "a compare with another": ("setp.lt.or.u32 %p3, %r1, 8, %p1; selp.u32 %r2, 1, 0, %p3; "
                               "st.global.u32 [%rd1], %r2; ret;", "16-31"),
}  # fmt: skip


def half(body, **given):
    setp = "setp.ne.u32 %p5, %lane, %lane; add.u64 %rd1, %a0, %at4; "
    check(HALF + setp + body, u32(32), **given)


@pytest.mark.parametrize("way", DROPPED)
def test_what_is_read_in_vain_need_not_be_written(way):
    half(DROPPED[way])


@pytest.mark.parametrize("way", NOT_DROPPED)
def test_what_is_chosen_must_be_written(way):
    body, lanes = NOT_DROPPED[way]
    with pytest.raises(ExecutionError, match=rf"^read of an uninitialised register[^$]*lanes {lanes}\n[^$]*"
                       "not all of the shared memory that it comes from is written"):  # fmt: skip
        half("ld.shared.u32 %r1, [%r9]; " + body)


def test_what_is_stored_too_is_found_where_it_is_loaded():
    body = "ld.shared.u32 %r1, [%r9]; selp.b32 %r2, %r1, 7, %p1; add.u32 %r2, %r2, %r1; st.global.u32 [%rd1], %r2; ret;"
    with pytest.raises(ExecutionError, match=r"^read of uninitialised memory[^$]*lanes? 16"):
        half(body)


@pytest.mark.parametrize("between", [1, 2 * LONGEST_BLOCK])
def test_what_one_guard_stores_is_read_under_that_guard_however_far_before(between):
    """A straight line that is long is more than one block."""
    body = f"ld.shared.u32 %r1, [%r9]; mov.u32 %r7, 0; {'add.u32 %r7, %r7, %lane; ' * between}"
    body += "add.u32 %r1, %r1, %r7; @GUARD st.global.u32 [%rd1], %r1; ret;"
    half(body.replace("GUARD", "%p1"))
    with pytest.raises(ExecutionError, match=r"^read of uninitialised memory[^$]*lane 16"):
        half(body.replace("GUARD", "%p2"))


# bytes of registers ---------------------------------------------------------------------------------------------------
# %r8 is written nowhere; %r9 has its two lower bytes from %r1
MIXED = "mov.u32 %r1, 5; prmt.b32 %r9, %r1, %r8, 0x5410; "
DEFINED = {
    "the lower half": "st.global.u16 [%a0], %h1; ret;|mov.b32 {%h1, %h2}, %r9;",
    "a byte of a word": "st.global.u8 [%a0], %r9; ret;|",
    "shifted out to the left": "st.global.u32 [%a0], %r2; ret;|shl.b32 %r2, %r9, 16;",
    "shifted up and down": "st.global.u32 [%a0], %r3; ret;|shl.b32 %r2, %r9, 20; shr.u32 %r3, %r2, 20;",
    "masked": "st.global.u32 [%a0], %r2; ret;|and.b32 %r2, %r9, 65535;",
    "set": "st.global.u32 [%a0], %r2; ret;|or.b32 %r2, %r9, -65536;",
    "picked": "st.global.u32 [%a0], %r2; ret;|prmt.b32 %r2, %r9, %r9, 0x1010;",
    "converted": "st.global.u32 [%a0], %r2; ret;|cvt.u32.u16 %r2, %r9;",
    "extracted": "st.global.u32 [%a0], %r2; ret;|bfe.u32 %r2, %r9, 4, 12;",
    "inserted over": "st.global.u32 [%a0], %r2; ret;|bfi.b32 %r2, %r1, %r9, 16, 16;",
    "a field of it inserted": "st.global.u32 [%a0], %r2; ret;|bfi.b32 %r2, %r9, %r1, 8, 16;",
    "funnelled out": "st.global.u32 [%a0], %r2; ret;|shf.l.wrap.b32 %r2, %r1, %r9, 16; shl.b32 %r2, %r2, 16;",
    "looked up": "st.global.u32 [%a0], %r2; ret;|lop3.b32 %r2, %r9, 65535, %r1, 0x80;",
    "selected": "st.global.u16 [%a0], %r2; ret;|setp.eq.u32 %p1, %r1, 5; selp.b32 %r2, %r9, %r1, %p1;",
    "added below": "st.global.u16 [%a0], %r2; ret;|add.u32 %r2, %r9, %r1;",
    "a half of a pair": "st.global.u16 [%a0], %r2; ret;|min.f16x2 %r2, %r9, %r1;",
    "the lower of two small floats": "st.global.u8 [%a0], %h1; ret;|mov.b32 %f1, %r1; "
    "cvt.rn.satfinite.e4m3x2.f32 %h1, %f9, %f1;",
    "the lower of two halves": "st.global.u16 [%a0], %r2; ret;|mov.b32 %f1, %r1; cvt.rn.f16x2.f32 %r2, %f9, %f1;",
    "packed again": "st.global.u32 [%a0], %r2; ret;|mov.b32 {%h1, %h2}, %r9; mov.b32 %r2, {%h1, %h1};",
    "chosen by a sign": "st.global.u32 [%a0], %r2; ret;|mov.b32 %r3, 0; slct.b32.s32 %r2, %r1, %r8, %r3;",
    "chosen by the sign of a float": "st.global.u32 [%a0], %r2; ret;|mov.b32 %f1, %r1; neg.f32 %f1, %f1; "
    "slct.b32.f32 %r2, %r8, %r1, %f1;",
    "converted to a float": "st.global.f32 [%a0], %f1; ret;|cvt.rn.f32.u16 %f1, %r9;",
    "clamped": "st.global.u8 [%a0], %h1; ret;|cvt.sat.u8.u16 %h1, %r9;",
    "0 by itself": "st.global.u32 [%a0], %r2; ret;|xor.b32 %r3, %r8, %r8; sub.u32 %r2, %r9, %r9; "
    "add.u32 %r2, %r2, %r3;",
    "decided by": "there: ret;|and.b32 %r2, %r9, 255; setp.eq.u32 %p1, %r2, 5; @%p1 bra there;",
    "half of it, by a generic store in the next block": "st.u16 [%a0], %r9; ret;|setp.eq.u32 %p1, %lane, 0; "
    "@%p1 bra on; mov.u32 %r9, %r1; on: ",
    "in the next block": "st.global.u32 [%a0], %r2; ret;|setp.eq.u32 %p1, %lane, 0; @%p1 bra on; "
    "add.u32 %r3, %r3, 1; on: "
    "shl.b32 %r2, %r9, 16;",
}
UNDEFINED = {
    "the upper half": "st.global.u16 [%a0], %h2; ret;|mov.b32 {%h1, %h2}, %r9;",
    "the word": "st.global.u32 [%a0], %r9; ret;|",
    "shifted down": "st.global.u16 [%a0], %r2; ret;|shr.u32 %r2, %r9, 8;",
    "by less than a byte": "st.global.u16 [%a0], %r2; ret;|shr.u32 %r2, %r9, 1;",
    "shifted up too little": "st.global.u32 [%a0], %r2; ret;|shl.b32 %r2, %r9, 15;",
    "with its sign": "st.global.u32 [%a0], %r2; ret;|shr.s32 %r2, %r9, 31;",
    "masked too little": "st.global.u32 [%a0], %r2; ret;|and.b32 %r2, %r9, 131071;",
    "picked": "st.global.u32 [%a0], %r2; ret;|prmt.b32 %r2, %r9, %r1, 0x7642;",
    "extracted": "st.global.u32 [%a0], %r2; ret;|bfe.u32 %r2, %r9, 4, 13;",
    "extracted with its sign": "st.global.u32 [%a0], %r2; ret;|bfe.s32 %r2, %r9, 8, 16;",
    "inserted beside": "st.global.u32 [%a0], %r2; ret;|bfi.b32 %r2, %r1, %r9, 16, 15;",
    "funnelled in": "st.global.u32 [%a0], %r2; ret;|shf.r.wrap.b32 %r2, %r9, %r1, 8;",
    "looked up": "st.global.u32 [%a0], %r2; ret;|lop3.b32 %r2, %r9, 65535, %r1, 0xfe;",
    "selected": "st.global.u32 [%a0], %r2; ret;|setp.eq.u32 %p1, %r1, 5; selp.b32 %r2, %r9, %r1, %p1;",
    "selected by nothing": "st.global.u32 [%a0], %r2; ret;|selp.b32 %r2, %r1, %r1, %p2;",
    "subtracted": "st.global.u32 [%a0], %r2; ret;|sub.u32 %r2, %r9, %r1;",
    "chosen by the other sign": "st.global.u32 [%a0], %r2; ret;|mov.b32 %r3, -1; slct.b32.s32 %r2, %r1, %r8, %r3;",
    "chosen by an undefined sign": "st.global.u32 [%a0], %r2; ret;|slct.b32.s32 %r2, %r1, %r1, %r8;",
    "chosen by what it overwrites": "st.global.u32 [%a0], %r2; ret;|mov.b32 %r2, -1; slct.b32.s32 %r2, %r1, %r8, %r2;",
    "converted to a float": "st.global.f32 [%a0], %f1; ret;|cvt.rn.f32.u32 %f1, %r9;",
    "clamped": "st.global.u8 [%a0], %h1; ret;|shr.u32 %r2, %r9, 8; cvt.sat.u8.u16 %h1, %r2;",
    "the other half of a pair": "st.global.u32 [%a0], %r2; ret;|min.f16x2 %r2, %r9, %r1;",
    "the upper of two halves": "st.global.u32 [%a0], %r2; ret;|mov.b32 %f1, %r1; cvt.rn.f16x2.f32 %r2, %f9, %f1;",
    "added": "st.global.u8 [%a0], %r2; ret;|mul.lo.u32 %r2, %r9, %r9;",
    "decided by": "there: ret;|setp.eq.u32 %p1, %r9, 5; @%p1 bra there;",
    "in the next block": "st.global.u32 [%a0], %r9; ret;|setp.eq.u32 %p1, %lane, 0; @%p1 bra on; "
    "add.u32 %r3, %r3, 1; on: ",
}


@pytest.mark.parametrize("way", DEFINED)
def test_bytes_that_were_written_may_be_used(way):
    last, _, first = DEFINED[way].partition("|")
    check(MIXED + first + last, u32(1), block=1)


@pytest.mark.parametrize("way", UNDEFINED)
def test_bytes_that_nobody_wrote_may_not(way):
    last, _, first = UNDEFINED[way].partition("|")
    finding("^read of an uninitialised register", MIXED + first + last, u32(1), block=1)


# which register, which line, which lanes ------------------------------------------------------------------------------
# %r8, %r9, %rd8 and %p8 are written nowhere, %r7 in lanes 0 to 7
SOME = "mov.u32 %r1, 1; mov.u32 %r10, s; setp.lt.u32 %p1, %lane, 8; @%p1 mov.u32 %r7, 1;\n"
NAMED = {
    "the first of a vector": ("st.SPACE.v4.b32 [ADDRESS], {%r8, %r1, %r1, %r1}", ["%r8 0-31"]),
    "the second of a vector": ("st.SPACE.v4.b32 [ADDRESS], {%r1, %r8, %r1, %r1}", ["%r8 0-31"]),
    "the last of a vector": ("st.SPACE.v4.b32 [ADDRESS], {%r1, %r1, %r1, %r8}", ["%r8 0-31"]),
    "two of a vector": ("st.SPACE.v2.b32 [ADDRESS], {%r8, %r9}", ["%r8 0-31", "%r9 0-31"]),
    "two of a vector in other lanes": ("st.SPACE.v2.b32 [ADDRESS], {%r7, %r8}", ["%r7 8-31", "%r8 0-31"]),
    "one twice": ("st.SPACE.v2.b32 [ADDRESS], {%r8, %r8}", ["%r8 0-31"]),
    "one in braces": ("st.SPACE.b32 [ADDRESS], {%r7}", ["%r7 8-31"]),
    "the first of an exchange": ("atom.SPACE.cas.b32 %r2, [ADDRESS], %r7, %r1", ["%r7 8-31"]),
    "the second of an exchange": ("atom.SPACE.cas.b32 %r2, [ADDRESS], %r1, %r8", ["%r8 0-31"]),
    "a guard": ("@%p8 st.SPACE.b32 [ADDRESS], %r1", ["%p8 0-31"]),
    "a guard that is not": ("@!%p8 st.SPACE.b32 [ADDRESS], %r1", ["%p8 0-31"]),
    "under a guard": ("@%p1 st.SPACE.b32 [ADDRESS], %r8", ["%r8 0-7"]),
}  # fmt: skip


@pytest.mark.parametrize("space", ["global", "shared", "generic"])
@pytest.mark.parametrize("way", NAMED)
def test_a_finding_names_the_register_its_line_and_its_lanes(way, space):
    text, expected = NAMED[way]
    text = text.replace(".SPACE", "" if space == "generic" else f".{space}")
    text = text.replace("ADDRESS", "%r10" if space == "shared" else "%a0")
    found = finding("uninitialised register", SOME + text + ";\nret;", u32(64), block=32)
    read = [one.splitlines()[1:4] for one in found if "uninitialised register" in one]
    assert all(text in place for place, _, _ in read)
    assert [f"{said.split()[0]} {who.split()[-1]}" for _, who, said in read] == expected


def test_a_guard_is_found_where_it_stands_and_not_at_a_load_for_it():
    found = finding("uninitialised register", "ld.global.u32 %r1, [%a0];\n@%p8 st.global.u32 [%a0+4], %r1;\nret;",
                    u32(64))  # fmt: skip
    assert len(found) == 1
    assert "@%p8 st.global.u32" in found[0].splitlines()[1]


# as compilers write it ------------------------------------------------------------------------------------------------
def test_braces_around_one_register_are_that_register():
    """Triton writes every scalar access so."""
    out = u32(32)
    check(
        "add.u64 %rd1, %a0, %at4; mov.u32 %r1, 7; st.global.b32 [ %rd1 + 0 ], { %r1 }; "
        "ld.global.b32 { %r2 }, [ %rd1 + 0 ]; "
        "add.u32 %r2, %r2, 1; st.global.u32 [%rd1], {%r2}; atom.global.add.u32 {%r3}, [%rd1], {%r2}; ret;",
        out,
    )
    assert (out == 16).all()
