"""Why additional warps cannot store a product's results (`carried`), why warpgroups cannot share k (`slices`), why the
last tiles of rows cannot be those of one warpgroup (`last_tiles`), and why CTAs cannot share k of the last turn's tiles
(`last_split`). What each needs is a table; a message has the first row that is not met."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.dtypes import f32
from ptxgen.products.wgmma.tiling.shape import HALVES, MOST_ROWS_FIRST, SLICES, Shape
from ptxgen.products.wgmma.tokens.layout import GROUP, TOKENS
from ptxgen.weights.f16 import Half

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

CARRIED_BY_THREE = 128  # tokens at most of tiles of three warpgroups whose results other warps store
CARRIED_SPILLS = 224  # tokens of tiles of two warpgroups that spilled 64 bytes
CARRIED_WHOLE = (160, 192)  # where the warp that copies spilled 20 to 28 bytes if its lanes bring rows one by one
CARRIED_TOKENS = 32  # whose results other warps store: twice as many as they take up at once
# sums of a row beside which there are registers for shared tiles: with 288 some spill 12 bytes, with 256 and both a
# residual stream and a bias, too
LAST_SPLIT_SUMS, LAST_SPLIT_ADDED = 256, 224
SLICED_TOKENS = SLICES * GROUP  # whole octets of each of them


class Want(NamedTuple):
    """Whether a spec has it; the rule, what it has instead, and the least change that meets the rule."""

    met: bool
    rule: str
    got: str
    nearest: str


def _first(field: str, wants: Iterable[Want]) -> str:
    found = next((want for want in wants if not want.met), None)
    return f"{field}: {found.rule} (got {found.got}; nearest: {found.nearest})" if found else ""


def _whole(tokens: int, step: int) -> str:
    """The tokens of a tile, a multiple of `step`, that are the nearest."""
    return f"tokens={min((count for count in TOKENS if count % step == 0), key=lambda count: abs(count - tokens))}"


def of_carried(spec: PackedProduct, tokens: int, shape: Shape) -> str:
    """Why other warps cannot store results, of which registers must hold half meanwhile: seen of weights as they lie. A
    tile's first product replaces its sums, which "exact" adds to. "" where they can."""
    half = isinstance(spec.kind, Half)
    return _first("carried", (
        Want(half, "is for 16-bit weights", f"weights={spec.weights!r}", "carried=False"),
        Want(spec.straight, "is for weights as they lie", f"x_dtype={spec.x_dtype}", f"x_dtype={spec.weights}"),
        Want(spec.precision == "fast", 'is for precision "fast"', f"precision={spec.precision!r}", "precision='fast'"),
        Want(not spec.activation, "is for results without an activation", f"activation={spec.activation!r}",
             "carried=False"),
        Want(not spec.packed_out, "is for results that are rows", "packed_out=True", "carried=False"),
        Want(not spec.residual, "is for results that are added to nothing", "residual=True", "carried=False"),
        Want(not spec.norm, "is for tokens that are normed before", f"norm={spec.norm!r}", "carried=False"),
        Want(spec.out_dtype != f32, "is for rows of 16 bits", "out_dtype=f32", "out_dtype=bf16"),
        Want(spec.n % HALVES == 0, f"is for rows of a multiple of {HALVES} outputs", f"n={spec.n}", "carried=False"),
        Want(not spec.stream, "is for whole tiles", "stream=True", "stream=False"),
        Want(spec.split < 2, "is for CTAs that have all of k", f"split={spec.split}", "split=1"),
        Want(shape.blocks == 1, "is for one block of 64 rows a warpgroup", f"tile_rows={spec.tile_rows}",
             "tile_rows=128"),
        Want(tokens % CARRIED_TOKENS == 0, f"is for a multiple of {CARRIED_TOKENS} tokens", f"tokens={tokens}",
             _whole(tokens, CARRIED_TOKENS)),
        Want(tokens != CARRIED_SPILLS or shape.groups == 1, f"has no registers for {CARRIED_SPILLS} tokens",
             f"tokens={tokens}", "tokens=192"),
        Want(shape.groups < 3 or tokens <= CARRIED_BY_THREE,
             f"of tiles of 192 rows it is for at most {CARRIED_BY_THREE} tokens", f"tokens={tokens}",
             f"tokens={CARRIED_BY_THREE}"),
        Want(tokens not in CARRIED_WHOLE or shape.groups != 2 or shape.share > 1 or _is_whole(spec, shape),
             f"of {tokens} tokens, which CTAs do not share, it is for whole tiles of rows", f"n={spec.n}", "share=2"),
    ))  # fmt: skip


def _is_whole(spec: PackedProduct, shape: Shape) -> bool:
    """Whether every CTA has all its rows of weights: then one lane of the copying warp brings them."""
    of_whole = spec.parts * spec.kind.records(spec.n) - shape.last * shape.unit_records
    return of_whole % (shape.unit_records * shape.units) == 0


