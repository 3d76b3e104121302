"""The README's commands run as they stand, in a directory with `config.json`, `kernel.ptx` and `examples/`."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ptxgen.cli._main import invoke
from ptxgen.generator import generate
from ptxgen.kernels import KvCacheScatter
from tests.support.packages import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
# Begins of lines that are not run here, and what runs them.
ELSEWHERE = {
    "pip install": "needs an index; tests/package/test_packaging.py installs the wheel",
    "make ": "the demo is tests/package/test_demo.py, the tests are these",
    "ptxgen complete": "tests/cli/test_complete.py",
    "ptxgen golden": "tests/golden",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def commands() -> list[str]:
    """The lines behind `$`, without their comments."""
    lines = (line for block in blocks("console") for line in block.splitlines() if line.startswith("$ "))
    return [line.removeprefix("$ ").partition("  #")[0].strip() for line in lines]


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = json.loads((ROOT / "tests" / "data" / "configs" / "llama-3.2-1b.json").read_text())
    Path("config.json").write_text(json.dumps(config | {"intermediate_size": 8192, "rms_norm_eps": 1e-5}))
    spec = KvCacheScatter(max_len=4096, head_dim=128, n_kv_heads=8, kv_dtype="f16")
    Path("kernel.ptx").write_text(generate(spec, "sm_80").text)
    Path("examples").symlink_to(ROOT / "examples")
    run = [line for line in commands() if not line.startswith(tuple(ELSEWHERE))]
    assert len(run) >= 10
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


def test_every_line_that_is_run_elsewhere_stands_in_the_readme() -> None:
    assert [begin for begin in ELSEWHERE if not any(line.startswith(begin) for line in commands())] == []


def test_the_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    kernel, _ = blocks("python")
    exec(kernel, {})
    printed = capsys.readouterr().out
    assert ".target sm_90" in printed
    assert "'block'" in printed


def test_the_python_of_a_whole_model_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    _, model = blocks("python")
    names: dict[str, Any] = {}
    exec(model, names)
    assert capsys.readouterr().out.startswith("In the beginning")
    assert len(names["ids"]) == len(names["prompt"]) + 8
    assert names["token"] == names["ids"][len(names["prompt"])]
    assert names["tokens"] == {names["slot"]: names["ids"][len(names["prompt"]) + 1]}


def test_the_extras_are_those_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", TEXT.partition("## Installation")[2], re.MULTILINE))
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert rows.keys() == set(re.findall(r"^(\w+) =", section, re.MULTILINE)) - {"dev"}
    (together,) = re.findall(r"^all = \[\"ptxgen\[(.*?)\]", section, re.MULTILINE)
    assert sorted(rows["all"].split(", ")) == sorted(together.split(","))
