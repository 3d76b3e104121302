"""Check mode across CTAs: who may rely on whose writes, through atomics, fences, clusters and programmatic launches."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.errors import ExecutionError
from ptxgen.runtime.cpu.device import CpuDevice
from tests.support.cpu_run import text_of, u32
from tests.support.devices import ExecutorDevice

SHARED = ".shared .align 8 .b8 tile[256];\n.shared .align 8 .b64 bar[2];\n.shared .align 4 .b32 last;\n"


def run(body, *arrays, grid=2, block=32, cluster=(1, 1, 1), mode="check", threads=1):
    """Launch a body on buffers that check mode follows; their contents afterwards."""
    device = ExecutorDevice(mode, threads=threads)
    given = [device.array(a) for a in arrays]
    device.module(text_of(body, len(arrays), SHARED))["k"].launch((grid,), (block,), given, cluster=cluster)
    return [a.numpy() for a in given]


def finding(match, body, *arrays, **given):
    with pytest.raises(ExecutionError, match=f"(?s){match}"):
        run(body, *arrays, **given)


# records and a ticket -------------------------------------------------------------------------------------------------
TICKET = """
  add.u64 %rd1, %a0, %at4; add.u32 %r1, %tid, 1; st.global.u32 [%rd1], %r1; BEFORE
  setp.ne.u32 %p1, %lane, 0; setp.ne.or.u32 %p1, %warp, 0, %p1; mov.u32 %r2, 0;
  @%p1 bra drawn; ATOM [%a1], 3; INSIDE st.shared.u32 [last], %r2;
  drawn: bar.sync 0; ld.shared.u32 %r3, [last]; setp.ne.u32 %p2, %r3, 3; @%p2 ret; AFTER
  mov.u32 %r4, %tid.x; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd1, %a0, %rd2; mov.u32 %r5, 0; mov.u32 %r6, 0;
  sum: ld.global.u32 %r7, [%rd1]; add.u32 %r5, %r5, %r7; mad.wide.u32 %rd1, %n, 4, %rd1; add.u32 %r6, %r6, 1;
  setp.lt.u32 %p3, %r6, 4; @%p3 bra sum; add.u64 %rd3, %a2, %rd2; st.global.u32 [%rd3], %r5; ret;"""


def ticket(atom="atom.acq_rel.gpu.global.inc.u32 %r2,", before="bar.sync 0;", inside="", after=""):
    body = TICKET.replace("ATOM", atom).replace("BEFORE", before).replace("INSIDE", inside)
    return body.replace("AFTER", after), u32(256), u32(1), u32(64)


RELAXED = "atom.relaxed.gpu.global.inc.u32 %r2,"
FENCE = "fence.acq_rel.gpu;"


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("given", [
    {}, {"atom": f"{FENCE} {RELAXED}", "inside": FENCE}, {"atom": f"membar.gl; {RELAXED}", "after": "membar.gl;"},
    {"before": f"{FENCE} bar.sync 0;", "atom": RELAXED, "after": FENCE},
    {"atom": "atom.release.gpu.global.inc.u32 %r2,", "inside": FENCE},
    {"atom": f"{FENCE} atom.acquire.gpu.global.inc.u32 %r2,"},
])  # fmt: skip
def test_the_last_cta_may_read_what_the_others_released(given, threads):
    body, *arrays = ticket(**given)
    _, tickets, out = run(body, *arrays, grid=4, block=64, threads=threads)
    np.testing.assert_array_equal(out, 4 * (np.arange(64) + 1) + 64 * 6)
    assert tickets[0] == 0


@pytest.mark.parametrize("given", [
    {"atom": RELAXED}, {"atom": f"{FENCE} {RELAXED}"}, {"atom": RELAXED, "inside": FENCE},
    {"atom": "atom.acquire.gpu.global.inc.u32 %r2,"}, {"atom": "atom.release.gpu.global.inc.u32 %r2,"},
    {"atom": "atom.acq_rel.cta.global.inc.u32 %r2,"}, {"atom": f"fence.acq_rel.cta; {RELAXED}", "inside": FENCE},
    {"before": f"{FENCE} bar.sync 0;", "atom": RELAXED},
])  # fmt: skip
def test_what_nobody_released_or_acquired_is_a_race(given):
    body, *arrays = ticket(**given)
    finding(r"race in kernel k\s.*ld.global.u32 %r7.*CTA \(3, 0, 0\), warp \d, lanes? .*byte 0 of .*"
            r"CTA \(0, 0, 0\), warp 0, of this launch has written", body, *arrays, grid=4, block=64)  # fmt: skip


def test_a_release_covers_other_warps_only_behind_a_barrier():
    finding(r"race.*ld.global.*CTA \(0, 0, 0\), warp 1", *ticket(before=""), grid=4, block=64)
    body, *arrays = ticket(before="")
    run(body, *arrays, grid=4, block=32)


def test_the_last_cta_may_read_the_tickets_plainly_and_an_earlier_one_may_not():
    body, *arrays = ticket()
    plain = "@!%p1 ld.global.u32 %r9, [%a1];"
    run(body.replace("mov.u32 %r4, %tid.x;", f"{plain} mov.u32 %r4, %tid.x;"), *arrays, grid=4, block=64)
    body, *arrays = ticket(before="ld.global.u32 %r9, [%a1];")
    finding(r"race.*CTA \(1, 0, 0\), warp 0, lane 0.*CTA \(0, 0, 0\), warp 0", body, *arrays, grid=4)


def test_what_a_warp_writes_behind_its_release_is_not_released():
    body, *arrays = ticket(inside="st.global.u32 [%a0+1020], %r2;")
    finding(r"race in kernel k", body.replace("add.u32 %r5, %r5, %r7;", "ld.global.u32 %r9, [%a0+1020];"), *arrays,
            grid=3, block=64)  # fmt: skip


# flags ----------------------------------------------------------------------------------------------------------------
PASS = """mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 1; @%p1 bra taker;
  st.global.u32 [%a0], 42; FENCED STORE [%a0+64], 1; ret;
  taker: LOAD %r2, [%a0+64]; setp.eq.u32 %p2, %r2, 0; @%p2 bra taker; TAKEN
  ld.global.u32 %r3, [%a0]; st.global.u32 [%a1], %r3; ret;"""


def passing(store, load, fenced="", taken=""):
    body = PASS.replace("STORE", store).replace("LOAD", load).replace("FENCED", fenced).replace("TAKEN", taken)
    return body, u32(32), u32(1)


@pytest.mark.parametrize("given", [
    ("st.release.gpu.global.u32", "ld.acquire.gpu.global.u32"),
    ("st.volatile.global.u32", "ld.volatile.global.u32", "membar.gl;", "membar.gl;"),
    ("st.relaxed.sys.global.u32", "ld.relaxed.gpu.global.u32", "fence.sc.gpu;", FENCE),
    ("red.release.gpu.global.add.u32", "ld.acquire.gpu.global.u32"),
])  # fmt: skip
def test_a_flag_passes_a_value_on(given):
    body, *arrays = passing(*given)
    assert run(body, *arrays, block=1)[1] == 42


@pytest.mark.parametrize("given", [
    ("st.volatile.global.u32", "ld.volatile.global.u32"),
    ("st.volatile.global.u32", "ld.volatile.global.u32", "membar.gl;"),
    ("st.relaxed.gpu.global.u32", "ld.acquire.gpu.global.u32"),
    ("st.release.cta.global.u32", "ld.acquire.gpu.global.u32"),
])  # fmt: skip
def test_a_flag_alone_passes_nothing_on(given):
    finding(r"race.*ld.global.u32 %r3.*CTA \(0, 0, 0\), warp 0", *passing(*given), block=1)


def test_looking_first_and_acquiring_then_is_enough():
    taken = "ld.acquire.gpu.global.u32 %r5, [%a0+64];"
    body, *arrays = passing("st.release.gpu.global.u32", "ld.relaxed.gpu.global.u32", taken=taken)
    assert run(body, *arrays, block=1)[1] == 42


def test_a_plain_flag_is_a_race_itself():
    finding(r"race.*ld.global.u32 %r2", *passing("st.global.u32", "ld.global.u32"), block=1)


# accesses that meet ---------------------------------------------------------------------------------------------------
def test_two_ctas_that_write_the_same_bytes():
    finding(r"race.*st.global.*CTA \(1, 0, 0\).*CTA \(0, 0, 0\)", "st.global.u32 [%a0], %tid; ret;", u32(1), block=1)
    run("red.global.add.u32 [%a0], 1; ret;", u32(1))
    run("st.relaxed.gpu.global.u32 [%a0], 1; ret;", u32(1), block=1)


def test_strong_reads_may_meet_atomics_and_weak_ones_may_not():
    run("""atom.global.add.u32 %r1, [%a0], 1; ld.relaxed.gpu.global.u32 %r2, [%a0]; add.u64 %rd1, %a1, %at4;
      st.global.u32 [%rd1], %r2; ret;""", u32(1), u32(64))  # fmt: skip
    other = "mov.u32 %r3, %ctaid.x; setp.eq.u32 %p1, %r3, 0; @!%p1 ld.global.u32 %r2, [%a0]; "
    finding("race.*ld.global.u32", other + "red.global.add.u32 [%a0], 1; @!%p1 ld.global.u32 %r2, [%a0]; "
            "@!%p1 st.global.u32 [%a1], %r2; ret;", u32(1), u32(1), block=1)  # fmt: skip


def test_a_loop_of_compare_and_swap_begins_with_a_strong_load():
    loop = """LOAD %r1, [%a0];
      again: mov.u32 %r2, %r1; add.u32 %r3, %r2, 1; atom.relaxed.gpu.global.cas.b32 %r1, [%a0], %r2, %r3;
      setp.ne.u32 %p1, %r1, %r2; @%p1 bra again; ret;"""
    finding(r"race.*ld.global.u32 %r1.*CTA \(0, 0, 0\).*that was an atomic.*ld.volatile or ld.relaxed",
            loop.replace("LOAD", "ld.global.u32"), u32(1), block=1)  # fmt: skip
    for load in ("ld.volatile.global.u32", "ld.relaxed.gpu.global.u32"):
        assert run(loop.replace("LOAD", load), u32(1), grid=5, block=64)[0][0] == 5 * 64


@pytest.mark.parametrize("kind", ["u8", "u16", "u32", "u64"])
def test_neighbouring_bytes_are_apart(kind):
    size = int(kind[1:]) // 8
    body = f"""mul.wide.u32 %rd1, %tid, {size}; add.u64 %rd1, %a0, %rd1; cvt.u64.u32 %rd2, %tid; cvt.u32.u64 %r1, %rd2;
      mov.u32 %r2, {1 << 8 * min(size, 4) - 1}; cvt.u16.u32 %h1, %r1;
      st.global.{kind} [%rd1], {dict(u8="%h1", u16="%h1", u32="%r1", u64="%rd2")[kind]};
      ld.global.{kind} {dict(u8="%h2", u16="%h2", u32="%r3", u64="%rd3")[kind]}, [%rd1]; ret;"""
    (out,) = run(body, np.zeros(6 * size, np.uint8), grid=6, block=1)
    np.testing.assert_array_equal(out.view(f"u{size}"), np.arange(6))


def test_warps_of_a_cta_meet_in_global_memory_too():
    body = """add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %tid; SYNC xor.b32 %r1, %tid, 32;
      setp.eq.u32 %p1, %warp, 1; mad.wide.u32 %rd2, %r1, 4, %a0; @%p1 ld.global.u32 %r2, [%rd2]; ret;"""
    finding(r"race.*ld.global.*warp 1, lanes? .*warp 0 has written.*before this one; a barrier between them would",
            body.replace("SYNC", ""), u32(64), grid=1, block=64)  # fmt: skip
    run(body.replace("SYNC", "bar.sync 0;"), u32(64), grid=1, block=64)
    lock = "fence.acq_rel.cta; atom.acq_rel.cta.global.add.u32 %r3, [%a1], 1; bar.sync 1, 64;"
    run(body.replace("SYNC", lock), u32(64), u32(1), grid=1, block=64)


def test_read_only_loads_of_what_the_launch_writes():
    body = "add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %tid; bar.sync 0; ld.global.LOAD %r1, [%rd1+4]; ret;"
    finding(r"read-only load.*ld.global.nc.*lane 0.*use ld.global", body.replace("LOAD", "nc.u32"), u32(65), block=64)
    run(body.replace("LOAD", "u32").replace("+4", ""), u32(64), grid=1, block=64)
    run("ld.global.nc.u32 %r1, [%a0]; st.global.u32 [%a1], %r1; ret;", u32(1), u32(1), grid=1, block=1)


def test_what_an_earlier_launch_has_written_is_there_for_all():
    device = ExecutorDevice("check", threads=1)
    array = device.array(u32(64))
    turn = """add.u64 %rd1, %a0, %at4; xor.b32 %r1, %tid, 63; mad.wide.u32 %rd2, %r1, 4, %a0; setp.lt.u32 %p1, %tid, 32;
      @%p1 ld.global.u32 %r2, [%rd2]; @%p1 add.u32 %r2, %r2, 1; @%p1 st.global.u32 [%rd1], %r2; ret;"""
    back = turn.replace("setp.lt", "setp.ge")
    first, second = (device.module(text_of(body, 1))["k"] for body in (turn, back))
    for _ in range(150):  # launches' numbers come round
        first.launch((2,), (32,), [array])
        second.launch((2,), (32,), [array])
    np.testing.assert_array_equal(array.numpy(), np.repeat(np.uint32([299, 300]), 32))


def test_a_launch_of_more_ctas_than_are_compared_runs_on_once_they_synchronise():
    def many(**given):
        body, _, *arrays = ticket(**given)
        body = body.replace("[%a1], 3", "[%a1], 4999").replace("%r3, 3;", "%r3, 4999;")
        return body, u32(5000 * 32), *arrays

    run(*many(), grid=5000)
    finding("race.*ld.global", *many(atom=RELAXED), grid=5000)


# reductions that happen late -----------------------------------------------------------------------------------------
SUM = """setp.ne.u32 %p1, %lane, 0; @%p1 ret; add.u32 %r1, %tid, 1; red.relaxed.gpu.global.add.u32 [%a0], %r1;
  BETWEEN ATOM.gpu.global.inc.u32 %r2, [%a1], 99; setp.ne.u32 %p2, %r2, 3; @%p2 ret;
  atom.relaxed.gpu.global.exch.b32 %r3, [%a0], 0; st.global.u32 [%a2], %r3; ret;"""


def total(atom="atom.relaxed", between="", mode="check"):
    return int(run(SUM.replace("ATOM", atom).replace("BETWEEN", between), *3 * [u32(1)], grid=4, mode=mode)[2][0])


def test_a_relaxed_reduction_happens_late_unless_it_is_released():
    right = sum(32 * n + 1 for n in range(4))
    assert total("atom.acq_rel") == total("atom.release") == total(between="membar.gl;") == right
    assert total(between="ld.relaxed.gpu.global.u32 %r9, [%a0];") == right, "the CTA itself sees what it did"
    assert total() == 97, "only what the last CTA did itself"
    assert total(mode="fast") == right


@pytest.mark.parametrize("kind", ["u32", "s32", "f32", "f64", "u64", "b64", "f16x2", "bf16"])
def test_late_reductions_are_those_of_fast_mode(kind):
    operation = {"b64": "xor"}.get(kind, "add.noftz" if "16" in kind else "add")
    value = {"f32": "%f1", "f64": "%fd1", "u64": "%rd2", "b64": "%rd2", "bf16": "%h1", "f16x2": "%r3"}.get(kind, "%r1")
    body = f"""cvt.rn.f32.u32 %f1, %tid; cvt.rn.f64.u32 %fd1, %tid; cvt.u64.u32 %rd2, %tid; mov.u32 %r1, %tid;
      mul.wide.u32 %rd2, %tid, %tid; mov.b16 %h1, 0x3f80; mov.b32 %r3, 0x3c003c00;
      and.b32 %r2, %tid, 3; mad.wide.u32 %rd1, %r2, 8, %a0;
      red.relaxed.gpu.global.{operation}.{kind} [%rd1], {value}; ret;"""
    fast, late = (run(body, u32(8), grid=5, block=64, mode=mode)[0] for mode in ("fast", "check"))
    assert fast.any()
    np.testing.assert_array_equal(late, fast)


# clusters -------------------------------------------------------------------------------------------------------------
START = """mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1; mov.u32 %r3, tile; mov.u32 %r4, bar;
  mapa.shared::cluster.u32 %r5, %r3, %r2; mapa.shared::cluster.u32 %r6, %r4, %r2;
  setp.eq.u32 %p1, %lane, 0; mad.lo.u32 %r7, %lane, 4, %r3; mad.lo.u32 %r8, %lane, 4, %r5;
