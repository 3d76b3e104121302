"""The tool that puts faults into a kernel type's goldens: what its author is shown, and which reasons it takes."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from ptxgen.errors import SpecError
from ptxgen.kernels.advance import Advance
from tests.tools import mutation_figures as figures
from tests.tools.mutations import Mutation, Noticed

BAR = "bar.sync 0; ld.shared.f32 %x, [tile];"


def named(given: object) -> type[Advance]:
    class Named(Advance):
        unreported = given  # type: ignore[assignment]

    return Named


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            (" barrier",),
            r"Named\.unreported: must be a dict from patterns to reasons, such as .* \(got \(' barrier',\)\)",
        ),
        ({" barrier": ""}, r"Named\.unreported\[' barrier'\]: must say why check mode is silent \(got ''\)"),
        ({" barrier": "does not matter: "}, r"must say why check mode is silent \(got 'does not matter: '\)"),
        ({" barrier": None}, r"must say why check mode is silent \(got None\)"),
        ({" barrier (": "why"}, r"Named\.unreported: must be regular expressions \(got ' barrier \(': .*\)"),
        ({1: "why"}, r"must be regular expressions \(got 1: "),
    ],
)
def test_reasons_of_another_form_are_refused(given: object, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        figures.unreported(named(given))


def test_reasons_by_pattern_are_taken() -> None:
    given = MappingProxyType({r" barrier .*tile": "does not matter: one warp"})
    assert figures.unreported(named(given)) is given


def test_every_fault_is_shown_and_how_much_a_reason_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = figures.goldens_of("advance")[0]
    monkeypatch.setattr(Advance, "unreported", {"barrier": "does not matter: one warp"})
    figures.unreported.cache_clear()
    found, silent = (Mutation("barrier", line, BAR, "") for line in (10, 20))
    other = Mutation("fence", 30, "fence.sc.cta;", "")
    try:
        lines = [*figures.shown("advance", [
            (subject, found, Noticed("finding", "check", "")), (subject, silent, None), (subject, other, None),
        ])]  # fmt: skip
    finally:
        figures.unreported.cache_clear()
    name = subject.name
    assert lines == [
        "advance: 3 faults",
        f"  finding in check mode: {name} barrier 10: {BAR}",
        f"  nothing: {name} barrier 20: {BAR} [does not matter: one warp]",
        f"  nothing: {name} fence 30: fence.sc.cta; [no reason: sizes in `trials`, or a line in `unreported`]",
        "  unreported 'barrier': all of 2 barrier faults; 1 of these are found: name the line more closely",
    ]


def test_show_runs_the_faults_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before = figures.DOCUMENT.read_bytes()
    figures.main(["--show", "advance"])
    assert "finding in check mode: sm_" in capsys.readouterr().out
    assert figures.DOCUMENT.read_bytes() == before


@pytest.mark.parametrize(("words", "said"), [(["--show"], "needs the name"), (["avance"], "avance: is no kernel type")])
def test_what_is_asked_for_must_be_there(words: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        figures.main(words)


def test_what_is_written_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    committed = figures.DOCUMENT.read_bytes()
    copy = tmp_path / "page.md"
    copy.write_bytes(committed)
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "DOCUMENT", copy)
    figures.main(["advance"])
    assert capsys.readouterr().out == "page.md: wrote the lines of advance\n"
    assert copy.read_bytes() == committed
