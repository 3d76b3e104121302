"""Facts about waiting on the executor: locks, spinning for other CTAs, standstills, orders, waits for a time."""

import threading

import numpy as np
import pytest

from ptxgen.errors import ExecutionError
from ptxgen.runtime.cpu.run.host_thread import Waiting
from ptxgen.runtime.cpu.run.launch import Run
from ptxgen.runtime.cpu.run.native_state import Worker
from tests.support.cpu_run import MODES, run, u32

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("mode", MODES)
def test_a_lock_between_the_lanes_of_a_warp(mode):
    lock, total = u32(1), u32(1)
    run(
        """
again:
  atom.global.cas.b32 %r1, [%a0], 0, 1;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra again;
  ld.volatile.global.u32 %r2, [%a1]; add.u32 %r2, %r2, %tid; st.volatile.global.u32 [%a1], %r2;
  membar.gl;
  atom.global.exch.b32 %r3, [%a0], 0;
  ret;""",
        lock, total, block=64, grid=2, mode=mode,
    )  # fmt: skip
    assert total[0] == sum(range(128))


def test_a_cta_may_wait_for_a_later_one():
    flag, out = u32(8), u32(8)
    run(
        """
  mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd1, %r1, 4;
  setp.eq.u32 %p1, %r1, 7; @%p1 bra last;
  add.u64 %rd2, %a0, %rd1;
wait:
  ld.volatile.global.u32 %r2, [%rd2+4];
  setp.eq.u32 %p2, %r2, 0; @%p2 bra wait;
last:
  add.u64 %rd3, %a0, %rd1; add.u64 %rd4, %a1, %rd1;
  st.global.u32 [%rd4], %r1; membar.gl; st.volatile.global.u32 [%rd3], 1;
  ret;""",
        flag, out, grid=8, block=1,
    )  # fmt: skip
    np.testing.assert_array_equal(out, np.arange(8))


@pytest.mark.parametrize("threads", [1, 2])
def test_spinning_for_what_never_comes_ends_as_no_progress(threads):
    with pytest.raises(ExecutionError, match=r"(?s)no progress in kernel k.*spins at test.ptx:\d+"):
        run("wait: ld.volatile.global.u32 %r1, [%a0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra wait; ret;", u32(1), grid=3,
            threads=threads)  # fmt: skip


HANGS = {
    "nothing": "again: bra again;",
    "flag": "again: ld.volatile.global.u32 %r1, [%a0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra again; ret;",
    "lock": "again: atom.global.cas.b32 %r1, [%a0], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra again; ret;",
    "vote": """
again: ld.volatile.global.u32 %r1, [%a0]; setp.eq.u32 %p1, %r1, 0; vote.sync.any.pred %p1, %p1, -1; @%p1 bra again;
  ret;""",
    "barrier": """
again: bar.sync 0; ld.volatile.global.u32 %r1, [%a0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra again; ret;""",
    "written": """
again: atom.global.xor.b32 %r1, [%a0], 1; mov.u32 %r1, 0; setp.eq.u32 %p1, %r1, 0; @%p1 bra again; ret;""",
    "one": """
  setp.ne.u32 %p1, %tid, 0; @%p1 bra end;
again: ld.volatile.global.u32 %r1, [%a0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra again;
end: bar.sync 0; ret;""",
}


