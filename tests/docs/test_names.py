"""What documents name in code is there: names, attributes, arguments of calls; their sessions say what they say."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.tools import api_reference

ROOT = Path(__file__).resolve().parents[2]
# What lies behind us may name what is no more.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = ("api.md", "performance.md", "gpu-report.md")
OWN = re.compile(r"^(?:class|def) (\w+)", re.MULTILINE)


def public() -> dict[str, Any]:
    """The public names by themselves; those of the reference's headings."""
    found: dict[str, Any] = {}
    for line in (ROOT / "docs" / "api.md").read_text().splitlines():
        if module := re.match(r"## (ptxgen[\w.]*)$", line):
            owner = None if module[1] in api_reference.READ else importlib.import_module(module[1])
        elif name := re.match(r"### (\w+)", line):
            found.setdefault(name[1], getattr(owner, name[1], None))
    return found


PUBLIC = public()


def code(text: str) -> Iterator[str]:
    """Every piece of code in a line, and every block of Python."""
    yield from re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    yield from (re.sub(r"(?<=\()…|, …|… ", "", piece) for piece in re.findall(r"`([^`\n]+)`", prose))


def resolved(node: ast.expr, own: set[str]) -> Any:
    """What an expression names; None where it is not ours. Raises `AttributeError` for what is not there."""
    if isinstance(node, ast.Name):
        if node.id in ("ptxgen", "runtime"):
            return importlib.import_module("ptxgen.runtime" if node.id == "runtime" else "ptxgen")
        return None if node.id in own else PUBLIC.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    owner = resolved(node.value, own)
    if inspect.ismodule(owner):
        try:
            return getattr(owner, node.attr)
        except AttributeError:
            name = f"{owner.__name__}.{node.attr}"
            if find_spec(name) is None:
                raise
            return importlib.import_module(name) if name not in api_reference.READ else None
    if not inspect.isclass(owner):
        return None
    fields = {f.name for f in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
    ours = [base for base in owner.__mro__ if base.__module__.startswith("ptxgen.")]
    if node.attr in fields or any(f"self.{node.attr}" in inspect.getsource(base) for base in ours):
        return None
    return getattr(owner, node.attr)


def wrong(piece: str, own: set[str]) -> Iterator[str]:
    """What a piece of code names that is not there, or calls with arguments that it does not have."""
    try:
        tree = ast.parse(piece.strip())
    except SyntaxError:
        return
    for node in ast.walk(tree):
        try:
            if isinstance(node, ast.Attribute):
                resolved(node, own)
            called = resolved(node.func, own) if isinstance(node, ast.Call) else None
        except (AttributeError, ImportError) as missing:
            yield f"{piece}: {missing}"
            continue
        if isinstance(node, ast.Call) and called is not None:
            taken = inspect.signature(called).parameters
            if not any(p.kind == p.VAR_KEYWORD for p in taken.values()):
                yield from (f"{piece}: {k.arg}" for k in node.keywords if k.arg and k.arg not in taken)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in GENERATED], ids=lambda page: page.name)
def test_names_and_arguments_are_those_of_the_reference(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    own = set(OWN.findall(text))  # kernel types that the page writes
    assert [line for piece in code(text) for line in wrong(piece, own)] == []


def test_what_is_not_there_is_found() -> None:
    """A module, a name in it, an attribute of a class, an argument; not those of what a page writes itself."""
    bad = (
        "ptxgen.nowhere.x", "runtime.Nothing", "KvCache.shrink()", "KvCache(max_length=3)", "generate(spec, targets=1)",
    )  # fmt: skip
    assert [piece for piece in bad if not list(wrong(piece, set()))] == []
    assert list(wrong("KvCache.shrink()", {"KvCache"})) == []
    assert list(wrong("ptxgen.runtime.KvCache.append(layer, k, v)", set())) == []
    assert len(PUBLIC) > 60
    assert {"KvCache", "Executor", "generate"} <= PUBLIC.keys()
    assert api_reference.PAGE.is_file()


def test_the_sessions_of_the_documents_say_what_they_say() -> None:
    from ptxgen.kernels import KvCacheScatter

    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    names = {"ptxgen": importlib.import_module("ptxgen"), "KvCacheScatter": KvCacheScatter}
    for page in PAGES:
        for block in re.findall(r"```pycon\n(.*?)```", page.read_text(), re.DOTALL):
            runner.run(parser.get_doctest(block, dict(names), page.name, str(page), 0))
    assert (runner.summarize(verbose=False).attempted > 0, runner.failures) == (True, 0)


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "examples").glob("*/*.yml"))], ids=lambda page: page.name)
def test_no_page_installs_the_project_from_an_index(page: Path) -> None:
    """It is on none: a checkout is installed, as in `pip install '.[cpu]'`."""
    assert not re.search(r"pip install\s+['\"]?ptxgen", page.read_text(encoding="utf-8"))
