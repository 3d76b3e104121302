"""Cycles of a launch, by what limits it: products, shared memory, the read of weights.

Those of 16-bit weights as they lie are in `weights_16bit.py`. The others were fitted to times with shared memory as the
limit: it takes the stage's bytes, and gives weights once, and tokens once for every 64 rows of weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.products.wgmma.cost_model import waves, weights_16bit
from ptxgen.products.wgmma.cost_model.weights_16bit import (
    BY_MEMORY,
    BY_MEMORY_LARGE,
    TENSOR,
    is_lone_pair,
    of_large,
)
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tiling.shape import MOST_ROWS_FIRST, PROCESSORS
from ptxgen.products.wgmma.tokens.layout import CHUNK_BYTES, COLUMNS, ROW_BYTES
from ptxgen.weights.f16 import Half

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

IN_BYTES = 1.2  # cycles of tensor cores for one that 8-bit numbers would take: their power lowers the clock
ALONE = 1.6  # the same where a warpgroup's sums go to the totals and no other multiplies meanwhile
SHARED = 128  # bytes of shared memory in a cycle
CONVERTING = 200  # cycles for 128 rows by 64 columns of weights that are not of 16 bits
LATENCY = 2500  # cycles from asking for a stage to having it
TURN = 420  # cycles of a stage at least, from its bytes' arrival to its release
MEMORY, MEMORY_BEGINS = 2050, 8300  # bytes of the GPU's memory in a cycle; cycles before the first and after the last
BESIDE = 0.05  # of what is shorter, the multiprocessors' work or the read, that is not hidden behind the other
EDGES, RESULTS = 2400, 8800  # cycles of a tile beside its products: of any, and of 128 rows by 256 tokens
ADDING, SUMS = {1: 0, 2: 450, 3: 2500, 4: 4500, 8: 5500}, 7500  # the same where so many CTAs add up their sums
MEETING, SHARING = 6000, 0.985  # cycles of a launch whose CTAs share tokens, and what remains of a stage's
BESIDE_PLAIN = 0.2  # of what is shorter, products or the read, that is not hidden behind the other
# rows of x from which the last tiles of rows may be those of one warpgroup, and of which weights that are converted
ENDED_FROM, ENDED_CONVERTED = 385, ("q4_k", "int4_g128", "q8_0")
LONE_CONVERTING = 1.1  # and how much longer they take where `LONE_PAIR` holds


def cycles(spec: PackedProduct, rows: int) -> float:
    """What a launch for so many rows takes."""
    at, kind = Geometry.of(spec), spec.kind
    if isinstance(kind, Half) and spec.straight and spec.precision == "fast" and spec.tokens > MOST_ROWS_FIRST:
        behind = weights_16bit.written(spec, at)
        whole = read_too(spec, weights_16bit.cycles(spec, at, rows), BESIDE_PLAIN, behind)
        return weights_16bit.of_one_block(spec, at, rows, whole)
    shape = at.shape
    steps = -(-kind.tiles(spec.k) * kind.tile_k // (spec.columns * shape.split))
    size = shape.split * shape.share
    clusters = at.row_groups // shape.share * -(-rows // at.tokens)
    beside = min(shape.resident, -(-clusters * size // PROCESSORS))  # CTAs that share a multiprocessor
    large = of_large(at)
    slower = SHARING if shape.share > 1 else 1
    whole = 0.0
    for turns, groups in zip(waves.turns(at, rows), (shape.groups, 1), strict=True):
        step = slower * _stage(spec, at, 64 * groups * shape.blocks, beside)
        if spec.weights in ENDED_CONVERTED and rows >= ENDED_FROM and is_lone_pair(at):
            step *= LONE_CONVERTING
        whole += turns * (steps * step + EDGES + RESULTS * large * groups / shape.groups)
    if shape.by_memory:
        whole += BY_MEMORY + BY_MEMORY_LARGE * large
    elif shape.split > 1:
        whole += ADDING[shape.split] + SUMS * large
    if shape.share > 1:
        whole += MEETING
    return read_too(spec, whole)


def _stage(spec: PackedProduct, at: Geometry, tile_rows: int, beside: int) -> float:
    """Of 64 columns of so many rows, `beside` of such CTAs on a multiprocessor: of all but 16-bit weights as they
    lie."""
    kind, shape = spec.kind, at.shape
    passes = {"fast": 1, "exact": 3 if isinstance(kind, Half) else 6}[spec.precision]
    tensor = passes * tile_rows * at.tokens * COLUMNS / TENSOR
    if spec.scaled:
        tensor *= IN_BYTES * (ALONE if spec.promotes and shape.groups == 1 else 1)
    elif not isinstance(kind, Half):
        tensor += CONVERTING * tile_rows / 128
    per_row = kind.tile_bytes / (kind.tile_k * 16) * spec.columns
    tokens_bytes = at.tokens * ROW_BYTES
    reads = passes * tile_rows / 64 * tokens_bytes + tile_rows * per_row
    shared = (reads + tile_rows * per_row + tokens_bytes * spec.digits) / SHARED
    wait = max(LATENCY / (at.stages - 1), TURN) / (at.chunks * CHUNK_BYTES // ROW_BYTES)
    return max(beside * tensor, beside * shared, wait)


def read_too(spec: PackedProduct, whole: float, beside: float = BESIDE, behind: float = 0) -> float:
    """What it takes where weights come from memory meanwhile; `beside`: of what is shorter, what is not hidden;
    `behind`: cycles after the last weights."""
    memory = spec.parts * spec.kind.nbytes(spec.n, spec.k) / MEMORY + MEMORY_BEGINS + behind
    return max(whole, memory) + beside * min(whole, memory)
