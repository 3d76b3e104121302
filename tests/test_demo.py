"""`make demo`: every step matches, and the text says which positions the kernel did not write."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxgen import demo
from ptxgen.runtime import open_device


def test_the_demo_says_where_skipped_positions_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "open_device", lambda: open_device("cpu"))
    monkeypatch.setattr(demo, "CONTEXTS", (1, 2, 9, 10))
    assert demo.main(tmp_path) == 0
    said = capsys.readouterr().out
    assert demo.FILLING in said
    assert "4 of 4 steps match" in said
    lines = [line.split() for line in said.splitlines() if "(limit" in line]
    assert [(words[0], words[1]) for words in lines] == [("1", "0"), ("2", "0"), ("9", "6"), ("10", "0")]
    assert {path.suffix for path in tmp_path.iterdir()} == {".ptx", ".json"}


def test_a_context_is_what_was_appended_and_what_was_filled() -> None:
    layer, reached = demo.Layer(open_device("cpu")), 0
    for context in (1, 2, 9, 20):
        reached += layer.fill(context - 1)
        reached += 1
        assert layer.step().context == reached == context