def of_slices(spec: PackedProduct) -> str:
    """Why warpgroups cannot share k; "" where they can."""
    rows, tiles = 64 * spec.parts, spec.kind.tiles(spec.k)
    plain = spec.straight and not spec.scaled and spec.precision == "fast"
    return _first("slices", (
        Want(not spec.by_row, "does not go with by_row", "by_row=True", "slices=1"),
        Want(not spec.stream, "is for CTAs that have all of k", "stream=True", "stream=False"),
        Want(not spec.carried, "needs results stored by the warps that multiply", "carried=True", "carried=False"),
        Want(spec.split < 2, "is for CTAs that have all of k", f"split={spec.split}", "split=1"),
        Want(spec.tile_rows in (0, rows), "is for the rows of one warpgroup", f"tile_rows={spec.tile_rows}",
             f"tile_rows={rows}"),
        Want(spec.kind.tile_k % spec.columns == 0, f"is for tiles of weights of whole blocks of {spec.columns} columns",
             f"weights={spec.weights!r}", "slices=1"),
        Want(tiles % SLICES == 0, f"is for an even number of tiles of {spec.kind.tile_k} columns", f"k={spec.k}",
             "slices=1"),
        Want(plain or spec.tokens <= MOST_ROWS_FIRST,
             f'is for at most {MOST_ROWS_FIRST} tokens, but for 16-bit weights as they lie with precision "fast"',
             f"tokens={spec.tokens}", f"tokens={MOST_ROWS_FIRST}"),
        Want(spec.tokens % SLICED_TOKENS == 0, f"is for a multiple of {SLICED_TOKENS} tokens", f"tokens={spec.tokens}",
             _whole(spec.tokens, SLICED_TOKENS)),
    ))  # fmt: skip


def of_last_tiles(spec: PackedProduct, shape: Shape) -> str:
    """Why the last tiles of rows cannot be those of one warpgroup; "" where they can."""
    records, whole = spec.parts * spec.kind.records(spec.n), shape.unit_records * shape.units

    def leaves_tiles(last: int) -> bool:
        left = records - last * shape.unit_records
        return last % shape.share == 0 and left > 0 and left % (whole * shape.share) == 0

    legal = () if leaves_tiles(shape.last) else filter(leaves_tiles, range(records))
    nearest = min(legal, key=lambda last: abs(last - shape.last), default=0)
    return _first("last_tiles", (
        Want(spec.tokens > MOST_ROWS_FIRST, f"is for more than {MOST_ROWS_FIRST} tokens", f"tokens={spec.tokens}",
             "tokens=96"),
        Want(shape.split < 2, "is for CTAs that have all of k", f"split={shape.split}", "split=1"),
        Want(spec.tile_rows != 64 * spec.parts, "is for tiles of several warpgroups", f"tile_rows={spec.tile_rows}",
             f"tile_rows={128 * spec.parts}"),
        Want(shape.groups > 1, "is for tiles of which several warpgroups have room in shared memory",
             f"last_tiles={shape.last}", "last_tiles=0"),
        Want(not spec.promotes, "does not go with sums of 128 columns that f32 adds up", f"weights={spec.weights!r}",
             "last_tiles=0"),
        Want(leaves_tiles(shape.last), "the rows before the last tiles must be whole tiles, at least one, and as many "
             f"as share tokens (share={shape.share})", f"last_tiles={shape.last}", f"last_tiles={nearest}"),
    ))  # fmt: skip


def of_last_split(spec: PackedProduct, shape: Shape) -> str:
    """Why CTAs cannot share k of the last turn's tiles: seen of 16-bit weights as they lie. "" where they can."""
    most = (LAST_SPLIT_ADDED if spec.residual and spec.bias else LAST_SPLIT_SUMS) // shape.blocks
    return _first("last_split", (
        Want(isinstance(spec.kind, Half), "is for 16-bit weights", f"weights={spec.weights!r}", "last_split=0"),
        Want(spec.straight, "is for weights as they lie", f"x_dtype={spec.x_dtype}", f"x_dtype={spec.weights}"),
        Want(spec.precision == "fast", 'is for precision "fast"', f"precision={spec.precision!r}", "precision='fast'"),
        Want(spec.tokens > MOST_ROWS_FIRST, f"is for more than {MOST_ROWS_FIRST} tokens", f"tokens={spec.tokens}",
             "tokens=96"),
        Want(not spec.activation, "is for results without an activation", f"activation={spec.activation!r}",
             "last_split=0"),
        Want(not spec.packed_out, "is for results that are rows", "packed_out=True", "last_split=0"),
        Want(shape.split < 2, "is for CTAs that have all of k before the last turn", f"split={shape.split}", "split=1"),
        Want(shape.share < 2, "is for CTAs that share no tokens", f"share={shape.share}", "share=1"),
        Want(shape.slices < 2, "is for warpgroups that have rows of their own", f"slices={shape.slices}", "slices=1"),
        Want(not spec.carried, "needs results stored by the warps that multiply", "carried=True", "carried=False"),
        Want(not spec.last_tiles, "is for tiles of one size", f"last_tiles={spec.last_tiles}", "last_tiles=0"),
        Want(spec.tokens <= most or shape.blocks == 1, f"has registers for {most} tokens in tiles of {shape.rows} rows",
             f"tokens={spec.tokens}", f"tokens={most}"),
    ))  # fmt: skip
