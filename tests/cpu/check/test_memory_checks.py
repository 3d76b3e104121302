"""Bounds, alignment, uninitialised memory: what check mode (and, where it costs nothing, every mode) finds, each
finding beside the same kernel without it.
"""

import numpy as np
import pytest

from ptxgen.runtime.cpu.run.global_memory import Memory
from tests.support.cpu_run import SMALL, clean, run, said_of, u32

# bounds -----------------------------------------------------------------------------------------------------------
STORE = "add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1+{offset}], %tid; ret;"


@pytest.mark.parametrize("mode", ["fast", "random", "check"])
def test_one_element_past_the_end(mode):
    run(STORE.format(offset=0), u32(64), block=64, mode=mode)
    text = said_of(STORE.format(offset=4), u32(64), block=64, mode=mode)
    assert "out of bounds in kernel k" in text
    assert "test.ptx:" in text
    assert "st.global.u32 [%rd1+4], %tid;" in text
    assert "CTA (0, 0, 0), warp 1, lane 31" in text
    assert "ends 4 bytes past the end of a0 [0x" in text


def test_before_the_begin_and_far_away():
    text = said_of(STORE.format(offset=-4), u32(64), block=64)
    assert "lane 0" in text
    assert "begins 4 bytes before a0" in text
    text = said_of(
        "st.global.u32 [%tid], 1; ret;".replace("[%tid]", "[%rd1]").replace("st.", "mov.u64 %rd1, 64; st."), u32(4)
    )
    assert "address 0x40" in text


def test_nothing_beyond_the_end_is_touched():
    whole = u32(80, 7)
    said_of(STORE.format(offset=4), whole[8:72], block=64, mode="fast")
    np.testing.assert_array_equal(whole[72:], 7)
    np.testing.assert_array_equal(whole[9:72], np.arange(63))


def test_the_first_offender_is_named_though_others_follow():
    body = """
  mul.wide.u32 %rd1, %tid, 4096; add.u64 %rd1, %a0, %rd1;
  setp.eq.u32 %p1, %tid, 0; @%p1 mov.u64 %rd1, %a0;
  ld.global.u32 %r1, [%rd1]; ret;"""
    assert "lanes 1-31" in said_of(body, u32(4))


def test_memory_that_was_freed():
    memory, gone = Memory(), u32(64)
    memory.register(gone, "gone")
    memory.free(int(gone.ctypes.data))
    body = f"mov.u64 %rd1, {gone.ctypes.data + 16}; ld.global.u32 %r1, [%rd1]; ret;"
    text = said_of(body, u32(1), mode="fast", memory=memory)
    assert "freed memory: byte 16 of gone" in text


def test_an_allocation_is_not_the_next_one():
    memory = Memory()
    first = memory.allocate(256, name="first")
    memory.allocate(256, name="second")
    body = f"mov.u64 %rd1, {first + 256}; st.global.u32 [%rd1], 1; ret;"
    assert "past the end of first" in said_of(body, u32(1), mode="fast", memory=memory)


@pytest.mark.parametrize("mode", ["fast", "check"])
def test_shared_memory_has_bounds(mode):
    body = SMALL + "mov.u32 %r1, small; mad.lo.u32 %r1, %lane, 4, %r1; st.shared.u32 [%r1{0}], %lane; ret;"
    run(body.format(""), u32(1), block=16, mode=mode)
    text = said_of(body.format("+4"), u32(1), block=16, mode=mode)
    assert "lane 15" in text
    assert "byte 64 of small (64 bytes)" in text
    assert "out of bounds" in said_of("mov.u32 %r1, 0; ld.shared.u32 %r2, [%r1]; ret;", u32(1), mode=mode)


def test_local_and_parameter_memory_have_bounds():
    body = ".local .align 8 .b8 mine[32]; mov.u64 %rd1, mine; st.local.u64 [%rd1+{}], %rd1; ret;"
    clean(body.format(24), u32(1))
    assert "of local memory (32 bytes a thread)" in said_of(body.format(32), u32(1))


def test_atomics_have_bounds():
    assert "ends 4 bytes past the end of a0" in said_of("red.global.add.u32 [%a0+16], 1; ret;", u32(4))
    assert "atom.global.exch" in said_of("atom.global.exch.b32 %r1, [%a0+-4], 1; ret;", u32(4))


