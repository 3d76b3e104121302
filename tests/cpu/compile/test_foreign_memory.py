"""Addresses as other compilers and people write them: in initialisers, in 32 bits, under second names."""

from __future__ import annotations

import pytest

from ptxgen.errors import ModuleLoadError, SpecError
from ptxgen.runtime import open_device
from ptxgen.runtime.core.backend import MOST_SHARED

HEAD = """.version 8.3
.target sm_90
.address_size 64
"""
OTHER = """.visible .entry other(.param .u64 p)
{
    .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [p];
    st.global.u32 [%rd1], 7;
    ret;
}
"""


def kernel(body: str, outside: str = "") -> str:
    """A text with an entry `k` that stores `%r1`, and another that is right whatever `k` does."""
    return f"""{HEAD}{outside}
{OTHER}
.visible .entry k(.param .u64 p)
{{
    .reg .u64 %rd<4>;
    .reg .u32 %r<4>;
    .reg .f32 %f<5>;
    .local .u32 l[4];
    .shared .u32 s[4];
    ld.param.u64 %rd1, [p];
    {body}
    st.global.u32 [%rd1], %r1;
    ret;
}}
"""


THROUGH = "ld.global.u64 %rd2, [q];\n    ld.u32 %r1, [%rd2];"
BYTES = ", ".join(f"0xff{'00' * n}(x)" for n in range(8))
RIGHT = {
    "generic": (kernel(THROUGH, ".global .u32 x = 5;\n.global .u64 q = generic(x);"), 5),
    "plain": (kernel(THROUGH, ".global .u32 x[2] = {5, 6};\n.global .u64 q = x+4;"), 6),
    "generic, further on": (kernel(THROUGH, ".global .u32 x[2] = {5, 6};\n.global .u64 q[2] = {generic(x)+4, 0};"), 6),
    "byte by byte": (kernel(THROUGH, f".global .u32 x = 5;\n.global .align 8 .u8 q[8] = {{{BYTES}}};"), 5),
    "parameter in 32 bits": (kernel("mov.u32 %r2, p;\n    ld.param.u64 %rd1, [%r2];\n    mov.u32 %r1, 9;"), 9),
    "shared memory in 32 bits": (
        kernel("mov.u32 %r2, s;\n    st.shared.u32 [%r2+4], 9;\n    ld.shared.u32 %r1, [%r2+4];"),
        9,
    ),
    "local memory in 32 bits": (
        kernel("mov.u32 %r2, l;\n    st.local.u32 [%r2+4], 9;\n    ld.local.u32 %r1, [%r2+4];"),
        9,
    ),
    "alias": (
        kernel(
            "call (%r1), second;",
            ".func (.reg .u32 r) first()\n{\n    mov.u32 r, 3;\n    ret;\n}\n"
            ".func (.reg .u32 r) second();\n.alias second, first;",
        ),
        3,
    ),
}
REFUSED = {
    "address in 32 bits": (
        kernel("ld.global.u32 %r1, [q];", ".global .u32 x = 5;\n.global .u32 q = x;"),
        "initialiser x, an address in 32 bits, is not supported by the CPU executor",
    ),
    "mask of more than a byte": (
        kernel("ld.global.u32 %r1, [q];", ".global .u32 x = 5;\n.global .u8 q[4] = {0xffff(x), 0, 0, 0};"),
        r"initialiser 0xffff\(x\) is not supported",
    ),
    "global memory in 32 bits": (
        kernel("mov.u32 %r2, x;\n    ld.global.u32 %r1, [%r2];", ".global .u32 x = 5;"),
        r"mov.u32 with a 32-bit address of .global memory is not supported",
    ),
    "constant memory in 32 bits": (
        kernel("mov.u32 %r2, x;\n    ld.const.u32 %r1, [%r2];", ".const .u32 x = 5;"),
        r"mov.u32 with a 32-bit address of .const memory is not supported",
    ),
    "texture": (
        kernel(
            "mov.u32 %r1, 0;\n    tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [image, {%r1}];", ".global .texref image;"
        ),
        "textures are not supported by the CPU executor",
    ),
    "handle of a texture": (
        kernel("mov.u64 %rd2, image;\n    cvt.u32.u64 %r1, %rd2;", ".global .texref image;"),
        r"a \.texref variable is not supported by the CPU executor",
    ),
}


