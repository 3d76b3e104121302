"""How a product of one token on tensor cores is shared out: a run of tiles for every warp. Choices are a table."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.tuning import ProductChoice
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.weights.format import WeightFormat

SLOT_BYTES = 4 * TILE_ROWS  # bytes of a warp's sums of a record: 16 rows, f32
# Formats whose product with one token uses tensor cores, on targets that have the instructions.
ON_TENSOR_CORES = frozenset((
    "f16", "bf16", "e4m3", "e4m3_channel", "e4m3_block", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k",
    "int4_g32", "int4_g64", "int4_g128",
))  # fmt: skip


@dataclass(frozen=True)
class Runs:
    """One token: every CTA has a run of neighbouring units, `least` or one more, and every warp of it a run of their
    tiles, of which so many are on their way (`stages`). A unit is `parts` records of 16 rows and `tiles` tiles each.

    Or every cluster of `split` CTAs has such a run of units (`ctas` counts clusters), each of its CTAs with `tiles` of
    every record's tiles. Where they do not come out even, the last CTA has its first `spare` tiles in common with the
    one before, and takes x as zero there.
    """

    units: int
    parts: int
    tiles: int
    warps: int
    stages: int
    ctas: int
    tokens: int = 1
    split: int = 1
    spare: int = 0
    x_first: bool = field(default=False, kw_only=True)  # x is asked for before the weights, where nothing is waited for

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps

    @property
    def launched(self) -> int:
        """CTAs of the launch."""
        return self.ctas * self.split

    @property
    def results(self) -> int:
        """Of a CTA at most, or of a cluster: whole warps, so that lanes may exchange."""
        return -(-self.most * TILE_ROWS * self.tokens // 32) * 32

    @property
    def least(self) -> int:
        """Units of a CTA; the first `more` have one more."""
        return self.units // self.ctas

    @property
    def more(self) -> int:
        """CTAs with a unit more."""
        return self.units % self.ctas

    @property
    def most(self) -> int:
        """Units of a CTA at most."""
        return self.least + (self.more > 0)

    @property
    def idle(self) -> bool:
        """Whether a warp may have no tile."""
        return self.least * self.parts * self.tiles < self.warps

    @property
    def sharers(self) -> int:
        """Warps that have tiles of one record, at most."""
        return min(self.warps, -(-self.warps // (self.least * self.parts)) + 1)


MOST_UNITS = 64  # units of a CTA


class Shape(NamedTuple):
    """Warps of a CTA, tiles that a warp has in flight, and CTAs, at most."""

    warps: int
    stages: int
    ctas: int


RUN = Shape(16, 3, 132)  # one CTA for each multiprocessor of an H100
RUN_BEFORE_SM_90 = Shape(8, 2, 108)  # one for each of an A100
# Tiles of 256 columns take more registers. WIDE_WARPS: least number of such tiles of a CTA, and its warps; CTAs of few
# warps start sooner.
WIDE = 256
WIDE_STAGES = 2
WIDE_WARPS = ((37, 16), (17, 12), (0, 8))
LONG_ROW = 2048  # columns from which on a row's last first tile is asked for behind x
# A launch that overlaps others has one tile on its way where tiles have many words for a lane, CTAs many warps, so that
# threads have few registers, and warps few tiles: a warp waits for all that it asked for, and so begins sooner.
ONE_TILE_WORDS, ONE_TILE_WARPS, ONE_TILE_RUN = 25, 13, 9  # from so many on; the run is shorter


def _shape(tile_k: int, tiles: int, since_sm_90: bool, choice: ProductChoice | None) -> Shape:
    """The shape for so many tiles a CTA, unless a tuning table has one."""
    if choice is not None:
        return Shape(choice.warps, choice.stages, choice.ctas)
    if not since_sm_90:
        return RUN_BEFORE_SM_90
    if tile_k < WIDE:
        return RUN
    return Shape(next(warps for least, warps in WIDE_WARPS if tiles >= least), WIDE_STAGES, RUN.ctas)


def tiles_before_x(at: Runs, k: int, *, chained: bool) -> int:
    """How many of a warp's first tiles are asked for before x. `chained`: the launch overlaps the kernel ahead and
    norms x, which all CTAs ask for at the same moment. It comes sooner if fewer bytes are on their way, so the last of
    several tiles is asked for behind it."""
    return at.stages - 1 if chained and at.stages > 1 and k >= LONG_ROW else at.stages


def _wants_one_tile(kind: WeightFormat, warps: int, tiles: int) -> bool:
    """Whether warps have one tile on its way where there is room for more; `tiles`: of the CTA."""
    words = sum(piece.words for piece in kind.pieces)
    return words >= ONE_TILE_WORDS and warps >= ONE_TILE_WARPS and tiles < ONE_TILE_RUN * warps


def share_runs(
    units: int, parts: int, kind: WeightFormat, k: int, *, since_sm_90: bool, programmatic: bool = False,
    most_ctas: int = 0, warps: int = 0, choice: ProductChoice | None = None,
) -> Runs:  # fmt: skip
    """The geometry of a product with one token on tensor cores: at most the warps and stages that have a tile.

    `most_ctas`: of this product, where it has not all of a launch's; `warps`: those of the other product's CTAs;
    `choice`: what a tuning table says.
    """
    split = choice.split if choice is not None and not most_ctas else 1
    while True:
        tiles = -(-kind.tiles(k) // split)
        ctas = most_ctas or max(1, _shape(kind.tile_k, tiles, since_sm_90, choice).ctas // split)
        ctas = min(units, ctas * -(-units // (ctas * MOST_UNITS)))
        most_tiles = -(-units // ctas) * parts * tiles
        shape = _shape(kind.tile_k, most_tiles, since_sm_90, choice)
        own_warps = warps or min(shape.warps, most_tiles)
        stages = min(shape.stages, -(-most_tiles // own_warps))
        if programmatic and choice is None and _wants_one_tile(kind, own_warps, most_tiles):
            stages = 1
        spare = tiles * split - kind.tiles(k)
        x_first = choice is not None and choice.x_first > 0
        runs = Runs(units, parts, tiles, own_warps, stages, ctas, split=split, spare=spare, x_first=x_first)
        # of CTAs that share k each has columns of its own, and a thread one result at most
        if split == 1 or (spare < tiles and runs.results <= runs.threads):
            return runs
        split //= 2


def side_by_side(
    units: Sequence[int], kinds: Sequence[WeightFormat], k: int, *, since_sm_90: bool, programmatic: bool = False
) -> tuple[Runs, ...]:
    """Products of one launch: CTAs of the same shape, in proportion to the bytes that each reads."""
    share = functools.partial(share_runs, parts=1, k=k, since_sm_90=since_sm_90, programmatic=programmatic)
    nbytes = [count * kind.record_bytes(k) for count, kind in zip(units, kinds, strict=True)]
    most = max(share(count, kind=kind).ctas for count, kind in zip(units, kinds, strict=True))
    ctas = [max(1, round(most * each / sum(nbytes))) for each in nbytes]
    each = list(zip(units, kinds, ctas, strict=True))
    warps = max(share(count, kind=kind, most_ctas=own).warps for count, kind, own in each)
    return tuple(share(count, kind=kind, most_ctas=own, warps=warps) for count, kind, own in each)
