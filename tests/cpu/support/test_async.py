"""Facts about mbarriers and asynchronous copies on the executor, in small PTX texts.

mma, wgmma, ldmatrix, stmatrix and movmatrix are held against recordings of a GPU in test_instructions.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.cpu_run import INIT, MODES, WAIT, finding, launch, u32


def numbers(count):
    return np.random.default_rng(5).integers(1, 1 << 30, count, dtype=np.uint32)


# mbarriers ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", MODES)
def test_phases_by_parity(mode):
    out = u32(64)
    body = (
        INIT.replace("COUNT", "64")
        + "bar.sync 0;\n mov.u32 %r1, tile; mad.lo.u32 %r2, %tid, 4, %r1; xor.b32 %r3, %tid, 33;"
        "mad.lo.u32 %r3, %r3, 4, %r1; add.u32 %r4, %tid, 1; mov.u32 %r6, 0;\n"
    )
    for phase in range(4):
        body += "st.shared.u32 [%r2], %r4; mbarrier.arrive.shared::cta.b64 _, [bar];\n" if phase % 2 == 0 else (
            "ld.shared.u32 %r5, [%r3]; add.u32 %r6, %r6, %r5; add.u32 %r4, %r4, 100;"
            "mbarrier.arrive.shared::cta.b64 _, [bar];\n")  # fmt: skip
        body += WAIT.format(n=phase, parity=phase % 2)
    launch(body + "add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %r6; ret;", out, block=64, mode=mode)
    np.testing.assert_array_equal(out, 2 * ((np.arange(64) ^ 33) + 1) + 100)


@pytest.mark.parametrize("mode", MODES)
def test_phases_by_state_and_what_a_state_counts(mode):
    out = u32(4)
    launch(INIT.replace("COUNT", "4") + """
      bar.warp.sync -1;
      @!%p1 bra done;
      mbarrier.arrive.noComplete.shared::cta.b64 %rd1, [bar], 2;
      mbarrier.pending_count.b64 %r1, %rd1;
      mbarrier.arrive.shared::cta.b64 %rd2, [bar];
      mbarrier.pending_count.b64 %r2, %rd2;
      mbarrier.test_wait.shared::cta.b64 %p2, [bar], %rd2; selp.u32 %r3, 1, 0, %p2;
      mbarrier.arrive.shared::cta.b64 %rd3, [bar];
      mbarrier.test_wait.shared::cta.b64 %p2, [bar], %rd3; selp.u32 %r4, 1, 0, %p2;
      st.global.v4.u32 [%a0], {%r1, %r2, %r3, %r4};
      done: ret;""", out, mode=mode)  # fmt: skip
    assert out.tolist() == [4, 2, 0, 1], "pending before each arrival; not over; over"


@pytest.mark.parametrize("mode", MODES)
def test_transactions_hold_a_phase(mode):
    out = u32(3)
    look = "mbarrier.test_wait.parity.shared::cta.b64 %p2, [bar], 0; selp.u32 %r{n}, 1, 0, %p2;"
    launch(INIT.replace("COUNT", "1") + f"""
      @!%p1 bra done; mov.u32 %r9, bar;
      mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 24;
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 8;
      {look.format(n=1)}
      mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r9], 16;
      {look.format(n=2)}
      mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r9], 16;
      {look.format(n=3)}
      st.global.u32 [%a0], %r1; st.global.u32 [%a0+4], %r2; st.global.u32 [%a0+8], %r3;
      done: ret;""", out, mode=mode)  # fmt: skip
    assert out.tolist() == [0, 0, 1]


@pytest.mark.parametrize("mode", MODES)
def test_dropped_arrivals_are_missed_from_the_next_phase_on(mode):
    out = u32(1)
    launch(INIT.replace("COUNT", "32") + """
      bar.sync 0; setp.lt.u32 %p2, %lane, 20;
      @%p2 mbarrier.arrive_drop.shared::cta.b64 _, [bar];
      @!%p2 mbarrier.arrive.shared::cta.b64 _, [bar];
      """ + WAIT.format(n=0, parity=0) + """bar.warp.sync -1;
      @!%p2 mbarrier.arrive.shared::cta.b64 _, [bar];
      """ + WAIT.format(n=1, parity=1) + "@%p1 st.global.u32 [%a0], 7; ret;", out, mode=mode)  # fmt: skip
    assert out[0] == 7


@pytest.mark.parametrize("mode", MODES)
def test_arrivals_from_another_cta(mode):
    out = u32(2)
    launch(INIT.replace("COUNT", "33") + """
      barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
      mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1; mov.u32 %r3, bar;
      mapa.shared::cluster.u32 %r4, %r3, %r2;
      mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];
      @%p1 mbarrier.arrive.shared::cta.b64 _, [bar];
      """ + WAIT.format(n=0, parity=0) + """
      mad.wide.u32 %rd1, %r1, 4, %a0; add.u32 %r1, %r1, 5;
      @%p1 st.global.u32 [%rd1], %r1;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; ret;""",
           out, grid=2, cluster=(2, 1, 1), mode=mode)  # fmt: skip
    assert out.tolist() == [5, 6]


def test_misused_mbarriers_are_reported():
    start = INIT.replace("COUNT", "2") + "bar.warp.sync -1;"
    finding(r"(?s)read of uninit|wrong use", "mbarrier.arrive.shared::cta.b64 _, [bar]; ret;")
    finding(r"(?s)wrong use.*mbarrier.arrive.*no more arrivals", start +
            "mbarrier.arrive.shared::cta.b64 _, [bar], 3; ret;",
            mode="fast")  # fmt: skip
    finding(r"(?s)wrong use.*count must be 1", INIT.replace("COUNT", "0") + "ret;")
    finding(r"(?s)noComplete arrival must not end", start +
            "@%p1 mbarrier.arrive.noComplete.shared::cta.b64 %rd1, [bar], 2; ret;")  # fmt: skip
    finding(r"(?s)misaligned", "mov.u32 %r1, bar; add.u32 %r1, %r1, 4; mbarrier.init.shared::cta.b64 [%r1], 1; ret;")
    finding(r"(?s)wrong use", start + "@%p1 mbarrier.inval.shared::cta.b64 [bar];"
            "@%p1 mbarrier.arrive.shared::cta.b64 _, "
            "[bar]; ret;")  # fmt: skip


def test_an_arrival_that_nothing_orders_after_the_initialisation():
    body = INIT.replace("COUNT", "64") + "SYNC mbarrier.arrive.shared::cta.b64 _, [bar]; ret;"
    finding(r"(?s)race.*mbarrier.arrive.*lane 0 of this warp wrote.*bar.warp.sync", body.replace("SYNC", ""), block=64)
    body = body.replace("SYNC", "bar.warp.sync -1; SYNC")
    finding(r"(?s)race.*mbarrier.arrive.*a barrier between", body.replace("SYNC", ""), block=64)
    launch(body.replace("SYNC", "bar.sync 0;"), block=64, mode="check")


@pytest.mark.parametrize("mode", MODES)
def test_a_wait_that_never_ends_is_a_deadlock(mode):
    finding(r"(?s)deadlock.*wait at mbarrier.*try_wait", INIT.replace("COUNT", "2") + "bar.warp.sync -1;"
            "@%p1 mbarrier.arrive.shared::cta.b64 _, [bar];" + WAIT.format(n=0, parity=0) + "ret;",
            mode=mode)  # fmt: skip


# cp.async -------------------------------------------------------------------------------------------------------------
COPY = "mov.u32 %r1, tile; mad.lo.u32 %r2, %tid, 16, %r1; mul.wide.u32 %rd1, %tid, 16; add.u64 %rd2, %a0, %rd1;"
BACK = """ld.shared.v4.u32 {%r11, %r12, %r13, %r14}, [%r2];
  add.u64 %rd3, %a1, %rd1; st.global.v4.u32 [%rd3], {%r11, %r12, %r13, %r14};"""


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_of_fewer_bytes_fills_with_zeros_and_an_ignored_one_too(mode):
    x, out = numbers(128), u32(128)
    launch(COPY + """and.b32 %r3, %tid, 15; setp.ge.u32 %p1, %tid, 16;
      @!%p1 cp.async.ca.shared.global [%r2], [%rd2], 16, %r3;
      setp.ge.u32 %p2, %tid, 24;
      @%p1 cp.async.ca.shared.global [%r2], [%rd2], 16, %p2;
      cp.async.wait_all;""" + BACK + "ret;", x, out, mode=mode)  # fmt: skip
    want = x.view(np.uint8).reshape(32, 16).copy()
    for row in range(16):
        want[row, row:] = 0
    want[24:] = 0
    np.testing.assert_array_equal(out.view(np.uint8).reshape(32, 16), want)


GROUPS = (
    COPY
    + """
  cp.async.ca.shared.global [%r2], [%rd2], 16; cp.async.commit_group;
  cp.async.ca.shared.global [%r2+512], [%rd2+512], 16; cp.async.commit_group;
  cp.async.wait_group {left};
