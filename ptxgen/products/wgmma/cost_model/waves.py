"""How many tiles a CTA has of a launch, and how many of the last tiles of rows should be those of one warpgroup.

CTAs take tiles in turn, whole ones first. The rows that remain after whole rounds are distributed in smaller tiles, so
that all CTAs finish at about the same time. No CTA has to add another's sums.
"""

from __future__ import annotations

from typing import NamedTuple

from ptxgen.products.wgmma.tiling.geometry import Geometry


class Turns(NamedTuple):
    """Tiles of the CTA that has most to do: whole ones, and behind these some of one warpgroup."""

    whole: int
    last: int


def turns(at: Geometry, rows: int) -> Turns:
    """Those of a launch for so many rows of x; a last turn whose tiles are shared is not among them."""
    shape = at.shape
    if shares_last(at, rows):
        return Turns(at.row_groups * -(-rows // at.tokens) // at.most_turns, 0)
    return _turns(at, rows, (at.row_groups - shape.last) // shape.share, shape.last // shape.share)


def shares_last(at: Geometry, rows: int) -> bool:
    """Whether CTAs share the tiles of the last turn, as so few are left that there is room for it."""
    left = at.row_groups * -(-rows // at.tokens) % at.most_turns
    return 0 < left * at.shape.last_split <= at.most_turns and at.shape.last_split > 1


def _turns(at: Geometry, rows: int, whole: int, last: int) -> Turns:
    """The same where so many clusters have all rows."""
    tiles, places = -(-rows // at.tokens), at.shape.places
    ends = whole * tiles, (whole + last) * tiles
    of_cta = []
    for first in {0, places - 1, *(end % places for end in ends), *((end - 1) % places for end in ends)}:
        own = [-(-(end - first) // places) if end > first else 0 for end in ends]
        of_cta.append(Turns(own[0], own[1] - own[0]))
    return max(of_cta, key=lambda each: each.whole * at.shape.groups + each.last)


def last_tiles(at: Geometry, rows: int) -> int:
    """Of a geometry without them, how many make the launch the shortest; 0: none do. What whole turns but the last, or
    the last two, leave of the rows becomes small tiles."""
    shape, tiles, places = at.shape, -(-rows // at.tokens), at.shape.places
    clusters = at.row_groups // shape.share
    whole_turns = turns(at, rows).whole
    found = [(whole_turns * shape.groups, 0)]
    for before in (whole_turns - 1, whole_turns - 2):
        whole = before * places // tiles
        if not 0 < whole < clusters:
            continue
        last = (clusters - whole) * shape.groups
        own = _turns(at, rows, whole, last)
        found.append((own.whole * shape.groups + own.last, last * shape.share))
    return min(found)[1]
