"""The command line that benchmarks share."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.report import rows
from benchmarks.report.command import command
from benchmarks.report.rows import Run


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    monkeypatch.setattr(rows, "commit", lambda: "abc")
    return tmp_path


def measure(run: Run, given: argparse.Namespace) -> None:
    for n in range(given.count):
        run.add({"n": n}, "ours", us=1.5 * n)
    if given.count > 2:
        raise RuntimeError("too many")


COUNT = ("--count", {"type": int, "default": 1})


def run(*argv: str) -> None:
    command("some", "What it measures.", measure, COUNT, device=lambda: "a GPU", argv=argv)


def test_rows_are_kept_and_shown(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--count", "2")
    kept = [json.loads(line) for line in (results / "some.jsonl").read_text().splitlines()]
    assert [(row["case"]["n"], row["us"], row["device"]) for row in kept] == [(0, 0, "a GPU"), (1, 1.5, "a GPU")]
    assert "| n=1 | ours | 1.5 |" in capsys.readouterr().out


def test_a_report_measures_nothing(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run()
    first = json.loads((results / "some.jsonl").read_text())["run"]
    run("--count", "2")
    capsys.readouterr()
    run("--report")
    assert capsys.readouterr().out.count("| ours |") == 2
    run("--report", "--run", first)
    assert capsys.readouterr().out.count("| ours |") == 1
    assert len((results / "some.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("ended", [RuntimeError("too many"), SystemExit(1), KeyboardInterrupt()])
def test_an_interrupted_run_keeps_its_rows_but_is_not_the_last(
    results: Path, capsys: pytest.CaptureFixture[str], ended: BaseException
) -> None:
    def interrupted(run: Run, given: argparse.Namespace) -> None:
        measure(run, given)
        raise ended

    run("--count", "2")
    with pytest.raises(type(ended)):
        command("some", None, interrupted, COUNT, argv=())
    kept = [json.loads(line) for line in (results / "some.jsonl").read_text().splitlines()]
    assert [row.get("partial", False) for row in kept] == [False, False, True]
    capsys.readouterr()
    run("--report")
    assert capsys.readouterr().out.count("| ours |") == 2
    run("--report", "--run", kept[-1]["run"])
    assert capsys.readouterr().out.count("| ours |") == 1


def test_only_an_interrupted_run_is_no_report() -> None:
    with pytest.raises(RuntimeError):
        run("--count", "3")
    with pytest.raises(SystemExit, match="no rows of a whole run"):
        run("--report")


def test_nothing_measured_leaves_no_file(results: Path) -> None:
    with pytest.raises(RuntimeError):
        command("some", None, lambda run, _: (_ for _ in ()).throw(RuntimeError), argv=())
    assert not list(results.iterdir())
    run("--count", "0")


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--run", "abc")
    assert "--run: names a run to --report" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="no rows yet"):
        run("--report")
