"""Races and barriers: what check mode (and, where it costs nothing, every mode) finds, each finding beside the same
kernel without it; and what a finding says.
"""

import re

import numpy as np
import pytest

from ptxgen.errors import ExecutionError
from ptxgen.runtime.cpu.run.global_memory import Memory
from tests.support.cpu_run import SMALL, clean, run, said_of, text_of, u32
from tests.support.devices import ExecutorDevice

# races ------------------------------------------------------------------------------------------------------------
EXCHANGE = """
  .shared .align 16 .b8 place[1024];
  mov.u32 %r1, place; mov.u32 %r9, %tid.x; mad.lo.u32 %r2, %r9, 4, %r1; sub.u32 %r3, %n, %r9;
  mad.lo.u32 %r3, %r3, 4, %r1; sub.u32 %r3, %r3, 4;
  st.shared.u32 [%r2], %r9;
  {first}
  ld.shared.u32 %r4, [%r3];
  {second}
  st.shared.u32 [%r2], %r4;
  ret;"""


def test_a_missing_barrier_between_write_and_read():
    clean(EXCHANGE.format(first="bar.sync 0;", second="bar.sync 0;"), u32(1), block=256)
    text = said_of(EXCHANGE.format(first="", second="bar.sync 0;"), u32(1), block=256)
    assert "uninitialised" in text  # warp 0 reads before warp 7 has written at all
    written = (
        "st.shared.u32 [%r3], 0; bar.sync 0; st.shared.u32 [%r2], 1;" + EXCHANGE.split("st.shared.u32 [%r2], %r9;")[1]
    )
    text = said_of(
        EXCHANGE.split("st.shared.u32 [%r2], %r9;")[0] + written.format(first="", second="bar.sync 0;"),
        u32(1),
        block=256,
    )
    assert "race in kernel k" in text
    assert "ld.shared.u32 %r4, [%r3];" in text or "st.shared.u32 [%r2], 1;" in text
    assert re.search(r"warp \d has (written|read) these bytes", text)


def test_a_missing_barrier_between_read_and_write():
    text = said_of(EXCHANGE.format(first="bar.sync 0;", second=""), u32(1), block=256)
    assert "race in kernel k" in text
    assert re.search(r"has read these bytes|ld.shared.u32 %r4.*has written these bytes", text, re.S)


def test_two_warps_that_write_the_same_place():
    body = SMALL + "mov.u32 %r1, small; {} st.shared.u32 [%r1], %lane; ret;"
    text = said_of(body.format(""), u32(1), block=64)
    assert "race" in text
    assert "has written these bytes" in text
    clean(body.format("setp.ne.u32 %p1, %warp, 0; @%p1 ret;"), u32(1), block=64)


EVEN_LANES = """
  and.b32 %r8, %lane, 1; setp.eq.u32 %p1, %r8, 0; setp.eq.u32 %p2, %r8, {odd};
  @%p1 ld.{space}.u32 %r2, [{place}+4]; @%p2 st.{space}.u32 [{place}], %tid; ret;"""


def test_even_lanes_that_write_what_they_alone_have_to_do_not_race_with_their_odd_neighbours():
    shared = ".shared .align 16 .b8 s[132]; mov.u32 %r1, s; mad.lo.u32 %r1, %lane, 4, %r1; st.shared.u32 [%r1], 0; "
    shared += "bar.warp.sync -1;" + EVEN_LANES
    clean(shared.format(odd=0, space="shared", place="%r1"), u32(1))
    text = said_of(shared.format(odd=1, space="shared", place="%r1"), u32(1))
    assert "lane 1\n" in text
    assert "lane 0 of this warp read these bytes" in text