# alignment --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["fast", "check"])
@pytest.mark.parametrize(("opcode", "target", "size"), [
    ("ld.global.u32", "%r1", 4), ("ld.global.u16", "%h1", 2), ("ld.global.v4.u32", "{%r1, %r2, %r3, %r4}", 16),
    ("ld.global.v2.u64", "{%rd5, %rd6}", 16), ("ld.global.u64", "%rd5", 8),
])  # fmt: skip
def test_a_misaligned_access(mode, opcode, target, size):
    aligned = np.zeros(4096, np.uint8)
    skip = -aligned.ctypes.data % 256
    body = f"mad.wide.u32 %rd1, %tid, {size}, %a0; {opcode} {target}, [%rd1+OFFSET]; ret;"
    run(body.replace("OFFSET", "0"), aligned[skip : skip + 2048], mode=mode)
    text = said_of(body.replace("OFFSET", str(size // 2)), aligned[skip : skip + 2048], mode=mode)
    assert "misaligned access" in text
    assert f"must be aligned to {size}" in text
    assert "lanes 0-31" in text


def test_a_misaligned_shared_vector():
    body = SMALL + "mov.u32 %r1, small; st.shared.v2.u32 [%r1+4], {%r1, %r1}; ret;"
    assert "must be aligned to 8" in said_of(body, u32(1))


# uninitialised ----------------------------------------------------------------------------------------------------
def test_registers():
    body = "add.u32 %r2, %r1, 1; st.global.u32 [%a0], %r2; ret;"
    assert "read of an uninitialised register" in said_of(body, u32(1))
    assert "%r1" in said_of(body, u32(1))
    clean("mov.u32 %r1, 0; " + body, u32(1))


def test_a_register_that_only_some_lanes_wrote():
    body = """
  setp.lt.u32 %p1, %lane, {0}; @%p1 mov.u32 %r1, 5;
  add.u64 %rd1, %a0, %at4; bra next;
next:
  st.global.u32 [%rd1], %r1; ret;"""
    assert "lanes 20-31" in said_of(body.format(20), u32(32))
    clean(body.format(32), u32(32))


def test_a_register_that_one_path_leaves_unwritten_is_fine_where_that_path_does_not_read_it():
    clean(
        """
  setp.lt.u32 %p1, %lane, 7; @%p1 bra set; bra join;
set:
  mov.u32 %r1, 1;
join:
  @!%p1 ret;
  add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %r1; ret;""",
        u32(32),
    )


def test_shared_memory_that_nobody_wrote():
    body = (
        SMALL
        + """
  mov.u32 %r1, small; mad.lo.u32 %r2, %lane, 4, %r1; setp.lt.u32 %p1, %lane, {0};
  @%p1 st.shared.u32 [%r2], %lane;
  bar.sync 0;
  ld.shared.u32 %r3, [%r2]; setp.eq.u32 %p9, %r3, 0; @%p9 bra out; out: ret;"""
    )
    text = said_of(body.format(11), u32(1), block=16)
    assert "read of uninitialised memory" in text
    assert "lane 11" in text
    assert "byte 44 of small" in text
    clean(body.format(16), u32(1), block=16)


def test_shared_memory_of_the_cta_before_does_not_count():
    body = (
        SMALL
        + """
  mov.u32 %r1, %ctaid.x; setp.ne.u32 %p1, %r1, 0; mov.u32 %r2, small;
  @!%p1 st.shared.u32 [%r2], 1; ld.shared.u32 %r3, [%r2]; setp.eq.u32 %p9, %r3, 0; @%p9 bra out; out: ret;"""
    )
    assert "CTA (1, 0, 0)" in said_of(body, u32(1), grid=2, block=1)


def test_global_memory_that_nobody_wrote():
    memory = Memory(track=True)
    begin = memory.allocate(256, name="fresh")
    body = f"mov.u64 %rd1, {begin}; add.u64 %rd1, %rd1, %at4; ld.global.u32 %r1, [%rd1]; "
    body += "setp.eq.u32 %p9, %r1, 0; @%p9 bra out; out: ret;"
    memory.written(begin, 40)
    text = said_of(body, u32(1), memory=memory)
    assert "read of uninitialised memory" in text
    assert "byte 40 of fresh" in text
    memory.written(begin, 256)
    clean(body, u32(1), memory=memory)


@pytest.mark.parametrize(("guard", "hole"), [
    ("setp.ne.u32 %p1, %lane, 5;", 5), ("and.b32 %r9, %lane, 4; setp.eq.u32 %p1, %r9, 0;", 4),
])  # fmt: skip
def test_lanes_that_leave_a_hole_do_not_write_it(guard, hole):
    shared = ".shared .align 16 .b8 s[128]; mov.u32 %r1, s; mad.lo.u32 %r1, %lane, 4, %r1; "
    body = shared + "{} @%p1 st.shared.u32 [%r1], %lane; bar.warp.sync -1; ld.shared.u32 %r2, [%r1]; "
    body += "setp.eq.u32 %p9, %r2, 0; @%p9 bra out; out: ret;"
    text = said_of(body.format(guard), u32(1))
    assert "read of uninitialised memory" in text
    assert f"lane {hole}\n" in text
    assert f"byte {4 * hole} of s" in text
    clean(body.format("setp.ge.u32 %p1, %lane, 0;"), u32(1))


def test_a_hole_in_what_a_warp_writes_to_global_memory_stays_unwritten():
    memory = Memory(track=True)
    begin = memory.allocate(128, name="fresh")
    at = f"mov.u64 %rd1, {begin}; add.u64 %rd1, %rd1, %at4; "
    run(at + "setp.ne.u32 %p1, %lane, 5; @%p1 st.global.u32 [%rd1], %lane; ret;", u32(1), mode="check", memory=memory)
    clean(at + "setp.ne.u32 %p1, %lane, 5; @%p1 ld.global.u32 %r1, [%rd1]; ret;", u32(1), memory=memory)
    used = "ld.global.u32 %r1, [%rd1]; setp.eq.u32 %p9, %r1, 0; @%p9 bra out; out: ret;"
    text = said_of(at + used, u32(1), memory=memory)
    assert "lane 5\n" in text
    assert "byte 20 of fresh" in text


def test_what_a_kernel_wrote_counts_as_written():
    memory = Memory(track=True)
    begin = memory.allocate(256)
    address = f"mov.u64 %rd1, {begin}; add.u64 %rd1, %rd1, %at4;"
    run(address + "st.global.u32 [%rd1], 1; ret;", u32(1), mode="check", memory=memory)
    clean(address + "ld.global.u32 %r1, [%rd1]; atom.global.add.u32 %r2, [%rd1], 1; ret;", u32(1), memory=memory)


def test_the_first_finding_of_several_ctas_is_reported_once():
    text = said_of(STORE.format(offset=4), u32(64), grid=64, block=1, threads=2)
    assert text.count("out of bounds") == 1
