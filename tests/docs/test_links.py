"""Links in documents lead to files and headings, and the files that they name in code are there."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.guide import EXAMPLES

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT, ROOT / "docs", ROOT / "examples", *(ROOT / "examples").iterdir(), ROOT / "benchmarks" / "results")
PAGES = sorted(page for folder in FOLDERS for page in folder.glob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:ptxgen|runtime|templates|tests|benchmarks|docs|examples|golden_ptx)/[\w./-]*)`")
COMMAND = re.compile(r"python -m ((?:benchmarks|tests|ptxgen)[\w.]*)")


def anchor(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, heading = target.partition("#")
        there = (page.parent / path) if path else page
        assert there.exists(), target
        if heading:
            assert heading in map(anchor, re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.M)), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_commands_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = (name for name in FILE.findall(text) if not any(each in name for each in EXAMPLES))
    missing = [name for name in files if not (ROOT / name.rstrip("/.")).exists()]
    missing += [name for name in COMMAND.findall(text) if find_spec(name.rstrip(".")) is None]
    assert not missing


def test_the_contents_of_the_experiments_list_every_heading_in_order() -> None:
    text = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    contents = text.partition("\n## ")[0]
    listed = [target.removeprefix("#") for target in LINK.findall(contents) if target.startswith("#")]
    assert listed == [anchor(heading) for heading in re.findall(r"^##+ (.*)$", text, re.M)]
