"""docs/api.md is what the docstrings say, every public name has one, and the package shows no other names."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.tools import api_reference


def test_the_page_is_what_is_written_from_the_docstrings() -> None:
    """Kernel types that it does not list yet are no difference: adding one edits no file."""
    there = api_reference.PAGE.read_text()
    assert there == api_reference.page(like=there), "python -m tests.tools.api_reference writes it"


def test_a_public_name_without_a_docstring_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxgen.runtime import Buffer

    monkeypatch.setattr(Buffer.numpy, "__doc__", None)
    with pytest.raises(SystemExit, match=r"ptxgen\.runtime\.Buffer\.numpy"):
        api_reference.page()


IMPORT = re.compile(r"from (ptxgen[\w.]*) import ([\w, ]+)")
DOCUMENTS = [api_reference.PAGE.parents[1] / "README.md", *sorted(api_reference.PAGE.parent.glob("*.md"))]


def missing(text: str, page: str) -> list[str]:
    """What a text imports from ptxgen that the page has under no heading, without classes that the text itself has."""
    own = set(re.findall(r"^class (\w+)", text, re.MULTILINE))
    parts = page.split("\n## ")
    homes = {part.partition("\n")[0]: set(re.findall(r"^### (\w+)", part, re.MULTILINE)) for part in parts}
    absent = []
    for module, names in IMPORT.findall(text):
        for name in (one.split(" as ")[0].strip() for one in names.split(",")):
            if name in own | homes.get(module, set()) or f"{module}.{name}" in homes:
                continue
            owners = [home for home, held in homes.items() if name in held and home not in api_reference.READ]
            value = getattr(importlib.import_module(module), name, None)
            if not any(getattr(importlib.import_module(home), name) is value for home in owners):
                absent.append(f"{module}.{name}")
    return absent


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d != api_reference.PAGE], ids=lambda path: path.name)
def test_what_documents_import_is_in_the_reference(document: Path) -> None:
    assert missing(document.read_text(encoding="utf-8"), api_reference.PAGE.read_text()) == []


def test_an_import_that_the_reference_lacks_is_named() -> None:
    text = "from ptxgen.launch import Param, grid3\nfrom ptxgen import rules, cli\nfrom ptxgen.torch import rope"
    assert missing(text, api_reference.PAGE.read_text()) == ["ptxgen.launch.grid3", "ptxgen.cli"]


def test_constants_and_aliases_have_the_string_below_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "### Past\n\nArrays, and what to index them with.\n" in api_reference.PAGE.read_text()
    monkeypatch.setitem(api_reference.AUTHORS, "ptxgen.lengths", ("MOST",))
    with pytest.raises(SystemExit, match=r"ptxgen\.lengths\.MOST"):
        api_reference.page()


OTHERS = ("builder", "idioms", "launch", "models", "rules", "weights")


@pytest.mark.parametrize("name", [*api_reference.MODULES, *(f"ptxgen.{name}" for name in OTHERS)])
def test_dir_shows_what_can_be_had_and_nothing_private(name: str) -> None:
    module = importlib.import_module(name)
    shown = [each for each in dir(module) if each != "__version__"]
    assert shown
    assert all(not each.startswith("_") and getattr(module, each) is not None for each in shown)
    assert {"Any", "importlib", "os", "annotations"}.isdisjoint(shown)
