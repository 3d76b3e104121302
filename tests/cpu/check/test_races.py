"""Check mode within a CTA: atomics beside ordinary accesses, acquires of one warp, reads before writes, definedness."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ptxgen.errors import ExecutionError
from ptxgen.parser import parse
from ptxgen.runtime.cpu.compile.entry import emit_entry
from ptxgen.runtime.cpu.flow.written_params import ANYWHERE
from ptxgen.runtime.cpu.native.host import this_host
from ptxgen.runtime.cpu.program import Program
from tests.support.cpu_run import text_of, u32
from tests.support.devices import ExecutorDevice

SHARED = ".shared .align 16 .b8 s[256];\n"


def run(body, *arrays, grid=1, block=64, threads=1, before=SHARED):
    """Launch a body on buffers that check mode follows; their contents afterwards."""
    device = ExecutorDevice("check", threads=threads)
    given = [device.array(a) if isinstance(a, np.ndarray) else a for a in arrays]
    device.module(text_of(body, len(arrays), before))["k"].launch((grid,), (block,), given)
    return [a.numpy() for a in given]


def finding(match, body, *arrays, **given):
    with pytest.raises(ExecutionError, match=f"(?s){match}"):
        run(body, *arrays, **given)


# atomics in shared memory ---------------------------------------------------------------------------------------------
MEET = """setp.eq.u32 %p1, %tid, 0; @%p1 st.shared.u32 [s], 0; bar.sync 0; setp.ne.u32 %p2, %lane, 0; @%p2 ret;
  setp.ne.u32 %p3, %warp, 0; @%p3 bra other; {first} ret; other: {second} ret;"""
WRITES = {
    "st": "st.shared.u32 [s], 7;", "volatile": "st.volatile.shared.u32 [s], 7;",
    "atom": "atom.shared.add.u32 %r1, [s], 1;", "red": "red.shared.add.u32 [s], 1;",
}  # fmt: skip
USES = {
    "ld": "ld.shared.u32 %r1, [s];", "ld.volatile": "ld.volatile.shared.u32 %r1, [s];", "atom": WRITES["atom"],
    "st": "st.shared.u32 [s], 8;",
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("write", WRITES)
def test_strong_accesses_of_two_warps_race_with_ordinary_ones_only(write, use):
    body = MEET.format(first=WRITES[write], second=USES[use])
    if write != "st" and use in ("ld.volatile", "atom"):
        run(body)
    else:
        finding(r"race in kernel k.*warp \d has (written|read) these bytes and nothing orders", body)


HISTOGRAM = """mov.u32 %r1, s; setp.lt.u32 %p1, %tid, 16; mad.lo.u32 %r2, %tid, 4, %r1; @%p1 st.shared.u32 [%r2], 0;
  bar.sync 0; and.b32 %r3, %tid, 15; mad.lo.u32 %r4, %r3, 4, %r1; atom.shared.add.u32 %r5, [%r4], 1;
  {} @!%p1 ret; ld.shared.u32 %r6, [%r2]; add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %r6; ret;"""


def test_the_barrier_before_a_histogram_is_read():
    (out,) = run(HISTOGRAM.format("bar.sync 0;"), u32(16), block=128)
    np.testing.assert_array_equal(out, 8)
    finding("race in kernel k", HISTOGRAM.format(""), u32(16), block=128)


LOCK = """mov.u32 %r1, s; setp.eq.u32 %p1, %tid, 0; @%p1 st.shared.v2.u32 [%r1], {{0, 0}}; bar.sync 0;
  setp.ne.u32 %p2, %lane, 0; @%p2 bra out;
  again: {take} setp.ne.u32 %p3, %r2, 0; @%p3 bra again;
  ld.shared.u32 %r4, [%r1+4]; add.u32 %r4, %r4, 1; st.shared.u32 [%r1+4], %r4; {give}
  out: bar.sync 0; @%p1 ld.shared.u32 %r4, [%r1+4]; @%p1 st.global.u32 [%a0], %r4; ret;"""


@pytest.mark.parametrize(("take", "give"), [
    ("atom.shared.cas.b32 %r2, [%r1], 0, 1; membar.cta;", "membar.cta; atom.shared.exch.b32 %r3, [%r1], 0;"),
    ("atom.acquire.cta.shared.cas.b32 %r2, [%r1], 0, 1;", "st.release.cta.shared.u32 [%r1], 0;"),
    ("atom.shared.cas.b32 %r2, [%r1], 0, 1;", "fence.acq_rel.gpu; st.volatile.shared.u32 [%r1], 0;"),
])  # fmt: skip
def test_a_lock_orders_what_it_guards(take, give):
    assert run(LOCK.format(take=take, give=give), u32(1), block=256)[0][0] == 8


@pytest.mark.parametrize("give", ["atom.shared.exch.b32 %r3, [%r1], 0;", "st.volatile.shared.u32 [%r1], 0;"])
def test_a_lock_that_is_given_back_without_a_fence(give):
    body = LOCK.format(take="atom.shared.cas.b32 %r2, [%r1], 0, 1; membar.cta;", give=give)
    finding(r"race in kernel k.*ld.shared.u32 %r4.*warp \d has written these bytes", body, u32(1), block=256)


def test_the_barrier_before_the_first_atomic_on_what_one_thread_has_set():
    body = "setp.eq.u32 %p1, %tid, 0; @%p1 st.shared.u32 [s], 0; {} atom.shared.add.u32 %r1, [s], 1; ret;"
    run(body.format("bar.sync 0;"))
    finding(r"race in kernel k.*atom.shared.*warp 1.*warp 0 has written|uninitialised memory", body.format(""))


def test_the_barrier_before_what_many_have_added_to_is_read():
    body = """setp.eq.u32 %p1, %tid, 0; @%p1 st.shared.u32 [s], 0; bar.sync 0; atom.shared.add.u32 %r1, [s], 1; {}
      @%p1 ld.shared.u32 %r2, [s]; @%p1 st.global.u32 [%a0], %r2; ret;"""
    assert run(body.format("bar.sync 0;"), u32(1), block=256)[0][0] == 256
    finding("race in kernel k", body.format(""), u32(1), block=256)
    finding("race in kernel k", body.format("").replace("%tid, 0", "%tid, 255"), u32(1), block=256)


def test_a_barrier_of_some_warps_releases_as_a_fence_does():
    body = """mov.u32 %r1, s; setp.eq.u32 %p1, %tid, 0; @%p1 st.shared.u32 [s], 0; bar.sync 0;
      setp.eq.u32 %p2, %warp, 2; mad.lo.u32 %r2, %lane, 4, %r1; @%p2 bra taker;
      setp.eq.u32 %p4, %warp, 1; @%p4 st.shared.u32 [%r2+8], %tid; bar.sync 1, 64;
      @%p1 st.volatile.shared.u32 [s], 1; ret;
      taker: ld.volatile.shared.u32 %r3, [s]; setp.eq.u32 %p3, %r3, 0; @%p3 bra taker;
      ld.shared.u32 %r4, [%r2+8]; mad.wide.u32 %rd1, %lane, 4, %a0; st.global.u32 [%rd1], %r4; ret;"""
    np.testing.assert_array_equal(run(body, u32(32), block=96)[0], np.arange(32, 64))


# reads before writes in global memory ---------------------------------------------------------------------------------
IN_PLACE = """mov.u32 %r1, %tid; {partner} mad.wide.u32 %rd1, %r1, {size}, %a0; mad.wide.u32 %rd2, %r2, {size}, %a0;
  ld.global.{kind} {value}, [%rd2]; {sync} st.global.{kind} [%rd1], {value}; ret;"""
OF_WARP_1 = "or.b32 %r2, %r1, 32;"


@pytest.mark.parametrize("store_first", [True, False])
def test_a_barrier_releases_what_came_before_an_arrival_also_of_a_warp_that_has_exited(store_first):
    """The first warp arrives, stores and exits before the second one comes."""
    store, arrive = "st.shared.u32 [%r1], %lane;", "bar.arrive 1, 64;"
    body = f"""mad.lo.u32 %r1, %lane, 4, 0; mov.u32 %r2, s; add.u32 %r1, %r1, %r2;
  setp.ne.u32 %p1, %warp, 0; @%p1 bra other; {store + arrive if store_first else arrive + store} ret;
