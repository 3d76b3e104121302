"""Facts about programs: barriers with counts, arguments, geometry, host threads, plain hosts."""

import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest

from ptxgen.errors import ExecutionError, IsaError, SpecError
from ptxgen.parser import parse
from ptxgen.runtime import open_device
from ptxgen.runtime.cpu.native.host import this_host
from ptxgen.runtime.cpu.program import Program
from ptxgen.runtime.cpu.run.global_memory import Memory
from tests.support.cpu_run import MODES, run, text_of, u32


# barriers -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", MODES)
def test_producers_arrive_and_consumers_wait_on_named_barriers(mode):
    """Warps 0 and 1 fill, warps 2 and 3 drain, over several rounds and one buffer."""
    out = u32(64 * 6)
    run("""
  .shared .align 4 .b8 room[256];
  mov.u32 %r9, %tid.x; and.b32 %r1, %r9, 63; shl.b32 %r1, %r1, 2; mov.u32 %r2, room; add.u32 %r2, %r2, %r1;
  mov.u32 %r3, 0; setp.ge.u32 %p1, %warp, 2; @%p1 bra drain;
fill:
  mad.lo.u32 %r4, %r3, 1000, %r9; st.shared.u32 [%r2], %r4;
  bar.arrive 1, 128; bar.sync 2, 128;
  add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 6; @%p2 bra fill; ret;
drain:
  bar.sync 1, 128; ld.shared.u32 %r4, [%r2]; bar.arrive 2, 128;
  mad.lo.u32 %r5, %r3, 256, %r1; cvt.u64.u32 %rd1, %r5; add.u64 %rd1, %rd1, %a0; st.global.u32 [%rd1], %r4;
  add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 6; @%p2 bra drain; ret;""", out, block=128, mode=mode)  # fmt: skip
    np.testing.assert_array_equal(out.reshape(6, 64), np.arange(6)[:, None] * 1000 + np.arange(64))


@pytest.mark.parametrize("mode", MODES)
def test_reductions_of_a_barrier(mode):
    out = u32(96 * 4)
    run("""
  mad.wide.u32 %rd1, %tid, 16, %a0; setp.lt.u32 %p1, %tid, 70; setp.lt.u32 %p2, %tid, 500;
  bar.red.popc.u32 %r1, 0, %p1;
  barrier.cta.red.popc.aligned.u32 %r2, 1, 96, !%p1;
  bar.red.and.pred %p3, 0, %p1; bar.red.or.pred %p4, 0, %p1;
  selp.u32 %r3, 1, 0, %p3; selp.u32 %r4, 2, 0, %p4; or.b32 %r3, %r3, %r4;
  bar.red.and.pred %p5, 2, %p2; selp.u32 %r4, 1, 0, %p5;
  st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4}; ret;""", out, block=96, mode=mode)  # fmt: skip
    np.testing.assert_array_equal(out.reshape(96, 4), np.broadcast_to([70, 26, 2, 1], (96, 4)))


def test_threads_that_have_exited_are_not_waited_for():
    out = u32(128)
    run("""
  setp.eq.u32 %p1, %warp, 1; @%p1 ret; setp.lt.u32 %p2, %lane, 3; @%p2 ret;
  bar.sync 0; bar.red.popc.u32 %r1, 0, %p2;
  add.u64 %rd1, %a0, %at4; bar.sync 0; add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1; ret;""",
        out, block=128)  # fmt: skip
    lane, warp = np.arange(128) % 32, np.arange(128) // 32
    np.testing.assert_array_equal(out, (warp != 1) & (lane >= 3))


def test_a_guarded_barrier_is_for_the_warps_whose_guard_holds():
    out = u32(96)
    run("""
  setp.lt.u32 %p1, %warp, 2; @%p1 bar.sync 1, 64;
  add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], 1; ret;""", out, block=96, mode="check")  # fmt: skip
    assert out.all()


# special registers --------------------------------------------------------------------------------------------------
def test_registers_of_the_environment_are_zero():
    out = u32(4, 9)
    run("""
  mov.b32 %r1, %envreg0; mov.b32 %r2, %envreg31; mov.u64 %rd1, %current_graph_exec;
  st.global.u32 [%a0], %r1; st.global.u32 [%a0+4], %r2; st.global.u64 [%a0+8], %rd1; ret;""", out, block=1)  # fmt: skip
    assert not out.any()