def test_even_lanes_of_a_warp_and_odd_lanes_of_another_share_global_memory():
    memory = Memory(track=True)
    body = f"""and.b32 %r8, %lane, 1; setp.eq.u32 %p1, %warp, 0; @!%p1 xor.b32 %r8, %r8, OTHER; setp.eq.u32 %p2, %r8, 0;
      mov.u64 %rd1, {memory.allocate(128)}; mad.wide.u32 %rd1, %lane, 4, %rd1; @%p2 st.global.u32 [%rd1], %tid; ret;"""
    clean(body.replace("OTHER", "1"), u32(1), block=64, memory=memory)
    assert "warp 0 has written" in said_of(body.replace("OTHER", "0"), u32(1), block=64, memory=memory)


def test_neighbours_in_one_word_do_not_race():
    clean(
        SMALL
        + """
  mov.u32 %r1, small; shr.u32 %r2, %tid, 5; shl.b32 %r2, %r2, 1; add.u32 %r1, %r1, %r2; setp.ne.u32 %p1, %lane, 0;
  cvt.u16.u32 %h1, %warp; @!%p1 st.shared.u16 [%r1], %h1; @!%p1 ld.shared.u16 %h2, [%r1]; ret;""",
        u32(1),
        block=64,
    )


def test_atomics_do_not_race_and_order_what_they_guard():
    clean(
        SMALL
        + """
  mov.u32 %r1, small; setp.ne.u32 %p1, %lane, 0; setp.eq.u32 %p2, %warp, 0; @%p1 ret;
  @!%p2 bra consumer;
  st.shared.u32 [%r1+4], 42; membar.cta; atom.shared.exch.b32 %r2, [%r1], 1; ret;
consumer:
  atom.shared.or.b32 %r2, [%r1], 0; setp.ne.u32 %p3, %r2, 1; @%p3 bra consumer;
  ld.shared.u32 %r3, [%r1+4]; st.global.u32 [%a0], %r3; ret;""".replace(
            "mov.u32 %r1, small;",
            "mov.u32 %r1, small; setp.eq.u32 %p4, %tid, 0; @%p4 st.shared.u32 [%r1], 0; bar.sync 0;",
        ),
        u32(1),
        block=64,
    )


def test_a_barrier_of_some_warps_orders_those_only():
    body = (
        SMALL
        + """
  mov.u32 %r1, small; setp.eq.u32 %p1, %warp, 2; @%p1 bra third; setp.eq.u32 %p2, %tid, 0;
  @%p2 st.shared.u32 [%r1], 1;
  bar.sync 1, 64;
  setp.eq.u32 %p3, %tid, 32; @%p3 ld.shared.u32 %r2, [%r1];
  {mine} ret;
third:
  {third} setp.eq.u32 %p3, %tid, 64; @%p3 ld.shared.u32 %r2, [%r1]; ret;"""
    )
    clean(body.format(mine="bar.arrive 2, 96;", third="bar.sync 2, 96;"), u32(1), block=96)
    assert "race" in said_of(body.format(mine="", third="bar.sync 2, 32;"), u32(1), block=96)


# barriers ---------------------------------------------------------------------------------------------------------
def test_an_aligned_barrier_in_divergent_code():
    body = "setp.lt.u32 %p1, %lane, 16; @%p1 bra skip; bar.sync 0;\nskip:\n {} ret;"
    text = said_of(body.format("bar.sync 0;"), u32(1))
    assert "divergent aligned barrier" in text
    assert "bar.sync 0;" in text
    assert "lanes 0-15" in text
    assert "lanes 16-31" in text
    clean("setp.lt.u32 %p1, %warp, 1; @%p1 bra skip; bar.sync 1, 32;\nskip:\n bar.sync 0; ret;", u32(1), block=64)


