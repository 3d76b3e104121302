"""The benchmark of packed products: its cases are legal, its table shows what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.packed_products import TARGET, cases, ratios, specs, table
from benchmarks.report import selection
from ptxgen.kernel import supports
from ptxgen.kernels import PackedGemm
from tests.support.sweep import drawn


def test_every_case_has_a_tile() -> None:
    every = list(cases())
    assert len({tuple(case.values()) for case in every}) == len(every)
    for case in drawn(every):
        exact = PackedGemm.best(case["m"], n=case["n"], k=case["k"], weights=case["weights"], precision="exact")
        for spec in (*specs(case).values(), exact):
            assert supports(spec, TARGET), case


def test_a_line_has_the_times_and_their_ratio() -> None:
    case = {"m": 512, "n": 64, "k": 32, "weights": "bf16"}
    ours: dict[str, Any] = {"us": 20.0, "tflops": 700.4, "error": 1.7e-3, "tile": "128x128x1"}
    rows = [
        {"case": case, "impl": "ptxgen", **ours},
        {"case": case, "impl": "pack", "us": 3.0},
        {"case": case, "impl": "cublas", "us": 25.0},
        {"case": {**case, "m": 1}, "impl": "ptxgen", "us": 1.0},  # a row of the other benchmark of products
    ]
    (line,) = table(rows).splitlines()[2:]
    assert line == "| 512 | 64×32 | bf16 | 20.00 | 3.00 | 25.00 | 128x128x1 | 1.25 | 700 | 1.7e-03 |"


def test_ratios_are_those_of_the_faster_launch() -> None:
    def rows(m: int, **us: float) -> list[dict[str, Any]]:
        case = {"m": m, "n": 64, "k": 32, "weights": "bf16"}
        return [{"case": case, "impl": impl, "us": value} for impl, value in us.items()]

    both = [*rows(8, ptxgen=10, programmatic=5, cublas=10), *rows(512, ptxgen=20, cublas=10), *rows(2048, ptxgen=1)]
    assert ratios(both) == "2.00 for 8 to 64 tokens (least 2.00), 0.50 for 512 tokens (least 0.50)"


def test_of_every_number_of_tokens_the_newest_whole_run_with_packing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(run: str, tokens: int, impl: str, **more: Any) -> dict[str, Any]:
        return {"case": {"m": tokens, "weights": "bf16"}, "impl": impl, "us": 1.0, "run": run, "commit": "c", **more}

    found = {
        "old": [row("old", tokens, impl) for tokens in (8, 128) for impl in ("pack", "ptxgen")],
        "new": [row("new", 128, impl) for impl in ("pack", "ptxgen")],
        "other": [row("other", 128, "ptxgen")],
        "ended": [row("ended", 128, impl, partial=True) for impl in ("pack", "ptxgen")],
    }
    monkeypatch.setattr(selection, "runs", lambda bench: found)
    shown = selection.newest_tokens("products", "pack")
    assert [(each["run"], each["case"]["m"]) for each in shown] == [("old", 8)] * 2 + [("new", 128)] * 2
    assert selection.runs_of_tokens(shown) == "By tokens: bf16 8: run old, commit c; bf16 128: run new, commit c."
    assert selection.runs_of_tokens(shown[:2]) == "Run old, commit c."