# what cooperative_groups makes of this_grid().sync(): thread 0 counts in the workspace that %envreg1 and 2 point to
GRID_SYNC = """
  mov.b32 %r1, %envreg2; mov.b32 %r2, %envreg1; mov.b64 %rd1, {%r1, %r2};
  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %nctaid.x; mul.wide.u32 %rd2, %r3, 4; add.u64 %rd2, %rd2, %a0;
  setp.ne.u32 %p1, %lane, 0; @%p1 bra meet;
  st.global.u32 [%rd2], %r3;
meet:
  barrier.sync 0; @%p1 bra met;
  sub.u32 %r5, %r4, 1; sub.u32 %r5, 0x80000000, %r5; setp.eq.u32 %p2, %r3, 0; selp.b32 %r5, %r5, 1, %p2;
  fence.acq_rel.gpu;
  atom.add.u32 %r6, [%rd1+4], %r5;
wait:
  ld.volatile.u32 %r7, [%rd1+4]; xor.b32 %r7, %r7, %r6; setp.ge.s32 %p3, %r7, 0; @%p3 bra wait;
  fence.acq_rel.gpu;
met:
  barrier.sync 0; @%p1 ret;
  mov.u32 %r8, 0; mov.u32 %r9, 0; mov.u64 %rd3, %a0;
sum:
  ld.global.u32 %r10, [%rd3]; add.u32 %r8, %r8, %r10; add.u64 %rd3, %rd3, 4; add.u32 %r9, %r9, 1;
  setp.lt.u32 %p4, %r9, %r4; @%p4 bra sum;
  mul.wide.u32 %rd2, %r3, 4; add.u64 %rd2, %rd2, %a1; st.global.u32 [%rd2], %r8; ret;"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_a_cooperative_grid_meets(mode, threads):
    device = open_device("cpu", mode=mode, threads=threads)
    kernel = device.module(text_of(GRID_SYNC, 2))["k"]
    for _ in range(2):
        ids, sums = device.zeros(80, "u32"), device.zeros(80, "u32")
        kernel.launch(80, 32, [ids, sums])
        assert (sums.numpy() == 80 * 79 // 2).all()


# arguments and geometry ---------------------------------------------------------------------------------------------
MANY = """.version 8.0
.target sm_80
.address_size 64
.visible .entry many(.param .u8 a, .param .align 16 .b8 s[20], .param .f32 f, .param .f64 d, .param .u64 out,
                     .param .s16 h)
