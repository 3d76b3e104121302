"""Which result rows are kept: the last whole run, runs that documents name, and files that documents list entirely."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import prune
from benchmarks.documents import decode as decode_document
from benchmarks.report import rows


def row(run: str, **more: Any) -> dict[str, Any]:
    return {"bench": "b", "case": {}, "impl": "i", "us": 1.0, "run": run, **more}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs of a benchmark, of which the last did not come to its end."""
    found = [row("oldest"), row("named"), row("last"), row("last"), row("broken", partial="it stopped")]
    prune.written(tmp_path / "b.jsonl", found)
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    return tmp_path


def test_the_last_whole_run_and_named_runs_stay(results: Path) -> None:
    assert [r["run"] for r in prune.kept("b", "as run named shows")] == ["named", "last", "last"]


def test_a_file_stays_where_a_document_would_change(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "prose", lambda: "")
    monkeypatch.setattr(prune, "documents", lambda: str(len(rows.runs("b"))))
    (kept := results / "kept").mkdir()
    assert list(prune.pruned(kept)) == [("b", 5, 5)]
    monkeypatch.setattr(prune, "documents", lambda: "the same")
    assert list(prune.pruned(kept)) == [("b", 5, 2)]
    assert [json.loads(line)["run"] for line in (kept / "b.jsonl").open()] == ["last", "last"]


def test_of_decode_attention_only_the_documented_run_is_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"case": next(iter(prune.LISTS["grid"])).fields()}
    other = {"case": prune.LISTS["odd"][0].fields()}
    found = {name: [row(name, **grid), row(name, **other), {**row(name, **grid), "why": "no"}] for name in "abc"}
    for lines in found.values():
        del lines[2]["us"]
    monkeypatch.setattr(rows, "runs", lambda bench: found)
    monkeypatch.setattr(decode_document, "notes", lambda: ("Run: a", "another is run b"))
    assert [r["run"] for r in prune.kept("decode_attention", "a b c")] == ["a", "a", "a", "b", "b", "c"]
