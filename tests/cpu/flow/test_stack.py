"""The stack of a thread: local variables of functions that call themselves, `alloca`, `stacksave`, `stackrestore`."""

import numpy as np
import pytest

from ptxgen.errors import ExecutionError, IsaError
from tests.support.cpu_run import MODES, run, u32

OUT = "add.u64 %rd30, %a0, %at4; st.global.u32 [%rd30], %r2; ret;"

# Each activation has six words of its own, and is given the address of those of the one that called it.
SUMS = """
.func (.param .b32 out) total(.param .b32 n, .param .b64 above) {
  .local .align 8 .b32 kept[6]; .reg .b32 %r<9>; .reg .b64 %d<6>; .reg .pred %p;
  ld.param.b32 %r1, [n]; ld.param.b64 %d1, [above]; mov.u64 %d2, kept; cvta.local.u64 %d3, kept;
  st.local.b32 [kept], %r1; mul.lo.u32 %r2, %r1, %r1; st.local.b32 [kept+20], %r2; mov.u32 %r3, 0;
  setp.eq.u64 %p, %d1, 0; @%p bra FIRST;
  ld.b32 %r3, [%d1]; ld.b32 %r8, [%d1+20]; add.u32 %r3, %r3, %r8;
FIRST:
  mov.u32 %r4, 0; setp.eq.u32 %p, %r1, 0; @%p bra LAST;
  { .param .b32 a; .param .b64 b; .param .b32 c; sub.u32 %r5, %r1, 1; st.param.b32 [a], %r5; st.param.b64 [b], %d3;
    call (c), total, (a, b); ld.param.b32 %r4, [c]; }
LAST:
  ld.local.b32 %r6, [kept]; ld.local.b32 %r7, [%d2+20];
  add.u32 %r4, %r4, %r3; add.u32 %r4, %r4, %r6; add.u32 %r4, %r4, %r7; st.param.b32 [out], %r4; ret; }
"""


@pytest.mark.parametrize("mode", MODES)
def test_each_activation_has_local_variables_of_its_own(mode):
    out = u32(64)
    run("""and.b32 %r1, %tid, 15; mov.u64 %rd9, 0;
      { .param .b32 a; .param .b64 b; .param .b32 c; st.param.b32 [a], %r1; st.param.b64 [b], %rd9;
        call (c), total, (a, b); ld.param.b32 %r2, [c]; }""" + OUT, out, before=SUMS, block=64, mode=mode)  # fmt: skip
    own = np.cumsum([k + k * k for k in range(16)])  # what the activations of 0 … n have written
    np.testing.assert_array_equal(out, np.tile(2 * own, 4))  # that of n reads no other, and that of 0 has zeros


MUTUAL = """
.func (.param .b32 out) odd(.param .b32 n);
.func (.param .b32 out) even(.param .b32 n) {
  .local .b32 mine[2]; .reg .b32 %r<5>; .reg .pred %p;
  ld.param.b32 %r1, [n]; st.local.b32 [mine+4], %r1; setp.eq.u32 %p, %r1, 0; mov.u32 %r2, 0; @%p bra END;
  { .param .b32 a; .param .b32 c; sub.u32 %r3, %r1, 1; st.param.b32 [a], %r3; call (c), odd, (a);
    ld.param.b32 %r2, [c]; }
END: ld.local.b32 %r4, [mine+4]; mad.lo.u32 %r2, %r4, 3, %r2; st.param.b32 [out], %r2; ret; }
.func (.param .b32 out) odd(.param .b32 n) {
  .local .align 32 .b8 mine[40]; .reg .b32 %r<5>; .reg .b64 %d<3>; .reg .pred %p;
  ld.param.b32 %r1, [n]; mov.u64 %d1, mine; and.b64 %d2, %d1, 31; setp.ne.u64 %p, %d2, 0; @%p trap;
  st.local.b32 [mine+36], %r1; setp.eq.u32 %p, %r1, 0; mov.u32 %r2, 0; @%p bra END;
  { .param .b32 a; .param .b32 c; sub.u32 %r3, %r1, 1; st.param.b32 [a], %r3; call (c), even, (a);
    ld.param.b32 %r2, [c]; }
END: ld.local.b32 %r4, [%d1+36]; mad.lo.u32 %r2, %r4, 5, %r2; st.param.b32 [out], %r2; ret; }
"""


@pytest.mark.parametrize("mode", MODES)
def test_two_functions_that_call_each_other(mode):
    out = u32(32)
    run("""{ .param .b32 a; .param .b32 c; st.param.b32 [a], %lane; call (c), even, (a); ld.param.b32 %r2, [c]; }"""
        + OUT, out, before=MUTUAL, mode=mode)  # fmt: skip
    np.testing.assert_array_equal(out, [sum((3, 5)[n - k & 1] * k for k in range(n + 1)) for n in range(32)])


# Its parameter has an address, which it gives to the next one, and reads when that has returned.
COPIES = """
.func (.param .b32 out) nth(.param .b32 n, .param .align 4 .b8 pair[8]) {
  .reg .b32 %r<9>; .reg .b64 %d<3>; .reg .pred %p;
  ld.param.b32 %r1, [n]; mov.b64 %d1, pair+4; ld.param.b32 %r2, [%d1]; setp.eq.u32 %p, %r1, 0; mov.u32 %r4, 0;
  @%p bra END;
  { .param .b32 a; .param .align 4 .b8 b[8]; .param .b32 c; sub.u32 %r3, %r1, 1; st.param.b32 [a], %r3;
    st.param.b32 [b], %r1; st.param.b32 [b+4], %r3; call (c), nth, (a, b); ld.param.b32 %r4, [c]; }
END: ld.param.b32 %r5, [%d1]; add.u32 %r4, %r4, %r5; st.param.b32 [out], %r4; ret; }
"""


