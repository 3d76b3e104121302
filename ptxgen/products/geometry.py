"""How a product is shared out: warps along k and along rows of weights, tokens of a CTA, CTAs. Choices are a table."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.tuning import ProductChoice
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.weights.format import WeightFormat

WARPS = 8
SLOT_BYTES = 4 * TILE_ROWS  # bytes of a warp's sums of a record: 16 rows, f32
FEW_WORDS = 22  # words that a lane reads of a tile; with more, registers are short
CROWDED_WARPS = 4  # warps of a CTA if threads have so many registers that two CTAs of eight warps do not fit
MOST_WARPS = 2112  # 16 for each multiprocessor of the largest GPUs; a CTA with more rows keeps x in shared memory
# Least number of records of 16 rows, and warps that share the columns of a record: the fewer records, the more warps.
K_WARPS = ((2048, 1), (1024, 2), (512, 4), (0, 8))
# Formats whose product with one token uses tensor cores, on targets that have the instructions.
ON_TENSOR_CORES = frozenset((
    "f16", "bf16", "e4m3", "e4m3_channel", "e4m3_block", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k",
    "int4_g32", "int4_g64", "int4_g128",
))  # fmt: skip
SHARED_FOR_TOKENS = 96 * 1024  # bytes of x in shared memory, if the number of tokens of a CTA is free


@dataclass(frozen=True)
class Geometry:
    """`k_warps` · `row_warps` warps a CTA; `tokens` rows of x a CTA; `ctas` of `groups` groups of records."""

    k_warps: int
    row_warps: int
    tokens: int
    groups: int
    ctas: int
    split = 1  # CTAs that share k

    @property
    def launched(self) -> int:
        """CTAs of the launch."""
        return self.ctas

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return self.k_warps * self.row_warps

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps


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


class Sharing(NamedTuple):
    """A rule for matrices with at least `k` columns and at least `tiles` tiles a multiprocessor: the geometry of CTAs
    that share k, or None if CTAs do not share it."""

    k: int
    tiles: int
    choice: ProductChoice | None


TWO, TWO_OF_FEW = ProductChoice(16, 2, 132, 2), ProductChoice(16, 1, 132, 2)
THREE_TILES = ProductChoice(8, 3, 264, 2)
# Rules by the columns of a tile, and whether a lane reads many words of it; the first that matches counts. CTAs that
# share k also share x, which takes as long to load as half of their weights if k is long and rows are few.
OF_CHAINS = {
    (WIDE, False): (
        Sharing(5632, 64, TWO), Sharing(5632, 4, TWO_OF_FEW), Sharing(0, 47, None), Sharing(2048, 4, TWO_OF_FEW),
    ),
    (WIDE, True): (Sharing(4096, 17, TWO_OF_FEW),),
    (128, False): (Sharing(5632, 32, TWO),),
    (64, False): (
        Sharing(16384, 64, TWO), Sharing(0, 33, None), Sharing(2560, 8, ProductChoice(8, 2, 264, 4)),
        Sharing(1024, 8, ProductChoice(4, 2, 528, 4)),
    ),
}  # fmt: skip
OF_LAUNCHES_ALONE = {
    (WIDE, False): (Sharing(4096, 64, TWO), Sharing(4096, 4, ProductChoice(8, 2, 132, 2))),
    (WIDE, True): (Sharing(4096, 17, ProductChoice(8, 2, 132, 2)),),
    (128, False): (Sharing(1024, 8, THREE_TILES),),
    (64, False): (Sharing(1024, 8, THREE_TILES),),
}
MANY_WORDS = 30
MOST_SHARED = 8  # units of a cluster: with more, x is a small part of the bytes loaded
MOST_SPARE = 1.25  # units that clusters have room for, over units that exist
MOST_ROOM = 1.4  # CTAs that multiprocessors have room for in whole rounds, over CTAs that exist


def sharing(units: int, kind: WeightFormat, k: int, *, programmatic: bool) -> ProductChoice | None:
    """What CTAs are that share k of so many records, on an H100 or later; None where they do not."""
    table = OF_CHAINS if programmatic else OF_LAUNCHES_ALONE
    each = units * kind.tiles(k) / RUN.ctas
    rows = table.get((kind.tile_k, sum(piece.words for piece in kind.pieces) > MANY_WORDS), ())
    found = next((row.choice for row in rows if k >= row.k and each >= row.tiles), None)
    if found is None:
        return None
    clusters = found.ctas // found.split
    most = -(-units // clusters)
    launched = found.split * min(units, clusters)
    even = most == 1 or most * clusters <= MOST_SPARE * units
    fills = launched <= RUN.ctas or -(-launched // RUN.ctas) * RUN.ctas <= MOST_ROOM * launched
    return found if even and fills and most <= MOST_SHARED else None


def _shape(tile_k: int, tiles: int, since_sm_90: bool, choice: ProductChoice | None) -> Shape:
    """The shape for so many tiles a CTA, unless a tuning table has one."""
    if choice is not None:
        return Shape(choice.warps, choice.stages, choice.ctas)
    if not since_sm_90:
        return RUN_BEFORE_SM_90
    if tile_k < WIDE:
        return RUN
    return Shape(next(warps for least, warps in WIDE_WARPS if tiles >= least), WIDE_STAGES, RUN.ctas)


def share_runs(
    units: int, parts: int, kind: WeightFormat, k: int, *, since_sm_90: bool, most_ctas: int = 0, warps: int = 0,
    choice: ProductChoice | None = None,
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
        spare = tiles * split - kind.tiles(k)
        x_first = choice is not None and choice.x_first > 0
        runs = Runs(units, parts, tiles, own_warps, stages, ctas, split=split, spare=spare, x_first=x_first)
        # of CTAs that share k each has columns of its own, and a thread one result at most
        if split == 1 or (spare < tiles and runs.results <= runs.threads):
            return runs
        split //= 2


def side_by_side(units: Sequence[int], kinds: Sequence[WeightFormat], k: int, *, since_sm_90: bool) -> tuple[Runs, ...]:
    """Products of one launch: CTAs of the same shape, in proportion to the bytes that each reads."""
    share = functools.partial(share_runs, parts=1, k=k, since_sm_90=since_sm_90)
    nbytes = [count * kind.record_bytes(k) for count, kind in zip(units, kinds, strict=True)]
    most = max(share(count, kind=kind).ctas for count, kind in zip(units, kinds, strict=True))
    ctas = [max(1, round(most * each / sum(nbytes))) for each in nbytes]
    each = list(zip(units, kinds, ctas, strict=True))
    warps = max(share(count, kind=kind, most_ctas=own).warps for count, kind, own in each)
    return tuple(share(count, kind=kind, most_ctas=own, warps=warps) for count, kind, own in each)


def choose(records: int, tiles: int, tokens: int, token_bytes: int, shared_limit: int) -> Geometry:
    """The geometry for a matrix of so many records by tiles; at most `tokens` rows of x, `token_bytes` each."""
    wanted = next(warps for least, warps in K_WARPS if records >= least)
    k_warps = min(wanted, _power_below(tiles))
    while k_warps < min(_power_below(tiles), WARPS) and tokens > 2 * k_warps:
        k_warps *= 2
    room = min(SHARED_FOR_TOKENS, shared_limit // 2)
    tokens = max(1, min(tokens, 2 * k_warps, room // token_bytes))
    return _shared_out(records, k_warps, WARPS, tokens)


def choose_for_tensor_cores(records: int, tiles: int, tokens: int, words: int) -> Geometry:
    """The same for tensor cores, for exactly so many rows of x a CTA; a lane reads so many words of a tile."""
    warps = CROWDED_WARPS if words > FEW_WORDS else WARPS
    wanted = next(each for least, each in K_WARPS if records >= least)
    return _shared_out(records, min(wanted, _power_below(tiles), warps), warps, tokens)


def _shared_out(records: int, k_warps: int, warps: int, tokens: int) -> Geometry:
    row_warps = min(warps // k_warps, _power_below(records))
    groups = -(-records // row_warps)
    return Geometry(k_warps, row_warps, tokens, groups, min(groups, MOST_WARPS // (k_warps * row_warps)))


def _power_below(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)
