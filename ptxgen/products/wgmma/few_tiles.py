"""Which tile is likely the fastest for up to 64 tokens of 16-bit weights as they lie, launched programmatically one
after the other: µs as they were measured on an H200.

Three things go on side by side, and a launch takes a little more than the longest: the read of all weights, the read of
those of the busiest multiprocessor, which brings some 45 bytes a nanosecond, and its warps' work. So it matters most
that tiles are about as many as multiprocessors, or many times as many.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ptxgen.errors import SpecError
from ptxgen.products.wgmma.geometry import Geometry
from ptxgen.products.wgmma.shape import CLUSTERS, PROCESSORS
from ptxgen.products.wgmma.tokens import COLUMNS, GROUP, ROW_BYTES, TOKENS

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

P = TypeVar("P", bound="PackedProduct")


class Pace(NamedTuple):
    """Of a CTA: µs of 64 columns, without tokens and of each, and the thousands of bytes of weights that it is brought
    in a µs."""

    columns: float
    token: float
    rate: float


# by rows and warpgroups that share k
PACES = {
    (64, 1): Pace(0.1, 0.0008, 47),
    (128, 1): Pace(0.095, 0.002, 46),
    (192, 1): Pace(0, 0, 42),
    (64, 2): Pace(0.035, 0.0014, 48),
}
SPLITS = (1, 2, 3, 4, 8)
FEWEST_STEPS = 2  # tiles of k of a CTA
MEMORY = 4700.0  # thousands of bytes that the memory gives in a µs
BEFORE = 0.5  # of a ring is full before a launch has its tokens
POWER = 4  # of the mean of what goes on side by side
BEGIN, TURN, TILE = 1.0, 0.4, 0.6  # µs of a launch, of a further turn, and of 128 rows by 64 tokens' results
ADDING, ADDING_TILE = {1: 0, 2: 0.6, 3: 0.2, 4: 0.4, 8: 0.4}, 0.5  # of CTAs that add up sums, and of such a tile's
LARGE = 128 * 64


def candidates(kernel: type[P], fields: dict[str, Any], rows: int) -> Iterator[P]:
    """Legal specs of a kernel type with these fields, whose tiles differ; CTAs share k where there is one for each."""
    counts = [fields["tokens"]] if "tokens" in fields else [count for count in TOKENS if count >= rows][:1]
    for count, (tile_rows, slices), split in product(counts, PACES, SPLITS):
        if split > 1 and (slices > 1 or -(-fields["n"] // tile_rows) * split > PROCESSORS):
            continue
        if fields["k"] < FEWEST_STEPS * split * COLUMNS and split > 1:
            continue
        tile = {"tokens": max(count, 2 * GROUP) if slices > 1 else count, "tile_rows": tile_rows, "split": split}
        try:
            yield kernel(**{**tile, "share": 1, "slices": slices, **fields})
        except SpecError:
            continue


def microseconds(spec: PackedProduct, rows: int) -> float:
    """What a launch for so many rows takes."""
    at = Geometry.of(spec)
    shape, pace = at.shape, PACES[at.rows, at.shape.slices]
    clusters = at.row_groups // shape.share * -(-rows // at.tokens)
    turns = -(-clusters // (CLUSTERS[shape.split * shape.share] * shape.resident))
    beside = min(shape.resident, -(-clusters * shape.split // PROCESSORS))  # CTAs that share a multiprocessor
    steps = turns * beside * spec.k / COLUMNS / shape.split
    work = steps * (pace.columns + pace.token * at.tokens)
    brought = max(0.0, steps * at.rows * ROW_BYTES - BEFORE * at.stages * at.stage_bytes) / (1000 * pace.rate)
    read = spec.kind.nbytes(spec.n, spec.k) / (1000 * MEMORY)
    longest: float = (work**POWER + brought**POWER + read**POWER) ** (1 / POWER)
    large = at.rows * at.tokens / LARGE
    adding = ADDING[shape.split] + (ADDING_TILE * large if shape.split > 1 else 0)
    return longest + BEGIN + TURN * (turns - 1) + TILE * large + adding
