"""docs/adding-a-kernel.md does what it says: its example, added to a copy of the repository and to a package of its
own, passes the linter, the type checker and the tests of every kernel type, and changes no file that was there.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

from tests.support.packages import ROOT, done, pip_install

PAGE = (ROOT / "docs" / "adding-a-kernel.md").read_text(encoding="utf-8")
PROJECT = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n[project]\n' \
          'name = "my_package"\nversion = "1.0"\n\n'  # fmt: skip
KERNEL = "scale_rows"
# Tests that no kernel type's name is part of, and that see all of them.
OVERALL = (
    "test_every_kernel_type_has_goldens", "test_no_golden_belongs",
    "test_the_page_is_what", "test_list_", "test_every_size_has_a_range",
)  # fmt: skip


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def copied(to: Path) -> Path:
    """The files of the repository that git knows, or would; all of them where there is no git."""
    known = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(known, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        shutil.copytree(ROOT, to, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        return to
    for name in filter(None, listed.stdout.split("\0")):
        if not name.startswith(("benchmarks/results/", "docs/images/")):
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).exists():
                shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    return to


def files(root: Path) -> dict[str, str]:
    """A digest of every file."""
    there = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    skipped = ("__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis")
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in there
        if not set(skipped) & set(path.parts)
    }


def kernel_tests(root: Path) -> list[str]:
    """The files of tests that run over every kernel type, and those of the reference and of `list`."""
    users = (
        path for path in sorted((root / "tests").rglob("test_*.py")) if "from tests.support.kernels" in path.read_text()
    )
    more = ("docs/test_api_reference.py", "cli/test_cli_tools.py")
    return [*(path.relative_to(root).as_posix() for path in users), *(f"tests/{name}" for name in more)]


def linted(source: Path, cwd: Path, path: tuple[Path, ...]) -> None:
    settings = str(ROOT / "pyproject.toml")
    done("-m", "ruff", "check", "--no-cache", "--config", settings, str(source), cwd=cwd, path=path)
    done("-m", "ruff", "format", "--no-cache", "--check", "--config", settings, str(source), cwd=cwd, path=path)
    cache = ["--cache-dir", str(ROOT / ".mypy_cache" / "guide")]
    where = ":".join(map(str, path[:1]))
    done("-m", "mypy", "--strict", "--config-file", settings, *cache, str(source), cwd=cwd, path=path, MYPYPATH=where)


def passed(root: Path, cwd: Path, path: tuple[Path, ...], chosen: str, **env: str) -> int:
    """Run the tests of every kernel type over the new one; how many there were."""
    words = ["-m", "pytest", "-n", "0", "-k", chosen, *kernel_tests(root)]
    said = done(*words, cwd=cwd, path=path, **env)
    assert "skipped" not in said, said
    return int(re.findall(r"(\d+) passed", said)[0])


def test_in_a_copy_of_the_repository(tmp_path: Path) -> None:
    root = copied(tmp_path / "copy")
    before = files(root)
    module = root / "ptxgen" / "kernels" / f"{KERNEL}.py"
    module.write_text(block("python"), encoding="utf-8")
    (root / "templates" / f"{KERNEL}.ptx.j2").write_text(block("jinja"), encoding="utf-8")
    for line in block("console").splitlines():
        done("-m", *line.removeprefix("$ ").partition("#")[0].split(), cwd=root, path=(root,))
    linted(module, root, (root,))
    assert passed(root, root, (root,), " or ".join([KERNEL, *OVERALL])) > 40
    after = files(root)
    assert {name: after.get(name) for name in before} == before
    new = after.keys() - before.keys()
    assert {f"ptxgen/kernels/{KERNEL}.py", f"templates/{KERNEL}.ptx.j2"} <= new
    assert all(f"/{KERNEL}" in name for name in new)


def test_in_a_package_of_its_own(tmp_path: Path) -> None:
    project, site = tmp_path / "project", tmp_path / "site"
    package = project / "my_package"
    package.mkdir(parents=True)
    (project / "pyproject.toml").write_text(PROJECT + block("toml"), encoding="utf-8")
    (package / "__init__.py").write_text("")
    (package / f"{KERNEL}.py").write_text(block("python"), encoding="utf-8")
    (package / f"{KERNEL}.ptx.j2").write_text(block("jinja"), encoding="utf-8")
    pip_install(project, site)
    path = (ROOT, site)
    linted(package / f"{KERNEL}.py", project, path)
    done("-m", "ptxgen", "golden", "update", "--init", "scale-rows", cwd=project, path=path)
    for line in block("console").splitlines():
        done("-m", *line.removeprefix("$ ").partition("#")[0].split(), cwd=project, path=path)
    goldens = {"PTXGEN_TEST_PACKAGE": "my_package", "PTXGEN_TEST_GOLDENS": str(project / "golden_ptx")}
    assert passed(ROOT, ROOT, path, KERNEL, **goldens) > 30
