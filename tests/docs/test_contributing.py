"""CONTRIBUTING.md: its commands exist, and the tests that it names are there."""

from __future__ import annotations

import re
import shlex

from ptxgen.cli._main import invoke
from tests.support.packages import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COMMANDS = [line for line in re.findall(r"`([^`]+)`", TEXT) if " " in line]


def named(program: str) -> list[list[str]]:
    """The words behind a program's name, of all its commands."""
    return [shlex.split(line)[1:] for line in COMMANDS if line.startswith(f"{program} ")]


def test_make_has_the_targets() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(named("make")) >= 6
    assert [words for words in named("make") if words[0] not in targets] == []


def test_the_tests_are_there() -> None:
    assert len(named("pytest")) == 3
    for (path,) in named("pytest"):
        assert (ROOT / path).is_file() or list((ROOT / path).glob("test_*.py")), path


def test_ptxgen_has_the_commands_and_options(capsys) -> None:
    assert len(named("ptxgen")) >= 4
    for words in named("ptxgen"):
        options = [word for word in words if word.startswith("--")]
        command = [word for word in words if word not in options and word != "…"]
        group = [] if command != ["generate"] else ["kv-cache-scatter"]
        assert invoke([*command, *group, "--help"]) == 0
        shown = capsys.readouterr().out
        assert all(option in shown for option in options), words
