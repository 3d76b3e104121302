"""The benchmark of packed products: its cases are legal, its table shows what was measured."""

from __future__ import annotations

from typing import Any

from benchmarks.packed_products import TARGET, cases, ratios, table
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
    assert line == "| 512 | 64×32 | bf16 | 20.00 |  |  |  | 3.00 | 25.00 |  | 128x128x1 | 1.25 | 700 | 1.7e-03 |"


def test_ratios_are_those_of_the_faster_launch() -> None:
    def rows(m: int, **us: float) -> list[dict[str, Any]]:
        case = {"m": m, "n": 64, "k": 32, "weights": "bf16"}
        return [{"case": case, "impl": impl, "us": value} for impl, value in us.items()]

    both = [*rows(8, ptxgen=10, programmatic=5, cublas=10), *rows(512, ptxgen=20, cublas=10), *rows(2048, ptxgen=1)]
    assert ratios(both) == "2.00 for 8 to 64 tokens, 0.50 for 512 tokens"
