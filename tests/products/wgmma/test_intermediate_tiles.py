"""Tiles of 144 to 240 tokens, and of 256 rows of one matrix: they are right, spill nothing, and are chosen."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgen import generate
from ptxgen.assembler import assemble
from ptxgen.dtypes import bf16
from ptxgen.errors import SpecError
from ptxgen.kernels import PackedGemm
from ptxgen.products.wgmma.tokens import layout
from ptxgen.runtime import open_device
from ptxgen.runtime.tools.trial import trial
from tests.support.marks import needs_assembler

WHERE = "sm_90a"
PLAIN: dict[str, Any] = {"weights": "bf16", "precision": "fast", "programmatic": True}
TALL = ((144, 256), (160, 256), (176, 256))  # two warpgroups of two blocks of rows
TILES = (*TALL, (144, 128), (160, 192), (176, 64), (208, 128), (224, 128), (240, 128))
GATED = {"gated": True, "activation": "silu", "packed_out": True}
GELU = {"activation": "gelu", "packed_out": True}


@pytest.mark.parametrize(("count", "rows"), TILES)
@pytest.mark.parametrize("mode", ["check", "random"])
def test_tiles_and_their_tails_are_right(mode: str, count: int, rows: int) -> None:
    spec = PackedGemm(n=rows + 64, k=128, out_dtype=bf16, tokens=count, tile_rows=rows, split=1, share=1, **PLAIN)
    for there in (count - 1, count + 1):
        trial(spec, open_device("cpu", mode=mode), target=WHERE, rows=there).require()


@needs_assembler
@pytest.mark.parametrize(("count", "rows"), TILES)
@pytest.mark.parametrize("more", [{"out_dtype": bf16}, {"residual": True}, {"out_dtype": bf16, "split": 2}], ids=str)
def test_nothing_is_spilled(count: int, rows: int, more: dict[str, Any]) -> None:
    fields = {"tokens": count, "tile_rows": rows, "split": 1, "share": 1, **PLAIN, **more}
    made = assemble(generate(PackedGemm(n=5120, k=1024, **fields), WHERE).text)
    assert all(taken.clean for taken in made.resources.values()), made.resources
    assert "serialized" not in made.log


@pytest.mark.parametrize("more", [{"activation": "silu", "gated": True}, {"activation": "gelu"}])
def test_other_products_have_no_registers_for_256_rows(more: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="tokens: must be at most 128"):
        PackedGemm(n=512, k=256, tokens=160, tile_rows=256, **{**PLAIN, **more})


def test_short_sums_have_no_counts_between() -> None:
    scaled = {"weights": "e4m3_block", "x_dtype": "e4m3", "precision": "fast"}
    for count in layout.BETWEEN:
        with pytest.raises(SpecError, match=rf"short sums .* \(got {count}; nearest: (128|192|256)\)"):
            PackedGemm(n=512, k=256, tokens=count, **scaled)


# Of programmatic launches the fastest, or within 2 %, of 5 to 8 tiles on an H200: rows of x, outputs, columns
@pytest.mark.parametrize(
    ("rows", "n", "k", "tile"),
    [
        (2048, 2560, 9728, (160, 128, 1)), (300, 8192, 8192, (160, 128, 1)), (512, 5120, 5120, (176, 128, 1)),
        (1024, 2560, 9728, (176, 128, 1)), (512, 2560, 9728, (176, 128, 2)), (2048, 2304, 9216, (192, 192, 1)),
        (300, 37888, 3584, (160, 192, 1)), (777, 6144, 4096, (160, 128, 1)), (512, 8192, 8192, (256, 128, 1)),
    ],
)  # fmt: skip
def test_the_tile_is_the_one_that_was_the_fastest(rows: int, n: int, k: int, tile: tuple[int, int, int]) -> None:
    spec = PackedGemm.best(rows, n=n, k=k, out_dtype=bf16, **PLAIN)
    assert (spec.tokens, spec.tile_rows, spec.split) == tile


# Of gate and up, and of results that lie in tiles: what the model of clocks says, which times of one matrix leave as is
@pytest.mark.parametrize(
    ("rows", "n", "k", "fields", "tile"),
    [
        (129, 8192, 2048, GATED, (128, 256, 1)), (129, 18944, 3584, GATED, (112, 128, 1)),
        (129, 18944, 3584, GELU, (192, 128, 4)), (300, 8192, 2048, GELU, (128, 192, 1)),
        (512, 4864, 896, GELU, (128, 192, 1)), (2048, 4864, 896, GELU, (128, 128, 1)),
    ],
)  # fmt: skip
def test_other_products_have_tiles_of_their_own(
    rows: int, n: int, k: int, fields: dict[str, Any], tile: tuple[int, int, int]
) -> None:
    spec = PackedGemm.best(rows, n=n, k=k, **fields, **PLAIN)
    assert (spec.tokens, spec.tile_rows, spec.split, spec.last_tiles) == (*tile, 0)


def test_ctas_share_tokens_of_small_tiles_where_that_is_asked_for() -> None:
    """These are chosen as others are: k is not left to the table (split=0)."""
    spec = PackedGemm.best(512, n=4096, k=4096, share=2, tokens=128, tile_rows=128, **PLAIN)
    assert (spec.share, spec.split) == (2, 1)


@pytest.mark.parametrize("given", [{"tile_rows": 0}, {"split": 0}, {"share": 0}, {"tokens": 64}])
def test_what_is_given_stays(given: dict[str, int]) -> None:
    """Also 0, which leaves it to the table of a tile."""
    spec = PackedGemm.best(512, n=4096, k=4096, out_dtype=bf16, **given, **PLAIN)
    assert {name: getattr(spec, name) for name in given} == given
