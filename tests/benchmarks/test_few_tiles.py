"""The benchmark of few tokens' tiles: what it tries is legal, and `best` takes what is near the fastest."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.few_tiles import FIELDS, cases, choices, named, table
from benchmarks.packed_products import TARGET
from benchmarks.report.rows import load
from ptxgen.dtypes import bf16
from ptxgen.kernel import supports
from ptxgen.kernels import PackedGemm
from ptxgen.products.wgmma.cost_model.few_tokens import COSTS

RUNS = (
    "c41d7e90a3b2",
    "5e0f93d17a68",
    "b7a2d4810c95",
    "3d1f0a7c92e4",
    "9be2c4570d1f",
    "f07a6e13b8d5",
    "c58e21b7d06a",
    "83c4049d0c76",
    "e3fc56bbfbc4",
)
# of the fastest, in the mean and at most
NEAR = {
    "fast": (1.01, 1.15), "exact": (1.01, 1.1), "scaled": (1.02, 1.12), "e4m3": (1.01, 1.13), "signed": (1.01, 1.08),
    "nibbles": (1.02, 1.13), "k_quants": (1.01, 1.03),
}  # fmt: skip
FEWEST = 8  # cases of a way to multiply whose tile was measured


def test_every_case_has_tiles_that_are_legal() -> None:
    for case in random.Random(0).sample(list(cases()), 20):
        found = choices(case)
        assert len(found) >= 3, case
        assert all(supports(spec, TARGET) and spec.programmatic for spec in found.values()), case


@pytest.mark.parametrize("how", COSTS)
def test_the_tile_that_is_taken_is_near_the_fastest_that_was_measured(how: str) -> None:
    seen: dict[tuple[int, int, int], dict[str, float]] = {}
    for run in RUNS:
        for row in load("few_tiles", run):
            case = row["case"]
            if case["how"] == how and row["impl"] != "cublas" and int(row["impl"].split("x")[0]) >= case["m"]:
                seen.setdefault((case["m"], case["n"], case["k"]), {})[row["impl"]] = row["us"]
    slower = []
    for (m, n, k), us in seen.items():
        best = named(PackedGemm.best(m, n=n, k=k, out_dtype=bf16, programmatic=True, **FIELDS[how]))
        slower += [us[best] / min(us.values())] if best in us else []
    mean, most = NEAR[how]
    assert len(slower) >= FEWEST
    assert math.exp(sum(map(math.log, slower)) / len(slower)) < mean
    assert max(slower) < most


def test_a_line_has_the_tile_that_is_taken_and_the_fastest() -> None:
    case = {"m": 8, "n": 4096, "k": 4096, "weights": "bf16", "how": "fast"}
    best = named(PackedGemm.best(8, n=4096, k=4096, out_dtype=bf16, programmatic=True, precision="fast"))
    rows = [{"case": case, "impl": name, "us": us} for name, us in ((best, 10.0), ("8x192x2x1", 8.0), ("cublas", 12.0))]
    (line,) = table(rows).splitlines()[2:]
    assert line == f"| 8 | 4096×4096 | fast | 12.00 | 10.00 | {best} | 8.00 | 8x192x2x1 | 1.20 |"
    assert len(table(rows[1:]).splitlines()) == 2  # the tile that is taken was not measured
