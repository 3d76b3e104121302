"""The README's commands run as they stand, in an empty directory that has a `config.json` and a `kernel.ptx`."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

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
    shutil.copy(ROOT / "tests" / "data" / "configs" / "llama-3.2-1b.json", "config.json")
    spec = KvCacheScatter(max_len=4096, head_dim=128, n_kv_heads=8, kv_dtype="f16")
    Path("kernel.ptx").write_text(generate(spec, "sm_80").text)
    run = [line for line in commands() if not line.startswith(tuple(ELSEWHERE))]
    assert len(run) >= 7
    for line in run:
        program, *words = shlex.split(line)
        assert program == "ptxgen", line
        assert invoke(words) == 0, line
    assert list(Path("kernels/sm_90").glob("*/*.ptx"))
    assert list(Path("out").rglob("*.cubin"))


def test_every_line_that_is_run_elsewhere_stands_in_the_readme() -> None:
    assert [begin for begin in ELSEWHERE if not any(line.startswith(begin) for line in commands())] == []


def test_the_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("python")
    exec(block, {})
    printed = capsys.readouterr().out
    assert ".target sm_90" in printed
    assert "'block'" in printed