LEFT_BEHIND = {
    "a branch": "@!%p1 bra past; bar.sync 0; mov.u32 %r1, 2;\npast: st.global.u32 [%rd1], %r1; ret;",
    "a guard": "@%p1 bar.sync 0; st.global.u32 [%rd1], %r1; ret;",
    "a guarded store, after a guarded arrival": "@%p1 bar.arrive 1, 64; @!%p1 st.global.u32 [%rd1], %r1; ret;",
    "a named barrier": "@%p1 barrier.cta.sync.aligned 3, 32; st.shared.u32 [tile], %r1; ret;",
    "a reduction": "@%p1 bar.red.popc.u32 %r1, 0, %p1; red.global.add.u32 [%rd1], %r1; ret;",
    "a cluster barrier": "@%p1 barrier.cluster.arrive.aligned; st.global.u32 [%rd1], %r1; ret;",
    "a loop": "again: bar.sync 0; add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, %tid; @%p2 bra again;\n"
    "st.global.u32 [%rd1], %r1; ret;",
    "a loop that some skip": "@!%p1 bra past;\nagain: bar.sync 0; add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 3;"
    "@%p2 bra again; st.global.u32 [%rd1], %r1;\npast: st.global.u32 [%rd1], %r1; ret;",
    "a loop of halves, and one store behind it": "mov.u32 %r1, 16;\nagain: setp.ge.u32 %p1, %lane, %r1; @%p1 bra next;"
    "bar.sync 0;\nnext: shr.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra again; setp.ne.u32 %p1, %tid, 0;"
    "@%p1 bra end; red.global.add.u32 [%rd1], %r1;\nend: ret;",
    "only some blocks behind it store": "@!%p1 bra past; bar.sync 0;\npast: setp.eq.u32 %p2, %lane, 20; @!%p2 bra end;"
    "st.global.u32 [%rd1], %r1;\nend: ret;",
}


LEFT_BEHIND |= {
    "a loop, then a guarded store": "again: bar.sync 0; add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, %lane;\n"
    "@%p2 bra again; @%p1 st.global.u32 [%rd1], %r1; ret;",
    "a loop of a function that writes nothing": "call (%r1), loops, (%r1, %lane); st.global.u32 [%rd1], %r1; ret;",
}


LOOPS = """.func (.reg .u32 out) loops(.reg .u32 %r1, .reg .u32 %lane) { .reg .pred %p2;
  again: bar.sync 0; add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, %lane; @%p2 bra again; mov.u32 out, %r1; ret; }
"""


TOGETHER = {
    "lanes that have returned": "@!%p1 ret; bar.sync 0; st.global.u32 [%rd1], %r1; ret;",
    "lanes that branch to the return": "@!%p1 bra end; bar.sync 0; st.global.u32 [%rd1], %r1;\nend: ret;",
    "lanes that store and return": "@%p1 bra on; st.global.u32 [%rd1], %r1; ret;\non: bar.sync 0; ret;",
    "lanes that store and return in a loop": "again: setp.gt.u32 %p2, %r1, %lane; @!%p2 bra on;"
    "st.global.u32 [%rd1], %r1; ret;\non: bar.sync 0; add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 9; @%p3 bra again;"
    "st.global.u32 [%rd1], 7; ret;",
    "no .aligned": "@%p1 barrier.sync 0; st.global.u32 [%rd1], %r1; ret;",
    "a branch of the whole warp": "setp.eq.u32 %p1, %warp, 1; @%p1 bar.sync 1, 32; st.global.u32 [%rd1], %r1; ret;",
    "branches that meet before it": "@!%p1 bra past; add.u32 %r1, %r1, 3;\npast: bar.sync 0;"
    "st.global.u32 [%rd1], %r1; ret;",
    "two ways back to a loop's head": "again: bar.sync 0; add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 5; @!%p2 bra out;"
    "@%p1 bra again; add.u32 %r2, %r1, 1; bra again;\nout: st.global.u32 [%rd1], %r1; ret;",
}


FIRST_NINE = ".shared .align 4 .b8 tile[64];", "setp.lt.u32 %p1, %lane, 9; mov.u32 %r1, 1; add.u64 %rd1, %a0, %at4;\n"


