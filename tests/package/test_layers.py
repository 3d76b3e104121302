"""No knots: modules and rooms name one another in one direction, the runtime's rooms in a certain order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

RUNTIME = Path(__file__).resolve().parents[2] / "runtime"
ROOMS = ("arrays", "core", "kv", "attention", "model", "tools")  # each knows those before it


def imported(tree: ast.Module) -> Iterator[str]:
    """Rooms that a module imports, in functions and for annotations, too."""
    for each in ast.walk(tree):
        if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("ptxgen.runtime."):
            yield (each.module or "").split(".")[2]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_those_before_it(room: str) -> None:
    later = ROOMS[ROOMS.index(room) + 1 :]
    modules = sorted((RUNTIME / room).rglob("*.py"))
    assert len(modules) > 2
    wrong = [(path.name, name) for path in modules for name in imported(ast.parse(path.read_text())) if name in later]
    assert wrong == []


def named(path: Path, functions: bool) -> Iterator[tuple[str, ...]]:
    """Modules that this one names when it is imported or for annotations, and with `functions` in these, too; of
    `from a import b` it is "a.b", which may be a name in "a"."""
    left: list[ast.AST] = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while left:
        node = left.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((*node.module.split("."), each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (tuple(each.name.split(".")) for each in node.names)
        elif functions or not isinstance(node, ast.FunctionDef | ast.Lambda):
            left += ast.iter_child_nodes(node)


@cache
def imports(functions: bool) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
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
        there = (other if other in modules else other[:-1] for other in named(path, functions))
        found[name] = {other for other in there if other in modules and other != name}
    return found


def test_no_module_names_one_that_names_it() -> None:
    """Directly or by others; in functions and for annotations, too."""
    graph = imports(functions=True)
    assert len(graph) > 900
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_no_folder_has_rooms_that_name_each_other_in_a_circle() -> None:
    """A room of a folder is a module in it, or a folder in it with all that it holds. Functions may import what finds
    them: kernel types find their modules so, errors their findings."""
    graph = imports(functions=False)
    folders = {name[:depth] for name in graph for depth in range(len(name))}
    assert len(folders) > 80
    for folder in folders:
        depth = len(folder)
        rooms: dict[str, set[str]] = {}
        for name, wanted in graph.items():
            if name[:depth] == folder and len(name) > depth:
                others = {other[depth] for other in wanted if other[:depth] == folder and len(other) > depth}
                rooms.setdefault(name[depth], set()).update(others - {name[depth]})
        TopologicalSorter(rooms).prepare()


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
OF_ONE_KERNEL = {"tools/trial.py", "tools/tuner.py", "tools/product_timer.py", "tools/checker.py", "core/module.py"}


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