.reqntid 4, 2, 1
{
  .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<3>; .reg .f64 %fd<3>; .reg .b16 %h<3>;
  ld.param.u64 %rd1, [out]; ld.param.u8 %r1, [a]; st.global.u32 [%rd1], %r1;
  ld.param.v2.u32 {%r2, %r3}, [s+8]; st.global.v2.u32 [%rd1+8], {%r2, %r3}; ld.param.b32 %r4, [s+16];
  st.global.u32 [%rd1+16], %r4; ld.param.f32 %f1, [f]; st.global.f32 [%rd1+20], %f1;
  ld.param.f64 %fd1, [d]; st.global.f64 [%rd1+24], %fd1; ld.param.s16 %r5, [h]; st.global.u32 [%rd1+32], %r5;
  mov.u64 %rd2, s; cvta.param.u64 %rd3, %rd2; ld.u32 %r6, [%rd3+4]; st.global.u32 [%rd1+36], %r6;
  ret;
}
"""


def many(args=None, grid=1, block=(4, 2), **options):
    memory, out = Memory(), u32(16)
    pointer = memory.register(out)
    struct = np.arange(10, 15, dtype=np.uint32)
    given = args or [200, struct, 1.5, np.float64(-2.25), pointer, -3]
    Program(parse(MANY)).launch("many", grid, block, given, memory=memory, **options)
    return out


def test_parameters_of_every_kind_are_packed_by_their_declarations():
    out = many()
    assert [out[0], *out[2:5], out[9]] == [200, 12, 13, 14, 11]
    assert out[5:6].view(np.float32)[0] == 1.5
    assert out[6:8].view(np.float64)[0] == -2.25
    assert out[8:9].view(np.int32)[0] == -3


@pytest.mark.parametrize(("change", "text"), [
    (lambda a: a[:-1], r"kernel many takes 6 \(a, s, f, d, out, h\) \(got 5\)"),
    (lambda a: [300, *a[1:]], r"parameter a is \.u8 \(got 300"),
    (lambda a: [a[0], b"123", *a[2:]], r"parameter s \(\.b8\) has 20 bytes \(got 3"),
    (lambda a: [a[0], 7, *a[2:]], r"parameter s of 20 bytes needs bytes or an array \(got 7\)"),
    (lambda a: [*a[:2], "x", *a[3:]], r"parameter f is \.f32 \(got 'x'"),
    (lambda a: [*a[:2], np.float64(1), *a[3:]], r"parameter f \(\.f32\) has 4 bytes \(got 8"),
])  # fmt: skip
def test_arguments_that_do_not_fit_are_named(change, text):
    with pytest.raises(ExecutionError, match=text):
        many(change([200, np.arange(5, dtype=np.uint32), 1.5, 2.5, 0, -3]))


@pytest.mark.parametrize(("options", "text"), [
    ({"block": (8, 1)}, r"requires \(4, 2, 1\) \(got \(8, 1, 1\)\)"),
    ({"grid": 0}, r"Geometry.grid: each of one to three values must be 1"),
    ({"grid": 1.9}, r"Geometry.grid: must be an int or up to three ints \(got 1.9\)"),
    ({"grid": 3, "cluster": 2}, r"multiple of the cluster \(2, 1, 1\)"),
    ({"grid": 32, "cluster": (16, 2)}, r"Geometry.cluster: must be at most 16 CTAs \(got \(16, 2, 1\)\)"),
    ({"shared": -1}, r"Geometry.shared: must be 0 … 232448 bytes \(227 KiB\) as an int \(got -1\)"),
    ({"shared": 232449}, r"shared: must be 0 … 232448 bytes .*\(got 232449\)"),
    ({"shared": 1 << 33}, r"shared: must be 0 … 232448 bytes"),
    ({"shared": 8192.5}, r"shared: must be .* as an int \(got 8192.5\)"),
    ({"shared": "a"}, r"shared: must be .* as an int \(got 'a'\)"),
    ({"mode": "quick"}, r"mode: must be one of fast, random, check \(got 'quick'\)"),
    ({"seed": -1, "mode": "random"}, r"seed: must be an int ≥ 0 \(got -1\)"),
])  # fmt: skip
def test_launches_that_do_not_fit_are_refused(options, text):
    with pytest.raises(SpecError, match=text):
        many(**options)


@pytest.mark.parametrize(("options", "text"), [
    ({"mode": "slow"}, r"mode: must be one of fast, random, check \(got 'slow'\)"),
    ({"seed": 0.5}, r"seed: must be an int ≥ 0 \(got 0.5\)"),
    ({"threads": "a"}, r"threads: must be an int ≥ 1 \(got 'a'\)"),
    ({"threads": 0}, r"threads: must be an int ≥ 1 \(got 0\)"),
    ({"time_limit": 0}, r"time_limit: must be seconds > 0, or None \(got 0\)"),
    ({"time_limit": "1 s"}, r"time_limit: must be seconds > 0, or None \(got '1 s'\)"),
])  # fmt: skip
def test_a_device_checks_its_options(options, text):
    with pytest.raises(SpecError, match=text):
        open_device("cpu", **options)


def test_a_seed_is_checked_when_it_is_changed():
    device = open_device("cpu", mode="random", seed=1)
    with pytest.raises(SpecError, match=r"seed: must be an int ≥ 0 \(got -2\)"):
        device.seed = -2
    device.seed = 2
    assert device.seed == 2


def test_static_and_dynamic_shared_memory_together_have_a_limit():
    before = ".extern .shared .align 16 .b8 more[];"
    body = ".shared .b8 s[1024]; mov.u32 %r1, s; mov.u32 %r2, more; add.u32 %r1, %r1, %r2; ret;"
    run(body, before=before, shared=231424)
    with pytest.raises(SpecError, match=r"within 232448 bytes \(got 1024 \+ 231425\)"):
        run(body, before=before, shared=231425)


def test_too_many_threads_are_refused():
    with pytest.raises(SpecError, match=r"at most 1024 threads .*2048"):
        run("ret;", u32(1), block=(1024, 2))
    limited = text_of("ret;", 0).replace("()\n{", "() .maxntid 64\n{")
    with pytest.raises(SpecError, match=r"allows 64 threads \(got 96\)"):
        Program(parse(limited)).launch("k", 1, 96, [], memory=Memory())


def test_an_unknown_entry_lists_those_there_are():
    with pytest.raises(IsaError, match=r"has no entry 'x' \(it has many\)"):
        Program(parse(MANY)).launch("x", 1, 1, [], memory=Memory())


def test_threads_are_numbered_in_three_dimensions():
    out = u32(2 * 3 * 4 * 2 * 3 * 2 * 4).reshape(-1, 4)
    run("""
  mov.u32 %r1, %ctaid.z; mov.u32 %r2, %nctaid.y; mov.u32 %r3, %ctaid.y; mad.lo.u32 %r1, %r1, %r2, %r3;
  mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
  mov.u32 %r4, %tid.z; mov.u32 %r2, %ntid.y; mov.u32 %r3, %tid.y; mad.lo.u32 %r4, %r4, %r2, %r3;
  mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r4, %r2, %r3;
  mad.lo.u32 %r5, %r1, 12, %r4; mad.wide.u32 %rd1, %r5, 16, %a0;
  mov.u32 %r6, %tid.y; mov.u32 %r7, %ctaid.z; mov.u32 %r8, %ntid.z; mov.u32 %r9, %nctaid.z;
  shl.b32 %r8, %r8, 8; or.b32 %r8, %r8, %r9;
  st.global.v4.u32 [%rd1], {%r5, %r6, %r7, %r8}; ret;""", out, grid=(2, 3, 4), block=(2, 3, 2))  # fmt: skip
    index = np.arange(24 * 12)
    np.testing.assert_array_equal(out[:, 0], index)
    np.testing.assert_array_equal(out[:, 1], index % 12 // 2 % 3)
    np.testing.assert_array_equal(out[:, 2], index // 12 // 6)
    assert (out[:, 3] == (2 << 8 | 4)).all()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_do_not_depend_on_host_threads(threads):
    out = u32(64 * 64)
    run("add.u64 %rd1, %a0, %at4; mul.lo.u32 %r1, %tid, %tid; st.global.u32 [%rd1], %r1; ret;", out, grid=64, block=64,
        threads=threads)  # fmt: skip
    np.testing.assert_array_equal(out, np.arange(64 * 64) ** 2)


def test_launches_from_several_threads_at_once():
    from concurrent.futures import ThreadPoolExecutor

    program = Program(parse(text_of("add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %tid; ret;", 1)), threads=2)

    def one(_):
        memory, out = Memory(), u32(512)
        program.launch("k", 8, 64, [memory.register(out)], memory=memory)
        return (out == np.arange(512)).all()

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(one, range(40)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform does not fork")
def test_a_forked_process_launches_and_compiles(tmp_path):
    """The parent's host threads are not in the child, and one of them may compile just then."""
    text = text_of("add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], %tid; ret;", 1)
    code = textwrap.dedent(f"""
        import os, signal, threading
        import numpy as np
        from ptxgen.runtime import open_device
        device = open_device("cpu", threads=4)
        def check(text):
            out = device.empty(512, "u32")
            device.module(text)["k"].launch(16, 32, [out])
            assert (out.numpy() == np.arange(512)).all()
        check({text!r})
        other = threading.Thread(target=check, args=({text!r} + "// a\\n" * 9,))
        other.start()
        child = os.fork()
        if not child:
            signal.alarm(30)
            check({text!r})
            check({text!r} + "// b\\n")
            os._exit(0)
        other.join()
        assert os.waitpid(child, 0)[1] == 0
    """)
    environment = {"PTXGEN_CACHE_DIR": str(tmp_path), "PYTHONPATH": "."}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# hosts without the newest instructions ------------------------------------------------------------------------------
