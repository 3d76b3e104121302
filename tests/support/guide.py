"""The code blocks of docs/adding-a-kernel.md."""

from __future__ import annotations

import re

from tests.support.packages import ROOT

PAGE = ROOT / "docs" / "adding-a-kernel.md"
EXAMPLES = ("scale_rows", "norm_rows")  # kernel types, in the page's order


def blocks(language: str) -> list[str]:
    """What stands in the page's blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def part(language: str, word: str) -> str:
    """The one block of a language that has this word."""
    (found,) = (block for block in blocks(language) if word in block)
    return found


def example(name: str) -> tuple[str, str]:
    """The Python file and the template of a kernel type of the page."""
    python, templates = blocks("python"), blocks("jinja")
    python = [block for block in python if "@kernel_type" in block]
    templates = [block for block in templates if "extends" in block]
    assert len(python) == len(templates) == len(EXAMPLES)
    return python[EXAMPLES.index(name)], templates[EXAMPLES.index(name)]
