"""Facts about control flow on the executor: divergence, loops, tables of branches, exits, traps."""

import numpy as np
import pytest

from ptxgen.errors import ExecutionError, IsaError
from ptxgen.parser import parse
from ptxgen.runtime.cpu.flow.flow import Flow
from ptxgen.runtime.cpu.program import Program
from tests.support.cpu_run import MODES, run, text_of, u32

pytestmark = pytest.mark.filterwarnings("error")


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
    from ptxgen.runtime.cpu.run.global_memory import Memory

    memory, out = Memory(), u32(1)
    pointer = memory.register(out)
    for _ in range(3):
        with pytest.raises(ExecutionError, match="trap"):
            program.launch("k", 1, 2, [pointer], memory=memory)
        out[0] = 0
        program.launch("k", 1, 1, [pointer], memory=memory)
        assert out[0] == 3