"""
)


def test_wait_group_leaves_the_last_groups_in_flight():
    x, out = numbers(256), u32(128)
    launch(GROUPS.format(left=1) + BACK + "ret;", x, out, mode="check")
    np.testing.assert_array_equal(out, x[:128])
    late = GROUPS.format(left=1) + "add.u32 %r2, %r2, 512;" + BACK + "ret;"
    finding(r"(?s)still writing.*ld.shared.*cp.async.wait_group", late, x, out)
    finding(r"(?s)still writing", GROUPS.format(left=2) + BACK + "ret;", x, out)
    launch(late.replace("wait_group 1", "wait_group 0"), x, out, mode="check")
    np.testing.assert_array_equal(out, x[128:])


def test_an_empty_group_is_a_group():
    x, out = numbers(256), u32(128)
    copy = COPY + "cp.async.ca.shared.global [%r2], [%rd2], 16; cp.async.commit_group;"
    empty = "cp.async.commit_group;"
    launch(copy + empty + "cp.async.wait_group 1;" + BACK + "ret;", x, out, mode="check")
    np.testing.assert_array_equal(out, x[:128])
    finding("(?s)still writing", copy + empty + "cp.async.wait_group 2;" + BACK + "ret;", x, out)


def test_a_lane_waits_for_its_own_copies_only():
    x, out = numbers(128), u32(128)
    one = COPY + "cp.async.ca.shared.global [%r2], [%rd2], 16; setp.lt.u32 %p1, %lane, 16; @%p1 cp.async.wait_all;"
    finding(r"(?s)still writing.*ld.shared.*lane 16", one + BACK + "ret;", x, out)
    launch(one + "@!%p1 cp.async.wait_all;" + BACK + "ret;", x, out, mode="check")
    np.testing.assert_array_equal(out, x)


def test_bytes_in_flight_may_not_be_written_either():
    one = COPY + "cp.async.ca.shared.global [%r2], [%rd2], 16; cp.async.commit_group;"
    finding(r"(?s)still writing.*st.shared", one + "st.shared.u32 [%r2], %tid; ret;", numbers(128))
    finding(r"(?s)still writing.*cp.async", one + "cp.async.ca.shared.global [%r2], [%rd2], 16; ret;", numbers(128))


@pytest.mark.parametrize(
    ("block", "advice"),
    [
        (64, "(still writing|race).*ld.shared"),
        (32, "race.*ld.shared.*bar.warp.sync between them"),
    ],
)
def test_a_landed_copy_is_the_lanes_own_until_a_barrier(block, advice):
    x, out = numbers(256), u32(256)
    body = COPY + """cp.async.ca.shared.global [%r2], [%rd2], 16; bar.sync 0; cp.async.wait_all; SYNC
      xor.b32 %r2, %tid, OTHER; mad.lo.u32 %r2, %r2, 16, %r1;""" + BACK + "ret;"  # fmt: skip
    body = body.replace("OTHER", str(block // 2))
    finding(f"(?s){advice}", body.replace("SYNC", ""), x, out, block=block)
    launch(body.replace("SYNC", "bar.sync 0;"), x, out, block=block, mode="check")
    rows = np.arange(block) ^ block // 2
    np.testing.assert_array_equal(out[: 4 * block].reshape(block, 4), x[: 4 * block].reshape(block, 4)[rows])


@pytest.mark.parametrize("mode", MODES)
def test_copies_arrive_on_an_mbarrier(mode):
    x, out = numbers(128), u32(128)
    launch(INIT.replace("COUNT", "32") + "bar.warp.sync -1;" + COPY + """
      cp.async.ca.shared.global [%r2], [%rd2], 16; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bar];
      """ + WAIT.format(n=0, parity=0) + "xor.b32 %r3, %tid, 9; mad.lo.u32 %r2, %r3, 16, %r1;" + BACK + "ret;",
           x, out, mode=mode)  # fmt: skip
    np.testing.assert_array_equal(out.reshape(32, 4), x.reshape(32, 4)[np.arange(32) ^ 9])


def test_copies_are_checked_like_loads():
    finding("(?s)misaligned", COPY + "cp.async.ca.shared.global [%r2+4], [%rd2], 16; ret;", numbers(128), mode="fast")
    finding(
        "(?s)out of bounds", COPY + "cp.async.ca.shared.global [%r2], [%rd2+512], 16; ret;", numbers(128), mode="fast"
    )


# bulk copies ----------------------------------------------------------------------------------------------------------
LOAD = (
    INIT.replace("COUNT", "1")
    + """bar.warp.sync -1; mov.u32 %r1, tile;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 512;
  @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%a0], 512, [bar];
