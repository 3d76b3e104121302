"""Facts about calls on the executor: parameters, pointers to functions, barriers in callees, recursion."""

import numpy as np
import pytest

from ptxgen.errors import ExecutionError, IsaError
from tests.support.cpu_run import MODES, run, u32

pytestmark = pytest.mark.filterwarnings("error")


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


FACTORIAL = """.func (.param .b32 r) f(.param .b32 n) {
  .reg .pred %p; .reg .b32 %n, %m; .reg .b16 %h;
  ld.param.b32 %n, [n]; cvt.u16.u32 %h, %n; setp.le.u32 %p, %n, 1; @%p bra ONE;
  { .param .b32 a; .param .b32 b; sub.u32 %m, %n, 1; st.param.b32 [a], %m; call (b), f, (a); ld.param.b32 %m, [b]; }
  cvt.u32.u16 %n, %h; mul.lo.u32 %m, %m, %n; st.param.b32 [r], %m; ret;
ONE: st.param.b32 [r], 1; ret; }
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_function_that_calls_itself_keeps_its_registers(mode):
    out = u32(32)
    body = """{ .param .b32 a; .param .b32 b; and.b32 %r1, %tid, 7; st.param.b32 [a], %r1; call (b), f, (a);
      ld.param.b32 %r2, [b]; } mul.wide.u32 %rd1, %tid, 4; add.u64 %rd1, %a0, %rd1; st.global.u32 [%rd1], %r2; ret;"""
    run(body, out, before=FACTORIAL, block=32, mode=mode)
    np.testing.assert_array_equal(out, [max(1, np.prod(range(1, n % 8 + 1), dtype=int)) for n in range(32)])


def test_a_recursion_without_end_is_a_trap():
    with pytest.raises(ExecutionError, match=r"the recursion is deeper than 32,768 bytes a thread hold"):
        run("call f; ret;", u32(1), before=".func f { call f; ret; }")


def test_calls_into_nowhere_are_refused_by_line():
    with pytest.raises(IsaError, match=r"test.ptx:\d+: a call of %rd1, as no function that fits .* is not supported"):
        run("proto: .callprototype ()_(); call %rd1, proto; ret;", u32(1))
