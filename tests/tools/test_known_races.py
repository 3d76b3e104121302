"""The driver of known races on a GPU, against a stand-in for compute-sanitizer; and its table in the document."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.evidence.known_races.pair import pairs
from tests.tools import known_races
from tests.tools.known_races import DOCUMENT, ROWS, Job, jobs, renamed, run, table, write_docs

STAND_IN = f"""#!{sys.executable}
import os, subprocess, sys, time
log = sys.argv[sys.argv.index("--log-file") + 1]
command = sys.argv[sys.argv.index(log) + 1:]
open(log, "w").write("========= COMPUTE-SANITIZER\\n")
if "HANGS" in os.environ:
    time.sleep(60)
status = subprocess.run(command).returncode
open(log, "a").write("========= Error: Race reported between Write access at broadcast_without_barrier+0x70\\n")
open(log, "a").write("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\\n")
sys.exit(status)
"""
RACE, OTHER = "broadcast_without_barrier", "tile_overwritten_in_a_loop"


@pytest.fixture
def sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text(STAND_IN)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    return tmp_path


def test_a_broken_kernel_is_a_process_and_a_row(sanitizer):
    (row,) = run(Job("racecheck", (RACE,), True), sanitizer, time.monotonic() + 60, "cpu")
    assert (row["findings"], row["ended"]) == (1, True)
    assert "Race reported" in row["said"]


def test_mended_kernels_share_one_and_are_told_apart_by_their_names(sanitizer):
    rows = run(Job("racecheck", (RACE, OTHER), False), sanitizer, time.monotonic() + 60, "cpu")
    assert [(row["name"], row["findings"], row["ended"]) for row in rows] == [(RACE, 1, True), (OTHER, 0, True)]


def test_what_hangs_is_ended_and_what_is_too_late_is_not_begun(sanitizer, monkeypatch):
    monkeypatch.setenv("HANGS", "1")
    monkeypatch.setattr(known_races, "_PATIENCE", 0.5)
    (row,) = run(Job("racecheck", (RACE,), True), sanitizer, time.monotonic() + 60, "cpu")
    assert (row["findings"], row["ended"]) == (None, False)
    (row,) = run(Job("racecheck", (RACE,), True), sanitizer, time.monotonic() - 1, "cpu")
    assert row["findings"] is None


def test_every_pair_is_tried_but_those_that_would_hang():
    planned = [(name, job.tool, job.broken) for job in jobs() for name in job.names]
    assert len(planned) == len(set(planned))
    assert {name for name, _, broken in planned if broken} == {n for n, pair in pairs().items() if not pair.gpu}
    assert {name for name, _, broken in planned if not broken} == set(pairs())
    text = renamed(pairs()["dependent_launch_without_wait"]).source(True)
    assert ".entry dependent_launch_without_wait(" in text
    assert ".entry first(" in text


def test_the_table_counts_hits_and_false_positives():
    rows = [
        {"name": RACE, "tool": "racecheck", "broken": True, "ended": True, "findings": 2, "said": ""},
        {"name": OTHER, "tool": "racecheck", "broken": True, "ended": True, "findings": 0, "said": ""},
        {"name": RACE, "tool": "racecheck", "broken": False, "ended": True, "findings": 1, "said": ""},
    ]
    text = table({"tools": "1.2", "device": "NVIDIA H200", "date": "2026-11-23", "commit": "abc", "rows": rows})
    assert "| racecheck, on a GPU | 2 | 1 | 1 | 1 |" in text
    assert "| found (and in the mended one) | not run |" in text


def test_the_document_has_the_table():
    assert DOCUMENT.read_text(encoding="utf-8") == write_docs(ROWS), "python -m tests.tools.known_races --docs"