@pytest.mark.parametrize(("warps", "grid", "threads"), [(2, 1, 1), (8, 1, 1), (2, 4, 2)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", HANGS)
def test_warps_that_never_end_are_no_progress(what, mode, warps, grid, threads):
    with pytest.raises(ExecutionError, match=r"no progress in kernel k: the warps that can run repeat the same state"):
        run(HANGS[what], u32(1), block=32 * warps, grid=grid, mode=mode, threads=threads, time_limit=60)


@pytest.mark.parametrize("mode", MODES)
def test_a_wait_through_barriers_ends_after_long(mode):
    """Meanwhile the warps that wait repeat their state, and no memory changes."""
    flag, out = u32(1), u32(64)
    run(
        """
  mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, 0; @%p1 bra wait;
long:
  add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 1000000; @%p2 bra long;
  st.volatile.global.u32 [%a0], 1; ret;
wait:
  bar.sync 0; ld.volatile.global.u32 %r1, [%a0]; bar.sync 0; setp.eq.u32 %p1, %r1, 0; @%p1 bra wait;
  add.u64 %rd1, %a1, %at4; st.global.u32 [%rd1], 1; ret;""",
        flag, out, grid=2, block=64, mode=mode,
    )  # fmt: skip
    assert out.all()


# The first CTA to come waits for the second, which takes its time.
LONG_WAIT = """
  atom.global.add.u32 %r1, [%a0], 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra first; mov.u32 %r2, 0;
long:
  add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 20000000; @%p2 bra long;
  st.volatile.global.u32 [%a0+4], 1; ret;
first:
  ld.volatile.global.u32 %r2, [%a0+4]; setp.eq.u32 %p2, %r2, 0; @%p2 bra first;
  st.volatile.global.u32 [%a0+4], 2; ret;"""


def test_what_a_cta_brings_last_is_still_seen():
    out = u32(2)
    run(LONG_WAIT, out, grid=2, block=1)
    assert out[1] == 2


def test_what_another_thread_brings_last_is_still_seen(monkeypatch):
    """A thread whose CTA spins is held until the other thread, which has the other CTA, has ended."""
    ended, held, both = threading.Event(), threading.Event(), threading.Barrier(2)
    work, look, another = Run._work, Waiting.look, Worker.another_gang

    def worked(self, number, worker):
        error = work(self, number, worker)
        ended.set()
        return error

    def looked(self, code):
        look(self, code)
        if self.repeats >= 3:
            held.set()
            assert ended.wait(60)

    def with_the_other(self):
        both.wait(60)  # so neither takes both
        return another(self)

    monkeypatch.setattr(Worker, "another_gang", with_the_other)
    monkeypatch.setattr(Run, "_work", worked)
    monkeypatch.setattr(Waiting, "look", looked)
    out = u32(2)
    run(LONG_WAIT, out, grid=2, block=1, threads=2)
    assert held.is_set()
    assert out[1] == 2


# A ticket at the start of a CTA; the last to draw sums what all leave at their end, WAIT and all.
EARLY_TICKET = """
  atom.global.add.u32 %r1, [%a0], 1; mov.u32 %r2, 0;
work:
  add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 300; @%p1 bra work;
  mov.u32 %r3, %ctaid.x; mul.wide.u32 %rd1, %r3, 4; add.u64 %rd1, %a1, %rd1; st.relaxed.gpu.global.u32 [%rd1], 1;
  setp.ne.u32 %p2, %r1, 7; @%p2 ret;
again:
  mov.u64 %rd1, %a1; mov.u32 %r4, 0; mov.u32 %r5, 0;
sum:
  ld.relaxed.gpu.global.u32 %r6, [%rd1]; add.u32 %r4, %r4, %r6; add.u64 %rd1, %rd1, 4; add.u32 %r5, %r5, 1;
  setp.lt.u32 %p3, %r5, 8; @%p3 bra sum;
  WAIT
  st.global.u32 [%a2], %r4; ret;"""


def summed(wait, **given):
    out = u32(1)
    run(EARLY_TICKET.replace("WAIT", wait), u32(1), u32(8), out, grid=8, block=1, **given)
    return int(out[0])


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("mode", MODES)
def test_the_last_cta_to_start_may_wait_for_the_others(mode, threads):
    wait = "setp.lt.u32 %p4, %r4, 8; @%p4 bra again;"
    assert {summed(wait, mode=mode, seed=seed, threads=threads) for seed in range(12)} == {8}


def test_random_mode_leaves_ctas_on_their_way_while_others_run():
    """So a CTA that does not wait for those that have started is found."""
    assert summed("", mode="fast") == 8
    sums = [summed("", mode="random", seed=seed) for seed in range(12)]
    assert min(sums) < 8
    assert [summed("", mode="random", seed=seed) for seed in range(12)] == sums


def test_a_drawn_order_that_repeats_runs_every_cta_once(monkeypatch):
    """Grids of more clusters than one order covers, which a last part of the grid does not fill."""
    monkeypatch.setattr("ptxgen.runtime.cpu.run.launch._SHUFFLED", 8)
    ticket, runs, order = u32(1), u32(21), u32(21)
    run(
        """
  atom.global.add.u32 %r1, [%a0], 1;
  mov.u32 %r2, %ctaid.x; mul.wide.u32 %rd1, %r2, 4; add.u64 %rd2, %a1, %rd1; red.global.add.u32 [%rd2], 1;
  add.u64 %rd3, %a2, %rd1; st.global.u32 [%rd3], %r1; ret;""",
        ticket, runs, order, grid=21, block=1, mode="random",
    )  # fmt: skip
    assert (runs == 1).all()
    assert (order != np.arange(21)).any()


def test_a_wait_for_a_time_ends():
    out = u32(32)
    run(
        """
  mov.u64 %rd1, %globaltimer; add.u64 %rd2, %rd1, 100000;
more:
  nanosleep.u32 1000;
  mov.u64 %rd3, %globaltimer; setp.lt.u64 %p1, %rd3, %rd2; @%p1 bra more;
  add.u64 %rd4, %a0, %at4; st.global.u32 [%rd4], 1; ret;""",
        out,
    )  # fmt: skip
    assert out.all()


# loops that end, and that keep their state in memory ----------------------------------------------------------------
COUNTED = {
    "atomic": """
again: atom.global.add.u32 %r1, [%a0], 1; setp.lt.u32 %p1, %r1, TURNS; @%p1 bra again; ret;""",
    "global": """
again: ld.global.u32 %r1, [%a0]; add.u32 %r1, %r1, 1; st.global.u32 [%a0], %r1; setp.lt.u32 %p1, %r1, TURNS;
  mov.u32 %r1, 0; @%p1 bra again; ret;""",
    "shared": """
  .shared .b32 count; mov.u32 %r2, 0; st.shared.u32 [count], %r2;
again: ld.shared.u32 %r1, [count]; add.u32 %r1, %r1, 1; st.shared.u32 [count], %r1; setp.lt.u32 %p1, %r1, TURNS;
  mov.u32 %r1, 0; @%p1 bra again; ld.shared.u32 %r1, [count]; st.global.u32 [%a0], %r1; ret;""",
    "local": """
  .local .b32 count; mov.u32 %r2, 0; st.local.u32 [count], %r2;
again: ld.local.u32 %r1, [count]; add.u32 %r1, %r1, 1; st.local.u32 [count], %r1; setp.lt.u32 %p1, %r1, TURNS;
  mov.u32 %r1, 0; @%p1 bra again; ld.local.u32 %r1, [count]; st.global.u32 [%a0], %r1; ret;""",
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", COUNTED)
def test_a_loop_that_counts_in_memory_ends(where, mode):
    count, turns = u32(1), 400_000
    run(COUNTED[where].replace("TURNS", str(turns)), count, block=1, mode=mode)
    assert count[0] == turns + (where == "atomic")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("body", [
    "again: atom.global.cas.b32 %r1, [%a0], 1, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra again; ret;",
    "again: st.volatile.global.u32 [%a0], 0; ld.volatile.global.u32 %r1, [%a0]; setp.eq.u32 %p1, %r1, 0; "
    "@%p1 bra again; ret;",
    "again: atom.global.xor.b32 %r1, [%a0], 1; mov.u32 %r1, 0; setp.eq.u32 %p1, %r1, 0; @%p1 bra again; ret;",
])  # fmt: skip
def test_a_loop_that_ever_repeats_its_memory_is_no_progress(body, mode):
    with pytest.raises(ExecutionError, match="no progress in kernel k"):
        run(body, u32(1), block=1, mode=mode, time_limit=100)


# fair orders --------------------------------------------------------------------------------------------------------
# Triton's: one thread takes the lock, shared memory and two barriers tell the others whether it has.
SPIN_LOCK = """
  .shared .b32 got; setp.eq.u32 %p1, %lane, 0; setp.eq.and.u32 %p1, %warp, 0, %p1; mov.u32 %r1, 0;
again:
  @%p1 atom.global.acq_rel.gpu.cas.b32 %r1, [%a0], 0, 1; @%p1 st.shared.u32 [got], %r1;
  bar.sync 0; ld.shared.u32 %r2, [got]; bar.sync 0; setp.eq.u32 %p2, %r2, 1; @%p2 bra again;
  @%p1 ld.global.u32 %r3, [%a1]; @%p1 add.u32 %r3, %r3, 1; @%p1 st.global.u32 [%a1], %r3; bar.sync 0;
  @%p1 atom.global.acq_rel.gpu.exch.b32 %r4, [%a0], 0; ret;"""
# The first CTA waits until all have arrived, with a barrier in the loop.
REDUCTION = """
  mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %lane, 0; setp.eq.and.u32 %p1, %warp, 0, %p1;
  setp.eq.u32 %p2, %r1, 0; @%p2 bra first;
  @%p1 atom.global.acq_rel.gpu.add.u32 %r2, [%a0], 1; ret;
first:
  bar.sync 0; ld.acquire.gpu.global.u32 %r2, [%a0]; setp.lt.u32 %p3, %r2, 11; @%p3 bra first;
  @%p1 st.global.u32 [%a1], %r2; ret;"""
# As cuda::barrier does where there are no mbarriers: the last to arrive turns the phase, the others poll it.
PHASES = """
  .shared .align 8 .b32 phase[2]; setp.eq.u32 %p1, %tid, 0;
  @%p1 st.shared.u32 [phase], 0; @%p1 st.shared.u32 [phase+4], 0;
  bar.sync 0; mov.u32 %r5, 0;
turn:
  ld.volatile.shared.u32 %r4, [phase+4];
  activemask.b32 %r6; match.any.sync.b32 %r7, %r5, %r6; popc.b32 %r8, %r7; bfind.u32 %r9, %r7; bar.warp.sync %r6;
  setp.eq.u32 %p2, %r9, %lane; mov.u32 %r1, 0; @!%p2 bra arrived;
  atom.acq_rel.cta.shared.add.u32 %r1, [phase], %r8; add.u32 %r1, %r1, %r8; setp.ne.u32 %p3, %r1, %n; @%p3 bra arrived;
  st.relaxed.cta.shared.u32 [phase], 0; fence.acq_rel.cta;
  add.u32 %r2, %r4, 1; st.relaxed.cta.shared.u32 [phase+4], %r2;
arrived:
  shfl.sync.idx.b32 %r3, %r1, %r9, 31, %r7;
poll:
  ld.acquire.cta.shared.u32 %r2, [phase+4]; setp.ne.u32 %p4, %r2, %r4; @%p4 bra past; nanosleep.u32 20; bra poll;
past:
  add.u32 %r5, %r5, 1; setp.lt.u32 %p5, %r5, 6; @%p5 bra turn;
  @%p1 st.global.u32 [%a1], %r2; ret;"""
SEEDS = 12


@pytest.mark.parametrize("threads", [1, 2])
def test_random_mode_is_fair_to_a_lock_that_is_taken_through_barriers(threads):
    for seed in range(SEEDS):
        count = u32(1)
        run(SPIN_LOCK, u32(1), count, grid=6, block=128, mode="random", seed=seed, threads=threads, time_limit=60)
        assert count[0] == 6


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_fair_to_a_wait_through_barriers_for_later_ctas(mode):
    for seed in range(SEEDS if mode == "random" else 1):
        count = u32(1)
        run(REDUCTION, u32(1), count, grid=12, block=128, mode=mode, seed=seed, time_limit=60)
        assert count[0] == 11


def test_random_mode_is_fair_to_a_barrier_that_is_polled():
    for seed in range(SEEDS):
        count = u32(1)
        run(PHASES, u32(1), count, block=256, mode="random", seed=seed, time_limit=60)
        assert count[0] == 6


TURNS = """
  shr.u32 %r1, %tid, 5; setp.ne.u32 %p1, %r1, 0; mov.u32 %r2, 0;
  @%p1 bra takes;
gives: bar.arrive 1, 64; WAIT add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 2; @%p2 bra gives;
  ret;
takes: bar.sync 1, 64; bar.arrive 2, 64; add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 2; @%p2 bra takes;
  ret;"""


def test_a_warp_that_arrives_twice_before_a_barrier_is_over():
    run(TURNS.replace("WAIT", "bar.sync 2, 64;"), block=64, mode="check")
    with pytest.raises(
        ExecutionError, match=r"(?s)wrong use.*bar.arrive 1, 64.*warp 0.*\n.*arrived at this barrier before"
    ):
        run(TURNS.replace("WAIT", ""), block=64, mode="check")


RING = """
  .shared .align 8 .b64 bar[2]; mov.u32 %r1, bar; mov.u32 %r2, 0; mov.u32 %r3, 1; and.b32 %r4, %tid, 31;
  setp.eq.u32 %p0, %tid, 0; setp.eq.u32 %p1, %r4, 0; setp.lt.u32 %p2, %tid, 32;
  @%p0 mbarrier.init.shared::cta.b64 [%r1], 1; @%p0 mbarrier.init.shared::cta.b64 [%r1+8], EMPTY;
  bar.sync 0;
  @!%p2 bra takes;
fills: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1+8], %r3; @!%p3 bra fills;
  MEET
  WHO mbarrier.arrive.shared::cta.b64 %rd1, [%r1];
  LATE
  xor.b32 %r3, %r3, 1; add.u32 %r2, %r2, 1; setp.lt.u32 %p4, %r2, 3; @%p4 bra fills;
  ret;
takes: xor.b32 %r3, %r3, 1;
full: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], %r3; @!%p3 bra full;
  MEET
  WHO mbarrier.arrive.shared::cta.b64 %rd1, [%r1+8];
  add.u32 %r2, %r2, 1; setp.lt.u32 %p4, %r2, 3; @%p4 bra takes;
  ret;"""


def ring(meet="", who="@%p1", late="", mode="check"):
    count = "1" if who else "32"
    text = RING.replace("EMPTY", count).replace("[%r1], 1;", f"[%r1], {count};", 1)
    run(text.replace("MEET", meet).replace("WHO", who).replace("LATE", late), block=64, mode=mode)


def test_lanes_of_a_warp_that_may_miss_a_phase():
    """The first lane alone goes on to the arrival that lets the others' next phase end."""
    ring("bar.warp.sync -1;")
    ring(who="")  # each lane arrives behind its own wait
    ring("shfl.sync.idx.b32 %r5, %r4, 0, 31, -1;")
    for late in ("", "bar.warp.sync -1;"):
        with pytest.raises(
            ExecutionError, match=r"(?s)wrong use.*try_wait.*warp \d, lanes 1-31\n.*look late would miss"
        ):
            ring(late=late)
