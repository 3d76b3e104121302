"""How a product of a few tokens is shared out: clusters over rows, their CTAs over k, warps. Choices are a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.products.digits_s8 import layout
from ptxgen.products.geometry.runs import Runs
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.targets import Target
    from ptxgen.weights.format import WeightFormat

SHARED = 232448  # bytes that a CTA can have
KEPT = 1024  # bytes reserved for mbarriers and the other small arrays of shared memory, at least
BELL = 8  # bytes of an mbarrier; every unit of tokens has one
BESIDE = 128  # bytes for roots of norms and the mbarrier of a cluster's sums
# CTAs of a cluster that share k: clusters that fit on an H200 at once
SPLITS = {1: 132, 2: 66, 4: 30, 8: 14}
MOST_UNITS = 8 * 28  # units of k that fit with the largest cluster
MOST_SPARE = 0.13  # share of all tiles that may be unused when k does not divide evenly


def runs_on(target: Target) -> bool:
    """sm_90 and sm_90a: later ones have other products of bytes, for which registers are too few on some."""
    return target.name in ("sm_90", "sm_90a")


class Shape(NamedTuple):
    """Warps of a CTA and tiles that a warp has in flight, at most."""

    warps: int
    stages: int


# by tokens: the shape for formats of which a lane reads few words a tile, and for those with many
SHAPES = {
    8: (Shape(12, 1), Shape(16, 1)),
    16: (Shape(12, 1), Shape(12, 1)),
    24: (Shape(8, 1), Shape(8, 1)),
    32: (Shape(8, 1), Shape(8, 1)),
}
LONG, OF_LONG = 160, Shape(12, 2)  # a CTA with at least LONG tiles has this shape, with eight tokens and few words
FEW_WORDS = 30


@dataclass(frozen=True)
class TokenRuns(Runs):
    """`Runs` of several tokens, whose units come to shared memory."""

    @property
    def groups(self) -> int:
        """Tiles of eight tokens."""
        return self.tokens // layout.TOKENS

    @property
    def unit_bytes(self) -> int:
        """Of eight tokens' columns of a tile."""
        return layout.UNIT_BYTES

    @property
    def vector_bytes(self) -> int:
        """Of the tokens in shared memory."""
        return self.tiles * self.groups * self.unit_bytes

    @property
    def slot_bytes(self) -> int:
        """Shared memory of the warps' sums, in bytes."""
        return 4 * TILE_ROWS * self.tokens * (self.most * self.parts + self.warps)

    @property
    def shared(self) -> int:
        """Of tokens, the warps' sums, and those that a cluster adds up."""
        joined = 4 * TILE_ROWS * self.tokens * self.most * self.parts if self.split > 1 else 0
        return self.vector_bytes + self.slot_bytes + joined

    @property
    def fits(self) -> bool:
        """Whether all of it is in shared memory."""
        kept = max(KEPT, BELL * self.tiles + BESIDE)
        return self.shared + kept <= SHARED and self.spare < self.tiles


def share_runs(units: int, parts: int, kind: WeightFormat, k: int, tokens: int, split: int) -> TokenRuns:
    """The geometry with so many CTAs along k: at most the warps and stages that have a tile."""
    crowded = sum(piece.words for piece in kind.span_pieces) > FEW_WORDS
    tiles = -(-kind.tiles(k) // split)
    spare = tiles * split - kind.tiles(k)
    turns = 1
    while True:
        clusters = min(units, SPLITS[split] * turns)
        most_tiles = -(-units // clusters) * parts * tiles
        shape = OF_LONG if most_tiles >= LONG and tokens == layout.TOKENS and not crowded else SHAPES[tokens][crowded]
        warps = min(shape.warps, most_tiles)
        stages = min(shape.stages, -(-most_tiles // warps))
        runs = TokenRuns(units, parts, tiles, warps, stages, clusters, tokens, split, spare)
        if runs.fits or clusters == units:
            return runs
        turns += 1


def best(units: int, parts: int, kind: WeightFormat, k: int, rows: int) -> TokenRuns | None:
    """The geometry for so many rows, from measurements on an H200: at most 16 tokens a CTA, or 24 or 32 if they take
    one round in clusters of up to four. The smallest cluster whose tokens fit, or the next larger one if a CTA would
    copy as many units of tokens as it has tiles. None if none fits."""
    tokens = min(-(-rows // layout.TOKENS) * layout.TOKENS, max(SHAPES))
    if tokens > MOST_TOGETHER:
        runs = _smallest(units, parts, kind, k, tokens)
        if runs is not None and runs.split <= 4 and runs.ctas <= SPLITS[runs.split]:
            return runs
    together = _smallest(units, parts, kind, k, min(tokens, MOST_TOGETHER))
    return together or _smallest(units, parts, kind, k, layout.TOKENS)


MOST_TOGETHER = 16  # tokens of a CTA
WORTH = {8: 1.0, 16: 1.5, 24: 2.0, 32: 2.5}  # by tokens: units of eight tokens that arrive while a tile is multiplied


def _smallest(units: int, parts: int, kind: WeightFormat, k: int, tokens: int) -> TokenRuns | None:
    tiles = kind.tiles(k)
    every = (share_runs(units, parts, kind, k, tokens, split) for split in SPLITS if split <= tiles)
    found = [each for each in every if each.fits and each.spare <= MOST_SPARE * tiles]
    if not found:
        return None
    first = found[0]
    brings = first.tiles * first.groups >= WORTH[tokens] * first.most * parts * first.tiles
    return found[1] if brings and len(found) > 1 else first
