"""A lane's way through packed weights: one address for each pattern of pieces, and the loads of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ptxgen.builder import Builder
from ptxgen.builder.values import Not, Reg
from ptxgen.idioms import convert
from ptxgen.weights.format import Piece, WeightFormat

WEIGHT_LOAD = "global.nc.L1::no_allocate"  # read once, by one warp
SMALL_LOAD = "global.nc"  # scales: four lanes read the same words


class Pattern(NamedTuple):
    """Where pieces lie that share an address: their stride among lanes, and from tile to tile."""

    by: str
    stride: int
    in_trailer: bool
    step: int


class Place(NamedTuple):
    """Where a lane stands in a tile, 4g + t: what pieces are counted by (`Piece.by`); None for what no piece wants."""

    lane: Reg
    row: Reg  # g
    side: Reg | None = None
    own: Reg | None = None
    pair: Reg | None = None
    odd: Reg | None = None  # 1 where t is odd; there with `own`

    def by(self, pattern: Pattern) -> Reg:
        """What counts a pattern's pieces."""
        found: Reg = getattr(self, pattern.by)
        return found


class TileReader:
    """Reads tiles of records of `cols` columns; `each` is the number of records that a record index counts, `pieces`
    what is read of a tile, by default all that the format has, `tiles` how many of a record one after the other, by
    default all."""

    def __init__(
        self, b: Builder, kind: WeightFormat, cols: int, each: int = 1, pieces: Sequence[Piece] | None = None,
        tiles: int = 0,
    ) -> None:  # fmt: skip
        self.kind, self.cols, self.tiles = kind, cols, tiles or kind.tiles(cols)
        self.record_bytes = kind.record_bytes(cols)
        self.pitch = each * self.record_bytes
        self.pieces = kind.pieces if pieces is None else pieces
        self.words = sum(piece.words for piece in self.pieces)
        patterns = dict.fromkeys(self._pattern(piece) for piece in self.pieces)
        names = [f"{'trailer' if p.in_trailer else 'tile'}_{p.by}{p.stride}" for p in patterns]
        self.bases = {p: b.reg(f"{name}_base", "u64") for p, name in zip(patterns, names, strict=True)}
        self.at = {p: b.reg(f"{name}_at", "u64") for p, name in zip(patterns, names, strict=True)}

    def _pattern(self, piece: Piece) -> Pattern:
        step = self.kind.tile_bytes if piece.step is None else piece.step
        return Pattern(piece.by, piece.stride, piece.in_trailer, step)

    def locate(self, b: Builder, weight: Reg, lane: Reg, row: Reg, tile: Reg | int) -> Place:
        """Addresses of a tile in record 0, for a lane of a warp that owns row `row` (0 … 7) of the upper half."""
        place = Place(lane, row)
        if any(pattern.by in ("side", "own") for pattern in self.bases):
            side = b.op("and.b32", "lane_side", lane, 3)
            b.op("shr.u32", side, side, 1)
            odd = b.op("and.b32", "lane_odd", lane, 1)
            b.op("mad.lo.u32", side, row, 4, side)
            place = place._replace(side=side, odd=odd, own=b.op("mad.lo.u32", "lane_own", odd, 2, side))
        if any(pattern.by == "pair" for pattern in self.bases):
            pair = b.op("bfe.u32", "lane_pair", lane, 1, 1)
            b.op("mad.lo.u32", pair, row, 2, pair)
            place = place._replace(pair=pair)
        for pattern, base in self.bases.items():
            b.op("mad.wide.u32", base, place.by(pattern), pattern.stride, weight)
            if pattern.in_trailer:
                b.op("add.u64", base, base, self.kind.tiles(self.cols) * self.kind.tile_bytes)
            if isinstance(tile, Reg) and pattern.step:
                b.op("mad.wide.u32", base, tile, pattern.step, base)
        return place

    def go_to(self, b: Builder, record: Reg, pred: Reg | Not | None = None) -> None:
        """Point at the first tile of a record."""
        for pattern, base in self.bases.items():
            b.op("mad.wide.u32", self.at[pattern], record, self.pitch, base, pred=pred)

    def advance(self, b: Builder, tiles: int) -> None:
        """Move the pointers on by so many tiles of the same record."""
        for pattern, at in self.at.items():
            if pattern.step:
                b.op("add.u64", at, at, tiles * pattern.step)

    def wrap(self, b: Builder, pred: Reg) -> None:
        """From the end of a record to the next one, where that is another step than from tile to tile."""
        for pattern, at in self.at.items():
            if more := self.pitch - pattern.step * self.tiles:
                b.op("add.u64", at, at, more, pred=pred)

    @property
    def wraps(self) -> bool:
        """Whether `wrap` does anything."""
        return any(self.pitch != pattern.step * self.tiles for pattern in self.at)

    def load(
        self, b: Builder, words: Sequence[Reg], part: int = 0, pred: Reg | Not | None = None, *, pinned: bool = False
    ) -> None:
        """The words of a tile that this lane reads; of the record `part` records on. `pinned`: not by the path of
        constant data, so that no assembler moves the loads behind a wait that follows them."""
        first = 0
        for piece in self.pieces:
            space = WEIGHT_LOAD if piece.by == "lane" else SMALL_LOAD
            if pinned:
                space = space.replace(".nc", "")
            offset = piece.offset + part * self.record_bytes
            if piece.half:
                b.op(f"ld.{space}.u16", words[first], self.at[self._pattern(piece)][offset], pred=pred)
                first += 1
                continue
            convert.load_words(
                b, words[first : first + piece.words], self.at[self._pattern(piece)], offset, space=space, pred=pred
            )
            first += piece.words
