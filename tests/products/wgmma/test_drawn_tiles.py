"""PackedGemm in check mode, of specs drawn from those that the sweeps over fields hardly meet: results that other warps
carry, weights that leave the L2 first, and wide CTAs that share k.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ptxgen import SpecError
from ptxgen.kernels import PackedGemm
from ptxgen.products.wgmma.tiling.geometry import Geometry
from tests.support.packed_products import tried
from tests.support.sweep import examples

DRAWS, SWEPT = 6, 60
FAST = 5e-3  # faults of these kinds are deadlocks, findings, or far off; "exact" has the limits of its spec

Fields = dict[str, Any]
pytestmark = pytest.mark.usefixtures("few_processors")


def carried(rng: random.Random, turn: int) -> Fields:
    """Fields of results that other warps store, of any tile; legal or not."""
    half = rng.choice(("bf16", "bf16", "f16"))
    return {
        "n": rng.choice((128, 136, 200, 264)), "k": 64 * rng.randint(1, 5), "weights": half, "x_dtype": half,
        "out_dtype": rng.choice(("bf16", "f16")), "tokens": rng.choice((32, 64, 96, 128, 192)),
        "tile_rows": (192, 128, 64)[turn % 3], "precision": "fast",
        "share": rng.choice((1, 1, 2)), "split": 1, "bias": rng.random() < 0.4, "carried": True,
        "evict_first": rng.random() < 0.5, "indirect": rng.random() < 0.3, "programmatic": rng.random() < 0.5,
    }  # fmt: skip


def sharing_k(rng: random.Random, turn: int) -> Fields:
    """Fields of a product of few tokens whose k CTAs share: of two or three warpgroups, for numbers that add up to f32,
    or of four, for tokens in units of their rows."""
    plain = {"n": rng.choice((66, 130)), "tokens": rng.choice((8, 16, 32)), "share": 1,
             "split": rng.choice((2, 2, 4)), "bias": rng.random() < 0.3, "residual": rng.random() < 0.3,
             "evict_first": rng.random() < 0.3, "programmatic": rng.random() < 0.5,
             "indirect": rng.random() < 0.3}  # fmt: skip
    if turn % 3 == 2:
        integers = rng.choice(("q4_k", "q5_k", "q6_k", "q8_0", "int4_g128", "e4m3_channel"))
        more = {"weights": integers, "x_dtype": "f16", "by_row": True, "precision": rng.choice(("fast", "exact"))}
        return plain | more | {"tile_rows": 256, "k": 1024}
    weights = rng.choice(("bf16", "f16", "q8_0", "e4m3"))
    return plain | {"weights": weights, "precision": "exact", "tile_rows": (128, 192)[turn % 3], "k": 256}


def drawn(fields_of: Callable[[random.Random, int], Fields], fits: Callable[[Geometry], bool], turn: int) -> PackedGemm:
    """A legal spec of that kind."""
    rng = random.Random(turn)
    while True:
        try:
            spec = PackedGemm(**fields_of(rng, turn))
        except SpecError:
            continue
        if fits(Geometry.of(spec)):
            return spec


def is_right(spec: PackedGemm, turn: int) -> None:
    """In check mode, of whole tiles and of tails."""
    rows = (1 + turn % 2) * spec.tokens + (-1, 0, 1)[turn % 3]
    tried(spec, "check", rows, FAST if spec.precision == "fast" else None)


@pytest.mark.parametrize("turn", range(examples(DRAWS, SWEPT)))
def test_drawn_products_whose_results_are_carried(turn: int) -> None:
    is_right(drawn(carried, lambda at: at.carried, turn), turn)


@pytest.mark.parametrize("turn", range(examples(DRAWS, SWEPT)))
def test_drawn_products_of_wide_ctas_that_share_k(turn: int) -> None:
    is_right(drawn(sharing_k, lambda at: at.wide and at.shape.split > 1, turn), turn)
