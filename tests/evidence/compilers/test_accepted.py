"""Forms that ptxas takes beyond the table's notation: they are taken, and mean what ptxas makes of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ptxgen.assembler import available_assemblers
from ptxgen.errors import AssembleError, ModuleLoadError, VersionWarning
from ptxgen.runtime import open_device

BODY = """.visible .entry k(.param .u64 out) {{
  .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .f32 %f<4>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r2, 20; mov.b32 %r4, 0x02010203;
  {0}
  st.global.u32 [%rd1], %r1;
  ret;
}}
"""


def module(body: str, head: str = "", target: str = "sm_80", version: str = "8.0") -> str:
    return f".version {version}\n.target {target}\n.address_size 64\n{head}\n" + BODY.format(body)


def result(text: str, mode: str = "check", count: int = 1, grid: int = 1, block: int = 1) -> list[int]:
    device = open_device("cpu", mode=mode)
    out = device.array(np.zeros(count, np.uint32))
    device.module(text)["k"].launch(grid, block, [out])
    return [int(v) for v in out.numpy()]


# what is written, and what %r1 must hold (%r2 is 20)
FORMS = {
    "one register in braces": ("st.global.b32 [%rd1+0], {%r2}; ld.global.b32 {%r1}, [%rd1+0];", 20),
    "a literal into braces": ("mov.b32 {%r1}, 3;", 3),
    "types before the space": ("st.u32.global [%rd1], %r2; ld.u32.global %r1, [%rd1];", 20),
    "rounding behind ftz": ("mov.f32 %f1, 0f40400000; div.ftz.rn.f32 %f1, %f1, %f1; cvt.ftz.rni.s32.f32 %r1, %f1;", 1),
    "a comparison behind ftz": ("mov.f32 %f1, 0f00000000; setp.ftz.ge.f32 %p1, %f1, %f1; selp.u32 %r1, 5, 6, %p1;", 5),
    "64 bits in 32": ("add.s32 %r1, %r2, 0xffffffffffffffff;", 19),
    "more than 32 bits": ("add.s32 %r1, %r2, 0x700000007;", 27),
    "a register plus a number": ("mul.lo.u32 %r1, %r2+1, 3;", 63),
    "a vector register": (".reg .v4 .u32 %v; mov.u32 %v.x, 4; mov.u32 %v.w, %v.x; add.u32 %r1, %v.w, %v.x;", 8),
    "selectors of colours": (".reg .v4 .u32 %v; mov.u32 %v.a, 9; mov.u32 %r1, %v.w;", 9),
    "a vector moved": (".reg .v4 .u16 %v; mov.v4.u16 %v, %ntid; cvt.u32.u16 %r1, %v.w;", 1),
    "a special register in 16 bits": ("mov.u16 %h1, %ntid.x; cvt.u32.u16 %r1, %h1;", 1),
    "a variable of a function": (".global .u32 g = 7; ld.global.u32 %r1, [g];", 7),
    "a name and an array of it": (
        ".reg .b16 a<2>; .reg .b32 a; mov.b32 a, %r4; mov.b32 {a0, a1}, a; cvt.u32.u16 %r1, a1;", 0x0201),
    "a table of a function": (".const .align 4 .b8 g[8] = {1, 0, 0, 0, 2, 0, 0, 0}; ld.const.u32 %r1, [g+4];", 2),
    "absolute differences of bytes": ("mov.b32 %r3, 0x01ff0203; vabsdiff4.u32.u32.u32.add %r1, %r3, %r4, %r2;", 275),
    "a byte added with saturation": ("mov.b32 %r3, 0x80; vadd.s32.s32.s32.sat %r1, %r3.b0, 0x7fffffff;", 0x7FFFFF7F),
    "halves subtracted": ("mov.b32 %r3, 0x02060201; vsub2.s32.s32.s32 %r1, %r3, %r4, %r4;", 0x0005FFFE),
    "bytes compared": ("mov.b32 %r3, 0x05010501; vset4.u32.u32.gt %r1, %r3, %r4, %r4;", 0x01000100),
    "a product added": ("vmad.u32.u32.u32 %r1, %r2, %r2, %r2;", 420),
    "a shift that clamps": ("vshl.u32.u32.u32.clamp %r1, %r2, 40;", 0),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["fast", "check"])
@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_taken_and_right(name, mode):
    body, want = FORMS[name]
    assert result(module(body), mode) == [want]


@pytest.mark.parametrize("name", FORMS)
def test_an_assembler_takes_the_form_too(name):
    if not available_assemblers():
        pytest.skip("no assembler is installed")
    from ptxgen.assembler import assemble

    try:
        assemble(module(FORMS[name][0]))
    except AssembleError as wrong:
        pytest.fail(str(wrong))


def test_an_old_target_runs_with_a_note_and_without_sync_in_shuffles():
    body = "mov.u32 %r3, %laneid; shfl.bfly.b32 %r1, %r3, 1, 31; vote.all.pred %p1, %p1; cvt.u64.u32 %rd2, %laneid; "
    body = "setp.ge.u32 %p1, 1, 0; " + body + "shl.b64 %rd2, %rd2, 2; add.u64 %rd1, %rd1, %rd2;"
    with pytest.warns(VersionWarning, match=r"module:2: \.target sm_30 is older than the table.*it runs as sm_90a"):
        assert result(module(body, target="sm_30", version="5.0"), count=32, block=32) == [n ^ 1 for n in range(32)]


@pytest.mark.parametrize(("instruction", "what"), [
    ("tex.2d.v4.f32.f32 {%f1, %f1, %f1, %f1}, [%rd1, {%f1, %f1}];", "textures"),
    ("tcgen05.fence::before_thread_sync;", r"tensor memory's instructions \(tcgen05\)"),
    ("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f1, %f1, %f1}, {%r1, %r1}, {%r1, %r1}, "
     "{%f1, %f1, %f1, %f1}, %r1, 0x0;", "products of sparse matrices"),
])  # fmt: skip
def test_what_the_executor_lacks_is_refused_by_name(instruction, what):
    opcode = re.escape(instruction.partition(" ")[0].rstrip(";"))
    with pytest.raises(ModuleLoadError, match=rf"{opcode}: {what} are not supported by the CPU executor"):
        result(module(instruction))


PRINTF = """
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.global .align 1 .b8 $text[21] = {
  37, 100, 32, 37, 53, 46, 50, 102, 32, 37, 115, 32, 37, 108, 108, 120, 32, 37, 99, 10, 0};
