"""The goldens of this project are what is generated now; and the check would notice if they were not."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ptxgen import PtxgenError, SpecError
from ptxgen.cli._main import invoke
from ptxgen.golden import INDEX, RESOURCES, Case, Finding, Goldens, assembler_for
from ptxgen.kernel import kernel_types
from ptxgen.kernels import KvCacheScatter
from ptxgen.targets import target

ROOT = Path(__file__).resolve().parent.parent / "golden_ptx"
NAMES = sorted(kernel_types())
ONE = "kv_cache_scatter"
SMALL = {"only": (ONE,), "targets": ("sm_80",)}


# -- what is committed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_goldens_are_what_is_generated(name: str) -> None:
    findings = list(Goldens(ROOT, (name,)).check())
    assert not [str(f) for f in findings if f.fails]


def test_no_golden_belongs_to_no_kernel_type() -> None:
    assert Goldens(ROOT).orphans() == []


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_type_has_goldens_on_each_of_its_targets(name: str) -> None:
    cls = kernel_types()[name]
    assert {c.target.name for c in Goldens(ROOT, (name,)).cases()} == set(cls.golden_targets)


@pytest.mark.parametrize("name", NAMES)
def test_goldens_are_read_by_people(name: str) -> None:
    for case in Goldens(ROOT, (name,)).cases():
        first, *rest = (ROOT / case.file).read_text().splitlines()
        assert first == f"// {case.spec!r} for {case.target}"
        assert len(rest) <= 500, case.file
        assert not [line for line in rest if len(line) > 140 and "mma" not in line], case.file


def test_the_same_bytes_in_any_process_and_hash_seed() -> None:
    program = (
        "from pathlib import Path; from ptxgen.golden import Goldens\n"
        "for case in Goldens(Path('golden_ptx')).cases(): print(case.file, case.generate().digest)"
    )

    def digests(seed: str) -> str:
        where = {"env": os.environ | {"PYTHONHASHSEED": seed}, "cwd": ROOT.parent}
        done = subprocess.run([sys.executable, "-c", program], **where, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = digests("0")
    assert first.count("\n") >= 3 * len(NAMES)
    assert digests("1") == first
    assert digests("4294967295") == first


# -- the check notices -------------------------------------------------------------------------------------------------


@pytest.fixture
def goldens(tmp_path: Path) -> Goldens:
    """A directory of the goldens of one kernel type on one target, without a difference."""
    made = Goldens(tmp_path / "golden_ptx", **SMALL)
    changed, removed = made.update()
    assert len(changed) == len(made.cases()) + 1
    assert removed == []
    assert not failing(made)
    return made


def failing(goldens: Goldens) -> list[Finding]:
    return [f for f in goldens.check() if f.fails]


@pytest.fixture(autouse=True)
def _not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def test_a_deleted_golden(goldens: Goldens) -> None:
    file = goldens.cases()[0].file
    (goldens.root / file).unlink()
    assert [(f.kind, f.file) for f in failing(goldens)] == [("missing", file)]


def test_an_orphan(goldens: Goldens) -> None:
    folder = goldens.root / "sm_80" / ONE
    (folder / "forgotten.ptx").write_text("// old\n")
    assert [(f.kind, f.file) for f in failing(goldens)] == [("orphan", f"sm_80/{ONE}/forgotten.ptx")]


def test_an_orphan_of_a_kernel_type_that_is_gone(goldens: Goldens) -> None:
    gone = goldens.root / "sm_80" / "gone"
    gone.mkdir()
    (gone / "l1.ptx").write_text("// old\n")
    assert Goldens(goldens.root, targets=("sm_80",)).orphans() == ["sm_80/gone/l1.ptx"]


@pytest.mark.parametrize("change", [b"\n", b" ", b"// a word\n"])
def test_a_changed_byte(goldens: Goldens, change: bytes) -> None:
    path = goldens.root / goldens.cases()[1].file
    path.write_bytes(path.read_bytes() + change)
    assert [(f.kind, f.file) for f in failing(goldens)] == [("changed", goldens.cases()[1].file)]


def test_a_changed_line_is_shown(goldens: Goldens) -> None:
    path = goldens.root / goldens.cases()[0].file
    path.write_text(path.read_text().replace("    ret;", "    ret; // ?"))
    (found,) = failing(goldens)
    assert "'ret; // ?' is committed, 'ret;' is generated" in found.text


def test_line_ends_count(goldens: Goldens) -> None:
    path = goldens.root / goldens.cases()[0].file
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (found,) = failing(goldens)
    assert found.text == "differs in its line ends only"


def edit_resources(goldens: Goldens, **changes: object) -> dict[str, dict[str, object]]:
    path = goldens.root / "sm_80" / ONE / RESOURCES
    record: dict[str, dict[str, object]] = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(record))
    return record


@pytest.mark.parametrize("name", ["registers", "spill_stores", "spill_loads", "stack", "shared", "barriers"])
def test_a_changed_resource(goldens: Goldens, name: str) -> None:
    record = edit_resources(goldens)
    stem = next(iter(record["kernels"]))
    record["kernels"][stem][name] += 1  # type: ignore[index]
    edit_resources(goldens, kernels=record["kernels"])
    (found,) = failing(goldens)
    assert (found.kind, found.file) == ("resources", f"sm_80/{ONE}/{stem}.ptx")
    assert found.text.startswith(f"{name} ")


def test_resources_of_a_golden_that_is_not_recorded_or_not_there(goldens: Goldens) -> None:
    record = edit_resources(goldens)
    stem = next(iter(record["kernels"]))
    edit_resources(goldens, kernels={**record["kernels"], "forgotten": record["kernels"][stem]})
    assert ["forgotten" in f.text for f in failing(goldens)] == [True]
    edit_resources(goldens, kernels={k: v for k, v in record["kernels"].items() if k != stem})
    assert [(f.kind, stem in f.text) for f in failing(goldens)] == [("missing", True)]
    (goldens.root / "sm_80" / ONE / RESOURCES).unlink()
    assert [f.kind for f in failing(goldens)] == ["missing"]


def test_another_assembler_is_said_and_is_not_a_failure(goldens: Goldens) -> None:
    edit_resources(goldens, assembler="nvJitLink 1.0")
    assert failing(goldens) == []
    (found,) = goldens.check()
    assert found.kind == "not compared"
    assert found.text == f"recorded with nvJitLink 1.0, installed: {assembler_for(target('sm_80'))}"


# -- update ------------------------------------------------------------------------------------------------------------


def test_update_is_refused_where_ci_is_set(goldens: Goldens, monkeypatch: pytest.MonkeyPatch) -> None:
    path = goldens.root / goldens.cases()[0].file
    path.write_text("// changed")
    for value in ("true", "1", "yes"):
        monkeypatch.setenv("CI", value)
        with pytest.raises(PtxgenError, match="refused where CI is set"):
            goldens.update()
        assert invoke(["golden", "update", "--root", str(goldens.root)]) == 2
    assert path.read_text() == "// changed"
    monkeypatch.setenv("CI", "false")
    assert goldens.update()[0] == [goldens.cases()[0].file]


def test_update_writes_only_what_differs_and_removes_orphans(goldens: Goldens) -> None:
    assert goldens.update() == ([], [])
    folder = goldens.root / "sm_80" / ONE
    (folder / "old.ptx").write_text("")
    assert goldens.update() == ([], [f"sm_80/{ONE}/old.ptx"])


def test_update_removes_nothing_that_lies_elsewhere(goldens: Goldens) -> None:
    kept = [goldens.root / "notes.json", goldens.root / "corpus" / ONE / "x.ptx"]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    everything = Goldens(goldens.root, only=(ONE, "x.ptx"))
    everything.update()
    assert all(path.read_text() == "mine" for path in kept)


def test_two_goldens_of_one_name_are_refused(tmp_path: Path) -> None:
    entry = {"kernel_type": ONE, "target": "sm_80", "file": "sm_80/x/same.ptx"}
    specs = [{"max_len": n, "head_dim": 64, "n_kv_heads": 2} for n in (64, 128)]
    (tmp_path / INDEX).write_text(json.dumps({"kernels": [entry | {"spec": spec} for spec in specs]}))
    with pytest.raises(SpecError, match=r"same\.ptx: two goldens have this name: .*max_len=64.* and .*max_len=128"):
        Goldens(tmp_path).cases()


# -- diff --------------------------------------------------------------------------------------------------------------


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


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git on PATH")
def test_diff_against_a_revision(goldens: Goldens, capsys: pytest.CaptureFixture[str]) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=goldens.root, check=True, capture_output=True)

    changed, removed = (goldens.root / case.file for case in goldens.cases()[:2])
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "goldens")
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


# -- a one-field change gives a local diff (R-h1) ----------------------------------------------------------------------


def changed_lines(old: str, new: str) -> int:
    """Lines that another line took the place of; a stage that a size adds or drops as a whole is no such line."""
    body = [text.splitlines()[1:] for text in (old, new)]  # line 1 is the spec itself
    matcher = difflib.SequenceMatcher(None, *body, autojunk=False)
    return sum(max(b - a, d - c) for tag, a, b, c, d in matcher.get_opcodes() if tag == "replace")


def local(text: str) -> int:
    """As many lines as a change of one number may touch."""
    return max(8, len(text.splitlines()) // 10)


def sizes(name: str) -> list[str]:
    """Sizes that the goldens of a kernel type state."""
    stated = {field for golden in kernel_types()[name].goldens for field in golden}
    return [field for field in ("max_len", "n_kv_heads") if field in stated]


@pytest.mark.parametrize(("name", "field"), [(name, field) for name in NAMES for field in sizes(name)])
def test_a_different_size_changes_only_lines_that_hold_it(name: str, field: str) -> None:
    cases = [c for c in Goldens(ROOT, (name,)).cases() if getattr(c.spec, field)]
    assert cases
    for case in cases:
        changes = {field: 2 * getattr(case.spec, field)}
        if field == "n_kv_heads" and hasattr(case.spec, "n_heads"):
            changes["n_heads"] = 2 * case.spec.n_heads
        other = Case(dataclasses.replace(case.spec, **changes), case.target, "")
        old, new = case.generate().text, other.generate().text
        assert 0 < changed_lines(old, new) <= local(old), case.file


def test_the_measure_of_locality_sees_renumbered_registers() -> None:
    text = Case(KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2), target("sm_80"), "").generate().text
    renumbered = re.sub(r"%([a-z_]+)\b", lambda name: f"%r{len(name[1])}", text)
    assert changed_lines(text, renumbered) > 4 * local(text)
