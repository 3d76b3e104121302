"""How a product of up to eight tokens in bf16 digits is shared out: clusters over rows, their CTAs over k, warps.
Choices are a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.products.digits_bf16 import layout
from ptxgen.products.digits_s8.geometry import MOST_SPARE, SPLITS, Shape, TokenRuns
from ptxgen.products.digits_s8.layout import TOKENS
from ptxgen.weights.format import CHUNK

if TYPE_CHECKING:
    from ptxgen.weights.format import WeightFormat

GROUPED = ("int4_g32", "int4_g64", "int4_g128", "q8_0", "q4_0", "q5_0", "e4m3", "e4m3_channel", "e4m3_block")
FORMATS = ("bf16", *GROUPED)  # formats that are multiplied by bf16 digits only
SHAPE = Shape(16, 5)
# For formats with spans. The first is for rounded tokens of formats with at most MANY_WORDS words a lane and a tile, if
# it takes fewer rounds than the second.
OF_SPANS = (Shape(16, 1), Shape(12, 1))
MANY_WORDS = 30
MOST_SHARED = 112 << 10  # bytes of tokens, up to which two CTAs copy tokens for each other
# For formats whose groups of columns have scales. The second is for three digits and groups of 32 columns, which leave
# too few registers for the first.
OF_GROUPS, OF_SMALL_GROUPS = Shape(16, 2), Shape(8, 4)
SHORT, OF_SHORT = 2048, Shape(16, 4)  # rounded tokens with fewer than SHORT columns have this shape


@dataclass(frozen=True)
class FewRuns(TokenRuns):
    """`TokenRuns` whose tokens are so many bf16 digits of each element."""

    digits: int = 0
    sums: bool = False  # whether units have sums of x
    units_of_tile: int = 1  # units of the layout, one after the other

    @property
    def unit_bytes(self) -> int:
        """Of eight tokens' columns of a tile."""
        return self.units_of_tile * layout.unit_bytes(self.digits, sums=self.sums)


def share_few(units: int, parts: int, kind: WeightFormat, k: int, precision: str, split: int) -> FewRuns:
    """The geometry with so many CTAs along k: at most the warps and stages that have a tile."""
    shape = OF_SHORT if precision == "fast" and k < SHORT else SHAPE
    if kind.name in GROUPED:
        shape = OF_SMALL_GROUPS if precision == "exact" and kind.scale_chunks == layout.PAIR // CHUNK else OF_GROUPS
    tiles, turns = -(-kind.tiles(k) // split), 1
    spare = tiles * split - kind.tiles(k)
    while True:
        clusters = min(units, SPLITS[split] * turns)
        most_tiles = -(-units // clusters) * parts * tiles
        if kind.span:
            shape = _shape_of_spans(kind, most_tiles, precision)
        warps = min(shape.warps, most_tiles)
        stages = min(shape.stages, -(-most_tiles // warps))
        digits = layout.DIGITS[precision]
        sums = kind.span > 0
        more = (digits, sums, kind.tile_k // layout.columns(sums=sums))
        runs = FewRuns(units, parts, tiles, warps, stages, clusters, TOKENS, split, spare, *more)
        if runs.fits or clusters == units:
            return runs
        turns += 1


def _shape_of_spans(kind: WeightFormat, most_tiles: int, precision: str) -> Shape:
    """The shape for so many tiles of a CTA: more warps only where they have fewer turns, and registers enough."""
    more, fewer = OF_SPANS
    crowded = precision == "exact" or sum(piece.words for piece in kind.few_pieces) > MANY_WORDS
    return fewer if crowded or -(-most_tiles // more.warps) == -(-most_tiles // fewer.warps) else more


def has_spans(kind: WeightFormat) -> bool:
    """Whether a format's spans have integer scales, in tiles as wide as units with sums."""
    return kind.span > 0 and kind.tile_k == layout.WIDE_UNIT


def most_spare(kind: WeightFormat, k: int) -> int:
    """Tiles by which those of k may be fewer than a multiple of the CTAs that share it: none of bf16, of codes some."""
    return 0 if kind.name == "bf16" else int(MOST_SPARE * kind.tiles(k))


def shares(kind: WeightFormat, k: int, split: int) -> bool:
    """Whether so many CTAs can share the tiles of k."""
    tiles = kind.tiles(k)
    return split <= tiles and -tiles % split <= most_spare(kind, k)


def splits(kind: WeightFormat, k: int) -> list[int]:
    """How many CTAs can."""
    return [split for split in SPLITS if shares(kind, k, split)]


def multiple(kind: WeightFormat, k: int) -> int:
    """What about k columns must be a multiple of: whole units, and whole tiles, of which copies bring x."""
    return max(layout.columns(sums=kind.span > 0), kind.fitted(k).tile_k)


def takes(kind: WeightFormat, k: int, precision: str) -> bool:
    """Whether eight tokens of k columns fit in shared memory, shared out among some CTAs."""
    kind = kind.fitted(k)
    whole = (kind.name in FORMATS or has_spans(kind)) and k % multiple(kind, k) == 0
    return whole and any(each.fits for each in _shares(1, 1, kind, k, precision))


def best_split(units: int, parts: int, kind: WeightFormat, k: int, precision: str) -> int:
    """CTAs that share k: the fewest that x fits for."""
    found = _shares(units, parts, kind, k, precision)
    return next((each.split for each in found if each.fits), found[-1].split)


def best_share(runs: FewRuns) -> int:
    """CTAs of a cluster that bring each other the tokens: two, where the tokens do not take most of shared memory."""
    return 2 if runs.split == 1 and runs.ctas % 2 == 0 and runs.vector_bytes <= MOST_SHARED else 1


def _shares(units: int, parts: int, kind: WeightFormat, k: int, precision: str) -> list[FewRuns]:
    return [share_few(units, parts, kind, k, precision, split) for split in splits(kind, k)]
