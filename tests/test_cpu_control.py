"""Facts about control flow on the executor: divergence, loops, calls, tables of branches, exits, spinning."""

import threading

import numpy as np
import pytest

from ptxgen.errors import ExecutionError, IsaError
from ptxgen.parser import parse
from ptxgen.runtime.cpu.executor import Program
from ptxgen.runtime.cpu.flow import Flow
from ptxgen.runtime.cpu.launch import Run
from ptxgen.runtime.cpu.share import Waiting
from ptxgen.runtime.cpu.state import Worker
from tests.cpu_run import run, text_of

MODES = ("fast", "random", "check")
pytestmark = pytest.mark.filterwarnings("error")


def u32(count, fill=0):
    return np.full(count, fill, np.uint32)


@pytest.mark.parametrize("mode", MODES)
def test_nested_branches_meet_again(mode):
    out, met = u32(64), u32(64)
    run(
        """
  add.u64 %rd1, %a0, %at4; add.u64 %rd2, %a1, %at4;
  and.b32 %r1, %lane, 1; and.b32 %r2, %lane, 2; mov.u32 %r3, 0;
  setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r2, 0;
  @%p1 bra even;
  add.u32 %r3, %r3, 100;
  @%p2 bra join;
  add.u32 %r3, %r3, 10;
  bra join;
even:
  @!%p2 bra both;
  add.u32 %r3, %r3, 1;
  bra join;
both:
  add.u32 %r3, %r3, 2;
join:
  activemask.b32 %r4;
  st.global.u32 [%rd1], %r3;
  st.global.u32 [%rd2], %r4;
  ret;""",
        out, met, block=64, mode=mode,
    )  # fmt: skip
    lane = np.arange(64) & 31
    want = np.where(lane & 1, np.where(lane & 2, 110, 100), np.where(lane & 2, 2, 1))
    np.testing.assert_array_equal(out, want)
    if mode != "random":
        assert (met == 0xFFFFFFFF).all(), "all lanes are together again after the branches"


@pytest.mark.parametrize("mode", MODES)
def test_loops_of_different_lengths_with_continue_break_and_return(mode):
    out = u32(128, 7)
    run(
        """
  add.u64 %rd1, %a0, %at4; mov.u32 %r1, 0; mov.u32 %r2, 0;
loop:
  setp.ge.u32 %p1, %r1, %tid;
  @%p1 bra done;
  add.u32 %r1, %r1, 1;
  and.b32 %r3, %r1, 3; setp.eq.u32 %p2, %r3, 0;
  @%p2 bra loop;                     // continue
  setp.eq.u32 %p3, %r1, 77;
  @%p3 ret;                          // return from within
  add.u32 %r2, %r2, %r1;
  setp.gt.u32 %p4, %r2, 1000;
  @%p4 bra done;                     // break
  bra loop;
done:
  st.global.u32 [%rd1], %r2;
  ret;""",
        out, block=128, mode=mode,
    )  # fmt: skip

    def one(tid):
        total = i = 0
        while i < tid:
            i += 1
            if i % 4 == 0:
                continue
            if i == 77:
                return 7
            total += i
            if total > 1000:
                break
        return total

    np.testing.assert_array_equal(out, [one(t) for t in range(128)])


def test_a_shuffle_after_uneven_loops_sees_every_lane():
    out = u32(32)
    run(
        """
  add.u64 %rd1, %a0, %at4; mov.u32 %r1, 0;
loop:
  setp.ge.u32 %p1, %r1, %lane;
  @%p1 bra done;
  add.u32 %r1, %r1, 1;
  bra loop;
done:
  shfl.sync.idx.b32 %r2, %r1, 31, 31, -1;
  st.global.u32 [%rd1], %r2;
  ret;""",
        out,
    )  # fmt: skip
    assert (out == 31).all()


