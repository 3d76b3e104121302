"""The table of the transformers benchmark: a line a case, ours over the best of the others."""

from __future__ import annotations

from benchmarks.transformers_attention import table


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
    assert graph == "| graph | 512 | 8 | 3,000 | 1,000 | 2,000 | 1.50 |"
    assert eager == "| eager | 512 | 8 | 90 | – | – | – |"
