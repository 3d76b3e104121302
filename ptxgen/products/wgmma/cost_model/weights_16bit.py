"""Cycles of products of 16-bit weights as they lie, with more than 64 tokens, as they were measured on an H200.

There are two models. That of one matrix whose results are rows was fitted to 1195 times of 404 products. That of all
others, gate and up among them, has its numbers from clocks read in kernels, and was held against times of launches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.products.wgmma.cost_model import waves
from ptxgen.products.wgmma.tiling.geometry import WARPS, Geometry
from ptxgen.products.wgmma.tiling.shape import PROCESSORS
from ptxgen.products.wgmma.tokens.layout import COLUMNS, ROW_BYTES
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

TENSOR = 2048  # multiplications of 16 bits in a cycle
LARGE = 128 * 256  # sums of a large tile
MANY_TOKENS = 128  # with more, tiles are large
LONG_PACE = 323  # of 64 columns at least, of one warpgroup whose stages are long
# more, of more than 128 rows of x, of one warpgroup with two blocks, alone on its multiprocessor: fitted to times of
# launches, where whole launches are such tiles; with the last ones alone it did not show
LONE_PAIR = 103
BETWEEN = 400  # of a tile
MEETING = 6000  # of a launch whose CTAs share tokens
SHARED, SHARED_LARGE = 0.995, 0.975  # what remains of a stage's there, of a few tokens and of more than 128

# Of one matrix whose results are rows. By warpgroups and whether each has two blocks of rows: 64 columns take so many
# cycles, so many for each of the tensor cores', and so many at least.
PACE_OF_ONE = {
    (1, False): (5, 1.1, 340), (1, True): (5, 1.1, 340), (2, False): (120, 0.85, 470), (2, True): (180, 0.9, 0),
    (3, False): (305, 0.7, 755),
}  # fmt: skip
LOADED = 72  # bytes of a stage in a cycle, of one warpgroup with one block
FEW_STAGES, THIN_RING = 3, 1.09  # stages of a ring that is too short, and what it costs
# Tokens of a tile at most, and how much longer its products take than the rest of the model counts: fitted to times of
# launches, where power lowers the clock (docs/experiments.md, "Last turns whose k is shared").
BY_TOKENS = {112: 1.03, 160: 0.975, 208: 1.0, 256: 1.025}
EIGHT_AT_ONCE, BY_EIGHT = 32, 1.025  # tokens of which a multiple leaves in parts of 16 or more; what others cost
LAST_ALONE = 1.2  # how much longer the last tiles' products take, whose other warpgroup looks on
START_OF_ONE, WRITING_OF_ONE = 2500, 1700  # to the first stage; of a large tile's results of 16 bits
SENDING_OF_ONE = {1: 0, 2: 2200, 3: 3300, 4: 5700, 8: 15400}  # sums to others: of any tile
SENT_OF_ONE = {1: 0, 2: 4400, 3: 5000, 4: 5700, 8: 5700}  # of a large one
BY_MEMORY, BY_MEMORY_LARGE = 3000, 8000  # the same of CTAs that are no cluster
IN_TURNS = {1: 1.25, 2: 1.04, 3: 1.04}  # of CTAs that share k and are not all there at once, by warpgroups
# What remains of a launch in which one tile has all tokens, so that weights come from the L2 once, and cycles beside:
# fitted to choices among measured tiles (docs/experiments.md). Of several warpgroups up to so many tokens.
ONE_BLOCK, BESIDE_ONE_BLOCK, MOST_IN_ONE = 0.9, 1000, 240

# Of all others: of 64 columns at least, of so many warpgroups; of 64 columns beside the tensor cores', of a tile
# without sums, of a large one none.
PACE, BEYOND = {1: 365, 2: 474, 3: 600}, {1: 31, 2: 22, 3: 8}
START, WRITING = 4000, 2600
SENDING, SENT = {1: 0, 2: 2600, 3: 3300, 4: 4000, 8: 9000}, {1: 0, 2: 7000, 3: 7000, 4: 7000, 8: 7000}
MORE_POWER = 1.1  # of three warpgroups with several tiles in turn: their power lowers the clock
SMALL_POWER, MANY_TURNS = 1.03, 3  # of tiles that are not large, so many in turn: the same
ACROSS = 1.04  # of several warpgroups whose CTA shares k with others


def cycles(spec: PackedProduct, at: Geometry, rows: int) -> float:
    """Of a launch for so many rows, without the read of weights."""
    shape = at.shape
    clusters = at.row_groups // shape.share * -(-rows // at.tokens)
    beside = min(shape.resident, -(-clusters * shape.split * shape.share // PROCESSORS))  # on a multiprocessor
    turns = waves.turns(at, rows)
    steps = -(-spec.kind.tiles(spec.k) * spec.kind.tile_k // (spec.columns * shape.split))
    slower, stage, sent, start = (_of_one if is_of_one(spec) else _of_others)(at, turns)
    if shape.share > 1:
        slower *= SHARED_LARGE if at.tokens > MANY_TOKENS else SHARED
    if rows > MANY_TOKENS and is_lone_pair(at):
        stage += LONE_PAIR * sum(turns)
    left: float = 1 if at.carried else sum(turns)  # the last tile's results alone leave behind all products
    meeting = MEETING if shape.share > 1 else 0
    if waves.shares_last(at, rows):
        stage += _step_of_one(at, shape.groups) / shape.last_split
        sent += BETWEEN + BY_MEMORY + BY_MEMORY_LARGE * of_large(at)
        left += 1 / at.takers
    return steps * beside * slower * stage + sum(turns) * BETWEEN + left * written(spec, at) + sent + start + meeting


def is_of_one(spec: PackedProduct) -> bool:
    """Whether it is of one matrix, and its results are rows."""
    return spec.parts == 1 and not spec.packed_out


def of_one_block(spec: PackedProduct, at: Geometry, rows: int, whole: float) -> float:
    """Cycles of a launch that takes `whole` by the rest of the model, if one tile has all tokens."""
    one = is_of_one(spec) and rows <= at.tokens and (at.shape.groups == 1 or at.tokens <= MOST_IN_ONE)
    return ONE_BLOCK * whole + BESIDE_ONE_BLOCK if one else whole


def written(spec: PackedProduct, at: Geometry) -> float:
    """Of a tile's results."""
    writing = WRITING_OF_ONE if is_of_one(spec) else WRITING
    return writing * of_large(at) * (spec.x_dtype if spec.packed_out else spec.out_dtype).bytes / 2


