"""Facts about calls in a process of their own: what comes back, what ends them, what they cannot do."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest

from ptxgen.cli._main import invoke
from ptxgen.errors import ExecutionError, ExecutionNote, SpecError
from ptxgen.runtime.tools.isolate import Limits, isolated
from tests.support import calls_apart
from tests.support.cpu_run import text_of

SHORT = Limits(seconds=30.0, cpu_seconds=30, memory=1 << 30)
LINUX = sys.platform.startswith("linux")


@pytest.fixture(autouse=True)
def _not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under coverage.py every process writes a file when it ends; these may write none."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    monkeypatch.delenv("COVERAGE_PROCESS_START", raising=False)


def landlock():
    """The version of Landlock that the system has."""
    return ctypes.CDLL(None).syscall(444, None, 0, 1) if LINUX else 0


def test_results_warnings_and_what_is_printed_come_back(capsys):
    text = text_of("add.u64 %rd1, %a0, %at4; st.global.u32 [%rd1], 7; ret;", 1)
    with pytest.warns(ExecutionNote, match="seen"):
        found = isolated(calls_apart.launched, text, np.zeros(40, np.uint32), limits=SHORT)
    np.testing.assert_array_equal(found, np.repeat(np.array([7, 0], np.uint32), [32, 8]))
    assert capsys.readouterr().out == "said \\x1b[31mred\n"


def test_findings_come_back_with_their_parts():
    text = text_of("ld.global.u32 %r1, [%a0+4096]; st.global.u32 [%a0], %r1; ret;", 1)
    with pytest.raises(ExecutionError, match=r"^out of bounds") as caught:
        isolated(calls_apart.launched, text, np.zeros(40, np.uint32), "fast", limits=SHORT)
    (found,) = caught.value.findings
    assert found.kind == "out of bounds"
    assert found.line == text[: text.index("4096")].count("\n") + 1


@pytest.mark.parametrize(
    ("call", "limits", "said"),
    [
        ((calls_apart.compute,), Limits(seconds=0.5), r"not over after 0.5 s of wall time .Limits.seconds"),
        ((calls_apart.compute,), Limits(cpu_seconds=1), r"more than 1 s of CPU time .*Limits.cpu_seconds"),
        ((calls_apart.use_memory, 1 << 30), Limits(memory=256 << 20), r"more than 268,435,456 bytes .*Limits.memory"),
        ((calls_apart.starve_as_llvm,), SHORT, r"more than 1,073,741,824 bytes of memory .*Limits.memory"),
        ((calls_apart.starve_as_a_text_is_read,), SHORT, r"more than 1,073,741,824 bytes of memory .*Limits.memory"),
        ((calls_apart.crash,), SHORT, r"the process ended by SIGSEGV"),
        ((calls_apart.forge,), SHORT, r"the process ended with code 0"),
        ((calls_apart.use_memory, "a"), SHORT, r"the call failed with \w+Error"),
    ],
    ids=["wall time", "CPU time", "memory", "LLVM's memory", "the parser's memory", "crash", "forged answer", "bug"],
)
@pytest.mark.skipif(not LINUX, reason="only Linux has all of these limits")
def test_what_ends_it_is_one_sentence(call, limits, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, *arguments = call
    with pytest.raises(ExecutionError, match=rf"^isolated: {said}") as caught:
        isolated(function, *arguments, limits=limits)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not LINUX, reason="only Linux has all of these limits")
def test_it_writes_no_file_and_starts_no_program(tmp_path):
    (tmp_path / "there").write_text("")
    found = isolated(calls_apart.attempts, str(tmp_path), limits=SHORT)
    assert found.pop("read") == "done"
    version = landlock()
    always = {"append"} | ({"create", "remove", "directory", "link", "rename", "program"} if version >= 1 else set())
    also = ({"network"} if version >= 4 else set()) | ({"signal"} if version >= 6 else set())
    assert {name for name in always | also if found[name] == "done"} == set()
    assert (tmp_path / "there").read_text() == ""


@pytest.mark.parametrize("field", ["seconds", "cpu_seconds", "memory"])
@pytest.mark.parametrize("value", [0, -1, "1", True, None, 1 << 70])
def test_limits_are_numbers_above_nothing(field, value):
    with pytest.raises(SpecError, match=rf"^Limits.{field}: must be a number above 0"):
        Limits(**{field: value})


def test_a_kernel_runs_apart_as_it_does_here(capsys):
    command = ["run", "activation", "--dim", "64", "--device", "cpu", "--size", "rows=2"]
    assert invoke([*command, "--isolate", "--seconds", "30"]) == 0
    assert "out     ok" in capsys.readouterr().out


def test_check_of_a_file_may_run_apart(tmp_path, capsys):
    path = tmp_path / "k.ptx"
    path.write_text(text_of("again: add.u64 %rd1, %rd1, 1; setp.ne.u64 %p1, %rd1, 0; @%p1 bra again; ret;", 1))
    command = ["check", str(path), "--block", "32", "--arg", "u32[32]", "--seeds", "0", "--isolate"]
    assert invoke([*command, "--time-limit", "0.1"]) == 1
    assert "no progress" in capsys.readouterr().out