@pytest.mark.skipif("x86_64" not in this_host().triple, reason="names features of x86-64")
@pytest.mark.parametrize("features", ["", "+avx,+avx2,+fma,+f16c"])
def test_a_host_without_some_instructions_computes_the_same(features):
    body = """
  add.u64 %rd1, %a0, %at4; ld.global.f32 %f1, [%rd1]; add.u64 %rd2, %a1, %at4; ld.global.f32 %f2, [%rd2];
  fma.rn.f32 %f3, %f1, %f2, %f1; ex2.approx.f32 %f4, %f1; add.rz.f32 %f5, %f1, %f2;
  cvt.rn.f16.f32 %h1, %f3; cvt.f32.f16 %f6, %h1; fma.rn.f16 %h2, %h1, %h1, %h1; cvt.f32.f16 %f7, %h2;
  setp.gt.f32 %p1, %f1, %f2; @%p1 mov.f32 %f6, %f5;
  add.f32 %f3, %f3, %f6; add.f32 %f3, %f3, %f7; add.f32 %f3, %f3, %f4; add.u64 %rd3, %a2, %at4;
  setp.lt.u32 %p2, %lane, 30; @%p2 st.global.f32 [%rd3], %f3; ret;"""
    rng = np.random.default_rng(9)
    x, y = rng.standard_normal((2, 64)).astype(np.float32)
    want, got = np.zeros((2, 64), np.float32)
    run(body, x, y, want, block=64)
    plain = replace(this_host(), cpu="x86-64", features=features)
    run(body, x, y, got, block=64, host=plain)
    np.testing.assert_array_equal(got, want)
    assert want[:30].all()
