"""Tools end in a sentence where something is missing, and write nothing then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import compile_texts

ROOT = Path(__file__).resolve().parents[2]


def ended(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A process of this repository's, without a GPU."""
    hidden = {"CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env={**os.environ, **hidden, **more}, capture_output=True, text=True
    )


def test_without_a_gpu_the_soak_says_so() -> None:
    found = ended("-m", "tests.tools.soak", "--device", "cuda", "--steps", "1")
    assert found.returncode == 2
    assert len(found.stderr.splitlines()) == 1
    assert found.stderr.startswith("soak: ")


def test_without_torchrun_sharding_says_so() -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    found = ended("-m", "tests.tools.tensor_parallel")
    assert found.returncode == 2
    assert found.stderr.startswith("tensor_parallel: runs under torchrun")


def test_a_compiler_that_is_not_there_leaves_its_texts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(compiler: str) -> str:
        raise ImportError(f"no {compiler}")

    monkeypatch.setattr(compile_texts, "_version", missing)
    monkeypatch.setattr(compile_texts, "TEXTS", tmp_path)
    with pytest.raises(ImportError, match="no triton"):
        compile_texts.main(["triton"])
    assert list(tmp_path.iterdir()) == []


def test_the_demo_ends_where_its_output_is_closed() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ptxgen.demo"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() == 1
    assert said == "demo: nobody reads its output any more: it ends here\n"


def test_every_command_shows_help() -> None:
    """By a parser, or by `show_help` first of all: what takes no arguments would do its work instead."""
    folders = ("tests/tools", "tests/evidence", "benchmarks")
    commands = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in commands}
    started = {name: text for name, text in texts.items() if '\nif __name__ == "__main__":\n' in text}
    assert len(started) > 40
    with_help = ("argparse", 'if __name__ == "__main__":\n    show_help(__doc__)', "report.command import")
    assert not [name for name, text in started.items() if not any(words in text for words in with_help)]
