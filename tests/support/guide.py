"""The code blocks of docs/adding-a-kernel.md."""

from __future__ import annotations

import re

from tests.support.packages import ROOT

PAGE = ROOT / "docs" / "adding-a-kernel.md"
EXAMPLES = ("scale_rows", "norm_rows")  # kernel types, in the page's order


def blocks(language: str) -> list[str]:
    """What stands in the page's blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def example(name: str) -> tuple[str, str]:
    """The Python file and the template of a kernel type of the page."""
    python, templates = blocks("python"), blocks("jinja")
    assert len(python) == len(templates) == len(EXAMPLES)
    return python[EXAMPLES.index(name)], templates[EXAMPLES.index(name)]