@pytest.mark.parametrize("way", LEFT_BEHIND)
def test_lanes_that_write_past_an_aligned_barrier_leave_others_behind(way):
    text = said_of(FIRST_NINE[1] + LEFT_BEHIND[way], u32(64), block=64, before=FIRST_NINE[0] + LOOPS)
    title, where, lanes, past, *_ = text.splitlines()
    assert title == "divergent aligned barrier in kernel k"
    assert re.search(r"bar\.|barrier\.", where), "the barrier's line comes first"
    assert " went past it: " in past
    if "loop" not in way:
        assert re.search(r"(st|red)\.", past), "what the others do"
        assert lanes.endswith("CTA (0, 0, 0), warp 0, lanes 0-8")
        assert re.search(r"lanes? (9-31|20) went past it: ", past)


@pytest.mark.parametrize("way", TOGETHER)
def test_early_returns_and_branches_of_the_whole_warp_leave_nobody_behind(way):
    clean(FIRST_NINE[1] + TOGETHER[way], u32(64), block=64, before=FIRST_NINE[0])


LESS_OFTEN = "again: bar.sync 0; add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, %lane; @%p2 bra again;\n"


LIMITS = {  # what docs/cpu-executor.md says is not found
    "all that follows is branched around": "@%p1 bra end; bar.sync 0; st.global.u32 [%rd1], %r1;\nend: ret;",
    "nothing is written behind the loop": LESS_OFTEN + "ret;",
}


@pytest.mark.parametrize("way", LIMITS)
def test_what_the_document_says_is_not_found(way):
    clean(FIRST_NINE[1] + LIMITS[way], u32(64), block=64, before=FIRST_NINE[0])


def test_barrier_sync_without_aligned_counts_threads():
    clean(
        "setp.lt.u32 %p1, %lane, 16; @%p1 bra skip; barrier.sync 0; ret;\nskip:\n barrier.sync 0; ret;",
        u32(1),
        block=64,
    )


@pytest.mark.parametrize("mode", ["fast", "random", "check"])
def test_a_deadlock_says_who_waits_where(mode):
    body = "setp.eq.u32 %p1, %warp, 1; @%p1 bra other; bar.sync 1, 64; ret;\nother:\n bar.sync 2, 64; ret;"
    text = said_of(body, u32(1), block=64, mode=mode)
    assert "deadlock in kernel k" in text
    assert re.search(r"CTA \(0, 0, 0\), warp 0: lanes 0-31 wait at barrier 1 \(32 of 64 threads have arrived\)", text)
    assert re.search(r"warp 1: lanes 0-31 wait at barrier 2 .*test.ptx:\d+: bar.sync 2, 64", text)


def test_a_shuffle_whose_lanes_never_come():
    text = said_of("setp.lt.u32 %p1, %lane, 8; @%p1 bra other; shfl.sync.idx.b32 %r1, %lane, 0, 31, -1; ret;\n"
                   "other:\n bar.sync 0; ret;", u32(1))  # fmt: skip
    assert "lanes 8-31 wait for other lanes of the warp" in text
    assert "shfl.sync" in text


def test_a_lane_outside_its_own_member_mask():
    body = "shfl.sync.idx.b32 %r1, %lane, 0, 31, {}; ret;"
    text = said_of(body.format("0xFFFF"), u32(1), mode="fast")
    assert "lanes 16-31" in text
    assert "not in its member mask" in text
    clean(body.format("0xFFFFFFFF"), u32(1))


def test_barrier_numbers_end_at_15():
    assert "barriers are 0 … 15" in said_of("mov.u32 %r1, %n; bar.sync %r1; ret;", u32(1))


def test_a_barrier_number_that_differs_between_lanes():
    assert "differs between lanes" in said_of("and.b32 %r1, %lane, 1; bar.sync %r1; ret;", u32(1))


# words of a finding ---------------------------------------------------------------------------------------------------
def message(body, *arrays, before="", block=32, mode="check"):
    device = ExecutorDevice(mode, threads=1)
    given = [device.array(a) if isinstance(a, np.ndarray) else a for a in arrays]
    with pytest.raises(ExecutionError) as caught:
        device.module(text_of(body, len(arrays), before))["k"].launch((1,), (block,), given)
    return str(caught.value)