"""
)
EACH = "mul.wide.u32 %rd1, %tid, 16; mad.lo.u32 %r2, %tid, 16, %r1;"


@pytest.mark.parametrize("mode", MODES)
def test_a_bulk_copy_completes_its_mbarrier(mode):
    x, out = numbers(128), u32(128)
    launch(LOAD + WAIT.format(n=0, parity=0) + EACH + BACK + "ret;", x, out, mode=mode)
    np.testing.assert_array_equal(out, x)


def test_a_bulk_copy_without_its_wait_or_its_fence():
    x, out = numbers(128), u32(128)
    finding(r"(?s)still writing.*ld.shared.*its mbarrier", LOAD + EACH + BACK + "ret;", x, out)
    finding(r"(?s)exit before an asynchronous copy.*cp.async.bulk.*wait for its mbarrier", LOAD + "ret;", x)
    unfenced = LOAD.replace("@%p1 fence.mbarrier_init.release.cluster;", "")
    finding(r"(?s)asynchronous read of ordinary writes.*fence.proxy.async", unfenced + "ret;", x)


@pytest.mark.parametrize(("change", "message"), [
    (("[%a0], 512", "[%a0], 500"), "wrong use.*multiples of 16"), (("[%r1], [%a0]", "[%r1+8], [%a0]"), "misaligned"),
    (("[%r1], [%a0]", "[%r1], [%a0+4]"), "misaligned"), (("[%r1], [%a0]", "[%r1], [%a0+16]"), "out of bounds"),
    (("[%r1], [%a0]", "[%r1+768], [%a0]"), "out of bounds"), ((", 512, [bar]", ", 512, [bar+8]"), "wrong use|uninit"),
])  # fmt: skip
def test_bulk_operands_are_checked(change, message):
    finding(f"(?s){message}", LOAD.replace(*change) + "ret;", numbers(128), mode="fast")


STORE = """mov.u32 %r1, tile; mad.lo.u32 %r2, %tid, 4, %r1; setp.eq.u32 %p1, %tid, 0;
  st.shared.u32 [%r2], %tid; FENCE bar.sync 0;
  @%p1 cp.async.bulk.global.shared::cta.bulk_group [%a0], [%r1], 128;
  @%p1 cp.async.bulk.commit_group; WAITING
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_bulk_store(mode):
    out = u32(32, 99)
    launch(
        STORE.replace("FENCE", "fence.proxy.async;").replace("WAITING", "cp.async.bulk.wait_group 0; ret;"),
        out,
        mode=mode,
    )
    np.testing.assert_array_equal(out, np.arange(32))


