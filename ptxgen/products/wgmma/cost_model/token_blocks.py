"""Tiles of one matrix in e4m3 whose tokens, too, have scales of blocks: which are tried beside the tile that
`choice.py` takes, and their cycles, fitted to 79 times of 22 products on an H200 (docs/experiments.md, "Two CTAs that
share k, with scales of 128 columns")."""

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
LEAST_K = 2048  # columns from which these were measured
ROWS, SPLIT = 128, 2  # of the tiles; CTAs that share k, where all find room at once
PACE = {128: 801, 192: 1102, 256: 1418}  # cycles of a block of columns, by the tile's tokens
START, WRITING, SENDING = 529, 10.5, 22.6  # of a launch; of a token's results, and of its sums to the other CTA
TILE = ("tokens", "tile_rows", "split", "share")


def is_open(fields: dict[str, Any]) -> bool:
    """Whether these tiles are tried for a spec with these fields: of what was measured, if none of a tile's is given,
    and with a residual."""
    given = any(fields.get(name) is not None for name in TILE) or fields.get("by_memory") or fields.get("slices", 1) > 1
    return fields["k"] >= LEAST_K and not given and not any(fields.get(name) for name in OTHER)


def others(kernel: type[P], fields: dict[str, Any], rows: int) -> Iterator[P]:
    """Those tiles."""
    for tokens in PACE:
        room = -(-rows // tokens) * -(-fields["n"] // ROWS) * SPLIT <= PROCESSORS
        for split in (1, SPLIT) if room else (1,):
            try:
                spec = kernel(**fields | {"tokens": tokens, "tile_rows": ROWS, "split": split, "share": 1})
            except SpecError:
                continue
            if is_known(spec):
                yield spec


def is_known(spec: PackedProduct) -> bool:
    """Whether `cycles` holds for a spec: for tiles whose scales a warp packs."""
    at = Geometry.of(spec)
    tile = spec.tokens in PACE and at.shape.rows == ROWS and at.shape.split <= SPLIT and at.shape.share == 1
    return tile and spec.by_block and at.factored and not (spec.gated or spec.activation or at.shape.by_memory)


def cycles(spec: PackedProduct, turns: Turns) -> float:
    """Of a launch without the read of weights."""
    split = Geometry.of(spec).shape.split
    steps = -(-spec.kind.tiles(spec.k) // split)
    after = spec.tokens * (WRITING + SENDING * (split > 1))
    return START + (turns.whole + turns.last) * (steps * PACE[spec.tokens] + after)