def test_a_shuffle_in_a_loop_with_two_back_edges_waits_for_its_lanes():
    """Lanes that take the short way round come to the shuffle first."""
    out = u32(32)
    run(
        """
  add.u64 %rd1, %a0, %at4; mov.u32 %r1, 0; mov.u32 %r5, 0;
head:
  shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;
  add.u32 %r5, %r5, %r2;
  add.u32 %r1, %r1, 1;
  setp.ge.u32 %p1, %r1, 5;
  @%p1 bra out;
  and.b32 %r3, %lane, 1; setp.eq.u32 %p2, %r3, 0;
  @%p2 bra head;
  add.u32 %r5, %r5, 100;
  bra head;
out:
  st.global.u32 [%rd1], %r5;
  ret;""",
        out,
    )  # fmt: skip
    np.testing.assert_array_equal(out, np.where(np.arange(32) & 1, 10 + 400, 10))


@pytest.mark.parametrize("mode", ["fast", "check"])
def test_brx_idx(mode):
    out = u32(32)
    run(
        """
  add.u64 %rd1, %a0, %at4; and.b32 %r1, %lane, 3; mov.u32 %r2, 9; setp.lt.u32 %p1, %lane, 30;
table: .branchtargets zero, one, two, one;
  @%p1 brx.idx %r1, table;
  bra join;
zero:
  mov.u32 %r2, 10; bra join;
one:
  mov.u32 %r2, 11; bra join;
two:
  mov.u32 %r2, 12;
join:
  activemask.b32 %r3; setp.ne.u32 %p2, %r3, -1; @%p2 mov.u32 %r2, 0;
  st.global.u32 [%rd1], %r2;
  ret;""",
        out, mode=mode,
    )  # fmt: skip
    np.testing.assert_array_equal(out, [*([10, 11, 12, 11] * 7), 10, 11, 9, 9])


def test_brx_idx_outside_its_list_is_a_finding():
    with pytest.raises(ExecutionError, match=r"(?s)trap.*brx.idx.*lanes 2-31.*outside the list"):
        run("table: .branchtargets a, b;\n brx.idx %lane, table;\na:\nb:\n ret;", u32(1))


CALLS = """
.func (.param .b32 result) twice(.param .b32 x) {
  .reg .b32 %r<4>; ld.param.b32 %r1, [x]; add.u32 %r2, %r1, %r1; st.param.b32 [result], %r2; ret;
}
.func (.param .align 8 .b8 result[12]) pair(.param .align 8 .b8 given[12], .param .b16 h) {
  .reg .b32 %r<6>; .reg .b64 %rd<3>; .reg .b16 %h<3>; .reg .pred %p;
  ld.param.b64 %rd1, [given]; ld.param.b32 %r1, [given+8]; ld.param.b16 %h1, [h];
  setp.gt.u32 %p, %r1, 15; @%p bra big;
  cvt.u32.u16 %r2, %h1; add.u32 %r1, %r1, %r2; bra done;
big:
  { .param .b32 one; .param .b32 two; st.param.b32 [one], %r1; call (two), twice, (one); ld.param.b32 %r1, [two]; }
done:
  st.param.b64 [result], %rd1; st.param.b32 [result+8], %r1; ret;
}
.func (.reg .u32 out) plain(.reg .u32 a, .reg .u32 b) { sub.u32 out, a, b; ret; }
"""


