"""`make demo`: every step matches, and the text says which positions the kernel did not write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ptxgen import demo
from ptxgen.runtime import Device, open_device


def test_the_demo_says_where_skipped_positions_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "open_device", lambda name="cpu", **options: open_device(name, **options))
    monkeypatch.setattr(demo, "CONTEXTS", (1, 2, 9, 10))
    assert demo.main(tmp_path) == 0
    said = capsys.readouterr().out
    assert demo.FILLING in said
    assert "4 of 4 steps match" in said
    assert "or read of uninitialised memory was found." in said
    lines = [line.split() for line in said.splitlines() if "(limit" in line]
    assert [(words[0], words[1]) for words in lines] == [("1", "0"), ("2", "0"), ("9", "6"), ("10", "0")]
    assert {path.suffix for path in tmp_path.iterdir()} == {".ptx", ".json"}


def test_the_demo_fails_on_what_check_mode_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill = demo.Layer.fill

    def opened(name: str = "cpu", **options: Any) -> Device:
        device = open_device(name, **options)
        if options:
            device.array = lambda value: device.empty(value.shape, value.dtype)  # type: ignore[method-assign,misc]
        return device

    def forgotten(layer: demo.Layer, context: int) -> int:
        layer.host["seq_len"][0] = context
        return context if layer.device.bytes.track else fill(layer, context)  # type: ignore[attr-defined]

    monkeypatch.setattr(demo, "open_device", opened)
    monkeypatch.setattr(demo, "CONTEXTS", (2,))
    monkeypatch.setattr(demo.Layer, "fill", forgotten)
    assert demo.main(tmp_path) == 1
    said = capsys.readouterr().out
    assert "1 of 1 steps match" in said
    assert "Check mode found:\nread of uninitialised memory in kernel incremental_attention" in said


def test_a_context_is_what_was_appended_and_what_was_filled() -> None:
    layer, reached = demo.Layer(open_device("cpu")), 0
    for context in (1, 2, 9, 20):
        reached += layer.fill(context - 1)
        reached += 1
        assert layer.step().context == reached == context
