"""The README's line on coverage: what it is made from, and that it stands in the README."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tools.coverage_figure import MARKS, ROOT, line


def summary(covered: int, lines: int, taken: int, branches: int) -> dict[str, Any]:
    names = ("covered_lines", "num_statements", "covered_branches", "num_branches")
    return {"summary": dict(zip(names, (covered, lines, taken, branches), strict=True))}


FILES = {
    "ptxgen/a.py": summary(80, 100, 10, 20), "ptxgen/isa/b.py": summary(10, 20, 0, 0),
    "runtime/core/c.py": summary(50, 50, 10, 10),
}  # fmt: skip


def test_lines_and_branches_of_all_files_are_counted_together() -> None:
    made = line({"meta": {"timestamp": "2026-11-23T01:02:03"}, "files": FILES}, "abc")
    assert "**80.0 %** (`ptxgen/` 71.4 %, `runtime/` 100.0 %; 2026-11-23, commit abc)" in made


def test_a_report_without_the_runtime_is_refused() -> None:
    files = {name: file for name, file in FILES.items() if name.startswith("ptxgen")}
    with pytest.raises(SystemExit, match="no file of runtime"):
        line({"meta": {"timestamp": "2026-11-23"}, "files": files}, "abc")


def test_the_readme_has_the_marks() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.index(MARKS[0]) < text.index(MARKS[1])