other: bar.sync 1, 64; ld.shared.u32 %r3, [%r1]; add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %r3; ret;"""
    if store_first:
        run(body, u32(64))
    else:
        finding("race in kernel k.*ld.shared.*warp 0 has written", body, u32(64))


# lanes of a warp meet in parts ----------------------------------------------------------------------------------------
# every lane stores its own word of s and reads the one of lane `lane ^ AWAY`; the barriers between have these masks
PARTS = """mov.u32 %r2, s; mad.lo.u32 %r1, %lane, 4, %r2; xor.b32 %r3, %lane, AWAY; mad.lo.u32 %r3, %r3, 4, %r2;
  and.b32 %r4, %lane, 16; shl.b32 %r4, 0x0000ffff, %r4; and.b32 %r5, %lane, 24; shl.b32 %r5, 0x000000ff, %r5;
  st.shared.u32 [%r1], %lane; BARRIERS ld.shared.u32 %r6, [%r3]; add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %r6;
  ret;"""
HALVES, QUARTERS, ALL = "bar.warp.sync %r4;", "bar.warp.sync %r5;", "bar.warp.sync 0xffffffff;"


@pytest.mark.parametrize(
    ("barriers", "away", "met"),
    [(HALVES, 1, True), (HALVES, 15, True), (HALVES, 16, False), (QUARTERS, 7, True), (QUARTERS, 8, False),
     (QUARTERS + HALVES, 8, True), (HALVES + QUARTERS, 8, True), (HALVES + QUARTERS, 16, False), (ALL, 16, True),
     (HALVES + ALL, 31, True), (ALL + HALVES, 31, True), ("", 1, False)],
)  # fmt: skip
def test_a_part_of_a_warp_that_meets_orders_its_own_lanes(barriers, away, met):
    body = PARTS.replace("AWAY", str(away)).replace("BARRIERS", barriers)
    if met:
        (out,) = run(body, u32(32), block=32)
        np.testing.assert_array_equal(out, np.arange(32) ^ away)
    else:
        finding("race in kernel k.*ld.shared.*a bar.warp.sync between them would", body, u32(32), block=32)


def test_what_a_lane_has_been_told_it_tells_to_those_it_meets_next():
    """Lane 0 and 16 meet, then the halves: lane 17 knows lane 0's store, and not lane 1's."""
    body = """mov.u32 %r2, s; mad.lo.u32 %r1, %lane, 4, %r2; and.b32 %r4, %lane, 16; shl.b32 %r4, 0x0000ffff, %r4;
  st.shared.u32 [%r1], %lane; and.b32 %r5, %lane, 15; setp.eq.u32 %p1, %r5, 0; @%p1 bar.warp.sync 0x10001;
  bar.warp.sync %r4; setp.ne.u32 %p2, %lane, 17; @%p2 ret; ld.shared.u32 %r6, [s+FROM]; add.u64 %rd1, %a0, %at4;
  st.global.u32 [%rd1], %r6; ret;"""
    run(body.replace("FROM", "0"), u32(32), block=32)
    finding("race in kernel k", body.replace("FROM", "4"), u32(32), block=32)


# the lower half fills s five times and the upper half reads it: each at a `bar.warp.sync` of its own
HALVES_APART = """mov.u32 %r2, s; mad.lo.u32 %r1, %lane, 4, %r2; xor.b32 %r3, %lane, 16; mad.lo.u32 %r3, %r3, 4, %r2;
  setp.lt.u32 %p1, %lane, 16; mov.u32 %r6, 0; mov.u32 %r7, 0; @%p1 bra fill;
  read: bar.warp.sync -1; ld.shared.u32 %r6, [%r3]; {read} add.u32 %r7, %r7, 1; setp.lt.u32 %p3, %r7, 5; @%p3 bra read;
  bra out; fill: st.shared.u32 [%r1], %r7; bar.warp.sync -1; {filled} add.u32 %r7, %r7, 1; setp.lt.u32 %p3, %r7, 5;
  @%p3 bra fill; out: add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %r6; ret;"""


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_lanes_meet_at_several_places(seed):
    body = HALVES_APART.format(read=ALL, filled=ALL)
    (out,) = run(body, u32(32), block=32)
    np.testing.assert_array_equal(out, np.repeat([0, 4], 16))
    device = ExecutorDevice("fast") if seed is None else ExecutorDevice("random", seed=seed)
    again = device.array(u32(32))
    device.module(text_of(body, 1, SHARED))["k"].launch((1,), (32,), [again])
    np.testing.assert_array_equal(again.numpy(), out)


def test_what_lanes_do_behind_the_places_at_which_they_met_is_not_ordered():
    body = HALVES_APART.format(read="", filled="")
    finding("race in kernel k.*st.shared.*a bar.warp.sync between them would", body, u32(32), block=32)


def test_lanes_that_wait_for_a_warp_of_which_others_wait_elsewhere():
    body = "setp.lt.u32 %p1, %lane, 16; @%p1 bra there; bar.warp.sync -1; there: bar.sync 0; ret;"
    finding("deadlock|divergent", body, block=32)


def test_lanes_that_have_exited_are_no_part_of_a_warp():
    body = PARTS.replace("AWAY", "1").replace("BARRIERS", HALVES)
    run("setp.ge.u32 %p1, %lane, 16; @%p1 ret; " + body, u32(32), block=32)


def in_place(sync, partner=OF_WARP_1, kind="u32", grid=2):
    size = int(kind[1:]) // 8
    value = {2: "%h1", 4: "%r4"}[size]
    body = IN_PLACE.format(sync=sync, partner=partner, kind=kind, size=size, value=value)
    return body, np.arange(64 * grid, dtype=f"u{size}")


@pytest.mark.parametrize("grid", [1, 3])
@pytest.mark.parametrize("kind", ["u32", "u16"])
def test_warps_that_write_what_others_read_need_a_barrier(kind, grid):
    body, data = in_place("bar.sync 0;", kind=kind, grid=grid)
    np.testing.assert_array_equal(run(body, data, grid=grid)[0], data | 32)
    body, data = in_place("", kind=kind, grid=grid)
    finding(rf"race in kernel k.*st.global.{kind}.*warp 1.*warp 0 has read these bytes and nothing orders",
            body, data, grid=grid)  # fmt: skip


def test_lanes_that_write_what_others_read_need_a_barrier_of_the_warp():
    body, data = in_place("bar.warp.sync -1;", "xor.b32 %r2, %r1, 1;")
    np.testing.assert_array_equal(run(body, data, grid=2)[0], data ^ 1)
    body, data = in_place("", "xor.b32 %r2, %r1, 1;")
    finding(r"race in kernel k.*st.global.*lane 0\n.*lane 1 of this warp read these bytes.*bar.warp.sync",
            body, data, grid=2)  # fmt: skip


BELL = ".shared .align 8 .b64 bell;\n" + SHARED
ARRIVE = "mbarrier.arrive.shared::cta.b64 %rd1, [bell];"
WAIT_BELL = """setp.eq.u32 %p1, %tid, 0; @%p1 mbarrier.init.shared::cta.b64 [bell], {count}; bar.sync 0;
  setp.eq.u32 %p2, %warp, 0; @%p2 bra waits; setp.eq.u32 %p3, %lane, 0; @%p3 {arrive} ret;
  waits: mov.u32 %r1, s; mad.lo.u32 %r2, %lane, 4, %r1; xor.b32 %r3, %lane, 1; mad.lo.u32 %r3, %r3, 4, %r1;
  st.shared.u32 [%r2], %lane; {own}
  again: mbarrier.try_wait.parity.shared::cta.b64 %p4, [bell], 0; @!%p4 bra again; {meet}
  ld.shared.u32 %r4, [%r3]; mad.wide.u32 %rd2, %lane, 4, %a0; st.global.u32 [%rd2], %r4; ret;"""


def test_an_mbarrier_at_which_other_warps_arrive_orders_no_lanes_of_those_that_wait():
    """Where they have arrived themselves, it does."""
    data, wanted = np.zeros(32, np.uint32), np.arange(32) ^ 1
    given = {"arrive": ARRIVE, "own": "", "meet": "", "count": 1}
    finding(r"race.*ld\.shared\.u32 %r4.*lane 1 of this warp wrote these bytes.*bar\.warp\.sync",
            WAIT_BELL.format(**given), data, before=BELL)  # fmt: skip
    for more in ({"meet": "bar.warp.sync -1;"}, {"own": ARRIVE, "count": 33}):
        body = WAIT_BELL.format(**{**given, **more})
        np.testing.assert_array_equal(run(body, data, before=BELL)[0], wanted)


def test_a_thread_may_write_what_it_alone_has_read():
    body, data = in_place("", "mov.u32 %r2, %r1;")
    np.testing.assert_array_equal(run(body, data, grid=2)[0], data)


def test_another_warp_that_read_before_the_last_one_counts_too():
    body = """setp.ne.u32 %p1, %lane, 0; @%p1 ret; ld.global.u32 %r1, [%a0]; setp.ne.u32 %p2, %warp, 1; @%p2 ret;
      st.global.u32 [%a0], %r1; ret;"""
    finding(r"race.*st.global.*warp 1.*warp 0 has read", body, u32(1))


def test_a_cta_that_writes_what_another_has_read():
    body = """mov.u32 %r1, %ctaid.x; setp.ne.u32 %p1, %lane, 0; @%p1 ret; setp.eq.u32 %p2, %r1, 1;
      @!%p2 ld.global.u32 %r2, [%a0]; {} @%p2 st.global.u32 [%a0], 1; ret;"""
    finding(r"race.*st.global.*CTA \(0, 0, 0\), warp \d, of this launch has read",
            body.format(""), u32(1), u32(1), grid=2, block=32)  # fmt: skip
    ordered = """@!%p2 red.release.gpu.global.add.u32 [%a1], 1; @!%p2 ret;
      wait: ld.acquire.gpu.global.u32 %r3, [%a1]; setp.eq.u32 %p3, %r3, 0; @%p3 bra wait;"""
    run(body.format(ordered), u32(1), u32(1), grid=2, block=32)


def test_reads_are_followed_in_what_a_kernel_may_write_and_in_nothing_else():
    def written(body, arrays=3, before=""):
        program = Program(parse(text_of(body, arrays, before)), mode="check")
        return program.entry("k").written

    assert written("ld.global.u32 %r1, [%a0]; st.global.u32 [%a1+4], %r1; ret;") == (8,)
    assert written("add.u64 %rd1, %at4, %a2; cvta.to.global.u64 %rd2, %rd1; red.add.u32 [%rd2], 1; ret;") == (16,)
    assert written("ld.global.u32 %r1, [%a0]; mad.wide.u32 %rd1, %r1, 4, %a1; st.global.u32 [%rd1], 1; ret;") == (8,)
    assert written("st.shared.u32 [s], 1; ret;", before=SHARED) == ()
    assert written("ld.global.u64 %rd1, [%a0]; st.global.u32 [%rd1], 1; ret;") == (ANYWHERE,)
    assert written("setp.eq.u32 %p1, %tid, 0; selp.b64 %rd1, %a0, %a2, %p1; st.u32 [%rd1], 1; ret;") == (0, 16)
    call = ".func f(.param .b64 p) { .reg .b64 %x; ld.param.u64 %x, [p]; st.global.u32 [%x], 1; ret; }\n"
    assert written("{ .param .b64 q; st.param.b64 [q], %a1; call f, (q); } ret;", before=call) == (8,)


def test_reads_through_a_loaded_pointer_are_followed():
    device = ExecutorDevice("check", threads=1)
    data = device.array(u32(64))
    table = device.array(np.array([data.pointer], np.uint64))
    body, _ = in_place("", grid=1)
    body = body.replace("mad.wide.u32 %rd1", "ld.global.u64 %a0, [%a0]; mad.wide.u32 %rd1", 1)
    with pytest.raises(ExecutionError, match="has read these bytes"):
        device.module(text_of(body, 1))["k"].launch((1,), (64,), [table])


# acquires -------------------------------------------------------------------------------------------------------------
POLL = """mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 1; setp.ne.u32 %p2, %lane, 0;
  setp.ne.or.u32 %p2, %warp, {poller}, %p2; mov.u32 %r4, %tid.x; mad.wide.u32 %rd1, %r4, 4, %a0; @%p1 bra taker;
  st.global.u32 [%rd1], %r4; bar.sync 0; @!%p2 st.release.gpu.global.u32 [%a1], 1; ret;
  taker: @%p2 bra taken; again: {load} %r2, [%a1]; setp.eq.u32 %p3, %r2, 0; @%p3 bra again; {fence}
  taken: {meet} {after} ld.global.u32 %r3, [%rd1]; mad.wide.u32 %rd2, %r4, 4, %a2; st.global.u32 [%rd2], %r3; ret;"""
ACQUIRE = {"load": "ld.acquire.gpu.global.u32", "fence": "", "after": ""}


def poll(poller=0, meet="bar.sync 0;", **given):
    body = POLL.format(poller=poller, meet=meet, **{**ACQUIRE, **given})
    return body, u32(64), u32(1), u32(64)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("poller", [0, 1])
@pytest.mark.parametrize("given", [
    {}, {"load": "ld.volatile.global.u32", "fence": "membar.gl;"},
    {"load": "ld.relaxed.gpu.global.u32", "after": "membar.gl;"}, {"meet": "bar.sync 1, 64; bar.sync 2, 64;"},
])  # fmt: skip
def test_what_one_warp_acquires_serves_the_others_behind_a_barrier(threads, poller, given):
    body, *arrays = poll(poller, **given)
    np.testing.assert_array_equal(run(body, *arrays, grid=2, threads=threads)[2], np.arange(64))


@pytest.mark.parametrize("poller", [0, 1])
def test_what_one_warp_acquires_serves_no_other_without_a_barrier(poller):
    body, *arrays = poll(poller, meet="")
    finding(rf"race in kernel k.*ld.global.u32 %r3.*CTA \(1, 0, 0\), warp {1 - poller}.*CTA \(0, 0, 0\), warp",
            body, *arrays, grid=2, threads=2)  # fmt: skip


def test_what_one_warp_acquires_passes_through_shared_memory_too():
    meet = """@!%p2 membar.cta; @!%p2 st.volatile.shared.u32 [s], 1;
      wait: ld.volatile.shared.u32 %r5, [s]; setp.ne.u32 %p4, %r5, 1; @%p4 bra wait; membar.cta;"""
    body, *arrays = poll(meet=meet)
    body = body.replace("mov.u32 %r4, %tid.x;", "mov.u32 %r4, %tid.x; @!%p2 st.shared.u32 [s], 0; bar.sync 0;")
    np.testing.assert_array_equal(run(body, *arrays, grid=2)[2], np.arange(64))


# definedness ----------------------------------------------------------------------------------------------------------
AGGREGATE = """setp.lt.u32 %p1, %lane, 20; @!%p1 ret; activemask.b32 %r1; setp.eq.u32 %p2, %lane, {leader};
  @!%p2 bra share; popc.b32 %r2, %r1; atom.global.add.u32 %r3, [%a0], %r2;
  share: shfl.sync.idx.b32 %r4, %r3, 3, 31, %r1;
  add.u64 %rd1, %a1, %at4; add.u32 %r4, %r4, %lane; st.global.u32 [%rd1], %r4; ret;"""


def test_a_shuffle_from_the_lane_that_has_the_value():
    _, out = run(AGGREGATE.format(leader=3), u32(1), u32(32), block=32)
    np.testing.assert_array_equal(out[:20], np.arange(20))


def test_a_shuffle_from_a_lane_that_has_none_is_reported_where_its_value_matters():
    finding(r"uninitialised register.*\n.*st.global.u32 \[%rd1\], %r4;.*lanes 0-19\n.*%r4",
            AGGREGATE.format(leader=5), u32(1), u32(32), block=32)  # fmt: skip


def test_a_reduction_whose_upper_lanes_have_nothing():
    body = """setp.lt.u32 %p1, %lane, 16; @!%p1 bra sum; mov.u32 %r1, %lane; sum:
      shfl.sync.down.b32 %r2, %r1, {0}, 31, -1; setp.ge.u32 %p2, %lane, 8; @%p2 ret;
      add.u32 %r1, %r1, %r2; add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %r1; ret;"""
    (out,) = run(body.format(8), u32(32), block=32)
    np.testing.assert_array_equal(out[:8], 2 * np.arange(8) + 8)
    finding(r"uninitialised register.*st.global.*lanes 4-7\n", body.format(12), u32(32), block=32)


def test_a_member_mask_must_be_defined():
    finding(r"uninitialised register.*shfl.sync.*%r9", "shfl.sync.idx.b32 %r1, %lane, 0, 31, %r9; ret;", block=32)


LOCAL = """.local .align 8 .b8 mine[16]; mov.u64 %rd1, mine; cvta.local.u64 %rd1, %rd1; {}
  mov.u64 %rd2, %a0; @%p1 mov.u64 %rd2, %rd1; setp.ne.u32 %p1, %lane, 0; st.u8 [%rd2], %h1; ret;"""


def test_padding_may_be_copied_into_local_memory_and_not_into_global():
    run(LOCAL.format("setp.eq.u32 %p1, %lane, %lane;"), u32(1), block=32)
    finding(r"uninitialised register.*st.u8 \[%rd2\], %h1.*lanes 4-31\n.*%h1",
            LOCAL.format("setp.lt.u32 %p1, %lane, 4;"), u32(1), block=32)  # fmt: skip


CALL = """.func (.param .b32 out) f(.param .align 4 .b8 s[8])
{ .reg .b32 %r<4>; .reg .b16 %h<2>;
  ld.param.u8 %h1, [s+5]; ld.param.u32 %r1, [s]; cvt.u32.u16 %r2, %h1; add.u32 %r3, %r1, %RESULT;
  st.param.b32 [out], %r3; ret; }
