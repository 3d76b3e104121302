"""The sanitizers' driver, against a stand-in for compute-sanitizer: what it runs, reads, and gives up on."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from tests.tools import sanitize
from tests.tools.sanitize import BANNER, FOUND, Item, Outcome, chunks, clean, complaints, items, run, table

STAND_IN = f"""#!{sys.executable}
import os, signal, subprocess, sys
log = sys.argv[sys.argv.index("--log-file") + 1]
command = sys.argv[sys.argv.index(log) + 1:]
open(log, "w").write("{BANNER}\\n")
for number, last in enumerate(os.environ.get("DIES", "").split()):
    if not os.path.exists(f"{{log}}.{{number}}"):
        open(f"{{log}}.{{number}}", "w").close()
        if last == "spoke":
            os.write(1, b"last words")
        if last == "reported":
            open(log, "a").write("========= Invalid __global__ write of size 4 bytes")
        os.kill(os.getpid(), signal.SIGSEGV)
open(log, "a").write(os.environ["SAYS"])
status = subprocess.run(command).returncode
sys.exit({FOUND} if "SUMMARY: 3" in os.environ["SAYS"] else status)
"""
CLEAN = "========= ERROR SUMMARY: 0 errors\n"
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

    def made(says: str, code: str, seconds: float = 30, name: str = "some") -> Outcome:
        monkeypatch.setenv("SAYS", says)
        item = Item("memcheck", name, (sys.executable, "-c", code), 2)
        return run(item, tmp_path, time.monotonic() + seconds)

    return made


@pytest.mark.parametrize(
    ("says", "code", "want"),
    [
        (CLEAN, "print('2 passed in 0.1s')", (2, 0, 0, False, True)),
        (CLEAN, "print('1 passed, 1 skipped in 0.1s')", (1, 1, 0, False, True)),
        (ERRORS, "print('2 passed in 0.1s')", (2, 0, 3, False, False)),
        (HAZARDS, "print('2 passed in 0.1s')", (2, 0, 3, False, False)),
        (CLEAN, "import sys; print('1 failed, 1 passed in 0.1s'); sys.exit(1)", (1, 0, 0, True, False)),
        (CLEAN, "import os; os.abort()", (0, 0, 0, True, False)),
    ],
)
def test_outcomes(outcome, says: str, code: str, want: tuple[int, int, int, bool, bool]) -> None:
    got = outcome(says, code)
    assert got.done
    assert (got.passed, got.skipped, got.findings, got.failed, clean(got)) == want


@pytest.mark.parametrize(
    ("deaths", "name", "starts", "status"),
    [
        ("silent", "some", 2, 0),
        ("silent silent", "some", 2, -signal.SIGSEGV),
        ("silent", "soak", 1, -signal.SIGSEGV),  # which is silent until its end
        ("spoke", "some", 1, -signal.SIGSEGV),
        ("reported", "some", 1, -signal.SIGSEGV),
    ],
)
def test_a_tool_that_dies_before_it_said_a_word_is_begun_once_more(
    outcome, monkeypatch: pytest.MonkeyPatch, deaths: str, name: str, starts: int, status: int
) -> None:
    monkeypatch.setenv("DIES", deaths)
    got = outcome(CLEAN, "print('2 passed in 0.1s')", name=name)
    assert (got.done, got.starts, got.status, got.passed) == (True, starts, status, 0 if status else 2)
    assert clean(got) == (status == 0)
    ((_, row),) = table([got], ["memcheck"])
    assert row["restarted"] == starts - 1


def test_a_process_that_died_is_told_with_its_signal(outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIES", "spoke")
    first, *rest = complaints(outcome(CLEAN, ""), tmp_path)
    assert first.startswith("memcheck some: findings not summed up, exit status -11 after ")
    assert [line.strip() for line in rest] == ["last words"]


def test_what_is_late_is_killed_and_counted_as_unfinished(outcome, tmp_path: Path) -> None:
    started = time.monotonic()
    said = "print('t.py::a PASSED [1%]\\nt.py::b PASSED [2%]\\nt.py::c ...', flush=True)"
    got = outcome(CLEAN, f"import time; {said}; time.sleep(60)", seconds=2)
    assert time.monotonic() - started < 30
    assert (got.done, got.passed, got.failed) == (False, 2, False)
    first, *rest = complaints(got, tmp_path)
    assert first.startswith("memcheck some: 0 findings, unfinished after")
    assert not clean(got)
    assert rest[-1].split() == ["t.py::c", "..."]
    ((_, row),) = table([got, outcome(CLEAN, "", seconds=-1)], ["memcheck"])
    assert (row["of"], row["unfinished"]) == (4, 2)


def test_neighbours_share_a_process() -> None:
    tests = [f"tests/test_{file}.py::test[{n}]" for file in "ab" for n in range(5)]
    assert [len(chunk) for chunk in chunks(tests, 3)] == [3, 2, 3, 2]


def test_goldens_and_soak_come_first_and_some_tests_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = sanitize.suite("tests/cuda", "tests/evidence/corpus")
    monkeypatch.setattr(sanitize, "suite", lambda: listed)
    found = items(["memcheck", "synccheck"], 500)
    names = [item.name.rpartition("-")[0] or item.name for item in found if item.tool == "memcheck"]
    assert names[:5] == ["cuda.test_goldens"] * 4 + ["soak"]
    assert "cuda.test_goldens" not in names[5:]
    ran = {tool: " ".join(a for i in found if i.tool == tool for a in i.command) for tool in ("memcheck", "synccheck")}
    assert "test_a_fork_is_refused" not in ran["memcheck"]
    assert "token_pipeline" in ran["memcheck"]
    assert "token_pipeline" not in ran["synccheck"]


def test_a_chunk_of_which_nothing_is_left_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a test named, pytest would run them all."""
    monkeypatch.setattr(sanitize, "suite", lambda: ["tests/docs/test_runtime.py::test_the_page_runs[cuda]"])
    found = items(["initcheck", "memcheck"], 500)
    assert [(item.tool, item.tests) for item in found] == [("memcheck", 1)]