@pytest.mark.parametrize("mode", ["fast", "check"])
@pytest.mark.parametrize("name", RIGHT)
def test_an_address_leads_where_it_should(name: str, mode: str) -> None:
    text, wanted = RIGHT[name]
    device = open_device("cpu", mode=mode)
    out = device.zeros(1, "u32")
    device.module(text)["k"].launch(1, 1, [out])
    assert out.numpy()[0] == wanted


@pytest.mark.parametrize("name", REFUSED)
def test_only_the_entry_that_needs_it_is_refused(name: str) -> None:
    text, said = REFUSED[name]
    device = open_device("cpu", mode="check")
    out, module = device.zeros(1, "u32"), device.module(text)
    with pytest.raises(ModuleLoadError, match=said):
        module["k"].launch(1, 1, [out])
    module["other"].launch(1, 1, [out])
    assert out.numpy()[0] == 7


# as cooperative groups of several warps use it: 288 bytes from `_1` on, no bit set, apart from the kernel's variables
RESERVED = """
    mov.u32 %r2, %reserved_smem_offset_1;
    cvt.u64.u32 %rd2, %r2;
    cvta.shared.u64 %rd2, %rd2;
    atom.or.b32 %r3, [%rd2], 1;
    st.shared.u32 [s], 2;
    st.u32 [%rd2+284], 4;
    mov.u32 %r2, s;
    ld.shared.u32 %r1, [%r2];
    or.b32 %r1, %r1, %r3;
    ld.u32 %r3, [%rd2+284];
    or.b32 %r1, %r1, %r3;
"""


@pytest.mark.filterwarnings("ignore::ptxgen.errors.ExecutionNote")
@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("mode", ["fast", "random", "check"])
def test_reserved_shared_memory_begins_as_zeros(mode, called):
    if called:
        outside = ".func (.reg .u32 %o) at() { mov.u32 %o, %reserved_smem_offset_1; ret; }\n"
        text = kernel(RESERVED.replace("mov.u32 %r2, %reserved_smem_offset_1", "call (%r2), at, ()"), outside)
    else:
        text = kernel(RESERVED)
    device = open_device("cpu", mode=mode)
    out = device.zeros(1, "u32")
    device.module(text)["k"].launch(2, 1, [out])
    assert out.numpy()[0] == 6


def test_the_bounds_of_reserved_shared_memory():
    body = """{ .reg .u32 %begin, %end, %cap, %zero, %one;
    mov.u32 %begin, %reserved_smem_offset_begin; mov.u32 %end, %reserved_smem_offset_end;
    mov.u32 %cap, %reserved_smem_offset_cap; mov.u32 %zero, %reserved_smem_offset_0;
    mov.u32 %one, %reserved_smem_offset_1;
    sub.u32 %r1, %end, %begin; sub.u32 %cap, %end, %cap; sub.u32 %zero, %zero, %begin; sub.u32 %one, %one, %begin;
    mad.lo.u32 %r1, %cap, 7, %r1; mad.lo.u32 %r1, %zero, 7, %r1; mad.lo.u32 %r1, %one, 65536, %r1; }"""
    device = open_device("cpu")
    out = device.zeros(1, "u32")
    device.module(kernel(body))["k"].launch(1, 1, [out])
    assert divmod(int(out.numpy()[0]), 65536) == (512, 1024)


@pytest.mark.parametrize("mode", ["fast", "check"])
def test_reserved_shared_memory_is_beside_what_a_cta_may_have(mode):
    text = kernel(RESERVED, ".extern .shared .align 16 .b8 dynamic[];\n")
    device = open_device("cpu", mode=mode)
    out = device.zeros(1, "u32")
    entry = device.module(text)["k"]
    most = MOST_SHARED - 16  # the kernel's own variable, and the alignment of what is dynamic
    entry.launch(1, 1, [out], shared=most)
    assert out.numpy()[0] == 6
    with pytest.raises(SpecError, match=r"within 232448 bytes \(got \d+ \+ 232448\)"):
        entry.launch(1, 1, [out], shared=MOST_SHARED)
