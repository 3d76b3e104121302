"""The check of goldens notices every kind of change; an update writes what differs, and nothing elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ptxgen import PtxgenError, SpecError
from ptxgen.cli._main import invoke
from ptxgen.golden import INDEX, Goldens
from ptxgen.golden.compare import RESOURCES
from ptxgen.golden.record import assembler_for
from ptxgen.targets import target
from tests.support.golden_copy import ONE, edit_resources, failing
from tests.support.marks import needs_assembler
from tests.support.packages import ROOT

pytestmark = needs_assembler


def test_kernel_types_and_targets_narrow_the_check(goldens: Goldens) -> None:
    (goldens.root / goldens.cases()[0].file).unlink()
    options = ["--root", str(goldens.root)]
    assert invoke(["golden", "check", ONE, *options, "--target", "sm_80"]) == 1
    assert invoke(["golden", "check", ONE, *options]) == 1
    assert [f.kind for f in Goldens(goldens.root, (ONE,), ("sm_90a",)).check()] == []


def test_files_of_an_index_lie_below_it(tmp_path: Path) -> None:
    entry = {"kernel_type": ONE, "target": "sm_80", "spec": {"max_len": 64, "head_dim": 64, "n_kv_heads": 2}}
    for file in ("../out.ptx", "/tmp/out.ptx"):
        (tmp_path / INDEX).write_text(json.dumps({"kernels": [entry | {"file": file}]}))
        with pytest.raises(SpecError, match="files must lie below it"):
            Goldens(tmp_path).cases()
    bad = ('{"kernels": [{"kernel_type": "rope"}]}', "[", "[" * 100_000, '{"kernels": 7}', '{"kernels": ["x"]}', "\xff",
           json.dumps({"kernels": [{**entry, "spec": [], "file": "x.ptx"}]}))  # fmt: skip
    for content in bad:
        (tmp_path / INDEX).write_bytes(content.encode("latin-1"))
        with pytest.raises(SpecError, match="must be an index that"):
            Goldens(tmp_path).cases()


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


def test_another_assembler_is_said_and_fails_only_where_that_is_asked_for(
    goldens: Goldens, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_resources(goldens, assembler="nvJitLink 1.0")
    assert failing(goldens) == []
    (found,) = goldens.check()
    assert found.kind == "not compared"
    assert found.text == f"measured by nvJitLink 1.0 (committed) and {assembler_for(target('sm_80'))} (generated)"
    options = [ONE, "--root", str(goldens.root), "--target", "sm_80"]
    for command in ("check", "diff"):
        assert invoke(["golden", command, *options]) == 0
        assert "not compared: " in capsys.readouterr().out
        assert invoke(["golden", command, *options, "--strict"]) == 1


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


def test_update_writes_only_what_differs_and_removes_what_it_wrote(goldens: Goldens) -> None:
    assert goldens.update() == ([], [])
    folder = goldens.root / "sm_80" / ONE
    record = edit_resources(goldens)["kernels"]
    edit_resources(goldens, kernels={**record, "old": record[goldens.cases()[0].stem]})
    for name in ("old.ptx", "old.json", "mine.ptx"):
        (folder / name).write_text("")
    changed, removed = goldens.update()
    assert changed == [f"sm_80/{ONE}/{RESOURCES}"]
    assert removed == [f"sm_80/{ONE}/old.json", f"sm_80/{ONE}/old.ptx"]
    assert (folder / "mine.ptx").exists()
    assert goldens.update() == ([], [])


def test_update_of_a_kernel_type_that_is_gone_removes_its_record_too(goldens: Goldens) -> None:
    gone = goldens.root / "sm_80" / "gone"
    gone.mkdir()
    for name in ("old.ptx", RESOURCES):
        (gone / name).write_bytes((goldens.root / "sm_80" / ONE / RESOURCES).read_bytes())
    (gone / RESOURCES).write_text(json.dumps({"assembler": "x", "kernels": {"old": {}}}))
    _, removed = Goldens(goldens.root, only=(ONE, "gone"), targets=("sm_80",)).update()
    assert removed == ["sm_80/gone/old.ptx", f"sm_80/gone/{RESOURCES}"]


def test_update_says_that_a_kernel_type_has_no_goldens_any_more(
    goldens: Goldens, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["golden", "update", ONE, "--target", "sm_80", "--root", str(goldens.root)]
    first, *others = goldens.cases()
    monkeypatch.setattr(type(first.spec), "goldens", type(first.spec).goldens[1:])
    assert invoke(command) == 0
    assert "any more" not in capsys.readouterr().err
    monkeypatch.setattr(type(first.spec), "goldens", ())
    assert invoke(command) == 0
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()] == ["removed"] * (len(others) + 1)
    assert f"{ONE} has no goldens any more: all its files were removed" in shown.err


def test_update_removes_nothing_that_somebody_else_wrote(goldens: Goldens) -> None:
    kept = [goldens.root / "notes.json", *(goldens.root / f / ONE / "x.ptx" for f in ("corpus", "sm_80", "sm_90"))]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    everything = Goldens(goldens.root, only=(ONE, "x.ptx"))
    everything.update()
    assert all(path.read_text() == "mine" for path in kept)


def test_update_needs_a_directory_that_holds_goldens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory of generated kernels, or a mistyped name, becomes no directory of goldens by itself."""
    spec = ["kv-cache-scatter", "--max-len", "100", "--head-dim", "64", "--n-kv-heads", "2", "--target", "sm_80"]
    assert invoke(["generate", *spec, "-o", str(tmp_path / "k")]) == 0
    (mine,) = (tmp_path / "k").rglob("*.ptx")
    for root in ("k", "mistyped"):
        assert invoke(["golden", "update", ONE, "--target", "sm_80", "--root", str(tmp_path / root)]) == 2
        assert "must be a directory of goldens" in capsys.readouterr().err
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [mine.name]
    init = ["golden", "update", ONE, "--target", "sm_80", "--root", str(tmp_path / "k"), "--init"]
    assert invoke(init) == 0
    assert mine.exists()
    made = Goldens(tmp_path / "k", (ONE,), ("sm_80",))
    assert [(f.kind, f.file) for f in failing(made)] == [("orphan", mine.relative_to(made.root).as_posix())]
    assert invoke(init[:-1]) == 0