@pytest.mark.parametrize("mode", MODES)
def test_calls_with_struct_parameters_from_divergent_sites(mode):
    out = np.zeros((64, 2), np.uint64)
    run(
        """
  mul.wide.u32 %rd1, %tid, 16; add.u64 %rd1, %a0, %rd1; cvt.u64.u32 %rd2, %tid; add.u64 %rd2, %rd2, 1000;
  and.b32 %r9, %lane, 1; setp.eq.u32 %p1, %r9, 0;
  @%p1 bra other;
  { .param .align 8 .b8 in[12]; .param .b16 h; .param .align 8 .b8 out[12];
    st.param.b64 [in], %rd2; st.param.b32 [in+8], %lane; mov.u16 %h1, 500; st.param.b16 [h], %h1;
    call (out), pair, (in, h); ld.param.b64 %rd3, [out]; ld.param.b32 %r1, [out+8]; }
  bra join;
other:
  { .param .b32 x; .param .b32 y; st.param.b32 [x], %lane; call.uni (y), twice, (x); ld.param.b32 %r1, [y]; }
  mov.u64 %rd3, 5;
join:
  call (%r2), plain, (%r1, %lane);
  cvt.u64.u32 %rd4, %r2;
  st.global.v2.u64 [%rd1], {%rd3, %rd4};
  ret;""",
        out, block=64, before=CALLS, mode=mode,
    )  # fmt: skip
    for tid, (first, second) in enumerate(out.tolist()):
        lane = tid % 32
        if lane % 2 == 0:
            assert (first, second) == (5, lane)
        else:
            assert (first, second) == (1000 + tid, 500 if lane <= 15 else lane)


POINTERS = """
.func (.param .b32 out) plus(.param .b32 a, .param .b32 b) {
  .reg .b32 %r<4>; ld.param.b32 %r1, [a]; ld.param.b32 %r2, [b]; add.u32 %r3, %r1, %r2; st.param.b32 [out], %r3; ret; }
.func (.param .b32 out) times(.param .b32 a, .param .b32 b) {
  .reg .b32 %r<4>; .reg .pred %p; ld.param.b32 %r1, [a]; ld.param.b32 %r2, [b]; setp.eq.u32 %p, %r2, 3; @%p bra skip;
  mul.lo.u32 %r1, %r1, %r2;
skip:
  st.param.b32 [out], %r1; ret; }
.func other(.param .b64 x) { ret; }
.const .u64 table[3] = {plus, times, other};
"""
INDIRECT = """
  and.b32 %r1, %lane, SELECT; mul.wide.u32 %rd1, %r1, 8; mov.u64 %rd2, table; add.u64 %rd2, %rd2, %rd1;
  ld.const.u64 %rd3, [%rd2]; and.b32 %r2, %lane, 7; setp.ge.u32 %p1, %lane, 28; mov.u32 %r3, 5; @%p1 bra skip;
  { .param .b32 a; .param .b32 b; .param .b32 out; st.param.b32 [a], %lane; st.param.b32 [b], %r2;
proto: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
    call (out), %rd3, (a, b), proto;
    ld.param.b32 %r3, [out]; }
skip:
  add.u64 %rd4, %a0, %at4; st.global.u32 [%rd4], %r3; ret;"""


@pytest.mark.parametrize("mode", MODES)
def test_calls_through_pointers(mode):
    out = u32(32)
    run(INDIRECT.replace("SELECT", "1"), out, before=POINTERS, mode=mode)
    want = [5 if n >= 28 else n + n % 8 if n % 2 == 0 else n if n % 8 == 3 else n * (n % 8) for n in range(32)]
    np.testing.assert_array_equal(out, want)


def test_a_call_through_a_pointer_of_another_shape():
    with pytest.raises(ExecutionError, match=r"(?s)trap.*lanes 2-3, 6-7.*not of a function that this call may reach"):
        run(INDIRECT.replace("SELECT", "2"), u32(32), before=POINTERS)


