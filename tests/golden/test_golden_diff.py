"""`golden diff`: lines, instructions, resources of each change; against what is generated, or a git revision."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ptxgen.cli._main import invoke
from ptxgen.golden import Goldens
from ptxgen.golden.compare import RESOURCES
from tests.support.golden_copy import ONE, edit_resources
from tests.support.marks import needs_assembler

pytestmark = needs_assembler


def test_diff_shows_lines_instructions_and_resources(goldens: Goldens, capsys: pytest.CaptureFixture[str]) -> None:
    case = goldens.cases()[0]
    path = goldens.root / case.file
    lines = path.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if "mov.u32" in line)
    path.write_text("".join([*lines[:at], lines[at], *lines[at:]]))
    record = edit_resources(goldens)
    record["kernels"][path.stem]["registers"] += 2  # type: ignore[index]
    edit_resources(goldens, kernels=record["kernels"])
    options = ["--root", str(goldens.root), "--target", "sm_80"]
    assert invoke(["golden", "diff", ONE, *options]) == 1
    shown = capsys.readouterr().out
    now = case.generate().text.count("mov.u32")
    assert f"instructions of {case.file}: mov.u32 -1 ({now + 1} → {now})" in shown
    assert f"resources of {case.file}: registers " in shown
    assert f"-{lines[at]}" in shown
    assert invoke(["golden", "diff", ONE, "--markdown", *options]) == 1
    assert f"### `{case.file}`: changed" in capsys.readouterr().out


def test_context_is_the_lines_around_a_change(goldens: Goldens, capsys: pytest.CaptureFixture[str]) -> None:
    path = goldens.root / goldens.cases()[0].file
    path.write_text(path.read_text().replace("    ret;", "    ret; // ?"))
    shown = {}
    for context in ("0", "2"):
        invoke(["golden", "diff", ONE, "--root", str(goldens.root), "--target", "sm_80", "--context", context])
        shown[context] = [line for line in capsys.readouterr().out.splitlines() if line.startswith(" ")]
    assert shown["0"] == []
    assert 2 <= len(shown["2"]) <= 4


def test_no_difference_is_exit_0(goldens: Goldens) -> None:
    options = ["--root", str(goldens.root), "--target", "sm_80"]
    assert invoke(["golden", "diff", ONE, *options]) == 0
    assert invoke(["golden", "check", ONE, *options]) == 0
    (goldens.root / goldens.cases()[0].file).unlink()
    assert invoke(["golden", "check", ONE, *options]) == 1
    assert invoke(["golden", "diff", ONE, *options]) == 1


def test_check_for_a_machine(goldens: Goldens, capsys: pytest.CaptureFixture[str]) -> None:
    file = goldens.cases()[0].file
    (goldens.root / file).unlink()
    invoke(["golden", "check", ONE, "--root", str(goldens.root), "--target", "sm_80", "--json"])
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["file"], found["fails"]) == ("missing", file, True)


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git on PATH")


@needs_git
def test_diff_against_a_revision(goldens: Goldens, capsys: pytest.CaptureFixture[str]) -> None:
    changed, removed = (goldens.root / case.file for case in goldens.cases()[:2])
    _git(goldens.root, "init", "-q")
    _git(goldens.root, "add", ".")
    _git(goldens.root, "commit", "-q", "-m", "goldens")
    options = ["--root", str(goldens.root), "--against", "HEAD"]
    assert invoke(["golden", "diff", *options]) == 0
    changed.write_text(changed.read_text().replace("    ret;", "    bar.sync 0;\n    ret;"))
    removed.unlink()
    (changed.parent / "new.ptx").write_text(changed.read_text())
    capsys.readouterr()
    assert invoke(["golden", "diff", *options, "--markdown"]) == 1
    shown = capsys.readouterr().out
    assert "bar.sync +1 (" in shown
    kinds = {line.split("/")[-1] for line in shown.splitlines() if line.startswith("###")}
    assert kinds == {f"{changed.name}`: changed", f"{removed.name}`: removed", "new.ptx`: added"}
    assert invoke(["golden", "diff", "--root", str(goldens.root), "--against", "nowhere"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def _spoil(goldens: Goldens, how: str) -> None:
    case = goldens.cases()[0]
    path = goldens.root / case.file
    if how == "a text":
        path.write_text(path.read_text().replace("    ret;", "    bar.sync 0;\n    ret;"))
    elif how == "line ends":
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    elif how == "a missing text":
        path.unlink()
    elif how == "a missing record":
        (path.parent / RESOURCES).unlink()
    elif how == "an orphan that is no PTX":
        (path.parent / "forgotten.ptx").write_text("not PTX at all")
    elif how == "an orphan of another kind":
        (path.parent / "forgotten.json").write_text("{}")
    elif how == "a register":
        record = edit_resources(goldens)["kernels"]
        record[path.stem]["registers"] += 1  # type: ignore[index]
        edit_resources(goldens, kernels=record)
    else:
        edit_resources(goldens, kernels={})


SPOILT = {
    "a text": "instructions of ", "line ends": "differs in its line ends only", "a missing text": "+++ b/",
    "a missing record": f"missing: sm_80/{ONE}/{RESOURCES}: resources are not committed",
    "an orphan that is no PTX": "-not PTX at all", "an orphan of another kind": "--- a/", "a register": "registers ",
    "nothing recorded": "does not record",
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILT)
def test_diff_shows_whatever_check_finds(goldens: Goldens, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    _spoil(goldens, how)
    options = [ONE, "--root", str(goldens.root), "--target", "sm_80"]
    assert invoke(["golden", "check", *options]) == 1
    files = {line.split(": ")[1] for line in capsys.readouterr().out.splitlines()}
    assert invoke(["golden", "diff", *options]) == 1
    shown = capsys.readouterr().out
    assert SPOILT[how] in shown
    assert all(file in shown for file in files)
    assert invoke(["golden", "diff", *options, "--markdown"]) == 1
    assert {line.split("`")[1] for line in capsys.readouterr().out.splitlines() if line.startswith("### ")} == files


@needs_git
def test_a_launch_contract_is_compared_like_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The manifests that an index names: now, and against a revision."""
    config = Path(__file__).parents[1] / "data" / "configs" / "llama-3.2-1b.json"
    options = ["--root", str(tmp_path), "arg-max"]
    assert invoke(["generate", "--config", str(config), "--target", "sm_80", "-o", str(tmp_path)]) == 0
    Goldens(tmp_path).update()
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "goldens")
    capsys.readouterr()
    (contract,) = (tmp_path / "sm_80" / "arg_max").glob("n*.json")
    contract.write_text(contract.read_text().replace('"align": 16', '"align": 8', 1))
    for command in (["check"], ["diff"], ["diff", "--against", "HEAD"]):
        assert invoke(["golden", *command, *options]) == 1
        assert contract.name in capsys.readouterr().out
    invoke(["golden", "diff", "--against", "HEAD", *options])
    changed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("+") and "align" in line]
    assert [line.split() for line in changed] == [["+", '"align":', "8"]]
