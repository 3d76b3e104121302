"""The assembler: cubins and resources in process, by binary, from threads; failures that show the PTX."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ptxgen import assembler, doctor, generate
from ptxgen.assembler import Resources, assemble, available_assemblers, installed, parse_resources, supported_targets
from ptxgen.errors import AssembleError, TargetError
from ptxgen.kernels import MultiHeadAttention
from ptxgen.targets import target as parse_target
from tests.support.marks import needs_assembler
from tests.support.stand_in_assemblers import LINKER, OLD_PTXAS, PTXAS, install

TEXT = """.version 8.0
.target sm_90
.address_size 64
.visible .entry first(.param .u64 p) {
    .reg .b32 %r<4>; .reg .b64 %d<2>;
    .shared .align 16 .b8 tile[2048];
    ld.param.u64 %d0, [p];
    ld.global.b32 %r0, [%d0];
    st.shared.b32 [tile], %r0;
    bar.sync 1;
    ld.shared.b32 %r1, [tile+64];
    st.global.b32 [%d0], %r1;
    ret;
}
.visible .entry second() { ret; }
"""


@needs_assembler
def test_a_text_becomes_a_cubin_with_resources() -> None:
    found = assemble(TEXT)
    assert found.cubin[:4] == b"\x7fELF"
    assert found.target.name == "sm_90"
    assert set(found.resources) == {"first", "second"}
    first = found.resources["first"]
    assert (first.shared, first.spill_stores, first.spill_loads, first.stack) == (2048, 0, 0, 0)
    assert first.registers >= 4
    assert first.barriers >= 1
    assert first.clean
    assert found.resources["second"].shared == 0
    assert found.assembler == installed()


@needs_assembler
def test_the_target_asked_for_wins_over_the_text() -> None:
    assert assemble(TEXT, "sm_100").target.name == "sm_100"
    assert assemble(TEXT, "sm_100").cubin != assemble(TEXT).cubin


@needs_assembler
def test_a_stack_is_reported() -> None:
    text = TEXT.replace(".visible .entry second() { ret; }", """.visible .entry second(.param .u64 p) {
    .reg .b32 %r<2>; .reg .b64 %d<4>; .local .align 16 .b8 stack[512];
    ld.param.u64 %d0, [p]; ld.global.b32 %r0, [%d0]; cvt.u64.u32 %d1, %r0;
    mov.u64 %d2, stack; add.u64 %d3, %d2, %d1; st.local.b32 [%d3], %r0; ld.local.b32 %r1, [%d2+8];
    st.global.b32 [%d0], %r1; ret; }""")  # fmt: skip
    second = assemble(text).resources["second"]
    assert second.stack == 512
    assert not second.clean


@needs_assembler
def test_a_failure_shows_every_line_that_is_named() -> None:
    wrong = TEXT.replace("bar.sync 1;", "bar.sync %r0, %d0;").replace("ret;\n}", "frob.b32 %r0;\n}", 1)
    with pytest.raises(AssembleError) as error:
        assemble(wrong, name="tile_kernel")
    said = str(error.value)
    assert said.startswith(f"tile_kernel: {installed()} refused it for sm_90")
    assert "10 | bar.sync %r0, %d0;" in said
    assert "13 | frob.b32 %r0;" in said
    assert "Not a name of any known instruction: 'frob'" in said


@needs_assembler
def test_an_older_architecture_says_what_would_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first = available_assemblers()[0]
    known = supported_targets(first)
    assert {t.name for t in known} >= {"sm_80", "sm_90", "sm_90a"}
    monkeypatch.setattr(assembler, "available_assemblers", lambda: (first,))
    monkeypatch.setattr(assembler, "supported_targets", lambda _: known - {parse_target("sm_70")})
    text = TEXT.replace("8.0", "6.0").replace("sm_90", "sm_70")
    with pytest.raises(AssembleError, match=r"cannot assemble for sm_70; the assembler of CUDA 12\.9 is the last"):
        assemble(text)


def test_a_text_without_target_and_an_unknown_target_are_refused() -> None:
    with pytest.raises(AssembleError, match=r"no \.target"):
        assemble("ret;")
    with pytest.raises(TargetError, match="sm_42"):
        assemble(TEXT, "sm_42")


@needs_assembler
def test_threads_assemble_at_once() -> None:
    texts = [TEXT.replace("tile[2048]", f"tile[{2048 + 256 * i}]") for i in range(12)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(assemble, texts))
    assert [a.resources["first"].shared for a in found] == [2048 + 256 * i for i in range(12)]
    assert found[3].cubin == assemble(texts[3]).cubin


BINARY = next((a for a in available_assemblers() if a.path), None)


@pytest.mark.skipif(BINARY is None, reason="no ptxas binary is installed")
def test_a_binary_is_the_second_choice_and_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BINARY is not None
    monkeypatch.setattr(assembler, "available_assemblers", lambda: (BINARY,))
    found = assemble(TEXT)
    assert found.assembler == str(BINARY)
    assert found.cubin[:4] == b"\x7fELF"
    assert found.resources["first"].shared == 2048
    with pytest.raises(AssembleError, match=r"10 \| bar\.sync %d0;"):
        assemble(TEXT.replace("bar.sync 1;", "bar.sync %d0;"))


@pytest.mark.skipif(BINARY is None, reason="no ptxas binary is installed")
def test_a_binary_makes_a_cubin_for_every_target_it_is_said_to_know() -> None:
    assert BINARY is not None
    for target in sorted(supported_targets(BINARY), key=str):
        version = ".".join(map(str, target.lowest_ptx))
        text = f".version {version}\n.target {target}\n.address_size 64\n.entry k() {{ ret; }}\n"
        cubin, log, failed = assembler._by_binary(BINARY, text, target)
        assert cubin[:4] == b"\x7fELF", f"{target}: {log}"
        assert not failed


def test_without_any_assembler_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembler, "available_assemblers", lambda: ())
    with pytest.raises(AssembleError, match=r"no assembler is installed; install one with: pip .*'ptxgen\[ptxas\]'"):
        assemble(TEXT)
    assert installed() is None


def test_the_environment_names_a_binary(tmp_path: Path) -> None:
    """A stand-in that prints a release: found by PTXGEN_PTXAS, and tried before all others."""
    fake = tmp_path / "ptxas"
    fake.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.9, V12.9.41'\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    script = "from ptxgen.assembler import available_assemblers;x = available_assemblers()[0]; print((str(x), x.path))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True,
                          env={**os.environ, "PTXGEN_PTXAS": str(fake)})  # fmt: skip
    assert done.stdout.strip() == str(("ptxas 12.9", str(fake)))


@pytest.mark.parametrize("named", ["/no/such/ptxas", "/dev/null", "/bin/true"])
def test_a_binary_that_is_named_and_is_no_ptxas_is_refused(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else takes its place."""
    monkeypatch.setenv("PTXGEN_PTXAS", named)
    available_assemblers.cache_clear()
    try:
        with pytest.raises(AssembleError, match=rf"^PTXGEN_PTXAS: must be the path of a ptxas .*{named}"):
            assemble(TEXT)
        assert doctor._assembler().state == "wrong"
    finally:
        available_assemblers.cache_clear()


