"""The commands and the Python of the README and of docs/getting-started.md run as they stand, in order."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ptxgen.cli._main import invoke
from tests.support.packages import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
# Lines that set up, and what runs them.
ELSEWHERE = {
    "make demo": "continuous integration installs by its rule of the Makefile; tests/package/test_demo.py",
    ". .venv/bin/activate": "this is the environment",
}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(text: str) -> list[str]:
    """The lines behind `$`, without their comments."""
    lines = (line for block in blocks(text, "console") for line in block.splitlines() if line.startswith("$ "))
    return [line.removeprefix("$ ").partition("  #")[0].strip() for line in lines]


def test_the_commands_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)  # `golden update` is refused there
    for folder in ("examples", "golden_ptx"):
        shutil.copytree(ROOT / folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    run = [line for text in (README, GUIDE) for line in commands(text) if line not in ELSEWHERE]
    assert len(run) >= 16
    for line in run:
        program, *words = shlex.split(line)
        if program == "python":
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            shown = subprocess.run(
                [sys.executable, *words], env=environment, capture_output=True, text=True, check=True
            )
            assert len(shown.stdout.split()) == 4, shown.stdout
        else:
            assert program == "ptxgen", line
            assert invoke(words) == 0, line
    assert list(Path("kernels/sm_90").glob("*/*.ptx"))
    assert list(Path("kernels/sm_90/gemv").glob("*.ptx"))
    assert list(Path("out").rglob("*.cubin"))
    assert Path("exported/program.json").exists()


def test_what_sets_up_stands_in_both_and_in_what_continuous_integration_runs() -> None:
    assert [line for line in ELSEWHERE if line not in commands(README) or line not in commands(GUIDE)] == []
    rules = (ROOT / "Makefile").read_text()
    assert "pip install --quiet --disable-pip-version-check -e '.[all,dev]'" in rules
    assert re.search(r"^demo: \$\(STAMP\)$", rules, re.MULTILINE)
    assert re.search(r"^test: \$\(STAMP\)$", rules, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (kernel,) = blocks(README, "python")
    exec(kernel, {})
    printed = capsys.readouterr().out
    assert ".target sm_90" in printed
    assert "'block'" in printed


def test_the_python_of_a_whole_model_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    (model,) = blocks(GUIDE, "python")
    names: dict[str, Any] = {}
    exec(model, names)
    assert capsys.readouterr().out.startswith("In the beginning")
    assert len(names["ids"]) == len(names["prompt"]) + 8
    assert names["token"] == names["ids"][len(names["prompt"])]
    assert names["tokens"] == {names["slot"]: names["ids"][len(names["prompt"]) + 1]}


def test_the_extras_are_those_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", GUIDE.partition("## Install")[2], re.MULTILINE))
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert rows.keys() == set(re.findall(r"^(\w+) =", section, re.MULTILINE)) - {"dev"}
    (together,) = re.findall(r"^all = \[\"ptxgen\[(.*?)\]", section, re.MULTILINE)
    assert sorted(rows["all"].split(", ")) == sorted(together.split(","))