LATE_FENCE = """mov.u32 %r1, tile; mad.lo.u32 %r2, %tid, 4, %r1; setp.lt.u32 %p1, %tid, 32; setp.eq.u32 %p2, %tid, 32;
  @!%p1 bra COPIES;
  st.shared.u32 [%r2], %tid; FIRST barrier.cta.arrive 1, 64; LAST
  ret;
  COPIES: barrier.cta.sync 1, 64;
  @%p2 cp.async.bulk.global.shared::cta.bulk_group [%a0], [%r1], 128;
  @%p2 cp.async.bulk.commit_group; @%p2 cp.async.bulk.wait_group 0; ret;
"""
FENCE = "fence.proxy.async;"


@pytest.mark.parametrize("more", [0, 31, 32, 100])
def test_a_fence_of_the_writer_counts_where_it_comes_before_the_copy(more):
    """However many others follow it; more than are kept are taken to come in time."""
    out = u32(32, 99)
    launch(LATE_FENCE.replace("FIRST", FENCE).replace("LAST", FENCE * more), out, block=64, mode="check")
    np.testing.assert_array_equal(out, np.arange(32))


def test_a_fence_of_the_writer_that_nothing_orders_before_the_copy():
    """The writer runs first here, its fence is over when the copy begins: on a GPU it need not be."""
    late = LATE_FENCE.replace("FIRST", "").replace("LAST", FENCE)
    finding("(?s)ordinary writes.*bulk.*fence.proxy.async", late, u32(32, 99), block=64)