def test_a_finding_names_the_argument_that_points_there():
    x, y = np.zeros(8, np.uint32), np.zeros(16, np.uint32)
    past = message("ld.global.u32 %r1, [%a1+64]; ret;", x, y)
    assert re.search(r"ends 4 bytes past the end of allocation \[0x\w+, \+64 bytes\), argument 1 \(a1\)", past)
    inside = message("ld.global.u64 %rd1, [%a0+4]; ret;", x, y)
    assert re.search(r"byte 4 of allocation .*, argument 0 \(a0\)\n.*must be aligned to 8", inside)


def test_null_and_wild_pointers():
    assert "a null pointer and 12 bytes" in message("st.global.u32 [%a1+12], 0; ret;", np.zeros(1, np.uint32), 0)
    assert "a null pointer" in message("st.u32 [%a1], 0; ret;", np.zeros(1, np.uint32), 0)
    far = message("st.global.u32 [%a1], 0; ret;", np.zeros(1, np.uint32), 1 << 44)
    assert "far from every allocation" in far


def test_variables_of_functions_have_their_names():
    shared = ".shared .align 4 .b8 _ZZ6kernelE4tile[64];\n"
    text = message("mov.u32 %r1, _ZZ6kernelE4tile; ld.shared.u32 %r2, [%r1+8]; setp.eq.u32 %p9, %r2, 0; "
                   "@%p9 bra out; out: ret;", before=shared)  # fmt: skip
    assert "byte 8 of tile (64 bytes)" in text
    generic = """mov.u32 %r1, _ZZ6kernelE4tile; cvt.u64.u32 %rd1, %r1; cvta.shared.u64 %rd1, %rd1;
      ld.u32 %r2, [%rd1+8]; setp.eq.u32 %p9, %r2, 0; @%p9 bra out; out: ret;"""
    assert "byte 8 of tile (64 bytes)" in message(generic, before=shared)


def test_a_deadlock_says_what_an_mbarrier_waits_for():
    shared = ".shared .align 8 .b64 first;\n.shared .align 8 .b64 full;\n"
    body = """st.shared.b64 [first], 0;
      setp.eq.u32 %p1, %lane, 0; @%p1 mbarrier.init.shared.b64 [full], 3; bar.warp.sync -1;
      @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [full], 96;
      w: mbarrier.try_wait.parity.shared.b64 %p2, [full], 0; @!%p2 bra w; ret;"""
    text = message(body, before=shared)
    assert re.search(r"lanes 0-31 wait at mbarrier at offset 8 .*in full \(2 arrivals and 96 bytes are due", text)


def test_a_product_of_the_warp_needs_all_its_lanes():
    shared = ".shared .align 16 .b8 tile[512];\n"
    body = """mov.u32 %r1, tile; mad.lo.u32 %r1, %lane, 16, %r1; st.shared.v4.u32 [%r1], {%r1, %r1, %r1, %r1};
      bar.warp.sync -1; SOME ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1]; ret;"""
    text = message(body.replace("SOME", "setp.ge.u32 %p1, %lane, 16; @%p1 ret;"), before=shared)
    assert re.search(r"(?s)wrong use.*ldmatrix.*lanes 0-15\n.*all 32 lanes must take part", text)
    assert "all 32 lanes must take part" in message(body.replace("SOME", ""), before=shared, block=16)


def test_what_a_lane_gets_of_one_that_takes_no_part_is_not_a_number():
    out = np.zeros(32, np.float32)
    run("""cvt.rn.f32.u32 %f1, %lane; setp.ge.u32 %p1, %lane, 20; @%p1 bra done;
      shfl.sync.down.b32 %f1, %f1, 1, 31, -1;
      done: add.u64 %rd1, %a0, %at4; st.global.f32 [%rd1], %f1; ret;""", out, mode="check")  # fmt: skip
    assert np.flatnonzero(np.isnan(out)).tolist() == [19]
