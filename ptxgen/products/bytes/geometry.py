"""How a product of a few tokens is shared out: clusters over rows, their CTAs over k, warps. Choices are a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.products.bytes import layout
from ptxgen.products.geometry import Runs

if TYPE_CHECKING:
    from ptxgen.weights.format import WeightFormat

PROCESSORS = 132  # of the largest GPU
SHARED = 232448  # bytes that a CTA can have
KEPT = 1024  # for mbarriers, and what the system takes
SPLITS = (1, 2, 4, 5, 7, 8)  # CTAs that share k
MOST_SLOT_BYTES = 40 * 1024  # of sums


class Shape(NamedTuple):
    """Warps of a CTA, tiles on their way of a warp, and CTAs, at most."""

    warps: int
    stages: int
    ctas: int


SHAPE = Shape(12, 2, PROCESSORS)


@dataclass(frozen=True)
class TokenRuns(Runs):
    """`Runs` of a cluster of `split` CTAs, each with `tiles` of the tiles of every record; `ctas` counts clusters."""

    split: int = 1

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
        """Of the sums, and of those that a cluster adds up."""
        slots = self.most * self.parts + self.warps
        return 64 * self.tokens * (slots + (self.most * self.parts if self.split > 1 else 0))

    @property
    def fits(self) -> bool:
        """Whether all of it is in shared memory."""
        slots = self.slot_bytes
        return slots <= MOST_SLOT_BYTES and self.vector_bytes + slots + KEPT <= SHARED


def share_runs(units: int, parts: int, kind: WeightFormat, k: int, tokens: int, split: int, shape: Shape) -> TokenRuns:
    """The geometry with so many CTAs along k: at most the warps and stages that have a tile."""
    tiles = kind.tiles(k) // split
    most = max(1, shape.ctas // split)
    turns = 1
    while True:
        clusters = min(units, most * turns)
        most_tiles = -(-units // clusters) * parts * tiles
        warps = min(shape.warps, most_tiles)
        stages = min(shape.stages, -(-most_tiles // warps))
        runs = TokenRuns(units, parts, tiles, warps, stages, clusters, tokens, split)
        if runs.fits or clusters == units:
            return runs
        turns += 1


def best(units: int, parts: int, kind: WeightFormat, k: int, tokens: int) -> TokenRuns | None:
    """The geometry whose fullest CTA has the fewest tiles, and of those of few more the fewest tokens to bring."""
    tiles = kind.tiles(k)
    found = [share_runs(units, parts, kind, k, tokens, split, SHAPE) for split in SPLITS if tiles % split == 0]
    return min((each for each in found if each.fits), key=_cost, default=None)


BRING = 0.04  # tiles that bringing a unit of eight tokens takes
JOIN = 2.0  # and adding up over a cluster


def _cost(runs: TokenRuns) -> float:
    turns = -(-runs.ctas * runs.split // PROCESSORS)
    bring = BRING * runs.tiles * runs.groups
    return turns * (runs.most * runs.parts * runs.tiles + bring + (JOIN if runs.split > 1 else 0.0))
