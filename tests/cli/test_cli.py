"""`ptxgen generate`, and wrong use of every command: exit codes, one sentence, nothing left behind."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptxgen.cli._main import invoke
from ptxgen.generator import generate
from ptxgen.kernel import KernelType, kernel_base, make_spec
from ptxgen.kernels import KvCacheScatter
from tests.support.kernels import NAMES, TYPES

SCATTER = ["kv-cache-scatter", "--max-len", "64", "--head-dim", "64", "--n-kv-heads", "2"]
TO = ["--target", "sm_80"]
SPEC = KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2)
CONFIGS = Path(__file__).parents[1] / "data" / "configs"


def names_below(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


# -- generate ----------------------------------------------------------------------------------------------------------


def test_generate_prints_the_text_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["generate", *SCATTER, *TO]) == 0
    out, err = capsys.readouterr()
    assert out == generate(SPEC, "sm_80").text
    assert err == ""


def test_generate_to_a_file_with_its_manifest(tmp_path: Path) -> None:
    file = tmp_path / "new" / "scatter.ptx"
    assert invoke(["generate", *SCATTER, *TO, "-o", str(file), "--manifest"]) == 0
    assert file.read_text() == generate(SPEC, "sm_80").text
    assert json.loads(file.with_suffix(".json").read_text()) == generate(SPEC, "sm_80").manifest()


def test_generate_to_a_directory_for_two_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["generate", *SCATTER, "--target", "sm_75", "--target", "sm_90", "-o", str(tmp_path), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert make_spec(written["kernel_type"], written["spec"]) == SPEC
    files = [str(tmp_path / t / "kv_cache_scatter" / f"{SPEC.slug}.ptx") for t in ("sm_75", "sm_90")]
    assert written["files"] == files
    assert [Path(f).read_text() for f in files] == [generate(SPEC, t).text for t in ("sm_75", "sm_90")]


def test_two_targets_do_not_fit_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.ptx"
    assert invoke(["generate", *SCATTER, "--target", "sm_75", "--target", "sm_90", "-o", str(file)]) == 2
    assert "-o: must be a directory" in capsys.readouterr().err
    assert not file.exists()


def test_options_before_the_kernel_count_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["generate", *TO, *SCATTER]) == 0
    assert capsys.readouterr().out == generate(SPEC, "sm_80").text


def test_a_kernel_type_by_any_of_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("kv-cache-scatter", "kv_cache_scatter", "KvCacheScatter"):
        assert invoke(["generate", name, *SCATTER[1:], *TO]) == 0
        assert capsys.readouterr().out == generate(SPEC, "sm_80").text


def test_flags_and_dtypes_reach_the_spec(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["generate", *SCATTER, "--indirect", "--kv-dtype", "int8", *TO]) == 0
    spec = dataclasses.replace(SPEC, indirect=True, kv_dtype="s8")
    assert capsys.readouterr().out == generate(spec, "sm_80").text


def test_a_device_file_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.ptx"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert invoke(["generate", *SCATTER, *TO, "-o", str(pipe)]) == 0
    assert os.read(reader, 1 << 20).decode() == generate(SPEC, "sm_80").text
    os.close(reader)
    assert pipe.is_fifo()


def test_a_docstring_may_say_what_two_fields_mean_at_once() -> None:
    from ptxgen.cli._kernels import field_doc

    @kernel_base
    class Product(KernelType):
        """A matrix, of `n`, `k`: rows and columns. `bias`: added; 0: nothing is; `scale`: multiplied."""

        n: int
        k: int
        bias: float
        scale: float

    assert [field_doc(Product, name) for name in ("n", "k", "bias", "scale")] == [
        "rows and columns",
        "rows and columns",
        "added; 0: nothing is",
        "multiplied",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_help_of_every_kernel_type_says_what_each_field_means(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from ptxgen.cli._kernels import field_doc
    from ptxgen.spec.legality import choices

    cls = TYPES[name]
    assert invoke(["generate", name, "--help"]) == 0
    shown = capsys.readouterr().out
    for field in dataclasses.fields(cls):
        assert "--" + field.name.replace("_", "-") in shown
        listed = choices(cls, field.name)
        assert f"[{'|'.join(listed)}]" in "".join(shown.split()) or not listed
        doc = field_doc(cls, field.name)
        assert all(doc.count(a) == doc.count(b) for a, b in ("()", "[]")), f"{cls.__name__}.{field.name}: cut: {doc}"
        assert doc, f"{cls.__name__}.{field.name}: no `{field.name}: …` in the docstring"


# -- wrong use: exit 2, one sentence, nothing left ---------------------------------------------------------------------

WRONG = {
    "no command": (["nope"], "nope: no such command"),
    "unknown option": (["list", "--nope"], "No such option"),
    "unknown kernel": (["generate", "kv-cache-scater", *TO], "nearest: kv_cache_scatter"),
    "unknown field": (["generate", *SCATTER, "--n-heds", "3", *TO], "--n-heds"),
    "not a number": (["generate", *SCATTER[:-1], "two", *TO], "'two'"),
    "missing fields": (["generate", SCATTER[0], *TO], "KvCacheScatter.head_dim: is needed"),
    "head_dim 100": (["generate", *SCATTER[:4], "100", *SCATTER[5:], *TO], "head_dim: must be a multiple of 8"),
    "several stages": (
        ["generate", *SCATTER[:3], "--head-dim", "64.5", "--kv-dtype", "q4", "--target", "sm_70"],
        "must be an int (got '64.5'); KvCacheScatter.n_kv_heads: is needed and has no default; "
        "KvCacheScatter.kv_dtype: must be one of f32, f16, bf16, e4m3, s8 (got q4); "
        "KvCacheScatter.target: must be sm_75 or later",
    ),
    "head_dim 1024": (["generate", *SCATTER[:4], "1024", *SCATTER[5:], *TO], "nearest: 512"),
    "max_len 0": (["generate", *SCATTER[:2], "0", *SCATTER[3:], *TO], "max_len: must be from 1"),
    "dtype": (["generate", *SCATTER, "--kv-dtype", "f12", *TO], "kv_dtype: must be one of"),
    "no target": (["generate", *SCATTER], "--target: is needed"),
    "unknown target": (["generate", *SCATTER, "--target", "sm_91"], "(got 'sm_91')"),
    "target below the kernel": (["generate", *SCATTER, "--target", "sm_70"], "must be sm_75 or later (got sm_70"),
    "neither kernel nor config": (["generate", *TO], "name a kernel type"),
    "no such config": (["generate", "--config", "nowhere.json", *TO, "-o", "out"], "nowhere.json: No such"),
    "config without -o": (["generate", "--config", str(CONFIGS / "phi-2.json"), *TO], "-o: is needed"),
    "config and kernel": (["generate", "--config", "c.json", *SCATTER, *TO], "not both"),
    "no such list": (["list", "nope"], "(got 'nope'"),
    "requires nothing": (["requires", "nowhere.ptx"], "nowhere.ptx: No such file"),
    "requires a driver": (["requires", "x.ptx", "--driver", "twelve"], "must be a version"),
    "verify nothing": (["verify", "nowhere"], "nowhere: no such file or directory"),
    "golden root": (["golden", "check", "--root", "nowhere"], "(got nowhere); golden update --init makes one"),
    "golden kernel": (["golden", "check", "nope"], "(got 'nope'"),
    "export without -o": (["export", *SCATTER, *TO], "-o: is needed"),
    "manifest to stdout": (["generate", *SCATTER, *TO, "--manifest"], "--manifest: needs -o"),
    "empty -o": (["generate", *SCATTER, *TO, "-o", ""], "-o: must be a directory, a file ending in .ptx, or -"),
    "empty -o of a model": (["generate", "--config", str(CONFIGS / "phi-2.json"), *TO, "-o", ""], "-o: is needed"),
    "kv dtype of a model": (
        ["generate", "--config", str(CONFIGS / "phi-2.json"), *TO, "--kv-dtype", "q4", "-o", "out"],
        "ptxgen: --kv-dtype: must be one of f32, f16, bf16, e4m3, s8 (got q4)\n",
    ),
    "head_dim of a model": (
        ["generate", "--config", str(Path(__file__).parents[1] / "data" / "head_dim_100.json"), *TO, "-o", "out"],
        "head_dim_100.json: head_dim: must be a multiple of 8 from 8 to 512 (got 100; nearest: 96 or 104)\n",
    ),
    "a driver that nobody knows": (["requires", "x.ptx", "--driver", "999.1"], "must be a branch from 384 to 580"),
    "shell": (["completion", "tcsh"], "tcsh"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, said = WRONG[case]
    monkeypatch.chdir(tmp_path)
    assert invoke(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.startswith("ptxgen: ")
    assert err.count("\n") == 1
    assert names_below(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "must be JSON (line 1"),
        ("[]", "must be a JSON object"),
        ('{"model_type": "bert"}', "model_type: must be one of llama"),
        ('{"model_type": "llama", "max_position_embeddings": -1}', "max_position_embeddings: must be an integer"),
    ],
)
def test_a_malformed_or_foreign_config(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(content)
    assert invoke(["generate", "--config", str(config), *TO, "-o", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "config.json" in err
    assert err.count("\n") == 1
    assert names_below(tmp_path) == ["config.json"]


def test_an_output_below_a_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert invoke(["generate", *SCATTER, *TO, "-o", str(tmp_path / "file" / "out")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert str(tmp_path / "file") in err
    assert names_below(tmp_path) == ["file"]


def test_an_unwritable_directory_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The third of four files cannot be made: neither it, nor the others, nor their directories remain."""
    import tempfile

    real: Callable[..., Any] = tempfile.mkstemp
    made: list[Any] = []

    def mkstemp(*args: object, **options: object) -> object:
        if len(made) == 2:
            raise PermissionError(13, "Permission denied", str(options["dir"]))
        made.append(real(*args, **options))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)
    out = tmp_path / "out"
    targets = [*TO, "--target", "sm_90"]
    assert invoke(["generate", *SCATTER, *targets, "-o", str(out), "--manifest"]) == 2
    assert "Permission denied" in capsys.readouterr().err
    assert len(made) == 2
    assert names_below(tmp_path) == []


