"""The package: what importing it costs, what the wheel holds, and that a checkout without links works."""

from __future__ import annotations

import ast
import graphlib
import os
import shutil
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    ".".join([*package, *path.relative_to(folder).with_suffix("").parts]).removesuffix(".__init__"): path
    for folder, package in ((ROOT / "ptxgen", ["ptxgen"]), (ROOT / "runtime", ["ptxgen", "runtime"]))
    for path in folder.rglob("*.py")
}


def python(program: str, *, cwd: Path = ROOT, path: Path | None = None) -> str:
    """Output of a program in a fresh interpreter; `path` replaces the installed package."""
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_clean() -> None:
    """No third-party package, no process, no thread, no file made."""
    program = (
        "import sys, threading; before = set(sys.modules)\n"
        "def watch(event, args):\n"
        "    if event in ('subprocess.Popen', 'os.fork', 'os.mkdir', 'ctypes.dlopen', 'socket.connect', 'os.system'):\n"
        "        raise SystemExit(f'{event}: {args}')\n"
        "sys.addaudithook(watch); import ptxgen, ptxgen.runtime.opening\n"
        "assert threading.active_count() == 1\n"
        "print(*{m.partition('.')[0] for m in set(sys.modules) - before})"
    )
    loaded = set(python(program).split())
    assert loaded - set(sys.stdlib_module_names) == {"ptxgen"}


