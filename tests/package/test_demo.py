"""`make demo`: the shipped model writes, its tokens are the float64 model's, and check mode's word decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ptxgen import demo
from ptxgen.models.program import Program
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.model import steps
from ptxgen.runtime.tools.complete import Completion

TOKENS = 6


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "TOKENS", TOKENS)


@pytest.mark.usefixtures("short")
def test_the_demo_writes_and_says_what_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(tmp_path, open_device("cpu")) == 0
    said = capsys.readouterr().out
    assert said.startswith("In the beginning of the word of the LORD")
    assert f"{TOKENS} of {TOKENS} tokens are those of a NumPy model in float64." in said
    assert "A token is one graph of 27 launches of 7 kernels:" in said
    assert "the token after them is\nthe same." in said
    assert "No GPU here" in said
    written = sorted(path.suffix for path in tmp_path.iterdir())
    assert written == [".json"] * 7 + [".ptx"] * 7


@pytest.mark.usefixtures("short")
def test_the_demo_fails_on_what_check_mode_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unfilled(device: Device, program: Program, *rest: Any) -> dict[str, Any]:
        return {tensor.name: device.empty(tensor.shape, tensor.dtype) for tensor in program.of_kind("weight")}

    def opened(name: str, **options: Any) -> Device:
        monkeypatch.setattr(steps, "load_weights", unfilled)
        return open_device(name, **options)

    monkeypatch.setattr(demo, "open_device", opened)
    assert demo.main(tmp_path, open_device("cpu")) == 1
    assert "Check mode found:\nread of uninitialised memory in kernel" in capsys.readouterr().out


def test_the_demo_fails_on_another_token(capsys: pytest.CaptureFixture[str]) -> None:
    completion = Completion(demo.MODEL, demo.PROMPT, 3)
    completion.written = [265, 259, 7]
    assert not demo.agree(completion)
    assert "of 3 tokens are those" in capsys.readouterr().out