CHOICE = """
.func (.param .b32 out) pick(.param .b32 which, .param .b32 one, .param .align 8 .b8 two[16]) {
  .reg .b32 %r<3>; .reg .b64 %rd<4>; .reg .pred %p;
  ld.param.b32 %r1, [which]; setp.eq.u32 %p, %r1, 0; mov.b64 %rd1, one; mov.b64 %rd2, two+12;
  selp.b64 %rd3, %rd1, %rd2, %p; ld.param.b32 %r2, [%rd3]; st.param.b32 [out], %r2; ret; }
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_calls_parameter_has_an_address(mode):
    out = u32(64)
    run("""and.b32 %r1, %lane, 1; add.u32 %r2, %tid, 100; add.u32 %r3, %tid, 200; mov.b64 %rd1, 0; mov.u32 %r5, 0;
      { .param .b32 which; .param .b32 one; .param .align 8 .b8 two[16]; .param .b32 out;
        st.param.b32 [which], %r1; st.param.b32 [one], %r2; st.param.b64 [two], %rd1; st.param.b32 [two+8], %r5;
        st.param.b32 [two+12], %r3; call (out), pick, (which, one, two); ld.param.b32 %r4, [out]; }
      add.u64 %rd2, %a0, %at4; st.global.u32 [%rd2], %r4; ret;""",
        out, block=64, before=CHOICE, mode=mode)  # fmt: skip
    np.testing.assert_array_equal(out, np.arange(64) + np.where(np.arange(64) % 2, 200, 100))


def test_an_address_in_a_parameter_of_the_entry():
    out = u32(1)
    run("mov.b64 %rd1, a0; ld.param.u64 %rd2, [%rd1]; st.global.u32 [%rd2], 9; ret;", out)
    assert out[0] == 9


def test_a_barrier_inside_a_called_function():
    out = u32(96)
    run(
        """
  add.u64 %rd1, %a0, %at4; mov.u32 %r3, 0;
  call (%r1), swap, (%tid);
  call (%r2), swap, (%r1);
  sub.u32 %r3, %r1, %r2;
  st.global.u32 [%rd1], %r1;
  ret;""",
        out, block=96,
        before="""
.shared .align 4 .b32 place[96];
.func (.reg .u32 out) swap(.reg .u32 x) {
  .reg .u32 %r<8>; .reg .u32 %t;
  mov.u32 %t, %tid.x; shl.b32 %r1, %t, 2; mov.u32 %r2, place; add.u32 %r3, %r2, %r1; st.shared.u32 [%r3], x;
  bar.sync 0;
  mov.u32 %r4, 95; sub.u32 %r4, %r4, %t; shl.b32 %r4, %r4, 2; add.u32 %r4, %r2, %r4; ld.shared.u32 out, [%r4];
  bar.sync 0;
  ret;
}""",
        mode="check",
    )  # fmt: skip
    np.testing.assert_array_equal(out, np.arange(96)[::-1])


def test_recursion_and_calls_into_nowhere_are_refused_by_line():
    with pytest.raises(IsaError, match=r"test.ptx:\d+: recursion through f is not supported .*call f;"):
        run("call f; ret;", u32(1), before=".func f { call f; ret; }")
    with pytest.raises(IsaError, match=r"test.ptx:\d+: a call of %rd1, as no function that fits .* is not supported"):
        run("proto: .callprototype ()_(); call %rd1, proto; ret;", u32(1))


def test_more_blocks_than_one_word_of_the_bitmap():
    steps = 150
    body = ["add.u64 %rd1, %a0, %at4; mov.u32 %r1, 0;"]
    for n in range(steps):
        body.append(f"""
  shr.u32 %r2, %tid, {n % 7}; and.b32 %r2, %r2, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra skip{n};
  mad.lo.u32 %r1, %r1, 3, {n};
skip{n}:""")
    body.append("st.global.u32 [%rd1], %r1; ret;")
    out, both = u32(128), u32(128)
    run("\n".join(body), out, block=128)
    run("\n".join(body), both, block=128, mode="random", seed=3)
    want = []
    for tid in range(128):
        value = 0
        for n in range(steps):
            if tid >> n % 7 & 1:
                value = (value * 3 + n) % 2**32
        want.append(value)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(both, want)


def test_exit_of_some_lanes_and_of_whole_warps():
    out = u32(128)
    run(
        """
  add.u64 %rd1, %a0, %at4; setp.lt.u32 %p1, %lane, 5; @%p1 exit;
  setp.eq.u32 %p2, %warp, 2; @%p2 bra gone;
  bar.sync 0;
  activemask.b32 %r1;
  st.global.u32 [%rd1], %r1;
