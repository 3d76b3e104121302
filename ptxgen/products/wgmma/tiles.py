"""Which tile is likely the fastest for a matrix and a number of tokens: cycles as they were measured on an H200."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from ptxgen.errors import SpecError
from ptxgen.products.wgmma.geometry import MOST_ROWS_FIRST, Geometry
from ptxgen.products.wgmma.tokens import CHUNK_BYTES, COLUMNS, ROW_BYTES, TOKENS
from ptxgen.weights.f16 import Half

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

P = TypeVar("P", bound="PackedProduct")
# multiplications in a cycle that so many warpgroups of a CTA reach; three were not measured
TENSOR = {1: 0.7 * 2048, 2: 0.85 * 2048, 3: 0.85 * 2048}
FEED = 40  # bytes that it gets from the L2 cache in a cycle while all others do, too
MEMORY = 2650  # bytes of the GPU's memory in a cycle
CONVERTING = 200  # cycles for 128 rows by 64 columns of weights that are not of 16 bits
LATENCY = 2600  # cycles from asking for a stage to having it
CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 14}  # of so many CTAs that there is room for at once
EDGES = 4500  # cycles of a tile before its first and after its last product
ADDING = 3000  # and where CTAs add up their sums
ROWS = (0, 64, 128, 256)
SPLITS = (1, 2, 4, 8)


def candidates(kernel: type[P], fields: dict[str, Any], rows: int) -> Iterator[P]:
    """Legal specs of a kernel type with these fields, whose tiles differ; for a few rows the one that the tables
    have."""
    if rows <= MOST_ROWS_FIRST:
        enough = [count for count in TOKENS if count >= rows]
        for count in (*enough[:1], *reversed(TOKENS[: -len(enough)])):
            try:
                yield kernel(**{"tokens": count, **fields})
                return
            except SpecError:
                continue
        return
    counts = [fields["tokens"]] if "tokens" in fields else [count for count in TOKENS if count >= MOST_ROWS_FIRST]
    for count, tile_rows, split in product(counts, ROWS[1:], SPLITS):
        try:
            yield kernel(**{**fields, "tokens": count, "tile_rows": tile_rows, "split": split})
        except SpecError:
            continue


def cycles(spec: PackedProduct, rows: int) -> float:
    """What a launch for so many rows takes."""
    at, kind = Geometry.of(spec), spec.kind
    shape = at.shape
    tile_rows = 64 * shape.groups * shape.blocks
    passes = {"fast": 1, "exact": 3 if isinstance(kind, Half) else 6}[spec.precision]
    tensor = passes * tile_rows * at.tokens * COLUMNS / TENSOR[shape.groups]
    if not (spec.scaled or isinstance(kind, Half)):
        tensor += CONVERTING * tile_rows / 128
    per_row = kind.tile_bytes / (kind.tile_k * 16) * spec.columns
    feed = (tile_rows * per_row + at.tokens * ROW_BYTES * spec.digits / shape.share) / FEED
    blocks = at.chunks * CHUNK_BYTES // ROW_BYTES
    wait = LATENCY / ((at.stages - 1) * blocks)
    steps = -(-kind.tiles(spec.k) * kind.tile_k // (spec.columns * shape.split))
    size = shape.split * shape.share
    clusters = at.row_groups // shape.share * -(-rows // at.tokens)
    turns = -(-clusters // CLUSTERS[size])
    whole = turns * (steps * max(tensor, feed, wait) + EDGES + (ADDING if shape.split > 1 else 0))
    return max(whole, spec.parts * kind.nbytes(spec.n, spec.k) / MEMORY)


def best(kernel: type[P], fields: dict[str, Any], rows: int) -> P:
    """The candidate of the fewest cycles; of equal ones, in "fast", the one with more tokens, which brings weights
    fewer times: 64 rows by 128 tokens take 0.8 to 0.86 of the time of 128 by 64 (4096 by 4096 and by 14336)."""
    found = list(candidates(kernel, fields, rows))
    if not found:
        return kernel(**fields)  # raises with the reasons, or is legal as it is
    return min(found, key=lambda spec: (cycles(spec, rows), -spec.tokens if spec.precision == "fast" else 0))
