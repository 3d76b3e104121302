"""Compiled templates that processes keep for each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

from ptxgen.lines import bytecode

ROOT = Path(__file__).resolve().parents[2]
_TEXT = """
import json
import jinja2.environment as environment
made = []
generate = environment.generate
environment.generate = lambda *a, **k: made.append(a[2]) or generate(*a, **k)
import ptxgen
from ptxgen.kernels import IncrementalAttention
spec = IncrementalAttention(max_len=512, head_dim=64, n_heads=8, n_kv_heads=2)
ptx = ptxgen.generate(spec, "sm_90")
print(json.dumps([len(made), ptx.digest, [str(ptx.source_map.at(n)) for n in range(1, ptx.source_map.lines + 1)]]))
"""


class Compiler:
    """Compiles to an expression of the source, and counts."""

    def __init__(self, file: Path) -> None:
        self.file, self.times = file, 0

    def __call__(self, source: str, part: str = "", *options: str) -> object:
        def compiled() -> CodeType:
            self.times += 1
            return compile(source, str(self.file), "eval")

        bytecode._versions.cache_clear()
        return eval(bytecode.kept(source, self.file.name, str(self.file), part, options, compiled))

    @property
    def files(self) -> list[Path]:
        """What was written."""
        return [path for path in self.file.parent.rglob("*") if "__pycache__" in path.parts and path.is_file()]


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return Compiler(tmp_path / "a.ptx.j2")


def test_a_source_is_compiled_once(compiler: Compiler) -> None:
    assert [compiler("1 + 1"), compiler("1 + 1")] == [2, 2]
    assert compiler.times == 1
    assert [file.suffix for file in compiler.files] == [".pyc"]


def test_another_source_part_or_compiler_is_another(compiler: Compiler, tmp_path: Path) -> None:
    option = tmp_path / "option.py"
    option.write_text("1")
    assert compiler("1 + 1", "", str(option)) == 2
    assert compiler("1 + 2", "", str(option)) == 3
    assert compiler("1 + 3", "when", str(option)) == 4
    assert compiler("1 + 2", "", str(option)) == 3
    assert compiler.times == 3, "a part has a file of its own"
    option.write_text("12")
    assert compiler("1 + 2", "", str(option)) == 3
    assert compiler.times == 4


def test_a_moved_file_is_another(compiler: Compiler, tmp_path: Path) -> None:
    compiler("1 + 1")
    (tmp_path / "moved").mkdir()
    compiler.files[0].parent.rename(tmp_path / "moved" / "__pycache__")
    moved = Compiler(tmp_path / "moved" / "a.ptx.j2")
    assert moved("1 + 1") == 2
    assert moved.times == 1, "code holds the name of its file"


def test_a_broken_file_is_compiled_anew(compiler: Compiler) -> None:
    compiler("1 + 1")
    (file,) = compiler.files
    whole = file.read_bytes()
    short = (whole[:n] for n in range(len(whole)))
    turned = (whole[:n] + bytes([whole[n] ^ 4]) + whole[n + 1 :] for n in range(len(whole)))
    for broken in (*short, *turned, whole[:64] + b"i\0\0\0\0", b"x" * len(whole)):
        file.write_bytes(broken)
        before = compiler.times
        assert compiler("1 + 1") == 2
        assert (compiler.times, file.read_bytes()) == (before + 1, whole)


def test_nothing_is_written_where_python_writes_nothing(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert [compiler("1 + 1"), compiler("1 + 1")] == [2, 2]
    assert (compiler.times, list(compiler.file.parent.iterdir())) == (2, [])


def test_a_folder_that_cannot_be_written(compiler: Compiler) -> None:
    (compiler.file.parent / "__pycache__").write_text("in the way")
    assert [compiler("1 + 1"), compiler("1 + 1")] == [2, 2]
    assert compiler.times == 2


def test_a_write_that_fails_leaves_nothing(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert compiler("1 + 1") == 2
    assert compiler.files == []


def test_a_second_process_compiles_no_template_and_knows_the_same_lines(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    said = [
        json.loads(
            subprocess.run([sys.executable, "-c", _TEXT], env=environment, capture_output=True, check=True).stdout
        )
        for _ in range(2)
    ]
    assert said[0][0] > 10
    assert said[1] == [0, *said[0][1:]]
    assert any("flow.ptx.j2" in line for line in said[0][2])


def test_the_name_of_a_template_counts(compiler: Compiler) -> None:
    """Lines' marks hold it, so the same file by another name is compiled anew."""
    compiler("1 + 1")
    taken = bytecode.kept("1 + 1", "another", str(compiler.file), "", (), lambda: compile("3", "another", "eval"))
    assert eval(taken) == 3