@pytest.mark.parametrize("mode", MODES)
def test_each_activation_has_a_copy_of_a_parameter_with_an_address(mode):
    out = u32(32)
    run("""and.b32 %r1, %lane, 7; mov.u32 %r3, 100;
      { .param .b32 a; .param .align 4 .b8 b[8]; .param .b32 c; st.param.b32 [a], %r1; st.param.b32 [b], %r1;
        st.param.b32 [b+4], %r3; call (c), nth, (a, b); ld.param.b32 %r2, [c]; }""" + OUT,
        out, before=COPIES, mode=mode)  # fmt: skip
    np.testing.assert_array_equal(out, [100 + sum(range(n % 8)) for n in range(32)])


# 4 · n bytes, in which it puts 1 … n from the end, and adds them up
ALLOCA = """
.func (.param .b32 out) up_to(.param .b32 n) {
  .reg .b32 %r<7>; .reg .b64 %d<5>; .reg .pred %p;
  ld.param.b32 %r1, [n]; mul.wide.u32 %d1, %r1, 4; alloca.u64 %d2, %d1, 64; and.b64 %d3, %d2, 63;
  setp.ne.u64 %p, %d3, 0; @%p trap; add.u64 %d3, %d2, %d1; mov.u32 %r2, 0; mov.u32 %r4, 0;
FILL: setp.eq.u32 %p, %r2, %r1; @%p bra READ;
  add.u32 %r2, %r2, 1; sub.u64 %d3, %d3, 4; st.local.b32 [%d3], %r2; bra FILL;
READ: setp.eq.u32 %p, %r2, 0; @%p bra END;
  ld.local.b32 %r3, [%d3]; add.u32 %r4, %r4, %r3; add.u64 %d3, %d3, 4; sub.u32 %r2, %r2, 1; bra READ;
END: st.param.b32 [out], %r4; @!%p ret; ret; }
"""
UP_TO = "{ .param .b32 a; .param .b32 c; st.param.b32 [a], %r1; call (c), up_to, (a); ld.param.b32 %r2, [c]; }"


@pytest.mark.parametrize("mode", MODES)
def test_alloca_ends_with_its_function(mode):
    out = u32(64)
    # a hundred calls of up to 128 bytes, aligned to 64, take more than the stack has, if none of it came back
    run("mov.u32 %r9, 0; mov.u32 %r1, %lane; again:" + UP_TO + """add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, 1000;
      @%p1 bra again;""" + OUT, out, before=ALLOCA, block=64, mode=mode)  # fmt: skip
    np.testing.assert_array_equal(out, np.tile([n * (n + 1) // 2 for n in range(32)], 2))


@pytest.mark.parametrize("mode", MODES)
def test_alloca_in_an_entry_and_what_stackrestore_gives_back(mode):
    out = u32(32)
    run("""stacksave.u64 %rd1; mov.u32 %r9, 0;
      again: alloca.u64 %rd2, 400; alloca.u32 %r3, 8, 4; st.local.b32 [%r3+4], %lane; st.local.b32 [%rd2+396], %r9;
      ld.local.b32 %r4, [%r3+4]; stackrestore.u64 %rd1;
      add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, 1000; @%p1 bra again; sub.u64 %rd3, %rd2, %rd1; cvt.u32.u64 %r5, %rd3;
      add.u32 %r2, %r4, %r5;""" + OUT, out, mode=mode)  # fmt: skip
    np.testing.assert_array_equal(out, np.arange(32))


@pytest.mark.parametrize("mode", MODES)
def test_only_the_lanes_whose_guard_holds_take_memory(mode):
    out = u32(32)
    run("""setp.lt.u32 %p1, %lane, 10; stacksave.u32 %r1; @%p1 alloca.u32 %r9, %lane, 16; stacksave.u32 %r3;
      @!%p1 stackrestore.u32 %r1; sub.u32 %r2, %r3, %r1;""" + OUT, out, mode=mode)  # fmt: skip
    np.testing.assert_array_equal(out, [n if n < 10 else 0 for n in range(32)])


def test_a_stack_that_is_full_is_a_trap():
    run("alloca.u64 %rd1, 32768; st.local.b32 [%rd1+32764], %lane; ret;", u32(1))
    for size in ("32769", "0xffffffffffffffff", "0x8000000000000000"):
        with pytest.raises(ExecutionError, match=r"(?s)trap.*alloca.*the stack is full: it has 32,768 bytes a thread"):
            run(f"mov.u64 %rd2, {size}; alloca.u64 %rd1, %rd2; ret;", u32(1))
    grows = ".func f { .local .b32 x[100]; call f; ret; }"
    with pytest.raises(ExecutionError, match=r"the (stack is full|recursion is deeper)"):
        run("call f; ret;", u32(1), before=grows)


@pytest.mark.parametrize("align", [3, 65536])
def test_an_alignment_that_there_is_not(align):
    with pytest.raises(IsaError, match=rf"test.ptx:\d+: operand {align}: must be a power of two up to 32,768"):
        run(f"alloca.u64 %rd1, 8, {align}; ret;", u32(1))