LOG_12 = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    96 bytes stack frame, 80 bytes spill stores, 84 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers, 49152 bytes smem, 584 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compiling entry function 'empty' for 'sm_90a'
ptxas info    : Function properties for empty
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 4 registers
"""
LOG_13 = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 2 barriers, 128 bytes smem
ptxas info    : Compile time = 2.670 ms
info    : 64 bytes gmem, 64 bytes cmem[3]
info    : Function properties for 'k':
info    : used 24 registers, used 4 barriers, 0 stack, 1152 bytes smem, 536 bytes cmem[0], 0 bytes lmem
"""


def test_logs_of_two_generations_are_read() -> None:
    assert parse_resources(LOG_12) == {
        "k": Resources(168, 80, 84, 96, 49152, 592, 3),
        "empty": Resources(4, 0, 0, 0, 0, 0, 0),
    }
    assert parse_resources(LOG_13) == {"k": Resources(24, 0, 0, 0, 128, 536, 2)}


def test_importing_the_assembler_imports_no_cuda() -> None:
    script = "import sys, ptxgen.assembler; print([m for m in sys.modules if m.split('.')[0] in ('cuda', 'numpy')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@needs_assembler
def test_spills_of_a_text_whose_registers_nvjitlink_leaves_alone_count_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a ptxas there is nobody to ask what the text takes as drivers load it."""
    library = [each for each in available_assemblers() if not each.path]
    if not library:
        pytest.skip("needs nvJitLink")
    spec = MultiHeadAttention(head_dim=128, n_heads=8, n_kv_heads=2, q_dtype="bf16", kv_dtype="bf16")
    monkeypatch.setattr(assembler, "available_assemblers", lambda: tuple(library))
    (taken,) = assemble(generate(spec, "sm_90a").text).resources.values()
    assert taken.spill_stores > 0
    assert taken.clean


def kernel_of(instruction: str) -> str:
    return f".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() {{\n    {instruction}\n    ret;\n}}\n"


SYNC = kernel_of("bar.sync 0;")
WGMMA = kernel_of("wgmma.fence.sync.aligned;")
SETS_REGISTERS = kernel_of("setmaxnreg.dec.sync.aligned.u32 24;")


@pytest.mark.parametrize(("text", "by"), [(SYNC, LINKER), (WGMMA, PTXAS), (SETS_REGISTERS, PTXAS)])
def test_texts_that_nvjitlink_gets_wrong_are_a_binarys(
    text: str, by: assembler.Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, LINKER, OLD_PTXAS, PTXAS)
    made = assemble(text)
    assert made.assembler == str(by)
    assert made.cubin == str(by).encode()
    assert made.resources["k"].spill_stores == 8
    assert not made.resources["k"].clean


@pytest.mark.parametrize(
    ("text", "fault", "clean"),
    [(WGMMA, "code for wgmma gives wrong results", False), (SETS_REGISTERS, "code leaves setmaxnreg out", True)],
)
@pytest.mark.parametrize("others", [(), (OLD_PTXAS,)])
def test_without_a_binary_nvjitlink_tells_their_resources_alone(
    text: str, fault: str, clean: bool, others: tuple[assembler.Assembler, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, LINKER, *others)
    made = assemble(text, name="mine")
    assert made.assembler == "nvJitLink 13.0"
    assert made.resources["k"].registers == 24
    assert made.resources["k"].clean == clean
    assert not made.code
    with pytest.raises(AssembleError) as refused:
        _ = made.cubin
    assert str(refused.value) == (
        f"mine: needs a ptxas that knows sm_90a, and none is installed (nvJitLink 13.0's {fault}); "
        "put one in PATH, or set PTXGEN_PTXAS to it"
    )


def test_an_assembler_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of one assembler stay comparable; still nobody gets nvJitLink's machine code."""
    install(monkeypatch, LINKER, PTXAS)
    made = assemble(WGMMA, by=LINKER)
    assert made.assembler == str(LINKER)
    with pytest.raises(AssembleError, match="wgmma gives wrong results"):
        _ = made.cubin
    assert assemble(SYNC, by=PTXAS).assembler == str(PTXAS)
