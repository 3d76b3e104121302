"""The table of the transformers benchmark: a line a case, ours over the best of the others."""

from __future__ import annotations

import time
from functools import partial

import pytest

from benchmarks.documents import engines
from benchmarks.timing.turns import LEAST, LONG_ROUND, MOST, Ahead, ahead, alternated
from benchmarks.transformers_attention import scatter, table


def test_a_line_a_case() -> None:
    def row(kind: str, impl: str, **measures: object) -> dict[str, object]:
        return {"case": {"kind": kind, "depth": 512, "batch": 8}, "impl": impl, **measures}

    rows = [
        row("graph", "ptxgen", tokens_per_s=3000.0), row("graph", "sdpa", tokens_per_s=1000.0),
        row("graph", "fa2", tokens_per_s=2000.0), row("eager", "ptxgen", tokens_per_s=90.0),
        row("eager", "sdpa", why="no time"),
    ]  # fmt: skip
    head, _, graph, eager = table(rows).splitlines()
    assert head == "| kind | depth | batch | ptxgen | sdpa | fa2 | ours / best |"
    assert graph == "| graph | 512 | 8 | 3,000 | 1,000 | 2,000 | 1.500 |"
    assert eager == "| eager | 512 | 8 | 90 | – | – | – |"


def test_a_rising_clock_meets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that are equally fast, on a device that gets slower with every measurement: neither is ahead."""
    order: list[str] = []

    def measured(impl: str) -> float:
        order.append(impl)
        return 1.0 + 0.1 * len(order)

    found = alternated({impl: partial(measured, impl) for impl in ("ptxgen", "sdpa", "fa2")}, 1e9)
    assert len(order) == 3 * MOST
    assert order[:6] == ["ptxgen", "sdpa", "fa2", "fa2", "sdpa", "ptxgen"]
    beside = ahead(found, "ptxgen", ("sdpa", "fa2"))
    assert beside is not None
    assert beside.middle == pytest.approx(1.0, abs=0.01)
    assert beside.low < 1.0 < beside.high
    assert ahead({"ptxgen": [1.0, 2.0], "sdpa": [3.0, 6.0], "fa2": [9.0, 9.0]}, "ptxgen", ("sdpa", "fa2")) == (
        3,
        3,
        3,
        2,
    )
    assert ahead({"sdpa": [1.0]}, "ptxgen", ["sdpa"]) is None
    assert ahead({"ptxgen": [1.0]}, "ptxgen", ["sdpa"]) is None
    clock = iter(range(0, 1000, int(LONG_ROUND / 2)))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert {len(seconds) for seconds in alternated({"ptxgen": lambda: 1.0}, 5.0).values()} == {LEAST}


def test_a_turn_that_takes_long_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, int(2 * LONG_ROUND)))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    found = alternated({impl: lambda: 1.0 for impl in ("ptxgen", "sdpa")}, 1e9)
    assert found == {"ptxgen": [1.0], "sdpa": [1.0]}
    assert ahead(found, "ptxgen", ["sdpa"]) == (1, 1, 1, 1)


def test_quartiles_are_of_the_turns() -> None:
    found = {"ptxgen": [1.0] * 5, "sdpa": [1.3, 0.9, 1.1, 1.0, 1.2]}
    assert ahead(found, "ptxgen", ["sdpa"]) == pytest.approx((1.1, 1.0, 1.2, 5))
    assert ahead({impl: of[:3] for impl, of in found.items()}, "ptxgen", ["sdpa"]) == pytest.approx((1.1, 0.9, 1.3, 3))


def test_the_turns_quotient_is_shown() -> None:
    case = {"kind": "prompt", "depth": 512, "batch": 8}
    rows = [
        {"case": case, "impl": "ptxgen", "tokens_per_s": 100.0, "ahead": 1.04},
        {"case": case, "impl": "sdpa", "tokens_per_s": 100.0},
    ]
    assert table(rows).splitlines()[2] == "| prompt | 512 | 8 | 100 | 100 | – | 1.040 |"
    rows[0] |= scatter(Ahead(1.04, 0.99, 1.06, 12))
    assert table(rows).splitlines()[2] == "| prompt | 512 | 8 | 100 | 100 | – | 1.040 (0.990 to 1.060) |"
    rows[0] |= scatter(Ahead(1.04, 1.04, 1.04, 1))
    assert table(rows).splitlines()[2] == "| prompt | 512 | 8 | 100 | 100 | – | 1.040 |"


def test_of_every_kind_the_fullest_run_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(run: str, kind: str, depth: int) -> dict[str, object]:
        case = {"kind": kind, "depth": depth, "batch": 1}
        return {"case": case, "impl": "ptxgen", "run": run, "commit": f"of {run}", "tokens_per_s": 1.0}

    first = [row("a", "graph", 512), row("a", "eager", 512), row("a", "prompt", 512), row("a", "prompt", 4096)]
    second = [row("b", "graph", 512), row("b", "prompt", 512), row("b", "in place", 512)]
    monkeypatch.setattr(engines, "runs", lambda _: {"a": first, "b": second})
    shown = engines.newest()
    assert [(of["run"], of["case"]["kind"]) for of in shown] == [
        ("b", "graph"), ("a", "eager"), ("b", "in place"), ("a", "prompt"), ("a", "prompt"),
    ]  # fmt: skip
    said = "graph, in place: run b, commit of b. eager, prompt: run a, commit of a."
    assert engines.commits(shown) == said
    assert engines.commits(first) == "Run a, commit of a."
