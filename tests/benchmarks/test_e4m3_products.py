"""The benchmark of products in e4m3: its cases are legal, its table shows what was measured."""

from __future__ import annotations

from typing import Any

from benchmarks.e4m3_products import PACK, cases, packing, ratios, specs, table
from benchmarks.packed_products import TARGET
from ptxgen.kernel import supports
from tests.support.sweep import drawn

CASE = {"m": 512, "n": 64, "k": 128, "weights": "e4m3_channel"}


def test_every_case_has_tiles() -> None:
    every = list(cases())
    assert len({tuple(case.values()) for case in every}) == len(every)
    for case in drawn(every):
        for spec in specs(case).values():
            assert supports(spec, TARGET), case
            assert packing(spec).group == (128 if case["weights"] == "e4m3_block" and not spec.row_scales else 0)


def rows(case: dict[str, Any], **us: float) -> list[dict[str, Any]]:
    measures = {"tflops": 1200.4, "error": 2.7e-2, "of_sums": 3.1e-3, "tile": "256x128x1x0"}
    return [{"case": case, "impl": impl, "us": value, **measures} for impl, value in us.items()]


def test_a_line_has_the_times_their_ratio_and_the_errors() -> None:
    found = rows(CASE, ptxgen=20.0, promoted=22.0, cublas=25.0)
    found += [{"case": CASE, "impl": PACK, "us": 3.0}, {"case": {**CASE, "m": 1}, "impl": "ptxgen", "us": 1.0}]
    (line,) = table(found).splitlines()[2:]
    assert line == (
        "| 512 | 64×128 | e4m3_channel | 20.00 | 22.00 |  | 3.00 | 25.00 |  |  |  | 1.25 | 1200 | 2.7e-02 "
        "| 3.1e-03, 3.1e-03 |"
    )


def test_ratios_are_of_each_format_and_range_of_tokens() -> None:
    found = [*rows(CASE, ptxgen=10, cublas=10), *rows({**CASE, "m": 8}, ptxgen=5, cublas=10)]
    assert ratios(found) == "e4m3_channel, 8 to 32 tokens 2.00 (least 2.00); e4m3_channel, 512 tokens 1.00 (least 1.00)"


def test_scales_of_rows_have_ratios_of_their_own() -> None:
    case = {**CASE, "weights": "e4m3_block"}
    found = rows(case, **{"ptxgen": 20, "row-scales": 16, "cublas": 18})
    assert ratios(found) == (
        "e4m3_block, 512 tokens 0.90 (least 0.90); e4m3_block (row-scales), 512 tokens 1.12 (least 1.12)"
    )
    (line,) = table(found).splitlines()[2:]
    assert "| 20.00 |  | 16.00 |  | 18.00 |" in line
