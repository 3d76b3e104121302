"""Facts about clusters of CTAs, and about the lanes of a warp, on the executor, in small PTX texts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.cpu_run import INIT, MODES, WAIT, finding, launch, u32

# clusters -------------------------------------------------------------------------------------------------------------
PAIR = (
    INIT
    + """mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1; mov.u32 %r3, tile; mov.u32 %r4, bar;
  mapa.shared::cluster.u32 %r5, %r3, %r2; mapa.shared::cluster.u32 %r6, %r4, %r2;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], BYTES;
"""
)
MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_st_async(count, mode):
    out = u32(2 * 32 * count)
    vector = {1: "", 2: ".v2", 4: ".v4"}[count]
    regs = [f"%r{20 + n}" for n in range(count)]
    listed = regs[0] if count == 1 else "{" + ", ".join(regs) + "}"
    fill = "".join(f"mad.lo.u32 {reg}, %tid, {count}, {n};" for n, reg in enumerate(regs))
    body = PAIR.replace("COUNT", "1").replace("BYTES", str(128 * count)) + MEET + fill + f"""
      mad.lo.u32 %r5, %lane, {4 * count}, %r5; mad.lo.u32 %r7, %lane, {4 * count}, %r3;
      st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vector}.u32 [%r5], {listed}, [%r6];
      """ + WAIT.format(n=0, parity=0) + f"""ld.shared{vector}.u32 {listed}, [%r7];
      mul.wide.u32 %rd1, %tid, {4 * count}; add.u64 %rd1, %a0, %rd1; st.global{vector}.u32 [%rd1], {listed};
      """ + MEET + "ret;"  # fmt: skip
    launch(body, out, grid=2, cluster=(2, 1, 1), mode=mode)
    np.testing.assert_array_equal(out.reshape(2, -1), np.arange(64 * count).reshape(2, -1)[::-1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("operation", "kind", "want"), [
    ("add", "u32", 7 + sum(range(32))), ("min", "s32", 0), ("max", "u32", 31), ("or", "b32", 31), ("xor", "b32", 7),
    ("and", "b32", 0), ("inc", "u32", None), ("dec", "u32", None),
])  # fmt: skip
def test_red_async(operation, kind, want, mode):
    out = u32(2)
    body = PAIR.replace("COUNT", "1").replace("BYTES", "128") + "@%p1 st.shared.u32 [tile], 7;" + MEET + f"""
      red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{operation}.{kind} [%r5], %lane, [%r6];
      """ + WAIT.format(n=0, parity=0) + """ld.shared.u32 %r7, [tile]; mad.wide.u32 %rd1, %r1, 4, %a0;
      @%p1 st.global.u32 [%rd1], %r7;""" + MEET + "ret;"  # fmt: skip
    launch(body, out, grid=2, cluster=(2, 1, 1), mode=mode)
    value = 7
    for lane in range(32) if want is None else ():
        value = (0 if value >= lane else value + 1) if operation == "inc" else (
            lane if value == 0 or value > lane else value - 1)  # fmt: skip
    assert out[0] == out[1]
    if want is not None:
        assert out[0] == want
    elif mode != "random":  # the order of the lanes decides
        assert out[0] == value


@pytest.mark.parametrize("mode", MODES)
def test_ranks_and_addresses_in_the_cluster(mode):
    out = u32(8 * 3)
    launch("""mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, tile; xor.b32 %r3, %r1, 3;
      mapa.shared::cluster.u32 %r4, %r2, %r3; getctarank.shared::cluster.u32 %r5, %r4;
      getctarank.shared::cluster.u32 %r6, %r2;
      mov.u32 %r7, %ctaid.x; mad.wide.u32 %rd1, %r7, 12, %a0;
      st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+4], %r5; st.global.u32 [%rd1+8], %r6; ret;""",
           out, grid=8, block=1, cluster=(4, 1, 1), mode=mode)  # fmt: skip
    ranks = np.arange(8) % 4
    np.testing.assert_array_equal(out.reshape(8, 3), np.stack([ranks, ranks ^ 3, ranks], 1))


@pytest.mark.parametrize("mode", MODES)
def test_cluster_phases_and_threads_that_leave(mode):
    """Every phase a value moves on by one CTA; the upper warps leave after the first phase."""
    out = u32(4)
    step = """ld.shared::cluster.u32 %r7, [%r5]; """ + MEET + "@%p1 st.shared.u32 [tile], %r7;" + MEET
    launch("""mov.u32 %r1, %cluster_ctarank; add.u32 %r2, %r1, 1; and.b32 %r2, %r2, 3; mov.u32 %r3, tile;
      mapa.shared::cluster.u32 %r5, %r3, %r2; setp.eq.u32 %p1, %lane, 0; setp.eq.and.u32 %p1, %warp, 0, %p1;
      @%p1 st.shared.u32 [tile], %r1;""" + MEET + "setp.ge.u32 %p2, %warp, 1; @%p2 exit;" + 3 * step + """
      ld.shared.u32 %r8, [tile]; mad.wide.u32 %rd1, %r1, 4, %a0; @%p1 st.global.u32 [%rd1], %r8; ret;""",
           out, grid=4, block=96, cluster=(4, 1, 1), mode=mode)  # fmt: skip
    np.testing.assert_array_equal(out, (np.arange(4) + 3) % 4)


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_outside_the_cluster(mode):
    finding(r"(?s)mapa.*no CTA of that rank", "mov.u32 %r1, tile; mapa.shared::cluster.u32 %r2, %r1, 2; ret;",
            grid=2, cluster=(2, 1, 1), mode=mode)  # fmt: skip


def test_shared_memory_of_a_cta_that_has_exited():
    body = """mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, tile; setp.eq.u32 %p1, %r1, 0; @%p1 ret;
      mapa.shared::cluster.u32 %r3, %r2, 0; nanosleep.u32 100; st.shared::cluster.u32 [%r3], 1; ret;"""
    finding(r"(?s)out of bounds.*CTA 0 of the cluster", body, grid=2, block=1, cluster=(2, 1, 1))


@pytest.mark.parametrize("mode", MODES)
def test_a_cluster_barrier_that_one_cta_skips_is_a_deadlock(mode):
    body = (
        "mov.u32 %r1, %cluster_ctarank; setp.eq.u32 %p1, %r1, 1; @%p1 bra there;"
        + MEET
        + "ret; there: bar.sync 1, 64; ret;"
    )
    finding(r"(?s)deadlock.*wait at cluster barrier", body, grid=2, cluster=(2, 1, 1), mode=mode)


# lanes of a warp ------------------------------------------------------------------------------------------------------
NEIGHBOUR = """mov.u32 %r1, tile; mad.lo.u32 %r2, %lane, 4, %r1; xor.b32 %r3, %lane, 1; mad.lo.u32 %r3, %r3, 4, %r1;
  st.shared.u32 [%r2], %tid; SYNC ld.shared.u32 %r4, [%r3]; add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %r4; ret;"""


def test_lanes_are_ordered_by_bar_warp_sync_only():
    out = u32(32)
    launch(NEIGHBOUR.replace("SYNC", "bar.warp.sync -1;"), out, mode="check")
    np.testing.assert_array_equal(out, np.arange(32) ^ 1)
    for instead in ("", "vote.sync.any.pred %p2, 1, -1;", "shfl.sync.bfly.b32 %r9, %r2, 1, 31, -1;"):
        finding(
            r"(?s)race.*ld.shared.*lane \d+ of this warp wrote.*bar.warp.sync", NEIGHBOUR.replace("SYNC", instead), out
        )


def test_random_mode_lets_lanes_run_apart():
    out = u32(32)
    for seed in range(20):
        launch(NEIGHBOUR.replace("SYNC", ""), out, mode="random", seed=seed)
        if not np.array_equal(out, np.arange(32) ^ 1):
            return
    pytest.fail("no seed shows what a missing bar.warp.sync does")


def test_a_lane_may_use_its_own_bytes_and_share_what_is_read():
    out = u32(32)
    launch("""mov.u32 %r1, tile; mad.lo.u32 %r2, %lane, 4, %r1; st.shared.u32 [%r2], %tid; ld.shared.u32 %r3, [%r2];
      add.u32 %r3, %r3, 1; st.shared.u32 [%r2], %r3; min.u32 %r4, %lane, 20; bar.warp.sync -1;
      mad.lo.u32 %r4, %r4, 4, %r1;
      ld.shared.u32 %r5, [%r4]; ld.shared.u32 %r6, [%r4]; add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %r5; ret;""",
           out, mode="check")  # fmt: skip
    np.testing.assert_array_equal(out, np.minimum(np.arange(32), 20) + 1)
