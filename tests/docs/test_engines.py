"""The figures of docs/engines.md are those of the newest run that has all cases."""

from __future__ import annotations

from benchmarks.documents.engines import MARKS, engines
from benchmarks.performance import between
from tests.support.packages import ROOT


def test_the_figures_are_written_from_the_rows() -> None:
    """After a run: `python -m benchmarks.performance`."""
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    assert between(page, MARKS, engines()) == page
    assert engines().count("| graph |") == engines().count("| eager |") == 9
