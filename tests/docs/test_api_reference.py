"""docs/api.md is what the docstrings say, every public name has one, and the package shows no other names."""

from __future__ import annotations

import importlib

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


@pytest.mark.parametrize("name", [*api_reference.MODULES, "ptxgen.models", "ptxgen.weights", "ptxgen.idioms"])
def test_dir_shows_what_can_be_had_and_nothing_private(name: str) -> None:
    module = importlib.import_module(name)
    shown = [each for each in dir(module) if each != "__version__"]
    assert shown
    assert all(not each.startswith("_") and getattr(module, each) is not None for each in shown)
    assert {"Any", "importlib", "os", "annotations"}.isdisjoint(shown)
