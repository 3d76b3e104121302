"""The element types that buffers have, and a kernel that multiplies a buffer of f32 by a factor."""

from __future__ import annotations

KINDS = ["f64", "f32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"]
SCALE = """.version 7.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .f32 by, .param .u32 n)
{
    .reg .pred %inside; .reg .b32 %i, %cta, %size, %n; .reg .b64 %x; .reg .f32 %value, %by;
    mov.u32 %i, %tid.x; mov.u32 %cta, %ctaid.x; mov.u32 %size, %ntid.x;
    mad.lo.u32 %i, %cta, %size, %i;
    ld.param.u32 %n, [n]; ld.param.f32 %by, [by]; ld.param.u64 %x, [x];
    setp.lt.u32 %inside, %i, %n;
    mad.wide.u32 %x, %i, 4, %x;
    @%inside ld.global.f32 %value, [%x];
    @%inside mul.f32 %value, %value, %by;
    @%inside st.global.f32 [%x], %value;
    ret;
}
"""
