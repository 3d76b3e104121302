"""The figures of docs/engines.md are those of the newest run, which it names."""

from __future__ import annotations

from benchmarks.report.rows import load
from benchmarks.transformers_attention import BATCHES, DEPTHS, IMPLS, table
from tests.support.packages import ROOT

TEXT = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_the_newest_run() -> None:
    rows = load("transformers_attention")
    assert f"run {rows[0]['run']} at commit {rows[0]['commit']}" in TEXT
    assert f"\n\n{table(rows)}\n\n" in TEXT


def test_that_run_decodes_at_every_depth_and_batch_beside_all_peers() -> None:
    found = {
        (row["case"]["kind"], row["case"]["depth"], row["case"]["batch"], row["impl"])
        for row in load("transformers_attention")
        if "tokens_per_s" in row
    }
    wanted = {(kind, d, b, impl) for kind in ("graph", "eager") for d in DEPTHS for b in BATCHES for impl in IMPLS}
    assert wanted <= found
