"""Compiled templates that processes keep for each other."""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture
def installed(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """A template of an installed package, and a place for its code that is not there yet."""
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path / "home" / "cache"))
    forget()
    (tmp_path / "home").mkdir()
    yield Compiler(tmp_path / "site-packages" / "a.ptx.j2")
    forget()


def forget() -> None:
    """As in a new process."""
    bytecode._users_folder.cache_clear()
    bytecode._prune.cache_clear()


def planted(compiler: Compiler, folder: Path) -> Path:
    """The file of `1 + 1`, with code that gives 3."""
    assert compiler("1 + 1") == 2
    (file,) = folder.glob("*.pyc")
    made = marshal.dumps(compile("3", str(compiler.file), "eval"))
    file.write_bytes(file.read_bytes()[:32] + hashlib.sha256(made).digest() + made)
    assert compiler("1 + 1") == 3, "digests hold no secret"
    return file


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_installed_is_kept_for_this_user_alone_also_after_the_cache_was_emptied(
    installed: Compiler, tmp_path: Path
) -> None:
    cache, before = tmp_path / "home" / "cache", os.umask(0o002)
    try:
        for times in (1, 2):
            assert [installed("1 + 1"), installed("1 + 1")] == [2, 2]
            assert installed.times == times
            (file,) = (cache / "templates").iterdir()
            assert [mode_of(path) for path in (cache, cache / "templates", file)] == [0o700, 0o700, 0o600]
            shutil.rmtree(cache)
    finally:
        os.umask(before)
    assert not installed.file.parent.exists()


@pytest.mark.parametrize("fault", ["another's", "of a group", "a link", "another's folder", "a group's folder"])
def test_code_that_another_user_may_have_written_is_not_run(
    installed: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    folder = tmp_path / "home" / "cache" / "templates"
    file = planted(installed, folder)
    if fault == "of a group":
        file.chmod(0o660)
    elif fault == "a group's folder":
        folder.chmod(0o770)
    elif fault == "a link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        name = "stat" if "folder" in fault else "fstat"
        belongs_to_another(monkeypatch, name, folder if "folder" in fault else None)
    times = installed.times
    assert installed("1 + 1") == 2
    assert installed.times == times + 1


def belongs_to_another(monkeypatch: pytest.MonkeyPatch, name: str, place: Path | None) -> None:
    """What `os.stat` or `os.fstat` says of a place, or of everything."""
    real, other = getattr(os, name), os.geteuid() + 1

    def another(path: object, *given: object, **named: object) -> os.stat_result:
        found = list(real(path, *given, **named))
        if place is None or str(path) == str(place):
            found[stat.ST_UID] = other
        return os.stat_result(found)

    monkeypatch.setattr(os, name, another)


def test_nothing_is_made_below_a_directory_of_another_user(
    installed: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root with a user's HOME, whose directories it would make."""
    belongs_to_another(monkeypatch, "stat", tmp_path / "home")
    assert [installed("1 + 1"), installed("1 + 1")] == [2, 2]
    assert (installed.times, list((tmp_path / "home").iterdir())) == (2, [])


def test_off_keeps_nothing_of_an_installed_package(
    installed: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", "off")
    monkeypatch.chdir(tmp_path)
    assert [installed("1 + 1"), installed("1 + 1")] == [2, 2]
    assert (installed.times, [*tmp_path.iterdir()]) == (2, [tmp_path / "home"])


def test_a_relative_place_stays_where_it_was(
    installed: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", "cache")
    monkeypatch.chdir(tmp_path / "home")
    planted(installed, tmp_path / "home" / "cache" / "templates")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert installed("1 + 1") == 3
    assert installed("1 + 4") == 5
    assert list((tmp_path / "other").iterdir()) == []


def test_a_temporary_file_of_another_writer_stays(
    installed: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("1 + 1")
    (file,) = (tmp_path / "home" / "cache" / "templates").iterdir()
    monkeypatch.setattr(os, "urandom", bytes)
    other = file.with_name(f".{file.name}.{os.getpid()}.{'00' * 6}.tmp")
    other.write_bytes(b"half")
    assert installed("1 + 2") == 3
    assert other.read_bytes() == b"half"


def test_files_written_first_go_when_there_are_many(
    installed: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bytecode, "_MOST", 3)
    folder = tmp_path / "home" / "cache" / "templates"
    installed("1 + 1")
    (file,) = folder.iterdir()
    for n in range(5):
        (folder / f"{n}.pyc").write_bytes(b"")
        os.utime(folder / f"{n}.pyc", (100 - n, 100 - n))
    installed("1 + 1", "again")
    assert len([*folder.iterdir()]) == 7, "it looks once a process"
    forget()
    installed("1 + 1", "more")
    left = {path.name for path in folder.iterdir()}
    assert (len(left), file.name in left) == (3, True)
    assert not left & {f"{n}.pyc" for n in range(5)}
