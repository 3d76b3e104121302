"""The decode attention benchmark without a GPU: its cases, and what its rows are made into."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import performance
from benchmarks.cases.decode import GRID, LISTS, RAGGED, SHAPES, Case
from benchmarks.documents import decode as decode_document
from benchmarks.documents import model as model_document
from benchmarks.peers import flashinfer
from benchmarks.report.decode import as_json, best, by_case, fractions, over_floor, over_peers, plot, report
from benchmarks.report.decode_aims import aims
from ptxgen.generator import generate

ROOT = Path(__file__).resolve().parents[2]
SHARED = {"bench": "decode_attention", "run": "r", "device": "a GPU", "commit": "c", "date": "2026-11-21"}


def rows(**us: float) -> list[dict[str, Any]]:
    """A run of the whole grid in which every case has these times, floor 8 µs."""
    out = []
    for case in LISTS["grid"]:
        for impl, value in {"floor": 8.0, **{name.replace("_", "-"): v for name, v in us.items()}}.items():
            out.append({**SHARED, "case": case.fields(), "impl": impl, "us": value, "bytes": case.bytes, "error": 1e-4})
    return out


def test_the_grid_is_six_shapes_at_six_points() -> None:
    assert len(LISTS["grid"]) == len(SHAPES) * len(GRID) == 36


@pytest.mark.parametrize("case", [case for cases in LISTS.values() for case in cases], ids=repr)
def test_a_case_survives_its_row(case: Case) -> None:
    assert Case(**case.fields()) == case
    assert len(case.lengths) == case.batch
    assert max(case.lengths) == case.context


def test_bytes_are_what_has_to_be_read() -> None:
    assert Case(32, 8, 128, 1, 4096).bytes == 16777216
    assert Case(32, 8, 128, 8, 4096, "s8").bytes == 8 * 4096 * 8 * 2 * (128 + 8)
    assert Case(32, 8, 128, 32, 65536, ragged="one long").bytes == 2 * 2 * 8 * 128 * sum(RAGGED["one long"])


def test_every_kind_of_case_has_a_kernel() -> None:
    for case in (LISTS["grid"][5], LISTS["types"][1], LISTS["batches"][0], LISTS["paged"][1]):
        assert generate(case.spec(), "sm_90").entry == "incremental_attention"
    assert LISTS["capacities"][0].spec().max_len == 131072
    assert LISTS["batches"][0].spec(batch_invariant=True).batch_invariant


def test_ratios_and_means() -> None:
    (case, times), *_ = by_case(rows(ptxgen=10.0, sdpa_cudnn=15.0, flashinfer_batch=12.0)).items()
    assert case == Case(32, 4, 64, 1, 512)
    assert best(times) == 12
    assert best(times, ["sdpa-*"]) == 15
    assert best(times, ["not measured"]) is None
    assert over_peers("ptxgen")(times) == 1.2
    assert over_floor("ptxgen")(times) == 1.25
    assert over_floor("ptxgen-sm_80")(times) is None


def test_a_report_has_every_column_the_means_and_the_reasons() -> None:
    made = rows(ptxgen=10.0, ptxgen_programmatic=9.0, sdpa_cudnn=12.5)
    made.append({**SHARED, "case": LISTS["grid"][0].fields(), "impl": "flashinfer-xqa", "why": "not installed"})
    made[1]["error"] = 0.25
    shown = report(made)
    assert "| floor µs | ptxgen µs | ptxgen-programmatic µs | sdpa-cudnn µs | flashinfer-xqa µs |" in shown
    assert "| 32/4/64 1×512 | 0.5 | 8.00 | 10.00 | 9.00 | 12.50 | – |" in shown
    assert "flashinfer-xqa: not installed" in shown
    assert "ptxgen: relative error 2.5e-01 at 32/4/64 1×512" in shown
    assert "best peer / ptxgen: 1.250 (geometric mean of 36 cases, 1.25 to 1.25)" in shown
    assert '"impl": "flashinfer-xqa"' in as_json(made)


def test_the_documents_say_who_is_behind_and_who_took_part() -> None:
    made = rows(ptxgen=10.0, ptxgen_programmatic=9.0, sdpa_cudnn=9.5, flashinfer_batch_tc=20.0)
    text = "\n".join([*decode_document.grid(made), *decode_document.others(made)])
    assert "32/8/128 1×512 (0.95)" in text
    assert "| cuDNN (torch) | 36 | 0.95 | 0.84 |" in text
    assert "| FlashInfer batch, tensor cores | 36 | 2.00 | 0.40 |" in text
    assert "| 32/8/128 | **10.0** (9.0) / 9.5 / 8.0 |" in text
    assert decode_document.peers_in(by_case(made)) == ["cuDNN", "FlashInfer"]


def test_the_chart_has_a_share_of_the_floor_at_every_point(tmp_path: Path) -> None:
    made = rows(ptxgen=10.0, flashinfer_single=20.0, flashinfer_batch=16.0)
    made = [r for r in made if r["impl"] != "flashinfer-single" or r["case"]["batch"] == 1]
    cases = by_case(made)
    assert fractions(cases, ["ptxgen"]) == pytest.approx([0.8] * 6)
    assert fractions(cases, ["flashinfer-single"]) == [*[pytest.approx(0.4)] * 4, None, None]
    assert fractions(cases, ["flashinfer-*"]) == pytest.approx([0.5] * 6)
    pytest.importorskip("matplotlib", reason="the chart needs matplotlib (pip install 'ptxgen[plot]')")
    plot(made, tmp_path / "new" / "chart.png")
    assert (tmp_path / "new" / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("case", "kind", "said"),
    [
        (Case(32, 32, 80, 1, 512), "single", "head_dim: 64, 128 and 256 are supported"),
        (Case(32, 8, 128, 8, 512), "single-tc", "one sequence"),
        (Case(32, 8, 128, 8, 512, "s8"), "batch", "measured in f16 and e4m3"),
        (Case(32, 4, 64, 1, 512), "xqa", "measured for head_dim 128 and groups of 4"),
        (Case(32, 8, 128, 1, 512, "e4m3"), "batch-tc", ""),
    ],
)
def test_flashinfer_says_what_it_does_not_run(case: Case, kind: str, said: str) -> None:
    reason = flashinfer.refusal(case, kind)
    assert reason.startswith(said)
    assert bool(reason) == bool(said)


def test_the_performance_page_is_written_from_the_rows() -> None:
    """After a run: `python -m benchmarks.performance`."""
    assert (ROOT / "docs" / "performance.md").read_text("utf-8") == performance.document(decode_document.newest())


def test_every_table_of_the_performance_page_is_of_a_commit() -> None:
    """Named in its section, or in the table; what is said there of one case alone needs none."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        assert "\n| --- " not in section or re.search(r"commit [0-9a-f]{7,12}|\| [0-9a-f]{12} \|", section), section[
            :80
        ]


