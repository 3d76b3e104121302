"""Rows of benchmarks: one format, appended per run, and tables made from the rows of one run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "report" / "rows.py"


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, writing to a directory of its own."""
    spec = importlib.util.spec_from_file_location("rows", PATH)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return module


def test_a_row_has_the_case_the_measures_and_what_the_run_shares(rows: ModuleType) -> None:
    run = rows.Run("decode", device="a GPU")
    run.add({"context": 4096}, "ptxgen", us=6.94321, bytes=16777216)
    (line,) = run.save().read_text().splitlines()
    row = json.loads(line)
    assert row.keys() == {"bench", "case", "impl", "us", "bytes", "run", "device", "commit", "date"}
    assert (row["bench"], row["case"], row["impl"], row["device"]) == ("decode", {"context": 4096}, "ptxgen", "a GPU")
    assert (row["us"], row["bytes"]) == (6.943, 16777216)


def test_runs_are_appended_and_kept_apart(rows: ModuleType) -> None:
    for us in (1.0, 2.0):
        run = rows.Run("decode")
        for impl in ("ptxgen", "floor"):
            run.add({"n": 1}, impl, us=us)
        path = run.save()
    assert len(path.read_text().splitlines()) == 4
    last = rows.load("decode")
    assert [row["us"] for row in last] == [2.0, 2.0]
    first = json.loads(path.read_text().splitlines()[0])["run"]
    assert [row["us"] for row in rows.load("decode", first)] == [1.0, 1.0]


def test_no_rows_is_one_sentence(rows: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no rows yet"):
        rows.load("decode")
    rows.Run("decode").add({}, "x", us=1)
    run = rows.Run("decode")
    run.add({}, "x", us=1)
    run.save()
    with pytest.raises(SystemExit, match="no rows of run nope"):
        rows.load("decode", "nope")


def test_the_table_is_of_the_rows(rows: ModuleType) -> None:
    run = rows.Run("decode", device="a GPU")
    run.add({"n": 1, "d": 64}, "ptxgen", us=1.5)
    run.add({"n": 1, "d": 64}, "floor", us=1.25, rate=0.9)
    table = rows.markdown(run.rows).splitlines()
    assert table[:4] == [
        "| case | impl | us | rate |",
        "| --- | --- | --- | --- |",
        "| n=1, d=64 | ptxgen | 1.5 |  |",
        "| n=1, d=64 | floor | 1.25 | 0.9 |",
    ]
    assert table[-1].startswith("a GPU, ")


def test_rows_that_are_kept_at_once_are_partial_until_the_end(rows: ModuleType) -> None:
    other = rows.Run("some", "a GPU")
    other.add({"n": 0}, "ours", us=0.0)
    path = other.save()
    with rows.Run("some", "a GPU", at_once=True) as run:
        for n in (1, 2):
            run.add({"n": n}, "ours", us=1.0)
            kept = [json.loads(line) for line in path.read_text().splitlines()][1:]
            assert [(row["case"]["n"], row["partial"]) for row in kept] == [(i, True) for i in range(1, n + 1)]
        assert rows.load("some") == other.rows
    assert [row["case"]["n"] for row in rows.load("some")] == [1, 2]
    assert len(path.read_text().splitlines()) == 3
