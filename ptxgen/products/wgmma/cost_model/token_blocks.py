"""Tiles of one matrix in e4m3 whose tokens, too, have scales of blocks: which are tried beside the tile that
`choice.py` takes, and their cycles, fitted to 79 times of 22 products on an H200."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ptxgen.errors import SpecError
from ptxgen.products.wgmma.cost_model.weights_converted import OTHER
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tiling.shape import PROCESSORS

if TYPE_CHECKING:
    from ptxgen.products.wgmma.cost_model.waves import Turns
    from ptxgen.products.wgmma.product import PackedProduct

P = TypeVar("P", bound="PackedProduct")
WORTH = 0.97  # what is left of the cycles of the tile in whose place one is taken
ROWS, SPLIT = 128, 2  # of the tiles; CTAs that share k, where all find room at once
PACE = {128: 801, 192: 1102, 256: 1418}  # cycles of a block of columns, by the tile's tokens
START, WRITING, SENDING = 529, 10.5, 22.6  # of a launch; of a token's results, and of its sums to the other CTA
GIVEN = {"tokens", "tile_rows", "split", "share", "by_memory", "slices", "residual", *OTHER}


def others(kernel: type[P], fields: dict[str, Any], rows: int) -> Iterator[P]:
    """The tiles that are tried for a spec with these fields: of what was measured, if no field of a tile is given."""
    if any(fields.get(name) for name in GIVEN):
        return
    for tokens in PACE:
        room = -(-rows // tokens) * -(-fields["n"] // ROWS) * SPLIT <= PROCESSORS
        for split in (1, SPLIT) if room else (1,):
            try:
                yield kernel(**fields | {"tokens": tokens, "tile_rows": ROWS, "split": split, "share": 1})
            except SpecError:
                continue


def is_known(spec: PackedProduct) -> bool:
    """Whether `cycles` holds for a spec: for tiles whose scales a warp packs."""
    at = Geometry.of(spec)
    tile = spec.tokens in PACE and at.shape.rows == ROWS and spec.split <= SPLIT and spec.share == 1
    return tile and spec.by_block and at.factored and not (spec.gated or spec.activation or spec.by_memory)


def cycles(spec: PackedProduct, turns: Turns) -> float:
    """Of a launch without the read of weights."""
    steps = -(-spec.kind.tiles(spec.k) // spec.split)
    after = spec.tokens * (WRITING + SENDING * (spec.split > 1))
    return START + (turns.whole + turns.last) * (steps * PACE[spec.tokens] + after)
