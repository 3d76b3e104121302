"""The benchmark of one layer over a cache that grows: which tables it compares, and its lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.growing_attention import HEADS, IMPLS, SIZES, table, tables
from ptxgen import tuning
from ptxgen.tuning import Shape

SHAPE = Shape(
    sm="sm_90", head_dim=HEADS[2], group=HEADS[0] // HEADS[1], n_kv_heads=HEADS[1], kv_dtype="bf16", kv_bytes=2,
    capacity=0, batched=True, paged=False,
)  # fmt: skip


def test_other_rows_are_those_of_caches_that_do_not_grow() -> None:
    """In force they choose for a growing cache what the shipped table chooses for another one."""
    whole, others = (tables()[impl] for impl in IMPLS[:2])
    assert whole is tuning.in_force()
    with tuning.using(others) as used:
        for _, positions in SIZES:
            shape = replace(SHAPE, capacity=1 << (positions - 1).bit_length())
            of = {name: t.decides(replace(shape, strided=grows)) for name, t, grows in (
                ("growing", whole, True), ("growing, others", used, True), ("other", whole, False),
            )}  # fmt: skip
            assert of["growing, others"] == of["other"] != of["growing"]


def test_a_line_a_case() -> None:
    case = {"heads": "32/8/64", "batch": 32, "positions": 32769, "kind": "alone"}
    rows: list[dict[str, Any]] = [
        {"case": case, "impl": "ptxgen", "us": 470.0, "ahead": 1.01, "low": 1.0, "high": 1.02},
        {"case": case, "impl": "other rows", "us": 480.0, "ahead": 0.99, "low": 0.98, "high": 1.0},
        {"case": case, "impl": "sdpa", "us": 475.0},
        {"case": case | {"kind": "both"}, "impl": "all", "why": "no time"},
    ]
    head, _, line = table(rows).splitlines()
    assert head == "| heads | batch × positions | | ptxgen | other rows | sdpa | sdpa / ptxgen |"
    assert line == "| 32/8/64 | 32 × 32769 | alone | 470.0 | 480.0 | 475.0 | 1.010 (1.000 to 1.020) |"
    assert table([row for row in rows if row["impl"] != "ptxgen"]).endswith("| alone | – | 480.0 | 475.0 | – |")