# -- several commands into one directory -------------------------------------------------------------------------------


def test_a_second_target_joins_the_index_of_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ptxgen.golden import Goldens

    model = ["generate", "--config", str(CONFIGS / "llama-3.2-1b.json"), "-o", str(tmp_path)]
    assert invoke([*model, "--target", "sm_80"]) == 0
    assert invoke([*model, "--target", "sm_90"]) == 0
    both = json.loads((tmp_path / "index.json").read_text())["kernels"]
    assert {kernel["target"] for kernel in both} == {"sm_80", "sm_90"}
    assert len(both) == len(Goldens(tmp_path).cases()) == len(list(tmp_path.rglob("*.ptx")))
    assert Goldens(tmp_path).orphans() == []
    before = (tmp_path / "index.json").read_bytes()
    assert invoke([*model, "--target", "sm_80"]) == 0
    assert (tmp_path / "index.json").read_bytes() == before
    capsys.readouterr()
    assert invoke([*model, "--target", "sm_90", "--max-len", "512"]) == 2
    err = capsys.readouterr().err
    assert "index.json: is of another model (max_len: 131072 there, 512 here)" in err
    assert (tmp_path / "index.json").read_bytes() == before
    assert len(list(tmp_path.rglob("*.ptx"))) == len(both)


def test_a_second_export_joins_the_manifest_of_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for target in ("sm_80", "sm_90", "sm_80"):
        assert invoke(["export", *SCATTER, "--target", target, "--no-cubin", "-o", str(tmp_path)]) == 0
    listed = json.loads((tmp_path / "manifest.json").read_text())["kernels"]
    assert [kernel["target"] for kernel in listed] == ["sm_80", "sm_90"]
    for content in ("not JSON", "[]", '{"kernels": [{}]}', '{"format": 0, "kernels": []}'):
        (tmp_path / "manifest.json").write_text(content)
        assert invoke(["export", *SCATTER, *TO, "--no-cubin", "-o", str(tmp_path)]) == 2
        assert "manifest.json: is " in capsys.readouterr().err
        assert (tmp_path / "manifest.json").read_text() == content


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxgen.files.output import write_files

    (tmp_path / "a").write_text("")
    with pytest.raises(NotADirectoryError) as refused:
        write_files(tmp_path / "a", {"b": "", "c": ""})
    assert refused.value.filename in (str(tmp_path / "a"), str(tmp_path / "a" / "b"))

    def replace(source: str, target: Path) -> None:
        raise PermissionError(13, "Permission denied", source)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(PermissionError) as refused_too:
        write_files(tmp_path, {"b": ""})
    assert refused_too.value.filename == str(tmp_path / "b")


def test_a_failure_in_mid_way_takes_back_what_was_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxgen.files.output import write_files

    real = os.replace

    def replace(source: str, target: Path) -> None:
        if Path(target).name == "c":
            raise OSError(28, "No space left on device")
        real(source, target)

    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="No space"):
        write_files(tmp_path, {"a": "new", "d/b": "new", "d/c": "new"})
    assert names_below(tmp_path) == ["a"]
