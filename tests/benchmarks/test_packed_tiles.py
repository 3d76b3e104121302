"""The benchmark of tiles: what it tries is legal and differs, its table has a line a case."""

from __future__ import annotations

from benchmarks.packed_products import TARGET
from benchmarks.packed_tiles import LIKELIEST, cases, choices, table
from ptxgen.generator import generate
from ptxgen.kernel import supports
from ptxgen.products.wgmma.tiling.geometry import Geometry
from tests.support.sweep import drawn


def test_every_case_has_tiles_that_differ() -> None:
    for case in drawn(cases()):
        found = choices(case)
        assert len(found) >= 2 + LIKELIEST - 2 * (case["m"] <= 64)  # the table's own is not tried twice
        assert all(supports(spec, TARGET) for spec in found.values()), case
        assert len({(Geometry.of(spec), spec.out_dtype.name) for spec in found.values()}) == len(found)


def test_tiles_of_no_table_are_tried() -> None:
    some = [case for case in cases() if (case["m"], case["n"]) in ((128, 28672), (512, 17920))]
    known = {(spec.tile_rows, spec.share) for case in some for spec in choices(case).values()}
    assert {(192, 2), (256, 2), (256, 4)} <= known


def test_a_tile_of_a_case_is_generated() -> None:
    case = {"m": 512, "n": 6144, "k": 4096, "weights": "bf16"}
    texts = {name: generate(spec, TARGET).text for name, spec in choices(case).items()}
    assert len(set(texts.values())) == len(texts)


def test_a_line_has_the_fastest_tile() -> None:
    case = {"m": 512, "n": 64, "k": 32, "weights": "bf16"}

    def row(impl: str, us: float, tile: str = "", out: str = "bf16") -> dict[str, object]:
        return {"case": case, "impl": impl, "us": us, "tile": tile, "out": out, "error": us / 1e4}

    rows = [row("best", 20, "8x64x1x-", "f32"), row("best in bf16", 16, "8x64x1x-"), row("8x192x1x2", 10, "8x192x1x2")]
    (line,) = table([*rows, {"case": case, "impl": "cublas", "us": 12.0}]).splitlines()[2:]
    assert line == ("| 512 | 64×32 | 12.0 | 20.0 | 16.0 | 10.0 | 8x192x1x2 bf16 | 0.60 / 0.75 / 1.20 | 2.0e-03 |")
    assert len(table(rows).splitlines()) == 2  # without the peer there is no line