def of_large(at: Geometry) -> float:
    """A tile's part of a large one."""
    return 64 * at.shape.groups * at.shape.blocks * at.tokens / LARGE


def is_lone_pair(at: Geometry) -> bool:
    """Whether a multiprocessor has one warpgroup with two blocks of rows, so that nothing runs between its parts."""
    return at.shape.groups == at.shape.resident == 1 and at.shape.blocks > 1


def _of_one(at: Geometry, turns: waves.Turns) -> tuple[float, float, float, float]:
    """How much longer 64 columns take than alone, these of all tiles in turn, sums to others, and the begin: of one
    matrix."""
    shape = at.shape
    slower = next(factor for most, factor in BY_TOKENS.items() if at.tokens <= most)
    if at.tokens % EIGHT_AT_ONCE:
        slower *= BY_EIGHT
    if at.stages <= FEW_STAGES:
        slower *= THIN_RING
    if shape.split > 1 and sum(turns) > 1:
        slower *= IN_TURNS[shape.groups]
    stage = turns.whole * _step_of_one(at, shape.groups) + turns.last * _step_of_one(at, 1) * LAST_ALONE
    if shape.by_memory:
        sent = BY_MEMORY + BY_MEMORY_LARGE * of_large(at)
    else:
        sent = SENDING_OF_ONE[shape.split] + SENT_OF_ONE[shape.split] * of_large(at)
    return slower, stage, sent * sum(turns), START_OF_ONE


def _of_others(at: Geometry, turns: waves.Turns) -> tuple[float, float, float, float]:
    """The same of all others."""
    shape, slower = at.shape, 1.0
    if shape.groups > 2 and sum(turns) > 1:
        slower *= MORE_POWER
    elif of_large(at) < 1 and sum(turns) >= MANY_TURNS:
        slower *= SMALL_POWER
    if shape.groups > 1 and shape.split > 1:
        slower *= ACROSS
    stage = turns.whole * _step(at, shape.groups) + turns.last * _step(at, 1)
    if shape.by_memory:
        return slower, stage, BY_MEMORY + BY_MEMORY_LARGE * of_large(at), START
    return slower, stage, SENDING[shape.split] + SENT[shape.split] * of_large(at), START


def _step_of_one(at: Geometry, groups: int) -> float:
    """Of 64 columns of a tile of so many warpgroups, of one matrix."""
    rows = TILE_ROWS * WARPS * groups * at.shape.blocks
    begin, each, least = PACE_OF_ONE[groups, at.shape.blocks > 1]
    tensor = each * rows * at.tokens * COLUMNS / TENSOR
    if _is_long(at):
        return max(tensor, LONG_PACE)
    loaded = (rows + at.tokens) * ROW_BYTES / LOADED if groups * at.shape.blocks == 1 else 0
    return max(begin + tensor, least, loaded)


def _step(at: Geometry, groups: int) -> float:
    """The same of all others."""
    rows = TILE_ROWS * WARPS * groups * at.shape.blocks
    beyond = max(0, BEYOND[groups] * (1 - rows * at.tokens / LARGE))
    return max(rows * at.tokens * COLUMNS / TENSOR + beyond, LONG_PACE if _is_long(at) else PACE[groups])


def _is_long(at: Geometry) -> bool:
    """Whether one warpgroup's stages have two tiles of columns."""
    return at.shape.groups == 1 and at.shape.tiles == 2
