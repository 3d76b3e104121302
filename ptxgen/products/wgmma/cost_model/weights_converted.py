"""Tiles of 257 rows of x and more by one matrix whose weights are converted, or in e4m3 with scales of rows: which are
tried beside the tile that `choice.py` takes, and their cycles, fitted to 322 times of 46 products on an H200."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptxgen.dtypes import e4m3
from ptxgen.products.wgmma.cost_model.weights_16bit import LARGE, TENSOR
from ptxgen.products.wgmma.tiling.shape import PROCESSORS
from ptxgen.products.wgmma.tokens.layout import COLUMNS
from ptxgen.weights import weight_format
from ptxgen.weights.f16 import Half

if TYPE_CHECKING:
    from ptxgen.products.wgmma.cost_model.waves import Turns
    from ptxgen.products.wgmma.product import PackedProduct
    from ptxgen.products.wgmma.tiling.geometry import Geometry

FROM, WORTH = 257, 0.95  # rows of x; what is left of the cycles of the tile in whose place one is taken
OTHER = (  # fields of products that were not measured, or spill: 192 by 192 in e4m3 with a bias
    "gated", "activation", "packed_out", "by_row", "stream", "norm", "promoted", "bias", "last_tiles", "indirect",
)  # fmt: skip
# Rows and shares that are tried with so many tokens. Tiles of 64 rows were slower than their cycles say.
TRIED: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    **dict.fromkeys((96, 104, 112, 128, 144, 160, 176, 192), ((128, 192), (1,))),
    **dict.fromkeys((208, 224, 240, 256), ((128,), (1,))),
}
# By whether weights are multiplied as they lie, and warpgroups: 128 bytes of a row of tokens take so many cycles, so
# many for each of the tensor cores', and so many at least.
PACE = {
    False: {1: (177, 1.01, 370), 2: (310, 0.91, 600), 3: (370, 0.93, 1036)},
    True: {1: (62, 0.98, 490), 2: (105, 0.9, 524), 3: (220, 0.8, 840)},
}
FEW_STAGES, THIN_RING = 3, 1.05  # stages of a ring that is too short, and what it costs
EIGHT_AT_ONCE, BY_EIGHT = 32, 1.025  # tokens of which a multiple leaves in parts of 16 or more; what others cost
START, BETWEEN, WRITING = 2700, 400, 3500  # to the first stage; of a tile; of a large tile's results of 16 bits
SENDING, SENT = {1: 0, 2: 2700, 3: 4000, 4: 5900, 8: 15400}, 4600  # sums to others: of any tile; of a large one
MEETING, SHARING = 6000, 0.985  # of a launch whose CTAs share tokens, and what remains of a stage's: as in `cycles.py`
BESIDE = 0.16  # of what is shorter, products or the read, that is not hidden behind the other


def is_open(fields: dict[str, Any], rows: int) -> bool:
    """Whether these tiles are tried for a spec with these fields: of what was measured."""
    weights, scaled = fields.get("weights", "bf16"), str(fields.get("x_dtype")) == e4m3.name
    plain = fields.get("precision") == "fast" and not any(fields.get(name) for name in OTHER)
    known = not isinstance(weight_format(weights), Half) and not (scaled and weights == "e4m3_block")
    return rows >= FROM and plain and known and fields.get("slices", 1) == 1


def tries(spec: PackedProduct) -> bool:
    """Whether a tile is not a large one whose k is shared, which were slower than their cycles say."""
    return spec.split == 1 or spec.tile_rows * spec.tokens < LARGE


def is_known(spec: PackedProduct, rows: int) -> bool:
    """Whether `cycles` holds for a spec."""
    one = spec.parts == 1 and spec.precision == "fast" and not (spec.activation or spec.packed_out)
    kind = not (isinstance(spec.kind, Half) or spec.by_row or spec.promotes or spec.by_memory)
    return one and kind and rows >= FROM and spec.tokens in TRIED


def cycles(spec: PackedProduct, at: Geometry, rows: int, turns: Turns) -> float:
    """Of a launch without the read of weights."""
    shape, count = at.shape, turns.whole + turns.last
    clusters = at.row_groups // shape.share * -(-rows // at.tokens)
    beside = min(shape.resident, -(-clusters * shape.split * shape.share // PROCESSORS))  # on a multiprocessor
    tile_rows = 64 * shape.groups * shape.blocks
    begin, each, least = PACE[spec.straight][shape.groups]
    step = shape.blocks * max(begin + each * tile_rows * at.tokens * COLUMNS / (TENSOR * shape.blocks), least)
    steps = -(-spec.kind.tiles(spec.k) * spec.kind.tile_k // (spec.columns * shape.split))
    slower = float(beside)
    if at.tokens % EIGHT_AT_ONCE:
        slower *= BY_EIGHT
    if at.stages <= FEW_STAGES:
        slower *= THIN_RING
    large, whole = tile_rows * at.tokens / LARGE, float(START)
    if shape.share > 1:
        slower, whole = slower * SHARING, whole + MEETING
    sent = SENDING[shape.split] + (SENT * large if shape.split > 1 else 0)
    return whole + count * (steps * slower * step + BETWEEN + WRITING * large * spec.out_dtype.bytes / 2 + sent)
