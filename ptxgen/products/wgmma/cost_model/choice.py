"""Which tile is likely the fastest for a matrix and a number of tokens: of the candidates the one of the fewest cycles,
or what was measured to be faster than these say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ptxgen.dtypes import f32
from ptxgen.errors import SpecError
from ptxgen.products.wgmma.cost_model import few_tokens, token_blocks, waves, weights_converted
from ptxgen.products.wgmma.cost_model.candidates import (
    MANY_IN_BLOCKS,
    OF_MANY,
    WHOLE_K,
    candidates,
    is_plain,
    of_one_matrix,
)
from ptxgen.products.wgmma.cost_model.cycles import ENDED_CONVERTED, ENDED_FROM, cycles, read_too
from ptxgen.products.wgmma.cost_model.weights_16bit import of_large
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tiling.refusals import CARRIED_TOKENS, SLICED_TOKENS
from ptxgen.products.wgmma.tiling.shape import MOST_ROWS_FIRST
from ptxgen.weights.f16 import Half

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

P = TypeVar("P", bound="PackedProduct")
CARRIED_ROWS, CARRIED_COUNTS = 128, (160, 192, 256)  # of tiles whose results are carried: rows, and tokens
WORTH = 0.98  # of the cycles, from which the last tiles of rows are those of one warpgroup
ENDED_OF_ONE = 257  # rows of x from which they are, of one matrix in 16 bits, whose tiles may be of any size
UNBEATEN = (192,)  # tokens of tiles that these were not faster than
# how many more cycles a tile may take, to be taken rather than one that shares k by memory, or in the last turn
RATHER_OTHERS, RATHER_WHOLE = 1.01, 1.02

# Tiles of 16-bit weights as they lie, of results of 16 bits, that were measured to be faster than the fewest cycles':
# outputs, columns, tokens from and to; tokens, rows, split, share and slices of a CTA, and whether weights leave the L2
# first. Where power or the L2 is the limit; of programmatic launches, or of plain ones, where the begin and the end
# count.
MEASURED_PROGRAMMATIC = (
    *((2048, 2048, least, most, most, 128, 4, 1, 1, True) for least, most in ((1, 8), (9, 16), (17, 32))),
    (2048, 2048, 65, 128, 64, 64, 1, 1, 2, False),
    (128256, 4096, 113, 128, 128, 256, 1, 2, 1, False),
)
MEASURED_PLAIN = ((2048, 8192, 33, 64, 64, 128, 4, 1, 1, True), (28672, 4096, 385, 512, 256, 64, 1, 1, 1, False))
TILE = ("tokens", "tile_rows", "split", "share", "slices", "evict_first")
# Tiles of few tokens that two warpgroups with the same rows (`slices`) were measured to beat, in programmatic launches:
# how numbers are multiplied, whether gate and up are; rows of x from and to, blocks of 64 rows of weights and columns
# from, CTAs that share k from and to; whether weights leave the L2 first. Of others `few_tokens.py` says so.
SLICED = (
    ("fast", True, 9, 64, 176, 0, 1, 8, True),
    ("exact", True, 9, 32, 176, 2048, 1, 8, True),
    ("scaled", False, 33, 64, 32, 0, 1, 2, False),
    ("signed", False, 33, 64, 32, 0, 2, 2, False),
)


def _counted(spec: PackedProduct, rows: int) -> float:
    """Cycles by which candidates are compared."""
    return cycles(spec, rows) * (RATHER_OTHERS if spec.by_memory else 1)


def _measured(fields: dict[str, Any], rows: int) -> dict[str, int]:
    """The fields of a tile that the table has, where none of them is given."""
    given = fields.keys() & {*TILE[:-1], "stream"}
    given |= {name for name in ("by_memory", "last_split", "last_tiles", "carried") if fields.get(name)}
    if given or not is_plain(fields) or str(fields.get("out_dtype", f32)) == f32.name:
        return {}
    for n, k, least, most, *tile in MEASURED_PROGRAMMATIC if fields.get("programmatic") else MEASURED_PLAIN:
        if (n, k) == (fields["n"], fields["k"]) and least <= rows <= most:
            return dict(zip(TILE, tile, strict=True))
    return {}


def _once(spec: P, fields: dict[str, Any], rows: int) -> P:
    """The spec whose weights leave the L2 first, where one CTA alone reads them, or, by memory, all that do at once."""
    if not is_plain(fields) or "evict_first" in fields:
        return spec
    at_once = spec.by_memory and sum(waves.turns(Geometry.of(spec), rows)) == 1
    return replace(spec, evict_first=True) if rows <= spec.tokens or at_once else spec


def _carried(spec: P, fields: dict[str, Any], rows: int) -> P:
    """The spec with results that other warps store, in tiles that were seen to gain of which a CTA has several."""
    seen = is_plain(fields) and spec.tokens in CARRIED_COUNTS and spec.tile_rows == CARRIED_ROWS
    if not seen or "carried" in fields or sum(waves.turns(Geometry.of(spec), rows)) < 2:
        return spec
    try:
        return replace(spec, carried=True)
    except SpecError:
        return spec


def _ended(found: list[P], fields: dict[str, Any], rows: int) -> list[P]:
    """Those whose last tiles of rows are of one warpgroup, where that was seen to gain: large tiles, of 16-bit weights
    as they lie, or of gate and up."""
    one = is_plain(fields)
    if rows < (ENDED_OF_ONE if one else ENDED_FROM) or "last_tiles" in fields or fields.get("precision") != "fast":
        return []
    ended = []
    for spec in found:
        at = Geometry.of(spec)
        plain = isinstance(spec.kind, Half) and spec.straight
        large = one or ((plain or (spec.gated and spec.weights in ENDED_CONVERTED)) and of_large(at) == 1)
        last = waves.last_tiles(at, rows) if large and at.shape.groups > 1 else 0
        try:
            ended += [replace(spec, last_tiles=last)] if last else []
        except SpecError:  # rows that are left are no whole tiles
            continue
    return ended


def _between(chosen: P, others: Iterable[P], rows: int, worth: float) -> P:
    """The spec, or another where the cycles that are fitted for these tiles are so much fewer."""
    fitted = {spec: _fitted(spec, rows) for spec in (chosen, *others)}
    shortest = min(fitted, key=lambda spec: fitted[spec])
    return shortest if fitted[shortest] < worth * fitted[chosen] else chosen


def _fitted(spec: PackedProduct, rows: int) -> float:
    """Cycles as they are fitted for `weights_converted.py` or `token_blocks.py`, of a tile that these know."""
    at = Geometry.of(spec)
    if token_blocks.is_known(spec):
        return read_too(spec, token_blocks.cycles(spec, waves.turns(at, rows)))
    if weights_converted.is_known(spec, rows):
        return read_too(spec, weights_converted.cycles(spec, at, rows, waves.turns(at, rows)), weights_converted.BESIDE)
    return cycles(spec, rows)


def _sliced(spec: P, fields: dict[str, Any], rows: int) -> P:
    """The spec, or in its place the one whose two warpgroups share k, where that was seen to gain."""
    if not few_tokens.is_open(fields):
        return spec
    how, split, blocks = few_tokens.multiplied(spec), Geometry.of(spec).shape.split, spec.parts * -(-spec.n // 64)
    for kind, gated, least, most, blocks_from, columns, split_from, split_to, once in SLICED:
        known = (kind, gated) == (how, spec.gated) and least <= rows <= most
        if known and blocks >= blocks_from and spec.k >= columns and split_from <= split <= split_to:
            first = fields.get("evict_first", once)
            try:
                return replace(spec, tile_rows=64 * spec.parts, split=1, share=1, slices=2, evict_first=first)
            except SpecError:
                return spec  # of the tokens that are given
    return spec


def tokens_of_both(kernel: type[P], first: dict[str, Any], then: dict[str, Any], rows: int) -> int:
    """Tokens of a tile with which a product and the one that reads the tiles that it leaves take the fewest cycles in
    all, of those with which k may be shared: down wants that. 0 where none is legal for both."""
    found: dict[int, float] = {}
    for tokens in (count for count in OF_MANY if count > MOST_ROWS_FIRST and count not in WHOLE_K):
        try:
            pair = [best(kernel, {**fields, "tokens": tokens}, rows) for fields in (first, then)]
        except SpecError:
            continue
        found[tokens] = sum(cycles(spec, rows) for spec in pair)
    return min(found, key=lambda tokens: found[tokens], default=0)


def best(kernel: type[P], fields: dict[str, Any], rows: int) -> P:
    """The candidate of the fewest cycles; of equal ones, in "fast", the one with more tokens, which brings weights
    fewer times. Of a few tokens `few_tokens.py` has another measure."""
    least = max(SLICED_TOKENS * (fields.get("slices", 1) > 1), CARRIED_TOKENS * bool(fields.get("carried")))
    if rows < least:  # as these want so many tokens
        fields = {"tokens": least, **fields}
    if fields.get("stream") and rows > MOST_ROWS_FIRST:  # which is for no more tokens
        fields = {"tokens": MOST_ROWS_FIRST, **fields}
    if tile := _measured(fields, rows):
        return kernel(**tile | fields)
    found = list(candidates(kernel, fields, rows))
    if rows >= MANY_IN_BLOCKS and not fields.get("residual"):  # with which large tiles are none of them
        found = [spec for spec in found if Geometry.of(spec).pipelined] or found
    if not found:
        return kernel(**fields)  # raises with the reasons, or is legal as it is
    if few := few_tokens.fastest(found[0], fields, rows):
        return few
    found = [_carried(spec, fields, rows) for spec in found]
    whole = [spec for spec in found if not spec.last_split] or found
    chosen = min(whole, key=lambda spec: (_counted(spec, rows), -spec.tokens if spec.precision == "fast" else 0))
    if (ended := _ended(whole, fields, rows)) and (is_plain(fields) or chosen.tokens not in UNBEATEN):
        shortest = min(ended, key=lambda spec: cycles(spec, rows))
        chosen = shortest if cycles(shortest, rows) < WORTH * cycles(chosen, rows) else chosen
    shared = min((spec for spec in found if spec.last_split), key=lambda spec: cycles(spec, rows), default=chosen)
    chosen = shared if RATHER_WHOLE * cycles(shared, rows) < _counted(chosen, rows) else chosen
    if weights_converted.is_open(fields, rows):
        others = (spec for spec in of_one_matrix(kernel, fields, rows) if weights_converted.tries(spec))
        chosen = _between(chosen, others, rows, weights_converted.WORTH)
    elif token_blocks.is_open(fields) and token_blocks.is_known(chosen):
        chosen = _between(chosen, token_blocks.others(kernel, fields, rows), rows, token_blocks.WORTH)
    return _sliced(_once(chosen, fields, rows), fields, rows)
