"""The sanitizers' driver, against a stand-in for compute-sanitizer: what it runs, reads, and gives up on."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from tests.sanitize import FOUND, Item, Outcome, chunks, complaints, items, run, table

STAND_IN = f"""#!{sys.executable}
import os, signal, subprocess, sys
for mark in os.environ.get("DIES", "").split():
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGSEGV)
log = sys.argv[sys.argv.index("--log-file") + 1]
command = sys.argv[sys.argv.index(log) + 1:]
open(log, "w").write(os.environ["SAYS"])
status = subprocess.run(command).returncode
sys.exit({FOUND} if "SUMMARY: 3" in os.environ["SAYS"] else status)
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
ERRORS = (
    "========= ERROR SUMMARY: 3 errors\n========= ERROR SUMMARY: 2 errors were not printed. Use --print-limit option\n"
)
HAZARDS = "========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)\n"


@pytest.fixture
def outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text(STAND_IN)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")

    def made(says: str, code: str, seconds: float = 30) -> Outcome:
        monkeypatch.setenv("SAYS", says)
        item = Item("memcheck", "some", (sys.executable, "-c", code), 2)
        return run(item, tmp_path, time.monotonic() + seconds)

    return made


@pytest.mark.parametrize(
    ("says", "code", "want"),
    [
        (CLEAN, "print('2 passed in 0.1s')", (True, 2, 0, False)),
        (ERRORS, "print('2 passed in 0.1s')", (True, 2, 3, False)),
        (HAZARDS, "print('2 passed in 0.1s')", (True, 2, 3, False)),
        (CLEAN, "import sys; print('1 failed, 1 passed in 0.1s'); sys.exit(1)", (True, 1, 0, True)),
        (CLEAN, "import os; os.abort()", (True, 0, 0, True)),
    ],
)
def test_outcomes(outcome, says: str, code: str, want: tuple[bool, int, int, bool]) -> None:
    got = outcome(says, code)
    assert (got.done, got.passed, got.findings, got.failed) == want


def test_a_process_that_died_is_told_with_its_signal(outcome, tmp_path: Path) -> None:
    got = outcome(CLEAN, "import os; print('last words', flush=True); os.abort()")
    assert [line.strip() for line in complaints(got, tmp_path)] == [
        f"memcheck some: 0 findings, exit status {got.status} after {got.seconds:.0f} s, see {tmp_path}", "last words"
    ]  # fmt: skip
    assert got.status not in (0, FOUND)


@pytest.mark.parametrize(("deaths", "status", "passed"), [(1, 0, 2), (2, -signal.SIGSEGV, 0)])
def test_a_tool_that_dies_at_once_is_begun_once_more(
    outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int, status: int, passed: int
) -> None:
    monkeypatch.setenv("DIES", " ".join(str(tmp_path / f"death-{n}") for n in range(deaths)))
    got = outcome(CLEAN, "print('2 passed in 0.1s')")
    assert (got.done, got.status, got.passed, got.failed) == (True, status, passed, deaths == 2)


def test_what_is_late_is_killed_and_counted_as_unfinished(outcome, tmp_path: Path) -> None:
    started = time.monotonic()
    said = "print('t.py::a PASSED [1%]\\nt.py::b PASSED [2%]\\nt.py::c ...', flush=True)"
    got = outcome(CLEAN, f"import time; {said}; time.sleep(60)", seconds=2)
    assert time.monotonic() - started < 30
    assert (got.done, got.passed, got.failed) == (False, 2, False)
    first, *rest = complaints(got, tmp_path)
    assert "memcheck some: 0 findings, unfinished after" in first
    assert rest[-1].split() == ["t.py::c", "..."]
    ((_, row),) = table([got, outcome(CLEAN, "", seconds=-1)], ["memcheck"])
    assert (row["of"], row["unfinished"]) == (4, 2)


def test_neighbours_share_a_process() -> None:
    tests = [f"tests/test_{file}.py::test[{n}]" for file in "ab" for n in range(5)]
    assert [len(chunk) for chunk in chunks(tests, 3)] == [3, 2, 3, 2]


def test_goldens_and_soak_come_first_and_some_tests_are_left_out() -> None:
    found = items(["memcheck", "synccheck"], 500)
    names = [item.name.rpartition("-")[0] or item.name for item in found if item.tool == "memcheck"]
    assert names[:5] == ["test_cuda_goldens"] * 4 + ["soak"]
    assert "test_cuda_goldens" not in names[5:]
    ran = {tool: " ".join(a for i in found if i.tool == tool for a in i.command) for tool in ("memcheck", "synccheck")}
    assert "test_a_fork_is_refused" not in ran["memcheck"]
    assert "token_pipeline" in ran["memcheck"]
    assert "token_pipeline" not in ran["synccheck"]


def test_a_chunk_of_which_nothing_is_left_is_not_run() -> None:
    """Without a test named, pytest would run them all."""
    found = items(["initcheck", "memcheck"], 500, r"test_the_page_runs\[cuda\]")
    assert [(item.tool, item.tests) for item in found] == [("memcheck", 1)]