"""
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
PAIR = {"grid": 2, "cluster": (2, 1, 1)}
READ = (
    START
    + """st.shared.u32 [%r7], %tid; barrier.cluster.arrive.aligned; SYNC setp.eq.u32 %p3, %r1, 1;
  @%p3 ld.shared::cluster.u32 %r9, [%r8]; barrier.cluster.wait.aligned;"""
    + MEET
    + "ret;"
)


def test_another_ctas_shared_memory_is_read_behind_a_cluster_barrier():
    finding(r"race.*ld.shared::cluster.*CTA \(1, 0, 0\), warp 0, lane 0.*offset 0 of CTA 0 of the cluster.*"
            r"CTA \(0, 0, 0\), warp 0, of this launch.*cluster barrier", READ.replace("SYNC", ""), **PAIR)  # fmt: skip
    run(READ.replace("barrier.cluster.wait.aligned;", "", 1).replace("SYNC", "barrier.cluster.wait.aligned;"), **PAIR)


@pytest.mark.parametrize("arrive", ["barrier.cluster.arrive.relaxed.aligned;", "barrier.cluster.arrive.aligned;"])
def test_a_relaxed_arrival_releases_what_a_fence_came_before(arrive):
    init = (
        START
        + "@%p1 mbarrier.init.shared::cta.b64 [bar], 1; FENCE"
        + arrive
        + """barrier.cluster.wait.aligned;
      @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];"""
        + MEET
        + "ret;"
    )
    run(init.replace("FENCE", "@%p1 fence.mbarrier_init.release.cluster;"), **PAIR)
    if "relaxed" in arrive:
        finding(r"race.*mbarrier.arrive", init.replace("FENCE", ""), **PAIR)
    else:
        run(init.replace("FENCE", ""), **PAIR)


def test_an_mbarrier_passes_on_what_its_arrivals_come_after():
    body = (
        START
        + "@%p1 mbarrier.init.shared::cta.b64 [bar], 32;"
        + MEET
        + """st.shared.u32 [%r7], %tid;
      mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
      WAIT ld.shared::cluster.u32 %r9, [%r8];"""
        + MEET
        + "ret;"
    )
    wait = "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [bar], 0; @!%p2 bra again;"
    run(body.replace("WAIT", wait), **PAIR)
    finding(r"race|uninit", body.replace("WAIT", ""), **PAIR)


@pytest.mark.parametrize("way", [
    MEET, "@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6]; again: "
    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [bar], 0; @!%p2 bra again; " + MEET,
])  # fmt: skip
def test_barriers_of_one_cluster_pass_nothing_on_to_the_next(way):
    body = (
        START
        + """@%p1 mbarrier.init.shared::cta.b64 [bar], 1; @%p1 fence.mbarrier_init.release.cluster;
      barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned; mov.u32 %r9, %ctaid.x;
      setp.eq.u32 %p3, %r9, 0; setp.eq.and.u32 %p3, %lane, 0, %p3; @%p3 st.global.u32 [%a0], 1; WAY
      setp.eq.u32 %p4, %r9, READER; @%p4 ld.global.u32 %r10, [%a0]; ret;""".replace("WAY", way)
    )
    run(body.replace("READER", "1"), u32(1), grid=4, cluster=(2, 1, 1))
    finding(r"race.*ld.global.*CTA \(3, 0, 0\).*CTA \(0, 0, 0\)", body.replace("READER", "3"), u32(1), grid=4,
            cluster=(2, 1, 1))  # fmt: skip


def test_a_cta_may_not_exit_while_another_uses_its_shared_memory():
    late = (
        START
        + "st.shared.u32 [%r7], %tid;"
        + MEET
        + """setp.eq.u32 %p3, %r1, 1; @!%p3 bra out;
      nanosleep.u32 200; ld.shared::cluster.u32 %r9, [%r8]; out: LAST ret;"""
    )
    finding(r"exit while another CTA.*ld.shared::cluster.*CTA \(0, 0, 0\), warp 0.*CTA \(1, 0, 0\), warp 0, executed",
            late.replace("LAST", ""), **PAIR)  # fmt: skip
    run(late.replace("LAST", MEET), **PAIR)


# programmatic launches ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["stream", "capture"])
def test_a_programmatic_launch_must_wait_before_it_uses_what_the_one_before_wrote(way):
    device = CpuDevice("check", threads=1)
    x, y = device.array(u32(32)), device.array(u32(32))
    add = """add.u64 %rd1, %a0, %at4; add.u64 %rd2, %a1, %at4; WAIT ld.global.u32 %r1, [%rd1];
      st.global.u32 [%rd2], %r1; ret;"""
    texts = {name: text_of(add.replace("WAIT", wait), 2) for name, wait in
             (("waits", "griddepcontrol.wait;"), ("does not", "griddepcontrol.launch_dependents;"))}  # fmt: skip

    def launch(name, source, target, stream=None, programmatic=True):
        function = device.module(texts[name])["k"]
        function.launch(1, 32, [source, target], programmatic=programmatic, stream=stream)

    def pair(name, between=lambda stream: None, **second):
        if way == "stream":
            launch("waits", x, y)
            between(None)
            launch(name, y, x, **second)
            return
        with device.graph() as graph:
            launch("waits", x, y, graph.stream)
            between(graph.stream)
            launch(name, y, x, graph.stream, **second)
        graph.launch()

    pair("waits")
    with pytest.raises(ExecutionError, match=r"(?s)kernel before may still write.*ld.global.*griddepcontrol.wait"):
        pair("does not")
    pair("does not", programmatic=False)
    pair("does not", between=lambda stream: y.fill(3, stream=stream))