def test_every_public_name_exists() -> None:
    import ptxgen

    assert all(getattr(ptxgen, name) is not None for name in ptxgen.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = ptxgen.nope


def test_every_module_can_be_imported() -> None:
    program = (
        "import importlib, pkgutil; import ptxgen\n"
        "for module in pkgutil.walk_packages(ptxgen.__path__, 'ptxgen.'):\n"
        "    if '__main__' not in module.name:\n"
        "        try: print(importlib.import_module(module.name).__name__)\n"
        "        except ImportError as error:\n"
        "            if 'ptxgen' in str(error): raise"
    )
    assert len(python(program).split()) > 200


def test_every_module_can_be_the_first_one() -> None:
    """Whatever is imported first of the package: no module needs one that is half imported, as none needs itself."""
    needs = {name: needed_by(name, path) for name, path in MODULES.items()}
    assert sum(map(len, needs.values())) > 1000
    *_, last = graphlib.TopologicalSorter(needs).static_order()  # CycleError names them
    assert last in needs


def needed_by(name: str, path: Path) -> set[str]:
    """The modules of the package that importing one imports: those it names outside functions, with their packages;
    not its own packages, which are there before it, whatever comes first."""
    found: set[str] = set()
    for statement in imports(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(statement, ast.ImportFrom):
            named = [statement.module, *(f"{statement.module}.{each.name}" for each in statement.names)]
        else:
            named = [each.name for each in statement.names]
        for each in set(named) & MODULES.keys():
            parts = str(each).split(".")
            found |= {".".join(parts[: n + 1]) for n in range(len(parts))}
    return {each for each in found if each != name and not name.startswith(f"{each}.")}


def imports(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that are executed with a module."""
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
                continue
            parts = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
            for part in [*parts, *(handler.body for handler in getattr(statement, "handlers", []))]:
                yield from imports(part)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by hatchling from a copy of the sources."""
    pytest.importorskip("hatchling", reason="needs hatchling, which builds the wheel")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    copy_sources(source)
    return out / python(BUILD.format(str(out)), cwd=source).split()[-1]


BUILD = "from hatchling.build import build_wheel; print(build_wheel({!r}))"


def copy_sources(source: Path) -> None:
    """What a wheel is built from."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, source)
    for name in ("ptxgen", "runtime", "templates"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.mark.parametrize("build", ["build_wheel", "build_sdist"])
def test_what_is_built_of_a_checkout_that_lost_its_links_is_refused(build: str, tmp_path: Path) -> None:
    """Gone, as in an archive without links, or files, as git writes them on Windows."""
    pytest.importorskip("hatchling", reason="needs hatchling, which builds the wheel")
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    copy_sources(source)
    (source / "ptxgen" / "runtime").unlink()
    (source / "ptxgen" / "templates").unlink()
    (source / "ptxgen" / "templates").write_text("../templates")
    program = BUILD.format(str(out)).replace("build_wheel", build)
    done = subprocess.run([sys.executable, "-c", program], cwd=source, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("ptxgen: ptxgen/runtime and ptxgen/templates must be links to ../runtime")
    assert done.stderr.count("\n") == 1
    assert not list(out.iterdir())


def test_the_wheel_is_pure_small_and_whole(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < 2_000_000
    held = set(zipfile.ZipFile(wheel).namelist())
    for folder, inside in (("ptxgen", "ptxgen"), ("runtime", "ptxgen/runtime"), ("templates", "ptxgen/templates")):
        files = [p for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        wanted = {f"{inside}/{p.relative_to(ROOT / folder).as_posix()}" for p in files}
        assert wanted - held == set()
    assert not [name for name in held if name.startswith(("tests", "golden_ptx", "examples"))]
    assert not [name for name in held if name.endswith((".gguf", ".safetensors", "tokenizer.json"))]
    assert "ptxgen/py.typed" in held


def test_the_wheel_generates(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        "import ptxgen; from ptxgen.kernels import KvCacheScatter; import ptxgen.runtime; print(ptxgen.__file__)\n"
        "print(ptxgen.generate(KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2), 'sm_80').text)"
    )
    where, text = python(program, cwd=tmp_path, path=tmp_path).split("\n", 1)
    assert where.startswith(str(tmp_path))
    assert ".entry kv_cache_scatter" in text


def test_an_installed_package_keeps_nothing_that_pip_would_leave_behind(wheel: Path, tmp_path: Path) -> None:
    """pip removes the files that it installed, and Python's own code of those."""
    site, cache = tmp_path / "site-packages", tmp_path / "cache"
    zipfile.ZipFile(wheel).extractall(site)
    program = (
        "import ptxgen; from ptxgen.kernels import KvCacheScatter\n"
        "print(ptxgen.generate(KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2), 'sm_80').entry)"
    )
    environment = {"PYTHONPATH": str(site), "PTXGEN_CACHE_DIR": str(cache)}
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", *environment)}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=kept | environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    compiled = list(site.rglob("*.pyc"))
    assert len(compiled) > 10
    assert all((path.parent.parent / f"{path.name.partition('.')[0]}.py").is_file() for path in compiled)
    assert len(list((cache / "templates").glob("*.pyc"))) >= 2
    assert (cache / "templates").stat().st_mode & 0o777 == 0o700


def test_a_checkout_without_links_works(tmp_path: Path) -> None:
    """As on Windows, where git writes a link as a file that holds the path it points to."""
    for name in ("ptxgen", "runtime", "templates"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for link in ("runtime", "templates"):
        (tmp_path / "ptxgen" / link).unlink()
        (tmp_path / "ptxgen" / link).write_text(f"../{link}")
    program = (
        "import ptxgen, ptxgen.runtime, ptxgen.runtime.core.diskcache; from ptxgen.kernels import KvCacheScatter\n"
        "print(ptxgen.__file__, ptxgen.runtime.__file__, ptxgen.runtime.core.diskcache.__file__)\n"
        "ptx = ptxgen.generate(KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2), 'sm_80'); print(ptx.entry)"
    )
    shown = python(program, cwd=tmp_path, path=tmp_path).split()
    files = ("ptxgen/__init__.py", "runtime/__init__.py", "runtime/core/diskcache.py")
    assert shown[:3] == [str(tmp_path / f) for f in files]
    assert shown[3] == "kv_cache_scatter"


def test_extras_name_what_the_code_imports() -> None:
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {"cuda", "cpu", "ptxas", "models", "dev", "all"} <= extras.keys()
    assert extras["all"] == ["ptxgen[cuda,cpu,ptxas,models]"]
    assert any(d.startswith("llvmlite") for d in extras["cpu"])
    assert project["requires-python"] == ">=3.10"


def test_the_benchmark_of_generation_measures() -> None:
    """How fast that is, its rows say. Here: a repeated text costs less than a new one (some thousandth), and that less
    than a process (some thirtieth), on every machine."""
    from benchmarks import generation

    cold = statistics.median(generation.cold_seconds(case, time.process_time) for case in generation.some_cases(12))
    process = generation.process_seconds([sys.executable, "-m", "ptxgen", "generate", *generation.COMMAND])
    assert 0 < min(generation.repeated_seconds() for _ in range(3)) < cold < process


def test_the_benchmark_of_generation_has_a_row_for_every_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import generation
    from benchmarks.report import rows

    def broken() -> float:
        raise RuntimeError("no driver\nand more")

    others = {"triton": (False, broken), "nvcc": (True, broken), "numba-cuda": (True, lambda: 0.25)}
    monkeypatch.setattr(generation, "COMPILERS", {"ptxgen": generation.COMPILERS["ptxgen"], **others})
    run = rows.Run("generation", "a processor")
    generation.compilers(run)
    found: dict[str, Any] = {row["impl"]: (row.get("us"), row.get("why")) for row in run.rows}
    assert 0 < found.pop("ptxgen")[0] < 1e6
    assert found == {
        "triton": (None, "not installed"),
        "nvcc": (None, "no driver"),
        "numba-cuda": (250000.0, None),
        "trueno-gpu (Rust)": (27.0, "as its authors state it; not measured here"),
    }
    assert "| one kernel's text" in rows.markdown(run.rows).replace("what=", "")