def test_a_choice_of_no_golden_is_wrong_use(goldens: Goldens, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("check", "diff", "update"):
        assert invoke(["golden", command, ONE, "--root", str(goldens.root), "--target", "sm_100"]) == 2
        err = capsys.readouterr().err
        assert f"nothing to compare: no golden is chosen by {ONE} --target sm_100 (kernels: " in err
        assert "sm_75, sm_80, sm_90" in err


def test_two_goldens_of_one_name_are_refused(tmp_path: Path) -> None:
    entry = {"kernel_type": ONE, "target": "sm_80", "file": "sm_80/x/same.ptx"}
    specs = [{"max_len": n, "head_dim": 64, "n_kv_heads": 2} for n in (64, 128)]
    (tmp_path / INDEX).write_text(json.dumps({"kernels": [entry | {"spec": spec} for spec in specs]}))
    with pytest.raises(SpecError, match=r"same\.ptx: two goldens have this name: .*max_len=64.* and .*max_len=128"):
        Goldens(tmp_path).cases()


def test_the_workflow_to_copy_installs_the_assembler_that_recorded() -> None:
    here = Path(__file__).resolve().parents[2]
    workflow = (here / ".github" / "workflows" / "golden-diff.yml").read_text()
    assert "golden check --strict" in workflow
    for record in (here / "golden_ptx").glob("*/*/resources.json"):
        name, version = json.loads(record.read_text())["assembler"].split()
        assert name == "nvJitLink"
        assert f"nvidia-nvjitlink=={version}.*" in workflow


def test_a_fresh_bundle_differs_in_nothing_and_its_resources_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As docs/getting-started.md shows; once resources are recorded, a folder that lacks them is one that lost them."""
    config = str(ROOT / "examples" / "train" / "config.json")
    assert invoke(["generate", "--config", config, "--target", "sm_80", "-o", str(tmp_path)]) == 0
    root = ["--root", str(tmp_path), "arg-max", "rope"]
    capsys.readouterr()
    assert invoke(["golden", "check", *root]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"not compared: sm_80/{name}/resources.json: resources are not committed" for name in ("arg_max", "rope")
    ]
    assert invoke(["golden", "check", "--strict", *root]) == 1
    Goldens(tmp_path, ("arg_max",)).update()
    capsys.readouterr()
    assert invoke(["golden", "check", *root]) == 1
    assert capsys.readouterr().out == "missing: sm_80/rope/resources.json: resources are not committed\n"
