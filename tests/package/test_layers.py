"""Rooms import one another in one direction: those of every folder, the runtime's in a certain order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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


def started(path: Path) -> Iterator[str]:
    """Modules that are imported when this one is: not in functions, not for annotations."""
    left: list[ast.AST] = list(ast.parse(path.read_text()).body)
    while left:
        node = left.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            left += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.Lambda):
            left += ast.iter_child_nodes(node)


def test_no_folder_has_rooms_that_import_each_other_in_a_circle() -> None:
    """A room of a folder is a module in it, or a folder in it with all that it holds."""
    package = RUNTIME.parent / "ptxgen"
    files = {
        *package.rglob("*.py"),
        *(package / "runtime" / path.relative_to(RUNTIME) for path in RUNTIME.rglob("*.py")),
    }
    imports = {
        (*path.relative_to(RUNTIME.parent).parent.parts, *((path.stem,) if path.stem != "__init__" else ())): {
            tuple(name.split(".")) for name in started(path) if name.startswith("ptxgen.")
        }
        for path in files
    }
    folders = {name[:depth] for name in imports for depth in range(1, len(name))}
    assert len(folders) > 40
    for folder in folders:
        depth = len(folder)
        rooms: dict[str, set[str]] = {}
        for name, wanted in imports.items():
            if name[:depth] == folder and len(name) > depth:
                others = {other[depth] for other in wanted if other[:depth] == folder and len(other) > depth}
                rooms.setdefault(name[depth], set()).update(others - {name[depth]})
        TopologicalSorter(rooms).prepare()  # raises CycleError, which names the circle


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
