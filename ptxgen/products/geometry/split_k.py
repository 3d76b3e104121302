"""Which products of one token have CTAs of a cluster that share k, and how many. Choices are a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ptxgen.products.geometry.runs import RUN, WIDE
from ptxgen.tuning import ProductChoice

if TYPE_CHECKING:
    from ptxgen.weights.format import WeightFormat


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