def test_a_run_without_peers_is_no_part_of_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"alone": rows(ptxgen=10.0, ptxgen_programmatic=9.0), "beside": rows(
        ptxgen=10.0, ptxgen_programmatic=9.0, sdpa_cudnn=15.0)}  # fmt: skip
    monkeypatch.setattr(decode_document, "runs", lambda bench: runs)
    (line,) = decode_document.history()
    assert line == ["beside", "c", "8.0", "1.500", "1.500 (32/4/64 1×512)", "1.250", "1.125"]


@pytest.mark.parametrize("first", ["", "Run: 0123456789ab", "### Where the time goes"])
def test_notes_name_a_run_of_the_whole_grid(first: str) -> None:
    with pytest.raises(SystemExit, match=r"decode_attention\.md: the first line must be `Run: ID`"):
        decode_document.documented(first)


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match="the marks"):
        performance.between("text", performance.README, "x")


def test_the_aims_and_what_misses_them_are_said_in_sentences() -> None:
    made = by_case(rows(ptxgen=9.0, ptxgen_programmatic=9.9, sdpa_cudnn=8.1))
    for times in made.values():
        times["ptxgen-sm_80"] = 18.0
    said = "\n".join(aims(made, made))
    assert "(here 0.90), and no case below 1 (here 36)" in said
    assert "Over 1.15 below 134 MB: none. Over 1.1 from there on: 32/4/64 1×131072 (1.125), 32/8/128" in said
    assert "plain launches (times as long): 32/4/64 1×512 (1.100)" in said
    assert "2.00 times as long as sm_90's (at most 2.00)" in said


def test_ops_are_shown_of_the_last_whole_run_that_has_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, *steps: tuple[int, float], **more: Any) -> list[dict[str, Any]]:
        case = {"model": "m", "weights": "bf16", "depth": 8}
        ops = [(case | {"batch": batch, "op": "head"}, "ptxgen", us) for batch, us in steps]
        rows = [({"op": "read"}, "floor", 1.0), *ops]
        return [{"run": name, "case": case, "impl": impl, "us": us, **more} for case, impl, us in rows]

    runs = {"a": run("a", (1, 5.0), (8, 6.0)), "b": run("b", (1, 4.0)), "c": run("c", (1, 3.0), partial=True)}
    monkeypatch.setattr(model_document, "runs", lambda bench: runs)
    shown = [[(row["run"], row["us"]) for row in rows] for rows in model_document.newest_ops()]
    assert shown == [[("b", 1.0), ("b", 4.0)], [("a", 1.0), ("a", 6.0)]]
