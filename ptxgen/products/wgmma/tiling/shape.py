"""How a product of many tokens is shared out: rows of a CTA, CTAs that share k or tokens. Choices are a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ptxgen.dtypes import f32
from ptxgen.weights.f16 import Half
from ptxgen.weights.format import TILE_ROWS

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

PROCESSORS = 132  # of the largest GPU that runs these texts
HALVES = 8  # results of 16 bits that a lane stores at once
MOST_ROWS_FIRST = 64  # tokens of a tile, up to which they count as few
MOST_BESIDE = 128  # tokens of a tile, if two CTAs of one warpgroup share a multiprocessor
# Sums of a row for which such CTAs have registers, in general and with promoted products. With more, ptxas serialises
# products, or spills.
MOST_SUMS_BESIDE, MOST_SHORT_BESIDE = 224, 64
# Rows of (most tiles of rows, CTAs that share k, least tiles of k for each CTA); the first that matches counts.
SPLITS = ((16, 4, 4), (32, 4, 16), (PROCESSORS, 2, 4), (1 << 30, 1, 0))
# The same for tiles of 256 columns, whose weights are converted: more CTAs convert at a time.
WIDE_SPLITS = ((32, 4, 1), (PROCESSORS // 2, 4, 8), (PROCESSORS, 2, 1), (1 << 30, 1, 0))
WIDE_TILE = 256
# Stages of two tiles of k and parts of twice the length, for weights that are not converted. By warpgroups and tokens:
# the least and the largest number of CTAs over all rows. This hides more of the wait between parts, with less of k in
# flight.
LONG = {(1, 64): (65, PROCESSORS), (1, 128): (1, 64)}
# The same for one matrix of 16-bit weights in a plain launch.
LONG_PLAIN = LONG | {(1, 64): (64, PROCESSORS), (2, 64): (128, 224)}
MANY_ROWS, TALL, FEW_TOKENS = 65536, 256, 32  # matrices of MANY_ROWS and more have TALL rows a CTA, up to FEW_TOKENS
# Tokens up to which two CTAs share k of gate and up in 16 bits, if all tiles fit at once; and the least columns for it.
FEWER_TOKENS, LONG_ENOUGH = 16, 2048
# For weights in K formats and at most 32 tokens in units of their rows: precision, matrices, whether there are mins,
# rows from and to, columns from: rows of a CTA, CTAs that share k, whether they share it out evenly
SPAN_TILES = (
    ("exact", 1, True, 4097, 6144, 4096, 64, 1, True),
    ("exact", 1, True, 4096, 4096, 8192, 64, 2, False),
    ("exact", 1, False, 4096, 4096, 8192, 128, 1, True),
    ("exact", 1, False, 65536, 1 << 20, 4096, 192, 1, True),
    ("exact", 2, True, 24576, 1 << 20, 4096, 256, 1, True),
    ("fast", 1, True, 4096, 4096, 8192, 64, 2, False),
    ("fast", 1, False, 4096, 4096, 8192, 64, 2, False),
    ("fast", 2, True, 24576, 1 << 20, 4096, 256, 1, False),
)
# The same for formats that are no K-quants, exact: tokens to, matrices, rows to, columns from
CODE_TILES = (
    (32, 2, 1 << 20, 1, 192, 1, True),
    (32, 1, 1536, 4096, 64, 8, False),
    (64, 1, 1920, 1024, 64, 4, False),
    (64, 1, 2432, 1024, 64, 3, False),
    (64, 1, 2560, 1024, 64, 4, False),
    (64, 1, 4224, 8192, 128, 1, True),
    (64, 1, 4224, 1024, 64, 2, False),
    (16, 1, 8192, 1024, 64, 2, False),
    (64, 1, 1 << 20, 512, 128, 1, True),
)
# of so many CTAs that there is room for at once; of three 36 had it and 40 had not. Of six it was not measured: 30 of
# four and 14 of eight fit eight GPCs that would hold 20 to 22 of six, but also 42 to 44 of three, where 38 ran
CLUSTERS = {1: 132, 2: 66, 3: 38, 4: 30, 6: 18, 8: 14}
# Exact tiles of 128 rows in units of rows that spilled 4 to 16 bytes: formats and tokens, by whether gate and up.
SPILLING = {False: frozenset({("q5_0", 64)}), True: frozenset({("q5_0", 64), ("q8_0", 32)})}
# Formats in units of rows that spilled 4 to 120 bytes where two CTAs of one warpgroup share a multiprocessor, by
# precision, whether gate and up, and tokens. Those of BY_CHUNKS wait for every chunk; of those of ALONE_BY_ROW a CTA
# has the multiprocessor to itself.
BY_CHUNKS = {("exact", False, 64): ("q8_0",)}
ALONE_BY_ROW = {
    ("exact", False, 64): ("q5_0", "int4_g32"), ("exact", True, 32): ("q8_0",), ("fast", True, 64): ("q4_k", "q5_k"),
}  # fmt: skip
MOST_BY_MEMORY = 8  # CTAs that share k by memory
SLICES = 2  # warpgroups that share k
MOST_GROUPS = 3  # warpgroups of a CTA; with more, threads have too few registers to read or multiply much at once
MOST_HELD = 108  # other registers that leave room for fragments of four chunks, twice, with two CTAs a multiprocessor


@dataclass(frozen=True)
class Shape:
    """`groups` warpgroups of `blocks` · 64 rows each; `tiles` tiles of weights along k and `part` chunks of them
    between two waits; `split` CTAs share k; `deep`: stages at most; `resident`: CTAs of a multiprocessor;
    `share`: CTAs of a cluster that have the same tokens, of which each brings a part to all; `slices`: warpgroups that
    have the same rows, of which each multiplies its part of a stage's tiles; `last`: tiles of rows, behind the whole
    ones, of one warpgroup (`mainloop/skipped_tiles.py`); `by_memory`: CTAs that share k are no cluster; `last_split`:
    CTAs that share k of a tile of the last turn alone."""

    groups: int
    blocks: int
    tiles: int
    part: int
    split: int
    deep: int
    resident: int
    share: int = 1
    slices: int = 1
    last: int = 0
    by_memory: bool = False
    last_split: int = 1

    @property
    def sharers(self) -> int:
        """CTAs that share k, of all tiles or of those of the last turn."""
        return max(self.split, self.last_split)

    @property
    def in_cluster(self) -> bool:
        """Whether CTAs share k, and are a cluster."""
        return self.split > 1 and not self.by_memory

    @property
    def rows(self) -> int:
        """Rows of weights of a CTA, those of gate and of up."""
        return 64 * self.groups * self.blocks

    @property
    def units(self) -> int:
        """What a tile's rows are counted in: a warpgroup's where some tiles have these alone, else all of them."""
        return self.groups if self.last else 1

    @property
    def unit_records(self) -> int:
        """Records of that many rows."""
        return 64 // TILE_ROWS * self.blocks * self.groups // self.units

    @property
    def own_tiles(self) -> int:
        """Tiles of a stage that a warpgroup multiplies."""
        return self.tiles // self.slices

    @property
    def most_clusters(self) -> int:
        """Clusters of a launch at most, as reckoned from multiprocessors; each goes on to further tiles. CTAs that
        share k by memory count as one."""
        return max(1, PROCESSORS * self.resident // (self.share * (self.split if self.by_memory else 1)))

    @property
    def places(self) -> int:
        """Clusters that there is room for at once, as measured; the same of CTAs that share k by memory."""
        if self.by_memory:
            return self.most_clusters
        return CLUSTERS[self.split * self.share] * self.resident


def choose(spec: PackedProduct, tokens: int) -> Shape:
    """The shape for a spec with so many tokens a tile."""
    parts, few = spec.parts, tokens <= MOST_ROWS_FIRST
    rows = parts * spec.kind.records(spec.n) * TILE_ROWS
    wide = spec.kind.tile_k == WIDE_TILE
    tall = wide and parts == 1 and rows >= MANY_ROWS and tokens <= FEW_TOKENS and spec.precision == "fast"
    usual = TALL if tall and spec.slices == 1 else 64 * parts if few or spec.slices > 1 else 128 * parts
    tile_rows, split = spec.tile_rows or usual, spec.split
    groups = 1 if tile_rows == 64 * parts else 3 if tile_rows == 192 else 2
    blocks = max(parts, tile_rows // (64 * groups))
    if spec.by_row and tokens <= FEW_TOKENS:
        apart = parts > 1 and (stores_halves(spec) or tile_rows == 64 * parts)  # a block of gate and one of up
        groups = max(1, tile_rows // (64 * parts if apart else 64))  # while one converts weights another's products run
        blocks = parts if apart else 1
    # carried results need all of k, and a multiprocessor to themselves: `of_carried` relies on it
    alone = few and spec.share <= 1 and spec.slices == 1 and not (spec.stream or spec.carried)
    row_tiles = -(-rows // tile_rows)
    split = split or (_split(row_tiles, spec.kind.tiles(spec.k), wide=wide) if alone else 1)
    gate = parts == 2 and isinstance(spec.kind, Half) and tokens <= FEWER_TOKENS
    if alone and gate and not spec.split and row_tiles <= 2 * PROCESSORS and spec.k >= LONG_ENOUGH:
        split = max(split, 2)
    # weights that are converted keep their warps busy for longer
    part = 4 if few and spec.kind.tile_k > spec.columns else 2
    if spec.by_row:
        part = _part(spec, tokens, groups, blocks)
    tiles = 2 if tokens <= 32 and spec.kind.tile_k == spec.columns else 1
    if parts == 2 and isinstance(spec.kind, Half) and tokens > FEWER_TOKENS and spec.precision == "fast":
        tiles = 1  # else two CTAs a multiprocessor have two stages each
    share = spec.share or (2 if tokens > 128 and rows > tile_rows and split == 1 and not spec.last_split else 1)
    # where there are CTAs for it; of weights that are converted it was not measured
    many = row_tiles * split > PROCESSORS or (few and not (isinstance(spec.kind, Half) or spec.by_row))
    if spec.by_row:  # else a deeper ring is faster
        many = row_tiles > (PROCESSORS // split if spec.by_memory else CLUSTERS[split])
    fits = tokens <= MOST_BESIDE and tokens * blocks <= (MOST_SHORT_BESIDE if spec.promotes else MOST_SUMS_BESIDE)
    what = (spec.precision, spec.gated, tokens)
    if spec.by_row:
        fits &= spec.weights not in ALONE_BY_ROW.get(what, ())
    apart = spec.carried or spec.by_memory or spec.last_split > 0 or spec.stream
    beside = groups == spec.slices == 1 and fits and many and not apart
    if beside and spec.by_row and spec.weights in BY_CHUNKS.get(what, ()):
        part = 1
    if not beside and spec.slices == 1 and blocks == parts and spec.precision == "fast" and spec.straight:
        plain = parts == 1 and isinstance(spec.kind, Half) and not spec.programmatic
        least, most = (LONG_PLAIN if plain else LONG).get((groups, tokens), (0, 0))
        if least <= row_tiles * split <= most:
            tiles, part = 2, 4
    tiles = max(tiles, spec.slices)
    resident, last = 2 if beside else 1, spec.last_tiles
    return Shape(
        groups, blocks, tiles, part, split, 16, resident, share, spec.slices, last, spec.by_memory,
        max(1, spec.last_split),
    )  # fmt: skip


def tile_by_row(spec: PackedProduct) -> dict[str, Any]:
    """The tile for tokens in units of their rows, as fields, where one was measured to be the fastest."""
    rows = spec.parts * spec.kind.records(spec.n) * TILE_ROWS
    tiles = _tiles_of_spans(spec, rows) if spec.kind.span else _tiles_of_codes(spec, rows)
    return dict(zip(("tile_rows", "split", "stream"), next(tiles, ()), strict=False))


def _tiles_of_spans(spec: PackedProduct, rows: int) -> Iterator[tuple[int, int, bool]]:
    for precision, parts, mins, least, most, columns, *found in SPAN_TILES:
        same = (precision, parts, mins) == (spec.precision, spec.parts, spec.kind.has_mins)
        if spec.tokens <= FEW_TOKENS and same and least <= rows <= most and spec.k >= columns:
            yield found[0], found[1], bool(found[2])


def _tiles_of_codes(spec: PackedProduct, rows: int) -> Iterator[tuple[int, int, bool]]:
    for tokens, parts, most, columns, *found in CODE_TILES:
        fits = spec.tokens <= tokens and rows <= most and spec.k >= columns
        spills = found[0] == 128 and (spec.weights, spec.tokens) in SPILLING[spec.gated]
        if fits and spec.precision == "exact" and parts == spec.parts and not spills:
            yield found[0], found[1], bool(found[2])


def _part(spec: PackedProduct, tokens: int, groups: int, blocks: int) -> int:
    """Chunks between two waits, of tokens in units of their rows: as many as were the fastest and fit registers."""
    exact = spec.precision == "exact"
    crowded = tokens > FEW_TOKENS and groups > 1 and not spec.kind.span
    if exact and (groups > MOST_GROUPS or crowded):
        return 1
    most = 2 if (exact and groups == 1) or _held(spec, tokens, blocks) > MOST_HELD else 4
    return min(most, spec.kind.code_chunks)


def _held(spec: PackedProduct, tokens: int, blocks: int) -> int:
    """Registers of words of weights and of sums, for tokens in units of their rows."""
    words = sum(piece.words for piece in spec.kind.code_pieces)
    return words + tokens * (blocks + spec.digits + spec.kind.has_mins) // 2


def _split(tiles: int, steps: int, *, wide: bool) -> int:
    """CTAs that share k where there are so many tiles of rows, for a few tokens."""
    table = WIDE_SPLITS if wide else SPLITS
    return next(split for most, split, least in table if tiles <= most and steps >= least * split)


def smaller(shape: Shape, spec: PackedProduct) -> Shape | None:
    """A shape that takes less shared memory."""
    parts = spec.parts
    if shape.tiles > shape.slices:
        return replace(shape, tiles=shape.tiles // 2)
    if shape.resident > 1:
        return replace(shape, resident=shape.resident - 1)
    if shape.split > 1 and not spec.split:
        return replace(shape, split=1)
    if shape.blocks > parts:
        return replace(shape, blocks=parts)
    return replace(shape, groups=1) if shape.groups > 1 else None


def stores_halves(spec: PackedProduct) -> bool:
    """Whether results are 16-bit numbers that lanes store eight at a time."""
    if spec.packed_out:
        return spec.digits == 1
    return spec.out_dtype != f32 and spec.n % HALVES == 0
