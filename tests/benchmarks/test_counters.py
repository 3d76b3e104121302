"""Nsight Compute's report, without a GPU: what is read from it, and what is refused."""

from __future__ import annotations

import pytest

from benchmarks import counters
from benchmarks.report.rows import Run
from ptxgen.generator import generate

UNITS = {"gpu__time_duration.sum": "nsecond", "dram__bytes_read.sum": "byte"}


def kernel(name: str, **values: str) -> dict[str, str]:
    metrics = [*(metric for metric, _ in counters.MEASURES.values()), *map(counters.STALL.format, counters.REASONS)]
    return {"ID": "0", "Kernel Name": name, **dict.fromkeys(metrics, "0"), **values}


OURS = kernel(
    "incremental_attention",
    **{
        "gpu__time_duration.sum": "9,216",
        "dram__bytes_read.sum": "16,777,216",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": "41.53",
        "sm__warps_active.avg.pct_of_peak_sustained_active": "24.9",
        "launch__registers_per_thread": "128",
        counters.STALL.format("long_scoreboard"): "7,500.00",
        counters.STALL.format("barrier"): "2,300.25",
        counters.STALL.format("wait"): "199.75",
    },
)


def report(kernels: list[dict[str, str]]) -> str:
    """As ncu writes it: its own lines, a header, the units, a line each."""
    lines = [[*OURS], [UNITS.get(name, "") for name in OURS], *([*each.values()] for each in kernels)]
    quoted = (",".join(f'"{cell}"' for cell in line) for line in lines)
    return "\n".join(["==PROF== Connected to process 7", *quoted, "==PROF== Disconnected"])


def launched() -> list[dict[str, str]]:
    return [OURS, kernel("read_bulk", **{counters.STALL.format("drain"): "1"})] * len(counters.CASES)


def test_rows_have_the_measures_in_their_units_and_the_largest_stalls() -> None:
    run = Run("counters", "a GPU")
    counters.add(run, list(counters.kernels(report(launched()))))
    assert len(run.rows) == 2 * len(counters.CASES)
    first, second = run.rows[:2]
    assert (first["impl"], second["impl"]) == ("ptxgen", "floor")
    assert first["case"] == counters.CASES[0].fields()
    assert (first["us"], first["MB_read"], first["registers"]) == (9.216, 16.78, 128)
    assert first["stalls"] == "long scoreboard 75 %, barrier 23 %"
    assert second["stalls"] == "drain 100 %"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (launched()[:-1], f"{2 * len(counters.CASES)} kernels were launched, {2 * len(counters.CASES) - 1} are"),
        (launched()[::-1], "another kernel stands in its report, read_bulk"),
        ([*launched()[:-2], *launched()[:-3:-1]], "another kernel stands in its report, read_bulk"),
    ],
)
def test_a_report_of_other_kernels_is_refused(found: list[dict[str, str]], said: str) -> None:
    run = Run("counters", "a GPU")
    with pytest.raises(SystemExit, match=said):
        counters.add(run, found)
    assert run.rows == []


def test_every_case_has_a_kernel() -> None:
    for case in counters.CASES:
        assert generate(case.spec(), "sm_90a").entry == "incremental_attention"
