"""How a product of up to eight tokens in bf16 digits is shared out: clusters over rows, their CTAs over k, warps.
Choices are a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.products.bytes.geometry import SPLITS, Shape, TokenRuns
from ptxgen.products.bytes.layout import TOKENS
from ptxgen.products.few import layout

if TYPE_CHECKING:
    from ptxgen.weights.format import WeightFormat

FORMATS = ("bf16",)
SHAPE = Shape(16, 5)
MOST_SHARED = 112 << 10  # bytes of tokens that two CTAs bring each other
SHORT, OF_SHORT = 2048, Shape(16, 4)  # of rounded tokens of fewer columns


@dataclass(frozen=True)
class FewRuns(TokenRuns):
    """`TokenRuns` whose tokens are so many bf16 digits of each element."""

    digits: int = 0

    @property
    def unit_bytes(self) -> int:
        """Of eight tokens' columns of a tile."""
        return layout.unit_bytes(self.digits)


def share_few(units: int, parts: int, kind: WeightFormat, k: int, precision: str, split: int) -> FewRuns:
    """The geometry with so many CTAs along k, whose tiles they divide: at most the warps and stages that have a
    tile."""
    shape = OF_SHORT if precision == "fast" and k < SHORT else SHAPE
    tiles, turns = kind.tiles(k) // split, 1
    while True:
        clusters = min(units, SPLITS[split] * turns)
        most_tiles = -(-units // clusters) * parts * tiles
        warps = min(shape.warps, most_tiles)
        stages = min(shape.stages, -(-most_tiles // warps))
        digits = layout.DIGITS[precision]
        runs = FewRuns(units, parts, tiles, warps, stages, clusters, TOKENS, split, 0, digits)
        if runs.fits or clusters == units:
            return runs
        turns += 1


def takes(kind: WeightFormat, k: int, precision: str) -> bool:
    """Whether eight tokens of k columns fit in shared memory, shared out among some CTAs."""
    whole = kind.name in FORMATS and k % kind.tile_k == 0
    return whole and any(each.fits for each in _shares(1, 1, kind, k, precision))


def best_split(units: int, parts: int, kind: WeightFormat, k: int, precision: str) -> int:
    """CTAs that share k: the fewest that x fits for."""
    found = _shares(units, parts, kind, k, precision)
    return next((each.split for each in found if each.fits), found[-1].split)


def best_share(runs: FewRuns) -> int:
    """CTAs of a cluster that bring each other the tokens: two, where the tokens do not take most of shared memory."""
    return 2 if runs.split == 1 and runs.ctas % 2 == 0 and runs.vector_bytes <= MOST_SHARED else 1


def _shares(units: int, parts: int, kind: WeightFormat, k: int, precision: str) -> list[FewRuns]:
    splits = (split for split in SPLITS if kind.tiles(k) % split == 0)
    return [share_few(units, parts, kind, k, precision, split) for split in splits]
