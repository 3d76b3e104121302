"""How a product of a few tokens is shared out: clusters over rows, their CTAs over k, warps. Choices are a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.products.bytes import layout
from ptxgen.products.geometry import Runs
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.weights.format import WeightFormat

SHARED = 232448  # bytes that a CTA can have
KEPT = 1024  # for mbarriers, and what the system takes
# CTAs that share k, and how many clusters of them there is room for at once
SPLITS = {1: 132, 2: 66, 4: 30, 6: 18, 8: 14}


class Shape(NamedTuple):
    """Warps of a CTA and tiles on their way of a warp, at most."""

    warps: int
    stages: int


# by tokens, of formats of few words a lane and a tile, and of many
SHAPES = {
    8: (Shape(12, 2), Shape(12, 1)),
    16: (Shape(12, 1), Shape(12, 1)),
    24: (Shape(8, 2), Shape(8, 2)),
    32: (Shape(8, 2), Shape(8, 2)),
}
FEW_WORDS = 28


@dataclass(frozen=True)
class TokenRuns(Runs):
    """`Runs` of a cluster of `split` CTAs, each with `tiles` of the tiles of every record; `ctas` counts clusters.

    Where they do not come out even, the last CTA has its first `spare` tiles in common with the one before, and takes
    x as zero there.
    """

    split: int = 1
    spare: int = 0

    @property
    def groups(self) -> int:
        """Tiles of eight tokens."""
        return self.tokens // layout.TOKENS

    @property
    def vector_bytes(self) -> int:
        """Of the tokens in shared memory."""
        return self.tiles * self.groups * layout.UNIT_BYTES

    @property
    def slot_bytes(self) -> int:
        """Of the warps' sums."""
        return 4 * TILE_ROWS * self.tokens * (self.most * self.parts + self.warps)

    @property
    def shared(self) -> int:
        """Of tokens, the warps' sums, and those that a cluster adds up."""
        joined = 4 * TILE_ROWS * self.tokens * self.most * self.parts if self.split > 1 else 0
        return self.vector_bytes + self.slot_bytes + joined

    @property
    def fits(self) -> bool:
        """Whether all of it is in shared memory."""
        return self.shared + KEPT <= SHARED and self.spare < self.tiles


def share_runs(units: int, parts: int, kind: WeightFormat, k: int, tokens: int, split: int) -> TokenRuns:
    """The geometry with so many CTAs along k: at most the warps and stages that have a tile."""
    crowded = sum(piece.words for piece in kind.span_pieces) > FEW_WORDS
    tiles, shape = -(-kind.tiles(k) // split), SHAPES[tokens][crowded]
    spare = tiles * split - kind.tiles(k)
    turns = 1
    while True:
        clusters = min(units, SPLITS[split] * turns)
        most_tiles = -(-units // clusters) * parts * tiles
        warps = min(shape.warps, most_tiles)
        stages = min(shape.stages, -(-most_tiles // warps))
        runs = TokenRuns(units, parts, tiles, warps, stages, clusters, tokens, split, spare)
        if runs.fits or clusters == units:
            return runs
        turns += 1


def best(units: int, parts: int, kind: WeightFormat, k: int, tokens: int, rows: int = 0) -> TokenRuns | None:
    """The geometry of the fewest cycles for so many rows, by default as many as a CTA has tokens."""
    tiles = kind.tiles(k)
    found = [share_runs(units, parts, kind, k, tokens, split) for split in SPLITS if split <= tiles]
    turns = -(-(rows or tokens) // tokens)
    return min((each for each in found if each.fits), key=lambda each: cycles(each, turns), default=None)


TILE = {8: 125, 16: 180, 24: 240, 32: 300}  # cycles of a tile by tokens
BRING = 180  # cycles of a unit of eight tokens on its way
BEGIN = 1500  # before a CTA's first product and after its last
JOIN = 1500  # and where a cluster adds up


def cycles(runs: TokenRuns, times: int = 1) -> float:
    """What a launch takes, of so many CTAs with the same weights."""
    turns = -(-runs.ctas * times // SPLITS[runs.split])
    whole = runs.most * runs.parts * runs.tiles * TILE[runs.tokens] + runs.tiles * runs.groups * BRING + BEGIN
    return turns * (whole + (JOIN if runs.split > 1 else 0))
