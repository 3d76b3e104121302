"""PackedGemm whose last tiles of rows have those of one warpgroup, so that a thin last turn of CTAs ends sooner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.kernels import PackedGemm
from ptxgen.products.wgmma.geometry import Geometry
from tests.support.packed_products import FAST, tried

PLAIN: dict[str, Any] = {"precision": "fast", "out_dtype": "bf16", "split": 1, "share": 1}


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (700, {"n": 320, "k": 512, "tokens": 256, "tile_rows": 128, "last_tiles": 1}),
        (513, {"n": 248, "k": 64, "tokens": 256, "tile_rows": 128, "last_tiles": 2}),  # a tile of one stage
        (511, {"n": 440, "k": 384, "tokens": 256, "tile_rows": 128, "last_tiles": 3, "bias": True, "carried": True}),
        (700, {"n": 448, "k": 704, "tokens": 256, "tile_rows": 128, "last_tiles": 5, "carried": True}),
        (600, {"n": 512, "k": 384, "tokens": 256, "tile_rows": 128, "last_tiles": 4, "carried": True, "share": 2}),
        (257, {"n": 320, "k": 256, "tokens": 128, "tile_rows": 192, "last_tiles": 2, "programmatic": True}),
        (300, {"n": 320, "k": 320, "tokens": 128, "tile_rows": 192, "last_tiles": 2, "indirect": True, "carried": True}),
        (200, {"n": 320, "k": 256, "tokens": 128, "tile_rows": 128, "last_tiles": 3, "out_dtype": "f32", "residual": True}),
        (200, {"n": 256, "k": 256, "tokens": 128, "tile_rows": 256, "last_tiles": 2, "gated": True, "activation": "silu"}),
        (300, {"n": 256, "k": 256, "tokens": 128, "tile_rows": 256, "last_tiles": 2, "gated": True, "activation": "silu",
               "packed_out": True, "out_dtype": "f32", "programmatic": True}),
        (300, {"n": 256, "k": 512, "tokens": 128, "tile_rows": 128, "last_tiles": 2, "weights": "e4m3_channel",
               "x_dtype": "e4m3", "programmatic": True}),
        (2304, {"n": 192, "k": 64, "tokens": 256, "tile_rows": 128, "last_tiles": 1, "carried": True}),  # two bands
        (1, {"n": 192, "k": 192, "tokens": 256, "tile_rows": 128, "last_tiles": 1, "programmatic": True}),
    ],
    ids=str,
)  # fmt: skip
def test_last_tiles_have_the_rows_of_one_warpgroup(
    mode: str, rows: int, fields: dict[str, Any], few_processors: None
) -> None:
    spec = PackedGemm(**{**PLAIN, **fields})
    assert Geometry.of(spec).shape.last == spec.last_tiles
    assert Geometry.of(spec).carried == spec.carried
    tried(spec, mode, rows, 3e-2 if spec.scaled else FAST)
