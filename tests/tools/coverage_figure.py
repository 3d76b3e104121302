"""Writes the README's line on coverage from coverage.py's JSON report, which `make coverage` makes.

python -m tests.tools.coverage_figure coverage.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.performance import between
from benchmarks.report.rows import commit
from benchmarks.report.sentence import show_help

ROOT = Path(__file__).resolve().parents[2]
MARKS = ("<!-- coverage: written by make coverage -->", "<!-- end of coverage -->")
PARTS = ("ptxgen", "runtime")
COUNTS = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def counts(report: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """The counts of each part, over all files that it has; a part without a file is an error."""
    found = {part: dict.fromkeys(COUNTS, 0) for part in PARTS}
    for name, file in report["files"].items():
        part = found[Path(name).parts[0]]
        for count in COUNTS:
            part[count] += file["summary"][count]
    empty = [part for part, numbers in found.items() if not numbers["num_statements"]]
    if empty:
        raise SystemExit(f"coverage: no file of {', '.join(empty)} is in the report")
    return found


def line(report: Mapping[str, Any], commit: str) -> str:
    """The README's line; lines and branches are counted as one, as coverage.py does."""
    parts = counts(report)
    total = {count: sum(part[count] for part in parts.values()) for count in COUNTS}
    shares = ", ".join(f"`{name}/` {share(part):.1f} %" for name, part in parts.items())
    date = report["meta"]["timestamp"][:10]
    return (
        f"Coverage of lines and branches by the suite, on a machine without a GPU: **{share(total):.1f} %** ({shares}; "
        f"{date}, commit {commit}).\n"
    )


def share(part: Mapping[str, int]) -> float:
    """Per cent of the lines and branches."""
    covered, all = part["covered_lines"] + part["covered_branches"], part["num_statements"] + part["num_branches"]
    return 100 * covered / all


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    report = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    page = ROOT / "README.md"
    text = line(report, commit())
    page.write_text(between(page.read_text(encoding="utf-8"), MARKS, text), encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    show_help(__doc__)
    main(sys.argv[1:])
