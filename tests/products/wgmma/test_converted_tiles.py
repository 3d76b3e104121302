"""Tiles of 96 to 240 tokens by one matrix, converted or in e4m3: they are right, spill nothing, and are chosen."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgen import generate
from ptxgen.assembler import assemble
from ptxgen.dtypes import bf16
from ptxgen.kernels import PackedGemm
from ptxgen.products.wgmma.cost_model import weights_converted
from ptxgen.runtime import open_device
from ptxgen.runtime.tools.trial import trial
from tests.support.marks import needs_assembler

WHERE = "sm_90a"
FAST: dict[str, Any] = {"precision": "fast", "programmatic": True}
SCALED = {"weights": "e4m3_channel", "x_dtype": "e4m3"}
# with mins, without, of 8 bits, in e4m3
CLASSES = ({"weights": "q4_k"}, {"weights": "int4_g128"}, {"weights": "q8_0"}, SCALED)
TILES = ((104, 192), (144, 128), (160, 192), (176, 128))


def _named(fields: dict[str, Any]) -> str:
    return str(fields["weights"])


@pytest.mark.parametrize("kind", CLASSES, ids=_named)
@pytest.mark.parametrize(("count", "rows", "mode"), [(104, 64, "check"), (144, 64, "random"), (176, 128, "check")])
def test_tiles_and_their_tails_are_right(kind: dict[str, Any], count: int, rows: int, mode: str) -> None:
    tile = {"tokens": count, "tile_rows": rows, "split": 1, "share": 1}
    spec = PackedGemm(n=rows + 16, k=256, out_dtype=bf16, **FAST, **kind, **tile)
    for there in (count - 1, count + 1):
        trial(spec, open_device("cpu", mode=mode), target=WHERE, rows=there).require()


@needs_assembler
@pytest.mark.parametrize("kind", CLASSES, ids=_named)
@pytest.mark.parametrize(("count", "rows"), TILES)
@pytest.mark.parametrize("more", [{"out_dtype": bf16}, {"residual": True, "split": 2}], ids=str)
def test_nothing_is_spilled(kind: dict[str, Any], count: int, rows: int, more: dict[str, Any]) -> None:
    fields = {"tokens": count, "tile_rows": rows, "split": 1, "share": 1, **FAST, **kind, **more}
    made = assemble(generate(PackedGemm(n=5120, k=1024, **fields), WHERE).text)
    assert all(taken.clean for taken in made.resources.values()), made.resources


# The fastest of 6 to 8 tiles on an H200, or within 2 %: rows of x, outputs, columns
@pytest.mark.parametrize(
    ("kind", "rows", "n", "k", "tile"),
    [
        (SCALED, 2048, 3584, 18944, (160, 192, 1)), (SCALED, 300, 8192, 8192, (160, 128, 1)),
        (SCALED, 512, 19456, 2560, (256, 64, 1)), (CLASSES[0], 512, 5120, 13824, (176, 128, 1)),
        (CLASSES[0], 1024, 2560, 9728, (176, 128, 1)), (CLASSES[0], 512, 4096, 4096, (128, 128, 1)),
        (CLASSES[1], 512, 4608, 3584, (176, 128, 1)), (CLASSES[1], 512, 1536, 8960, (104, 128, 2)),
    ],
)  # fmt: skip
def test_the_tile_is_the_one_that_was_the_fastest(
    kind: dict[str, Any], rows: int, n: int, k: int, tile: tuple[int, int, int]
) -> None:
    spec = PackedGemm.best(rows, n=n, k=k, out_dtype=bf16, **FAST, **kind)
    assert (spec.tokens, spec.tile_rows, spec.split) == tile


@pytest.mark.parametrize(
    "more",
    [{"activation": "silu", "gated": True}, {"activation": "gelu"}, {"weights": "e4m3_block", "x_dtype": "e4m3"}],
)
def test_other_products_have_the_counts_that_they_had(more: dict[str, Any]) -> None:
    fields = {"n": 5120, "k": 2560, "weights": "q4_k", **FAST, **more}
    assert not weights_converted.is_open(fields, 777)
    assert PackedGemm.best(777, **fields).tokens in {64, 96, 112, 128, 192, 256}