"""


def test_padding_may_be_passed_to_a_function_that_does_not_use_it():
    body = """{ .param .align 4 .b8 arg[8]; .param .b32 got; st.param.b32 [arg], %lane; st.param.b8 [arg+5], %h5;
      call (got), f, (arg); ld.param.b32 %r1, [got]; } add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %r1; ret;"""
    (out,) = run(body, u32(32), block=32, before=CALL.replace("%RESULT", "%r1"))
    np.testing.assert_array_equal(out, 2 * np.arange(32))
    finding(r"uninitialised register.*st.global.u32", body, u32(32), block=32, before=CALL.replace("%RESULT", "%r2"))


def test_a_plain_read_before_a_loop_of_compare_and_swap_is_told_of_strong_loads_before_barriers():
    body = """ld.global.u32 %r1, [%a0]; again: mov.u32 %r2, %r1; add.u32 %r3, %r2, 1;
      atom.global.cas.b32 %r1, [%a0], %r2, %r3; setp.ne.u32 %p1, %r1, %r2; @%p1 bra again; ret;"""
    finding(r"nothing orders that access before this one\n.*is read by ld.volatile or ld.relaxed; an ordinary access "
            r"needs a barrier between them\n", body, u32(1))  # fmt: skip


def test_findings_of_two_warps_say_which_is_which():
    with pytest.raises(ExecutionError) as caught:
        run(MEET.format(first=WRITES["atom"], second=USES["ld"]))
    here, other = re.search(r"CTA \(0, 0, 0\), warp (\d).*warp (\d) has", str(caught.value), re.S).groups()
    assert {here, other} == {"0", "1"}


@pytest.mark.parametrize(("body", "strong"), [
    ("atom.shared.add.u32 %r1, [%r2], 1;", True), ("red.add.u32 [%rd1], 1;", True),
    ("ld.volatile.shared.u32 %r1, [%r2];", True), ("st.release.cta.shared.u32 [%r2], 1;", True),
    ("ld.relaxed.gpu.u32 %r1, [%rd1];", True), ("atom.global.add.u32 %r1, [%rd1], 1;", False),
    ("ld.acquire.gpu.global.u32 %r1, [%rd1];", False), ("barrier.cluster.arrive.release.aligned;", False),
    ("barrier.cluster.wait.acquire.aligned;", False), ("fence.mbarrier_init.release.cluster;", False),
    ("st.shared.u32 [%r2], 1;", False),
])  # fmt: skip
def test_first_writes_are_noted_where_something_may_rely_on_them(body, strong):
    """It takes time in every store: barriers of clusters, whose words are the same, need it not."""
    entry, _ = emit_entry(parse(text_of(body + " ret;", 1)), "k", True, this_host())
    assert entry.strong is strong
