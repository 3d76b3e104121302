"""No knots: modules and folders name one another in one direction, in the order that docs/how-it-works.md states."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

RUNTIME = Path(__file__).resolve().parents[2] / "runtime"


def stated() -> dict[tuple[str, ...], list[str]]:
    """By folder its rooms in order, as the table of layers has them."""
    text = (RUNTIME.parent / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    rows = [row for row in text.partition("### Layers")[2].partition("## Where a line")[0].splitlines() if "|" in row]
    found: dict[tuple[str, ...], list[str]] = {}
    rooms: list[str] = []
    for row in rows[2:]:
        _, folder, _, names, _ = (cell.strip() for cell in row.split("|"))
        rooms = found.setdefault(tuple(folder.strip("`").split(".")), []) if folder else rooms
        rooms += [name.strip("` ") for name in names.split(",")]
    return found


STATED = stated()


def named(path: Path) -> Iterator[tuple[str, ...]]:
    """Modules that this one names, in functions and for annotations, too; of `from a import b` it is "a.b", which may
    be a name in "a"."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: line {node.lineno}: a relative import, which this test would not see"
            yield from ((*str(node.module).split("."), each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (tuple(each.name.split(".")) for each in node.names)


@cache
def imports() -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """What every module of the library, of the benchmarks and of the tests names of these."""
    root = RUNTIME.parent
    files = {path: path.relative_to(root).parts for top in ("ptxgen", "benchmarks", "tests")
             for path in (root / top).rglob("*.py")}  # fmt: skip
    files |= {path: ("ptxgen", "runtime", *path.relative_to(RUNTIME).parts) for path in RUNTIME.rglob("*.py")}
    modules = {
        (*parts[:-1], *(() if parts[-1] == "__init__.py" else (parts[-1].removesuffix(".py"),))): path
        for path, parts in files.items()
    }
    found = {}
    for name, path in modules.items():
        there = (other if other in modules else other[:-1] for other in named(path))
        found[name] = {other for other in there if other in modules and other != name}
    return found


def test_no_module_names_one_that_names_it() -> None:
    """Directly or by others; in functions and for annotations, too."""
    graph = imports()
    assert len(graph) > 900
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def rooms_of(folder: tuple[str, ...]) -> dict[str, set[str]]:
    """The rooms of a folder (modules in it, and folders with all that they hold), and which others each names."""
    depth = len(folder)
    rooms: dict[str, set[str]] = {}
    for name, wanted in imports().items():
        if name[:depth] == folder and len(name) > depth:
            others = {other[depth] for other in wanted if other[:depth] == folder and len(other) > depth}
            rooms.setdefault(name[depth], set()).update(others - {name[depth]})
    return rooms


def test_no_folder_has_rooms_that_name_each_other_in_a_circle() -> None:
    """Benchmarks and tests use each other: tests/evidence has cases and an oracle that benchmarks measure."""
    folders = {name[:depth] for name in imports() for depth in range(1, len(name))}
    assert len(folders) > 80
    for folder in folders:
        TopologicalSorter(rooms_of(folder)).prepare()


@pytest.mark.parametrize("folder", STATED, ids=".".join)
def test_a_room_names_only_those_before_it(folder: tuple[str, ...]) -> None:
    order, rooms = STATED[folder], rooms_of(folder)
    assert sorted(order) == sorted(rooms.keys() - {"__main__"})
    wrong = [(room, other) for at, room in enumerate(order) for other in rooms[room] if other not in order[:at]]
    assert wrong == []


PARTS = ("attention", "builder", "checks", "idioms", "isa", "parser", "persistent", "products", "spec", "weights")


@pytest.mark.parametrize("part", PARTS)
def test_what_kernels_are_made_of_knows_no_kernel(part: str) -> None:
    """Nor for annotations: what a part is told is a type beside it."""
    wrong = []
    for path in (RUNTIME.parent / "ptxgen" / part).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            of_module = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else of_module
            wrong += [(path.name, name) for name in names if f"{name}.".startswith("ptxgen.kernels.")]
    assert wrong == []


def test_the_runtime_knows_nothing_of_what_kernels_are_made_of() -> None:
    """It has specs, texts and Programs; nor does it import these in functions."""
    makers = ("attention", "builder", "idioms", "persistent", "products")
    wrong = [
        (path.relative_to(RUNTIME).as_posix(), node.module)
        for path in RUNTIME.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(tuple(f"ptxgen.{m}" for m in makers))
    ]
    assert wrong == []


def test_support_functions_know_nothing_of_check_mode() -> None:
    """`cpu/check` is made of `cpu/support`; the table of support functions names its modules, and imports none."""
    wrong = [
        (path.name, name)
        for path in (RUNTIME / "cpu" / "support").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        if name.startswith("ptxgen.runtime.cpu.check")
    ]
    assert wrong == []


# What tries or times one kernel by itself; it runs no op of a Program. `Module.launch` takes raw arguments of any PTX.
OF_ONE_KERNEL = {
    *("tools/trial.py", "tools/tuner.py", "tools/product_timer.py", "tools/checker.py"),
    "core/launches/module.py",
}


def test_nobody_but_a_step_binds_kernels() -> None:
    """Models, caches, attention and the executor's façade run Programs."""
    found = {
        path.relative_to(RUNTIME).as_posix()
        for path in RUNTIME.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "bind"
    }
    assert found - OF_ONE_KERNEL == {"core/step.py"}
    elsewhere = [path for path in (RUNTIME.parent / "ptxgen").rglob("*.py") if ".bind(" in path.read_text()]
    assert not [path for path in elsewhere if "runtime" not in path.relative_to(RUNTIME.parent).parts]