gone:
  exit;""",
        out, block=128,
    )  # fmt: skip
    want = np.where((np.arange(128) % 32 < 5) | (np.arange(128) // 32 == 2), 0, 0xFFFFFFE0)
    np.testing.assert_array_equal(out, want)


def test_a_partial_last_warp_runs_only_its_threads():
    out = u32(64, 9)
    run("add.u64 %rd1, %a0, %at4; activemask.b32 %r1; st.global.u32 [%rd1], %r1; bar.sync 0; ret;", out, block=45)
    np.testing.assert_array_equal(out, [0xFFFFFFFF] * 32 + [0x1FFF] * 13 + [9] * 19)


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
    monkeypatch.setattr("ptxgen.runtime.cpu.launch._SHUFFLED", 8)
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


def test_trap_names_kernel_line_and_lanes():
    with pytest.raises(ExecutionError) as caught:
        run("setp.eq.u32 %p1, %lane, 3; @%p1 trap; ret;", u32(1), grid=2, block=64)
    text = str(caught.value)
    assert "trap in kernel k" in text
    assert "@%p1 trap;" in text
    assert "CTA (0, 0, 0), warp 0, lane 3" in text


def test_an_unsupported_instruction_is_named_with_file_line_and_text():
    with pytest.raises(
        IsaError, match=r"test.ptx:\d+: instruction tcgen05.*is not supported by the CPU executor: tcgen"
    ):
        run("tcgen05.wait::ld.sync.aligned; ret;", u32(1))


def _flow(body):
    module = parse(text_of(body, 1), "t.ptx")
    return Flow(module, module.entries["k"])


def test_the_order_keeps_loops_together_and_exits_behind_them():
    flow = _flow("""
  bra test;
far:
  add.u32 %r2, %r2, 1;
  ret;
head:
  add.u32 %r1, %r1, 1;
  setp.eq.u32 %p2, %r1, 5; @%p2 bra far;
test:
  setp.lt.u32 %p1, %r1, 9; @%p1 bra head;
  bra far;""")
    number = {block.key[1]: block.number for block in flow.blocks if block.key[1]}
    assert number["far"] > number["head"]
    assert number["far"] > number["test"]


def test_constants_and_copies_leave_no_register_behind():
    flow = _flow("""
  mov.u32 %r1, 5; mov.u32 %r2, %tid; mov.b32 %r3, %r2; bra next;
next:
  add.u32 %r4, %r3, %r1; st.global.u32 [%a0], %r4; ret;""")
    moves = [op.text for block in flow.blocks for op in block.ops if op.words[0] == "mov"]
    assert not [m for m in moves if m.startswith(("mov.u32 %r1", "mov.b32 %r3"))]


def test_the_same_seed_gives_the_same_random_order():
    body = """
  setp.ne.u32 %p1, %lane, 0; @%p1 ret;
  atom.global.add.u32 %r1, [%a0], 1; mul.wide.u32 %rd1, %r1, 4; add.u64 %rd1, %a1, %rd1;
  shr.u32 %r2, %tid, 5; st.global.u32 [%rd1], %r2; ret;"""
    orders = []
    for seed in (1, 1, 2):
        counter, order = u32(1), u32(64)
        run(body, counter, order, grid=8, block=256, mode="random", seed=seed)
        assert sorted(order) == list(range(64))
        orders.append(order.tolist())
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_the_program_stays_usable_after_a_finding():
    program = Program(
        parse(text_of("@%p1 trap; st.global.u32 [%a0], 3; ret;".replace("@%p1", "setp.eq.u32 %p1, %n, 2; @%p1"), 1))
    )
    from ptxgen.runtime.cpu.memory import Memory

    memory, out = Memory(), u32(1)
    pointer = memory.register(out)
    for _ in range(3):
        with pytest.raises(ExecutionError, match="trap"):
            program.launch("k", 1, 2, [pointer], memory=memory)
        out[0] = 0
        program.launch("k", 1, 1, [pointer], memory=memory)
        assert out[0] == 3
