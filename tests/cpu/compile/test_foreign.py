"""Foreign modules on the CPU executor: one entry that cannot run leaves the others usable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.errors import ExecutionError, ModuleLoadError, VersionWarning
from ptxgen.runtime import open_device

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
GOOD = """
.visible .entry good(.param .u64 out) {
  .reg .b32 %r<2>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, 7;
  st.global.u32 [%rd1], %r1;
  ret;
}
"""
FOREIGN = "vabsent4.u32.u32.u32.add %r1, %r1, %r1, %r1;"
ENTRY = """
.visible .entry {name}(.param .u64 out) {{
  .reg .b32 %r<2>; .reg .b64 %rd<2>;
  mov.u32 %r1, 7;
  {body}
  ret;
}}
"""


def entry(name: str, body: str) -> str:
    return ENTRY.format(name=name, body=body)


def good_runs(module: Any, device: Any) -> None:
    out = device.array(np.zeros(1, np.uint32))
    module["good"].launch(1, 1, [out])
    assert out.numpy()[0] == 7


@pytest.mark.parametrize(
    ("bad", "says"),
    [(FOREIGN, "unknown opcode 'vabsent4'"), ("add.u33 %r1, %r1, %r1;", r"modifier \.u33 is unknown"),
     ("{ " + FOREIGN + " }", "unknown opcode 'vabsent4'")],
)  # fmt: skip
def test_an_unknown_form_refuses_its_entry_alone(bad, says):
    device = open_device("cpu", mode="check")
    text = HEAD + entry("bad", bad) + GOOD
    line = next(n for n, words in enumerate(text.splitlines(), 1) if bad in words)
    for _ in range(2):  # the second time the cache could know the module
        module = device.module(text)
        where = rf"entry bad cannot run here:\nkernel bad, module:{line}: "
        with pytest.raises(ModuleLoadError, match=where + f".*{says}") as refusal:
            module["bad"]
        assert bad in str(refusal.value)
        good_runs(module, device)


def test_an_unknown_form_is_refused_through_calls_addresses_and_tables():
    helper = ".func helper() {\n  .reg .b32 %r<2>;\n  mov.u32 %r1, 7;\n  " + FOREIGN + "\n  ret;\n}\n"
    between = ".func between() {\n  call helper;\n  ret;\n}\n"
    table = ".global .u64 table[1] = { helper };\n"
    text = HEAD + helper + between + table + GOOD
    text += entry("calls", "call between;") + entry("points", "mov.u64 %rd1, helper;")
    text += entry("looks", "ld.global.u64 %rd1, [table];")
    device = open_device("cpu")
    module = device.module(text)
    for name in ("calls", "points", "looks"):
        where = rf"entry {name} cannot run here:\nfunction helper, module:7: vabsent4"
        with pytest.raises(ModuleLoadError, match=where):
            module[name]
    good_runs(module, device)


@pytest.mark.parametrize(
    ("bad", "says"),
    [("mov %r1, %r1;", "mov: "), ("mov.b32 {}, %r1;", r"must have elements \(got \{\}\)"),
     ("ld.global.u32 %r1, [];", "not an address"), ("st.global.v2.u32 [%rd1], {};", "must have 2 elements")],
)  # fmt: skip
def test_spoilt_operands_are_refused_in_their_line_without_words_of_pythons(bad, says):
    text = HEAD + entry("bad", bad) + GOOD
    line = next(n for n, words in enumerate(text.splitlines(), 1) if bad in words)
    with pytest.raises(ModuleLoadError, match=rf"kernel bad, module:{line}: .*{says}") as refusal:
        open_device("cpu").module(text)["bad"]
    assert "cannot be read" not in str(refusal.value)


def test_what_is_no_ptx_is_refused_at_once():
    wrong = entry("worse", "add.u32 %r1, %r9, %r1;")
    with pytest.raises(ModuleLoadError, match=r"%r9"):
        open_device("cpu").module(HEAD + entry("bad", FOREIGN) + wrong + GOOD)


def test_an_address_size_of_32_bits_is_refused():
    with pytest.raises(ModuleLoadError, match=r"module:3: \.address_size: must be 64 \(got 32\)"):
        open_device("cpu").module(".version 8.0\n.target sm_80\n.address_size 32\n" + GOOD)


def test_a_version_that_is_newer_than_the_table_is_warned_of_and_runs():
    """What it adds is refused where it is used."""
    device, head = open_device("cpu"), ".version 99.0\n.target sm_80\n.address_size 64\n"
    for _ in range(2):  # the second time the cache knows the module
        with pytest.warns(VersionWarning, match=r"module:1: \.version 99\.0 is newer than 9\.3"):
            module = device.module(head + GOOD)
        good_runs(module, device)
    with pytest.warns(VersionWarning):
        module = device.module(head + entry("bad", FOREIGN) + GOOD)
    good_runs(module, device)
    with pytest.raises(ModuleLoadError):
        module["bad"]


def test_a_header_without_an_address_size_is_taken_for_64_bits():
    device = open_device("cpu")
    good_runs(device.module(".version 8.0\n.target sm_80\n" + GOOD), device)


def test_an_entry_whose_instruction_is_known_but_not_supported():
    of_volta = "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {r,r,r,r}, {r,r}, {r,r}, {r,r,r,r};".replace(
        "r,", "%r1,"
    )
    text = HEAD + entry("bad", of_volta.replace("r}", "%r1}")) + GOOD
    device = open_device("cpu")
    module = device.module(text)
    with pytest.raises(ModuleLoadError, match=r"module:8: instruction mma\.sync\.aligned\.m8n8k4\S* is not supported"):
        module["bad"]
    good_runs(module, device)


def _bytes(text: str) -> str:
    return f"[{len(text) + 1}] = {{{', '.join(str(ord(c)) for c in text)}}}"


# what nvcc makes of `if (…) assert(x[0]==3)`: thread 5 of the second warp fails it
ASSERTS = f"""
.extern .func __assertfail
( .param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e );
.global .align 1 .b8 $str{_bytes("x[0]==3")};
.global .align 1 .b8 $str$1{_bytes("mine.cu")};
.global .align 1 .b8 __unnamed_1{_bytes("void k(int *)")};
.visible .entry asserts(.param .u64 out) {{
  .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %rd<9>;
  mov.u32 %r1, %tid.x;
  setp.ne.u32 %p1, %r1, 37;
  @%p1 bra $over;
  mov.u64 %rd3, $str; cvta.global.u64 %rd4, %rd3;
  mov.u64 %rd5, $str$1; cvta.global.u64 %rd6, %rd5;
  mov.u64 %rd7, __unnamed_1; cvta.global.u64 %rd8, %rd7;
  {{
  .param .b64 param0; st.param.b64 [param0+0], %rd4;
  .param .b64 param1; st.param.b64 [param1+0], %rd6;
  .param .b32 param2; st.param.b32 [param2+0], 42;
  .param .b64 param3; st.param.b64 [param3+0], %rd8;
  .param .b64 param4; st.param.b64 [param4+0], 1;
  call.uni __assertfail, (param0, param1, param2, param3, param4);
  }}
$over:
  ret;
}}
"""


@pytest.mark.parametrize("mode", ["fast", "check"])
def test_a_failed_assertion_is_a_trap_with_message_file_and_line(mode):
    device = open_device("cpu", mode=mode)
    module = device.module(HEAD + ASSERTS + GOOD)
    out = device.array(np.zeros(1, np.uint32))
    with pytest.raises(ExecutionError) as failed:
        module["asserts"].launch(1, 64, [out])
    title, where, who, said = str(failed.value).splitlines()
    assert title == "trap in kernel asserts"
    assert "call.uni __assertfail" in where
    assert "warp 1, lane 5" in who
    assert said.strip() == "assertion `x[0]==3` failed, mine.cu:42"
    module["asserts"].launch(1, 32, [out])  # nobody fails
    good_runs(module, device)


def test_other_functions_of_the_cuda_runtime_are_refused_where_they_are_called():
    other = ".extern .func (.param .b32 r) cudaGetDevice (.param .b64 a);\n"
    call = "{ .param .b64 p0; .param .b32 r0; st.param.b64 [p0], 0;\ncall.uni (r0), cudaGetDevice, (p0); }"
    device = open_device("cpu")
    module = device.module(HEAD + other + entry("bad", call) + GOOD)
    with pytest.raises(ModuleLoadError, match="a call of cudaGetDevice, which has no body in this module, is not supp"):
        module["bad"]
    good_runs(module, device)
