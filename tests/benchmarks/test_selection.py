"""Which rows a document shows."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.report import selection


def _row(run: str, model: str, us: float, **more: Any) -> dict[str, Any]:
    return {"case": {"model": model, "weights": "bf16"}, "impl": "ptxgen", "us": us, "run": run, **more}


def test_a_whole_run_of_one_model_leaves_partial_rows_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "first": [_row("first", "small", 1), _row("first", "large", 2)],
        "cut": [_row("cut", "small", 3, partial=True), _row("cut", "large", 4, partial=True)],
        "one": [_row("one", "large", 5)],
    }
    monkeypatch.setattr(selection, "runs", lambda bench: found)
    assert [row["us"] for row in selection.rows_alone("decode_step")] == [3]
    assert [row["us"] for row in selection.newest_rows("decode_step")] == [5, 1]


def test_a_whole_run_without_models_takes_the_place_of_all_partial_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = {"case": {"m": 1}, "impl": "ptxgen", "us": 1, "partial": True}
    found = {"cut": [cut], "whole": [{"case": {"m": 8}, "impl": "ptxgen", "us": 2}]}
    monkeypatch.setattr(selection, "runs", lambda bench: found)
    assert selection.rows_alone("products") == []
