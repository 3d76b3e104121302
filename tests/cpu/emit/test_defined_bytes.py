"""Which registers check mode follows byte by byte: only these cost a mask of lanes a byte."""

import pytest

from ptxgen.parser import parse
from ptxgen.runtime.cpu.emit.defined_bytes import by_byte
from ptxgen.runtime.cpu.flow.flow import Flow
from tests.support.cpu_run import text_of

BODIES = {
    "ld.shared.u32 %r1, [s]; prmt.b32 %r2, %r1, %r1, 0x3210; st.shared.u32 [s], %r2; ret;": {"%r2"},
    "ld.shared.v2.f32 {%f1, %f2}, [s]; fma.rn.f32 %f3, %f1, %f2, %f2; add.f32 %f3, %f3, %f1; mov.f32 %f4, %f3; ret;":
        set(),
    "ld.shared.f32 %f1, [s]; setp.gt.f32 %p1, %f1, 0f00000000; selp.f32 %f2, %f1, 0f00000000, %p1; ret;": set(),
    "and.b32 %r1, %lane, 7; setp.eq.u32 %p1, %r1, 0; selp.u32 %r2, 1, %r1, %p1; slct.u32.s32 %r3, 1, %r2, %lane; ret;":
        {"%r1", "%r2", "%r3"},
    "mov.u32 %r1, 1; cvt.rn.f32.u32 %f1, %r1; cvt.u16.u32 %h1, %r1; ret;": {"%h1"},
    "mov.u32 %r1, 1; mov.b64 %rd1, {%r1, %r1}; ret;": {"%rd1"},
    "mov.u32 %r3, 0; again: mov.u32 %r1, %r2; mov.u32 %r2, %r3; shl.b32 %r3, %r3, 1; setp.lt.u32 %p1, %r1, 9; "
    "@%p1 bra again; ret;": {"%r1", "%r2", "%r3"},
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_only_instructions_that_move_bytes_make_registers_of_bytes(body):
    text = text_of(body, 0, before=".shared .align 16 .b8 s[1024];\n")
    module = parse(text, "test.ptx")
    (function,) = module.entries.values()
    flow = Flow(module, function, True)
    found = by_byte(flow)
    names = {reg.name for reg in flow.registers if found >> reg.index & 1}
    named = {name for name in names if name.rstrip("0123456789") in ("%r", "%rd", "%f", "%h", "%p")}
    assert named & {token.strip("{},;") for token in body.split()} == BODIES[body]
