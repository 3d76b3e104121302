"""The summary of docs/performance.md: each comparison by its cases, the cases in which a peer is ahead, the README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import performance
from benchmarks.documents import comparisons, decode, prefill, summary
from benchmarks.documents.comparisons import Line

ROOT = Path(__file__).resolve().parents[2]


def step(model: str, impl: str, us: float, run: str = "a", batch: int = 1) -> dict[str, Any]:
    case = {"model": model, "weights": "q4_k_m", "batch": batch, "depth": 512}
    return {"case": case, "impl": impl, "us": us, "run": run, "commit": f"commit {run}"}


def test_the_readme_has_the_summary_of_the_newest_run() -> None:
    """After a run: `python -m benchmarks.performance`."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert performance.between(page, performance.README, summary.readme(decode.newest())) == page


def test_a_line_says_mean_least_and_where_a_peer_is_ahead() -> None:
    each = Line("products", "exact", "cuBLAS", {"a": 0.9, "b": 1.6, "c": 0.8, "d": 1.0}, ["c1", "c2"], 2.5e-7)
    assert list(each.behind) == ["c", "a"]
    assert summary.cells(each) == ["products", "exact", "cuBLAS", "1.04", "0.80", "2 of 4"]
    assert summary.more(each) == ["1.60", "2.5e-07", "c1, c2"]
    assert summary.named(each.behind) == "c (0.800), a (0.900)"


def test_of_many_cases_the_worst_are_named() -> None:
    behind = {str(n): 0.5 + n / 100 for n in range(summary.NAMED + 2)}
    assert summary.named(behind).startswith("0 (0.500), 1 (0.510), ")
    assert summary.named(behind).endswith(f"{summary.NAMED - 1} (0.550) and 2 more")


def test_the_best_peer_counts_and_one_of_another_run_is_said() -> None:
    rows = [
        step("m", "ptxgen", 10.0), step("m", "llama.cpp", 30.0), step("m", "other", 20.0),
        step("n", "ptxgen", 10.0), step("n", "llama.cpp", 5.0, "b"), step("alone", "ptxgen", 1.0),
    ]  # fmt: skip
    (each,) = comparisons.line("", "", "", comparisons._stepped(rows, "ptxgen", ("llama.cpp", "other")))
    assert each.times == {"m batch 1 at depth 512": 2.0, "n batch 1 at depth 512": 0.5}
    assert each.commits == ["commit a", "commit a (llama.cpp: commit b)"]
    assert list(comparisons.line("", "", "", comparisons._stepped(rows, "nobody", ("llama.cpp",)))) == []


def test_products_are_compared_by_tokens_and_weights_with_the_first_way_that_was_measured() -> None:
    def row(m: int, impl: str, us: float, weights: str = "bf16") -> dict[str, Any]:
        return {"case": {"m": m, "n": 64, "k": 32, "weights": weights}, "impl": impl, "us": us, "error": us / 10}

    rows = [
        row(8, "ptxgen", 4.0), row(8, "programmatic", 2.0), row(8, "cublas", 3.0),
        row(9, "ptxgen", 4.0), row(9, "cublas", 3.0), row(64, "ptxgen", 1.0), row(64, "cublas", 9.0),
        row(8, "cublas", 1.0, "q4_k"), row(8, "ptxgen", 1.0, "q4_k"),
    ]  # fmt: skip
    found = list(comparisons._multiplied(rows, (8, 9), "programmatic", "ptxgen"))
    assert [(case, ratio) for case, ratio, _ in found] == [("64×32 with 8 tokens", 1.5), ("64×32 with 9 tokens", 0.75)]
    assert [mine["error"] for *_, mine in found] == [0.2, 0.4]


def test_of_a_cache_of_8_bits_the_faster_of_both_ways_counts_and_e4m3_queries_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of(case: dict[str, Any], **us: float) -> prefill.Impls:
        case = {"n_heads": 32, "n_kv_heads": 8, "head_dim": 128, "tokens": 512, "dtype": "bf16", **case}
        names = {name.replace("_", "-"): value for name, value in us.items()}
        return {
            name: {"case": case, "impl": name, "us": value, "commit": name, "run": "1"} for name, value in names.items()
        }

    measured = [
        of({"kv_dtype": "e4m3"}, ptxgen=10.0, ptxgen_widened=5.0, sdpa_cudnn=8.0, flashinfer=6.0),
        of({"kv_dtype": "e4m3", "fp8": True}, ptxgen=1.0, sdpa_cudnn=8.0),
        of({"keys": 4096}, ptxgen=4.0, sdpa_cudnn=2.0),
    ]
    measured[0]["flashinfer"]["run"] = "0"
    monkeypatch.setattr(prefill, "newest", lambda peers=1: measured if peers == 1 else [])
    of_16, of_8 = comparisons.prefill()
    assert of_16.times == {"32/8/128 512 tokens keys 4096": 0.5}
    assert of_8.times == {"32/8/128 512 tokens kv_dtype e4m3": 1.2}
    assert of_8.commits == ["ptxgen-widened (flashinfer: flashinfer)"]


def test_token_times_are_of_one_sequence_at_depth_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        step("m", "ptxgen", 9.6),
        step("m", "floor", 5.0),
        step("m", "ptxgen", 50.0, batch=8),
        step("n", "ptxgen", 1.0),
    ]
    empty = [{**row, "case": {**row["case"], "depth": 0}} for row in rows]
    deep = [step("m", "ptxgen", 70.0), step("m", "floor", 60.0)]
    monkeypatch.setattr(summary, "newest_rows", lambda bench: [*empty, *deep])
    assert summary.token_times().endswith("only reading the weights): m q4_k_m 10 (5).")


def test_the_sections_are_linked() -> None:
    parts = ["## Prefill, bf16, TFLOP/s\n", "text\n### Inside\n", "## Whole models: µs"]
    assert performance.contents(parts) == (
        "- [Prefill, bf16, TFLOP/s](#prefill-bf16-tflops)\n- [Whole models: µs](#whole-models-µs)\n"
    )