def test_a_bulk_store_without_its_wait_or_its_fence():
    out = u32(32, 99)
    finding("(?s)ordinary writes.*bulk.*fence.proxy.async", STORE.replace("FENCE", "").replace("WAITING", "ret;"), out)
    late = STORE.replace("FENCE", "fence.proxy.async;")
    finding("(?s)exit before an asynchronous copy.*bulk.*lane 0.*wait_group", late.replace("WAITING", "ret;"), out)
    assert (out == 99).all(), "nobody waited: the bytes may never leave"
    over = late.replace("WAITING", "bar.warp.sync -1; st.shared.u32 [%r2], 5; cp.async.bulk.wait_group.read 0; ret;")
    finding("(?s)^race.*bulk.*warp 0 has written these bytes meanwhile.*until cp.async.bulk.wait_group", over, out)
    assert (out == 5).all(), "written over before it was read"


@pytest.mark.parametrize("mode", MODES)
def test_multicast_reaches_the_chosen_ctas(mode):
    x, out = numbers(32), u32(4 * 32, 1)
    launch(INIT.replace("COUNT", "1") + """mov.u32 %r1, tile; mov.u32 %r3, %cluster_ctarank; mov.b16 %h1, 13;
      setp.eq.u32 %p2, %r3, 1;
      @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 128;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
      setp.eq.and.u32 %p3, %r3, 2, %p1; mad.lo.u32 %r2, %lane, 4, %r1; add.u64 %rd1, %a1, %at4;
      @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%r1], [%a0], 128, [bar], %h1;
      @%p2 bra done;
      """ + WAIT.format(n=0, parity=0) + """ld.shared.u32 %r4, [%r2]; st.global.u32 [%rd1], %r4;
      done: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; ret;""",
           x, out, grid=4, cluster=(4, 1, 1), mode=mode)  # fmt: skip
    want = np.stack([x, np.ones(32, np.uint32), x, x])
    np.testing.assert_array_equal(out.reshape(4, 32), want)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("operation", "kind", "combine"), [
    ("add", "u32", np.add), ("min", "s32", lambda a, b: np.minimum(a.view("i4"), b.view("i4")).view("u4")),
    ("max", "u32", np.maximum), ("xor", "b32", np.bitwise_xor), ("and", "b32", np.bitwise_and),
    ("add", "f32", lambda a, b: (a.view("f4") + b.view("f4")).view("u4")),
])  # fmt: skip
def test_bulk_reductions_into_global_memory(operation, kind, combine, mode):
    x = np.random.default_rng(1).standard_normal(32).astype(np.float32).view(np.uint32)
    out = np.random.default_rng(2).standard_normal(32).astype(np.float32).view(np.uint32)
    want = combine(out.copy(), x)
    launch("""mov.u32 %r1, tile; mad.lo.u32 %r2, %tid, 4, %r1; setp.eq.u32 %p1, %tid, 0; add.u64 %rd1, %a0, %at4;
      ld.global.u32 %r3, [%rd1]; st.shared.u32 [%r2], %r3; fence.proxy.async; bar.sync 0;
      @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.OP [%a1], [%r1], 128;
      @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0; ret;""".replace("OP", f"{operation}.{kind}"),
           x, out, mode=mode)  # fmt: skip
    np.testing.assert_array_equal(out, want)


REDUCE = """mov.u32 %r1, tile; mad.lo.u32 %r2, %tid, 4, %r1; setp.eq.u32 %p1, %tid, 0;
  st.shared.u32 [%r2], %tid; fence.proxy.async; bar.sync 0;
  @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%a0], [%r1], 128;
  @%p1 cp.async.bulk.commit_group; WAITING"""


def test_a_bulk_reduction_without_its_wait():
    out = u32(32, 99)
    finding(r"(?s)exit before an asynchronous copy.*cp.reduce.async.bulk.*lane 0.*wait_group",
            REDUCE.replace("WAITING", "ret;"), out)  # fmt: skip
    assert (out == 99).all(), "nobody waited: the sums may never come"
    late = "bar.warp.sync -1; st.shared.u32 [%r2], 5; @%p1 cp.async.bulk.wait_group.read 0; ret;"
    finding("(?s)^race.*cp.reduce.async.bulk.*has written these bytes meanwhile", REDUCE.replace("WAITING", late), out)
    assert (out == 99 + 5).all(), "written over before it was read"
    seen = "bar.warp.sync -1; @%p1 ld.global.u32 %r4, [%a0+8]; @%p1 st.global.u32 [%a0], %r4; ret;"
    launch(REDUCE.replace("WAITING", "@%p1 cp.async.bulk.wait_group 0; " + seen), out, mode="check")
    assert out[0] == 99 + 5 + 2
