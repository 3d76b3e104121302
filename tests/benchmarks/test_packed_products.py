"""The benchmark of packed products: its cases are legal, its table shows what was measured."""

from __future__ import annotations

from typing import Any

from benchmarks.packed_products import TARGET, cases, table
from ptxgen.kernel import supports
from ptxgen.kernels import PackedGemm


def test_every_case_has_a_tile() -> None:
    every = list(cases())
    assert len({tuple(case.values()) for case in every}) == len(every)
    for case in every:
        for precision in ("fast", "exact"):
            spec = PackedGemm.best(case["m"], n=case["n"], k=case["k"], weights=case["weights"], precision=precision)
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
    assert line == "| 512 | 64×32 | bf16 | 20.00 |  |  | 3.00 | 25.00 |  | 1.25 | 700 | 1.7e-03 |"
