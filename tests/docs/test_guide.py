"""docs/adding-a-kernel.md does what it says: its examples, added to a copy of the repository and to a package of
their own, pass the linter, the type checker and the tests of every kernel type, and changes no file that was there.
The package also has a kernel type whose fields have names of ours, with other meanings and bounds.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

from tests.support.guide import EXAMPLES, blocks, example, part
from tests.support.packages import ROOT, done, pip_install

OURS_BY_NAME = ROOT / "tests" / "data" / "own_kernel_types"
PROJECT = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n[project]\n' \
          'name = "my_package"\nversion = "1.0"\n\n'  # fmt: skip
# Tests that no kernel type's name is part of, and that see all of them, or the page's examples a second time.
OVERALL = (
    "test_every_kernel_type_has_goldens", "test_no_golden_belongs",
    "test_the_page_is_what", "test_list_", "test_every_size_has_a_range",
    "test_adding_a_kernel", "test_every_skeleton", "test_every_arm",
)  # fmt: skip


def written(modules: Path, templates: Path) -> tuple[Path, ...]:
    """The page's files in these folders; the Python ones."""
    for name in EXAMPLES:
        python, template = example(name)
        (modules / f"{name}.py").write_text(python, encoding="utf-8")
        (templates / f"{name}.ptx.j2").write_text(template, encoding="utf-8")
    return tuple(modules / f"{name}.py" for name in EXAMPLES)


def commands() -> list[list[str]]:
    """The page's commands, for each of its kernel types."""
    block = part("console", "ptxgen generate")
    lines = [line.removeprefix("$ ").partition("#")[0] for line in block.splitlines()]
    return [line.replace("scale-rows", name.replace("_", "-")).split() for name in EXAMPLES for line in lines]


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
    """The files of tests that run over every kernel type, and those of documents, templates and `list`."""
    users = (
        path for path in sorted((root / "tests").rglob("test_*.py")) if "from tests.support.kernels" in path.read_text()
    )
    more = (
        "docs/test_api_reference.py", "docs/test_adding_a_kernel.py", "golden/test_template_coverage.py",
        "cli/test_cli_tools.py",
    )  # fmt: skip
    return [*(path.relative_to(root).as_posix() for path in users), *(f"tests/{name}" for name in more)]


def linted(sources: tuple[Path, ...], cwd: Path, path: tuple[Path, ...]) -> None:
    files = [str(source) for source in sources]
    settings = str(ROOT / "pyproject.toml")
    done("-m", "ruff", "check", "--no-cache", "--config", settings, *files, cwd=cwd, path=path)
    done("-m", "ruff", "format", "--no-cache", "--check", "--config", settings, *files, cwd=cwd, path=path)
    cache = ["--cache-dir", str(ROOT / ".mypy_cache" / "guide")]
    where = ":".join(map(str, path[:1]))
    done("-m", "mypy", "--strict", "--config-file", settings, *cache, *files, cwd=cwd, path=path, MYPYPATH=where)


def passed(root: Path, cwd: Path, path: tuple[Path, ...], chosen: str, **env: str) -> int:
    """Run the tests of every kernel type over the new one; how many there were."""
    words = ["-m", "pytest", "-n", "0", "-k", chosen, *kernel_tests(root)]
    said = done(*words, cwd=cwd, path=path, **env)
    assert "skipped" not in said, said
    return int(re.findall(r"(\d+) passed", said)[0])


def barrier_is_found(root: Path, path: tuple[Path, ...], **env: str) -> None:
    """The page's command shows that check mode finds a barrier's absence, in the words of the page."""
    tool = part("console", "--show").removeprefix("$ python ").split()
    shown = done(*tool, cwd=root, path=path, **env)
    assert re.search(
        r"finding in check mode: sm_\d+/norm_rows/dim1024\S* barrier \d+: bar\.sync 0; ld\.shared", shown
    ), shown


def test_in_a_copy_of_the_repository(tmp_path: Path) -> None:
    root = copied(tmp_path / "copy")
    before = files(root)
    modules = written(root / "ptxgen" / "kernels", root / "templates")
    for words in commands():
        done("-m", *words, cwd=root, path=(root,))
    linted(modules, root, (root,))
    assert passed(root, root, (root,), " or ".join([*EXAMPLES, *OVERALL])) > 70
    test = root / "tests" / "test_norm_rows.py"
    test.write_text(part("python", "trial("), encoding="utf-8")
    assert "3 passed" in done("-m", "pytest", "-n", "0", str(test), cwd=root, path=(root,))
    test.unlink()
    barrier_is_found(root, (root,))
    after = files(root)
    assert {name: after.get(name) for name in before} == before
    new = after.keys() - before.keys()
    for kernel in EXAMPLES:
        assert {f"ptxgen/kernels/{kernel}.py", f"templates/{kernel}.ptx.j2"} <= new
    assert all(any(f"/{kernel}" in name for kernel in EXAMPLES) for name in new)


def test_in_a_package_of_its_own(tmp_path: Path) -> None:
    project, site = tmp_path / "project", tmp_path / "site"
    package = project / "my_package"
    package.mkdir(parents=True)
    (points,) = blocks("toml")
    names = (*EXAMPLES, "mix_heads")
    more = "".join(f'{name} = "my_package.{name}"\n' for name in names if name not in points)
    (project / "pyproject.toml").write_text(PROJECT + points + more, encoding="utf-8")
    (package / "__init__.py").write_text("")
    shutil.copytree(OURS_BY_NAME, package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    modules = (*written(package, package), package / "mix_heads.py")
    pip_install(project, site)
    path = (ROOT, site)
    linted(modules, project, path)
    done(
        "-m",
        "ptxgen",
        "golden",
        "update",
        "--init",
        *(name.replace("_", "-") for name in names),
        cwd=project,
        path=path,
    )
    for words in commands():
        done("-m", *words, cwd=project, path=path)
    goldens = {"PTXGEN_TEST_PACKAGE": "my_package", "PTXGEN_TEST_GOLDENS": str(project / "golden_ptx")}
    assert passed(ROOT, ROOT, path, " or ".join(names), **goldens) > 90
    barrier_is_found(ROOT, path, **goldens)
