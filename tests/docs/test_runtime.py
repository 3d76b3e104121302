"""The code of docs/runtime.md runs, in order, on the CPU and on a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runtime.md"


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_page_runs(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 7
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace('open_device("cpu")', f'open_device("{where}")'), names)
    printed = capsys.readouterr().out
    assert "Graph: cannot be launched: a buffer it uses" in printed
    assert names["length"] == 1
    assert names["batch"].length(2) == 2
    assert "lm_head" in printed  # of the profile


def test_the_variables_are_those_that_are_read() -> None:
    read = set()
    for folder in ("ptxgen", "runtime"):
        for path in (PAGE.parent.parent / folder).rglob("*.py"):
            read |= set(re.findall(r"PTXGEN_[A-Z_]+", path.read_text()))
    said = set(re.findall(r"`(PTXGEN_[A-Z_]+)`", PAGE.read_text()))
    assert said <= read, "a variable that nothing reads"
    assert said >= {"PTXGEN_CACHE_DIR", "PTXGEN_DUMP_DIR"}
