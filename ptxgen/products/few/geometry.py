"""How a product of up to eight tokens is shared out: clusters over rows, their CTAs over k, warps. Choices are a table.

x lies in shared memory as bf16 digits, `[tile, pair of chunks, digit, lane, 16 bytes]`: lane 4g + t has token g's
columns 4t to 4t + 3 of both chunks, which are the B fragments of two products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.products.bytes.geometry import SPLITS, Shape, TokenRuns
from ptxgen.products.few import layout
from ptxgen.products.few.layout import DIGIT_BYTES, DIGITS, EXACT_DIGITS, PAIR

if TYPE_CHECKING:
    from ptxgen.weights.format import WeightFormat

TOKENS = 8
SHAPE = Shape(16, 3)
FETCHED = 0  # tiles that a warp has on their way to the L2 at first
FORMATS = ("bf16",)
ROOM = 100 * 1024  # bytes of x that a CTA brings for its share of the weights, where more CTAs can share k


@dataclass(frozen=True)
class FewRuns(TokenRuns):
    """`TokenRuns` whose tokens are bf16 digits: as many for each element."""

    digits: int = EXACT_DIGITS
    columns: int = 0  # of x that a CTA has
    fetched: int = 0  # tiles of a warp that come to the L2 before x is waited for

    @property
    def unit_bytes(self) -> int:
        """Of eight tokens' columns of a tile."""
        return layout.unit_bytes(self.digits)

    @property
    def pairs(self) -> int:
        """Pairs of chunks whose x a CTA has."""
        return self.columns // PAIR

    @property
    def vector_bytes(self) -> int:
        """Of the tokens in shared memory."""
        return self.pairs * self.digits * DIGIT_BYTES


def share_few(
    units: int,
    parts: int,
    kind: WeightFormat,
    k: int,
    precision: str,
    split: int,
    shape: Shape = SHAPE,
    fetched: int = FETCHED,
) -> FewRuns:
    """The geometry with so many CTAs along k: at most the warps and stages that have a tile."""
    tiles, turns = kind.tiles(k) // split, 1
    while True:
        clusters = min(units, SPLITS[split] * turns)
        most_tiles = -(-units // clusters) * parts * tiles
        warps = min(shape.warps, most_tiles)
        stages = min(shape.stages, -(-most_tiles // warps))
        left = max(0, most_tiles // warps - stages)
        runs = FewRuns(
            units, parts, tiles, warps, stages, clusters, TOKENS, split, 0, DIGITS[precision], tiles * kind.tile_k,
            min(fetched, left, tiles),
        )  # fmt: skip
        if runs.fits or clusters == units:
            return runs
        turns += 1


def takes(kind: WeightFormat, k: int, precision: str) -> bool:
    """Whether eight tokens of k columns fit in shared memory, shared out among some CTAs."""
    whole = kind.name in FORMATS and k % kind.tile_k == 0
    return whole and any(each.fits for each in _shares(1, 1, kind, k, precision))


def best_split(units: int, parts: int, kind: WeightFormat, k: int, precision: str) -> int:
    """CTAs that share k: as few as leave x little room (`ROOM`), or else the most that k comes out even for."""
    found = _shares(units, parts, kind, k, precision)
    return next((each.split for each in found if each.fits and each.vector_bytes <= ROOM), found[-1].split)


def _shares(units: int, parts: int, kind: WeightFormat, k: int, precision: str) -> list[FewRuns]:
    splits = (split for split in SPLITS if kind.tiles(k) % split == 0)
    return [share_few(units, parts, kind, k, precision, split) for split in splits]
