"""PackedGemm whose last tiles of rows have those of one warpgroup, so that a thin last turn of CTAs ends sooner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate
from ptxgen.assembler import assemble
from ptxgen.kernels import PackedGemm
from ptxgen.products.wgmma.cost_model import waves
from ptxgen.products.wgmma.cost_model.waves import Turns
from ptxgen.products.wgmma.tiling import shape
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.runtime import Device
from ptxgen.runtime.tools.trial import trial
from tests.support.marks import needs_assembler
from tests.support.packed_products import FAST, WHERE, tried

PLAIN: dict[str, Any] = {"precision": "fast", "out_dtype": "bf16", "split": 1, "share": 1, "tile_rows": 128}
GATED: dict[str, Any] = {"tile_rows": 256, "tokens": 128, "gated": True, "activation": "silu"}
PACKED: dict[str, Any] = {**GATED, "packed_out": True, "out_dtype": "f32", "programmatic": True}


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (700, {"n": 320, "k": 512, "tokens": 256, "last_tiles": 1}),
        (513, {"n": 248, "k": 64, "tokens": 256, "last_tiles": 2}),  # a tile of one stage
        (511, {"n": 440, "k": 384, "tokens": 256, "last_tiles": 3, "bias": True, "carried": True}),
        (700, {"n": 448, "k": 704, "tokens": 256, "last_tiles": 5, "carried": True}),
        (600, {"n": 512, "k": 384, "tokens": 256, "last_tiles": 4, "carried": True, "share": 2}),
        (257, {"n": 320, "k": 256, "tokens": 128, "tile_rows": 192, "last_tiles": 2, "programmatic": True}),
        (300, {"n": 320, "k": 320, "tokens": 96, "tile_rows": 192, "last_tiles": 2, "indirect": True, "carried": True}),
        (200, {"n": 320, "k": 256, "tokens": 128, "last_tiles": 3, "out_dtype": "f32", "residual": True}),
        (2304, {"n": 192, "k": 64, "tokens": 256, "last_tiles": 1, "carried": True}),  # two bands of tokens
        (1, {"n": 192, "k": 192, "tokens": 256, "last_tiles": 1, "programmatic": True}),
        (200, {"n": 256, "k": 256, "last_tiles": 2, **GATED}),
        (300, {"n": 256, "k": 256, "last_tiles": 2, **PACKED}),
        (300, {"n": 256, "k": 512, "last_tiles": 2, "weights": "q4_k", **PACKED}),
        (300, {"n": 512, "k": 512, "last_tiles": 4, "weights": "q4_k", **PACKED, "share": 2}),
        (300, {"n": 320, "k": 512, "tokens": 128, "last_tiles": 1, "weights": "q8_0", "programmatic": True}),
        (130, {"n": 192, "k": 512, "tokens": 128, "last_tiles": 1, "precision": "exact", "out_dtype": "f32"}),
        (300, {"n": 256, "k": 512, "tokens": 128, "last_tiles": 2, "weights": "e4m3_channel", "x_dtype": "e4m3"}),
    ],
    ids=str,
)  # fmt: skip
def test_last_tiles_have_the_rows_of_one_warpgroup(
    mode: str, rows: int, fields: dict[str, Any], few_processors: None
) -> None:
    spec = PackedGemm(**{**PLAIN, **fields})
    assert Geometry.of(spec).carried == spec.carried
    tried(spec, mode, rows, None)


@pytest.mark.parametrize("count", [0, 255, 256, 257, 600])
def test_tokens_past_the_last_are_not_written(count: int, few_processors: None) -> None:
    spec = PackedGemm(n=192, k=128, tokens=256, last_tiles=1, carried=True, indirect=True, **PLAIN)
    values = spec.example(np.random.default_rng(0), rows=700, n_rows=count)
    done = tried(spec, "check", 700, FAST, n_rows=count)
    assert done.outputs["out"][count:].tobytes() == values["out"][count:].tobytes()


@pytest.mark.parametrize("last", [1, 3, 5])
def test_the_results_are_those_of_whole_tiles(last: int, few_processors: None) -> None:
    fields = {**PLAIN, "n": 440, "k": 384, "tokens": 256}
    whole, ended = (tried(PackedGemm(**fields, last_tiles=each), "fast", 600, FAST) for each in (0, last))
    assert ended.outputs["out"].tobytes() == whole.outputs["out"].tobytes()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tokens": 64}, r"is for more than 64 tokens \(got tokens=64; nearest: tokens=96\)"),
        ({"tile_rows": 64}, r"is for tiles of several warpgroups \(got tile_rows=64; nearest: tile_rows=128\)"),
        (
            {"weights": "q4_k", "tokens": 192},
            r"have room in shared memory \(got last_tiles=1; nearest: last_tiles=0",
        ),
        ({"split": 2}, r"is for CTAs that have all of k \(got split=2; nearest: split=1\)"),
        (
            {"weights": "e4m3_block", "x_dtype": "e4m3"},
            r"f32 adds up \(got weights='e4m3_block'; nearest: last_tiles=0",
        ),
        ({"last_tiles": 2}, r"before the last tiles must be whole tiles.* \(got last_tiles=2; nearest: last_tiles=1\)"),
        ({"n": 300}, "before the last tiles must be whole tiles, at least one"),
        ({"n": 192, "last_tiles": 3}, r"whole tiles, at least one.* \(got last_tiles=3; nearest: last_tiles=1\)"),
        ({"n": 320, "share": 2}, r"as share tokens \(share=2\) \(got last_tiles=1; nearest: last_tiles=0\)"),
        ({"n": 512, "last_tiles": 2, "share": 2}, r"\(share=2\) \(got last_tiles=2; nearest: last_tiles=0\)"),
        ({"last_tiles": -1}, "last_tiles: must be from 0 to"),
    ],
)
def test_what_cannot_have_them_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        PackedGemm(**{**PLAIN, "n": 320, "k": 512, "tokens": 128, "last_tiles": 1, **fields})


@pytest.mark.parametrize(
    ("fields", "rows", "turns"),
    [
        ({"last_tiles": 0}, 512, Turns(4, 0)),
        ({"last_tiles": 52}, 512, Turns(3, 1)),  # 396 whole tiles, 104 small ones
        ({"last_tiles": 52}, 200, Turns(2, 0)),
        ({"last_tiles": 52, "share": 2}, 512, Turns(3, 1)),
        ({"last_tiles": 2}, 512, Turns(4, 0)),
        ({"last_tiles": 200}, 512, Turns(2, 3)),
    ],
)
def test_how_many_tiles_the_busiest_cta_has(fields: dict[str, Any], rows: int, turns: Turns) -> None:
    spec = PackedGemm(28672, 4096, tokens=256, **{**PLAIN, **fields})
    assert waves.turns(Geometry.of(spec), rows) == turns


@pytest.mark.parametrize(
    ("n", "rows", "fields", "last"),
    [
        (28672, 512, {}, 52),
        (28672, 512, {"share": 2}, 52),
        (28672, 2048, {}, 0),  # 13.58 turns: what 13 leave is more than a small tile for each CTA
        (4096, 2048, {}, 0),  # 1.94 turns
        (12288, 512, {}, 60),
        (2048, 512, {}, 0),  # less than a turn
        (5632, 512, GATED, 22),
    ],
)
def test_how_many_make_the_launch_the_shortest(n: int, rows: int, fields: dict[str, Any], last: int) -> None:
    spec = PackedGemm(n, 4096, **{**PLAIN, "tokens": 256, **fields})
    assert waves.last_tiles(Geometry.of(spec), rows) == last


@pytest.mark.parametrize(
    ("rows", "fields", "last"),
    [
        (512, {"n": 14336, "gated": True, "activation": "silu", "packed_out": True}, 26),
        (512, {"n": 14336, "gated": True, "activation": "silu", "packed_out": True, "weights": "q4_k"}, 26),
        (512, {"n": 14336, "gated": True, "activation": "silu", "packed_out": True, "weights": "int4_g128"}, 26),
        (512, {"n": 28672, "out_dtype": "bf16"}, 52),
        (512, {"n": 28672, "out_dtype": "bf16", "last_tiles": 0}, 0),
        (128, {"n": 22016, "out_dtype": "bf16"}, 0),  # the read is the limit
        (512, {"n": 28672, "out_dtype": "bf16", "weights": "q8_0"}, 0),  # not measured
        (2048, {"n": 11008, "precision": "exact"}, 0),
    ],
)
def test_the_best_tile_has_them_where_that_was_measured(rows: int, fields: dict[str, Any], last: int) -> None:
    given = {"k": 4096, "precision": "fast", "programmatic": True, **fields}
    assert PackedGemm.best(rows, **given).last_tiles == last


@pytest.mark.parametrize("last", [2, 26])
def test_the_best_tile_has_those_that_are_given(last: int) -> None:
    fields = {"n": 28672, "k": 4096, "precision": "fast", "out_dtype": "bf16"}
    spec = PackedGemm.best(512, **fields, last_tiles=last)
    assert spec.last_tiles == last
    assert Geometry.of(spec).shape.groups > 1


def test_without_them_the_best_tile_is_the_measured_one() -> None:
    fields = {"n": 28672, "k": 4096, "precision": "fast", "out_dtype": "bf16"}
    assert PackedGemm.best(512, **fields, last_tiles=0) == PackedGemm.best(512, **fields)


@needs_assembler
@pytest.mark.parametrize(
    "fields",
    [
        {"n": 27648, "tokens": 256, "last_tiles": 36, "carried": True},
        {"n": 27648, "tokens": 256, "last_tiles": 36, "carried": True, "share": 2},
        {"n": 28672, "tokens": 128, "tile_rows": 192, "last_tiles": 52},
        {"n": 14336, "last_tiles": 26, **PACKED},
        {"n": 14336, "last_tiles": 26, "weights": "q4_k", **PACKED},
    ],
    ids=str,
)
def test_no_register_is_spilled(fields: dict[str, Any]) -> None:
    text = generate(PackedGemm(**{"k": 4096, **PLAIN, **fields}), WHERE).text
    assert "0 bytes spill stores" in assemble(text, WHERE).log


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (2500, {"n": 2040, "tokens": 256, "last_tiles": 4}),
        (2500, {"n": 2040, "tokens": 256, "last_tiles": 4, "carried": True, "bias": True}),
        (2500, {"n": 2048, "tokens": 256, "last_tiles": 8, "carried": True, "share": 2}),
        (2100, {"n": 2048, "tokens": 128, "tile_rows": 192, "last_tiles": 5, "indirect": True}),
        (1500, {"n": 2048, "last_tiles": 4, **PACKED}),
        (1500, {"n": 2048, "k": 512, "last_tiles": 4, "weights": "q4_k", **PACKED}),
    ],
    ids=str,
)
def test_a_cta_has_several_tiles_on_a_gpu(gpu: Device, rows: int, fields: dict[str, Any]) -> None:
    spec = PackedGemm(**{"k": 320, "programmatic": True, **PLAIN, **fields})
    assert Geometry.of(spec).row_groups * -(-rows // spec.tokens) > shape.PROCESSORS
    trial(spec, gpu, target=WHERE, rows=rows, limit=None).require()