.global .align 1 .b8 $word[4] = {97, 98, 99, 0};
"""
PRINTS = """.local .align 8 .b8 room[40]; .reg .b64 %a, %b;
  mov.u64 %b, room; st.local.u32 [%b], -7; mov.f64 %d, 0d4004000000000000; st.local.f64 [%b+8], %d;
  mov.u64 %a, $word; cvta.global.u64 %a, %a; st.local.u64 [%b+16], %a;
  st.local.u64 [%b+24], 0x1234567890; st.local.u32 [%b+32], 65;
  cvta.local.u64 %b, %b; mov.u64 %a, $text; cvta.global.u64 %a, %a;
  { .param .b64 p0; .param .b64 p1; .param .b32 r0; st.param.b64 [p0], %a; st.param.b64 [p1], %b;
  call.uni (r0), vprintf, (p0, p1); ld.param.b32 %r1, [r0]; }
"""


def test_vprintf_prints_and_returns_the_number_of_its_arguments(capsys):
    text = module(".reg .f64 %d; " + PRINTS, head=PRINTF)
    assert result(text) == [5]
    assert capsys.readouterr().out == "-7  2.50 abc 1234567890 A\n"


MALLOC = """
.extern .func (.param .b64 r) malloc (.param .b64 a);
.extern .func free (.param .b64 a);
"""
TAKES = """.reg .b64 %n;
  mov.u32 %r1, 0;
LOOP:
  { .param .b64 p0; .param .b64 r0; st.param.b64 [p0], 100000; call.uni (r0), malloc, (p0); ld.param.b64 %n, [r0]; }
  setp.eq.u64 %p1, %n, 0;
  @%p1 bra OUT;
  st.u32 [%n], %r1;
  { .param .b64 p0; st.param.b64 [p0], %n; call.uni free, (p0); }
  add.u32 %r1, %r1, 1;
  setp.lt.u32 %p2, %r1, 200;
  @%p2 bra LOOP;
OUT:
"""


def test_freed_memory_is_given_again():
    assert result(module(TAKES, head=MALLOC)) == [200]  # two hundred times 100,000 bytes of 8 MiB


def test_malloc_gives_null_where_nothing_is_left():
    assert result(module(TAKES.replace("call.uni free, (p0);", ""), head=MALLOC))[0] in range(60, 65)


def test_heap_memory_of_two_threads_is_apart():
    take = """.reg .b64 %n, %m, %o; mov.u32 %r1, %tid.x; mul.wide.u32 %o, %r1, 4; add.u64 %rd1, %rd1, %o;
      { .param .b64 p0; .param .b64 r0; st.param.b64 [p0], 8; call.uni (r0), malloc, (p0); ld.param.b64 %n, [r0]; }
      st.u32 [%n], %r1; bar.sync 0; ld.u32 %r1, [%n];"""
    assert result(module(take, head=MALLOC), count=64, block=64) == list(range(64))


def test_vprintf_whose_arguments_lie_nowhere_prints_nothing(capsys):
    text = module(".reg .f64 %d; " + PRINTS.replace("cvta.local.u64 %b, %b;", "mov.u64 %b, 64;"), head=PRINTF)
    assert result(text) == [0xFFFFFFFF]
    assert capsys.readouterr().out == ""
