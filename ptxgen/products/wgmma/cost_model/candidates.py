"""The tiles that are tried for a matrix and a number of tokens: those that were measured, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from ptxgen.dtypes import e4m3, f32
from ptxgen.errors import SpecError
from ptxgen.products.wgmma.cost_model import weights_converted
from ptxgen.products.wgmma.tiling.shape import (
    CLUSTERS,
    MOST_BY_MEMORY,
    MOST_ROWS_FIRST,
    PROCESSORS,
    SPILLING,
    tile_by_row,
)
from ptxgen.products.wgmma.tokens.layout import COLUMNS, TOKENS
from ptxgen.weights.e4m3 import BLOCK

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

P = TypeVar("P", bound="PackedProduct")
USUAL_ROWS = 128  # of a tile of one matrix, where the table decides
SPLITS = (1, 2, 4, 8)
SPLITS_OF_ONE = (1, 2, 3, 4, 8)
ROWS_OF_THREE = 64  # of a CTA where three share k: with two warpgroups clusters of three are slower than counted
SMALLEST_SHARED = 96 * 128  # sums of a tile from which k of the last turn is shared: smaller ones took 8 to 12 % longer
LEAST_OF_K = 4  # blocks of columns of each CTA that shares k by memory
FEWEST_BY_MEMORY = 92  # CTAs of a launch that share k by memory: fewer leave multiprocessors idle
GIVEN = ("tokens", "tile_rows", "split", "share")  # fields that are tried unless they are given
HALVES = ("bf16", "f16")  # weights of 16 bits
# rows and shares that are tried with so many tokens: what was measured
OF_FEW: tuple[tuple[int, ...], tuple[int, ...]] = ((64, 128, 192), (1,))
OF_MANY: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    64: ((64, 128, 256), (1,)), 112: ((128,), (1,)), 128: ((64, 128, 192, 256), (1, 2)), 192: ((128,), (1, 2)),
    256: ((64, 128), (1, 2)),
}  # fmt: skip
NONE: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
# the same of weights of 16 bits where results are rows of one matrix; CTAs share k where there is room for all at once
OF_ONE_MATRIX: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {
    96: ((128, 192), (1,)), 104: ((128, 192), (1,)), 112: ((128, 192), (1,)), 128: ((64, 128, 192, 256), (1, 2)),
    144: ((128, 192, 256), (1, 2)), 160: ((64, 128, 192, 256), (1, 2)), 176: ((64, 128, 192, 256), (1, 2)),
    192: ((64, 128, 192), (1, 2)), 208: ((128,), (1, 2)), 224: ((128,), (1, 2)), 240: ((128,), (1, 2)),
    256: ((64, 128), (1, 2)),
}  # fmt: skip
LEAST_SHARED = 22528  # sums of a tile from which CTAs may share its tokens there
WHOLE_K = (104, 112)  # tokens with which no k is shared elsewhere
CONVERTED = {112: NONE}  # and of weights that are converted, before tokens of 16 bits
IN_E4M3 = {192: ((128, 192), (1,))}  # the same of e4m3 where it differs, and of scales of rows
IN_ROWS = {112: NONE}
# and of so many with scales of blocks, all of them whole: the tiles whose scales a warp packs are the faster ones
IN_BLOCKS, MANY_IN_BLOCKS = {96: ((128,), (1,)), 256: ((64, 128), (1,))}, 512
# the same of those whose results become 16-bit numbers after an activation, without a bias and with one: 128 rows leave
# it no registers
ACTIVATED_IN_BLOCKS: dict[bool, dict[int, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    False: {256: ((64,), (1, 2))}, True: {192: NONE, 256: ((64,), (1, 2))},
}  # fmt: skip


def candidates(kernel: type[P], fields: dict[str, Any], rows: int) -> Iterator[P]:
    """Legal specs of a kernel type with these fields, whose tiles differ; for a few rows and weights that are not of 16
    bits the one that the tables have."""
    few = rows <= MOST_ROWS_FIRST
    counts = [fields["tokens"]] if "tokens" in fields else list(TOKENS)
    enough = [count for count in counts if count >= rows] or counts[-1:]
    if few and not is_plain(fields):
        for count in (*enough[:1], *reversed(counts[: -len(enough)])):
            try:
                found = kernel(**{"tokens": count, **fields})
                yield _tabled(found, fields) if found.by_row else found
                return
            except SpecError:
                continue
        return
    tried = dict.fromkeys(enough[:1], OF_FEW) if few else OF_MANY
    if not few and str(fields.get("x_dtype")) == e4m3.name:
        tried = tried | IN_E4M3
        whole = fields["weights"] == "e4m3_block" and not fields.get("gated") and fields["n"] % BLOCK == 0
        if whole and rows >= MANY_IN_BLOCKS:
            tried = tried | IN_BLOCKS
        if fields["weights"] != "e4m3_block":
            tried = tried | IN_ROWS
        elif fields.get("activation") and str(fields.get("out_dtype", f32)) != f32.name:
            tried = tried | ACTIVATED_IN_BLOCKS[bool(fields.get("bias"))]
    elif not few and fields.get("weights", "bf16") not in HALVES:
        tried = tried | CONVERTED
    if not few and is_plain(fields):
        yield from of_one_matrix(kernel, fields, rows)
        return
    if "tokens" in fields:  # then also what is never the fastest
        tile = tried.get(fields["tokens"], OF_FEW)
        if tile is NONE:
            tile = OF_FEW if fields["tokens"] <= MOST_ROWS_FIRST else OF_MANY[fields["tokens"]]
        tried = {fields["tokens"]: tile}
    each = ((count, *tile) for count, (rows, shares) in tried.items() for tile in product(rows, SPLITS, shares))
    spilling = SPILLING[bool(fields.get("gated"))]
    for count, tile_rows, split, share in each:
        if count in WHOLE_K and split > 1:
            continue
        if tile_rows == 128 and fields.get("by_row") and (fields["weights"], count) in spilling:
            continue
        if few and split > 1 and (tile_rows == 192 or (split == 8 and tile_rows == 64)):
            continue
        try:
            yield kernel(**{"tile_rows": tile_rows, "split": split, "share": share, **fields, "tokens": count})
        except SpecError:
            continue


def of_one_matrix(kernel: type[P], fields: dict[str, Any], rows: int) -> Iterator[P]:
    """Those of many tokens by one matrix, whose results are rows."""
    table = OF_ONE_MATRIX if is_plain(fields) else weights_converted.TRIED
    given: dict[str, tuple[int, ...]] = {name: (fields[name],) for name in GIVEN if name in fields}
    for tokens in given.get("tokens", table):
        tile_rows, shares = table.get(tokens, OF_FEW)
        for tile in given.get("tile_rows", tile_rows):
            ctas = -(-fields["n"] // (tile or USUAL_ROWS)) * -(-rows // tokens)  # 0: by the table
            each = {"tokens": tokens, "tile_rows": tile}
            ways = _by_memory(fields, given, ctas)
            if (tile or USUAL_ROWS) * tokens >= SMALLEST_SHARED or fields.get("last_split"):
                ways += _last_split(fields, given, ctas)
            splits = () if fields.get("by_memory") else given.get("split", SPLITS_OF_ONE)
            for split, share in product(splits, given.get("share", shares)):
                most = CLUSTERS[3] if split == 3 else PROCESSORS // max(1, split)
                apart = split > 1 and (ctas > most or share > 1 or (split == 3 and tile != ROWS_OF_THREE))
                small = share > 1 and tile * tokens < LEAST_SHARED
                if (apart and "split" not in given) or (small and "share" not in given):
                    continue
                ways.append({"split": split, "share": share})
            for way in ways:
                try:
                    yield kernel(**fields | each | way)
                except SpecError:
                    continue


def _by_memory(fields: dict[str, Any], given: dict[str, tuple[int, ...]], ctas: int) -> list[dict[str, Any]]:
    """How CTAs share k by memory of so many tiles, which was measured of weights of 16 bits: one way, or none."""
    wanted = fields.get("by_memory")
    if not is_plain(fields) or wanted is False or (fields.get("share") or 1) > 1:
        return []
    if not wanted and given.keys() & {"split", "share"}:
        return []
    most = min(MOST_BY_MEMORY, PROCESSORS // ctas, fields["k"] // (LEAST_OF_K * COLUMNS))
    (split,) = given.get("split", (most,))
    if split < 2 or ("split" not in given and ctas * split < FEWEST_BY_MEMORY):
        return []
    return [{"split": split, "share": 1, "by_memory": True}]


def _last_split(fields: dict[str, Any], given: dict[str, tuple[int, ...]], ctas: int) -> list[dict[str, Any]]:
    """How CTAs share k of the last turn's tiles, of so many in all, which was measured of weights of 16 bits: one way,
    or none."""
    left = ctas % PROCESSORS
    alone = all((given.get(name) or (1,)) in ((0,), (1,)) for name in ("split", "share"))
    if not (is_plain(fields) and alone and left) or ctas < PROCESSORS:
        return []
    most = min(MOST_BY_MEMORY, PROCESSORS // left, fields["k"] // (LEAST_OF_K * COLUMNS))
    if fields.get("last_split", most) != most or most < 2 or fields.get("by_memory"):
        return []
    return [{"split": 1, "share": 1, "last_split": most}]


def _tabled(spec: P, fields: dict[str, Any]) -> P:
    """A spec with the tile that the table has, where none of the tile's fields is given and it is legal."""
    tile = tile_by_row(spec)
    if tile.keys() & fields.keys():
        return spec
    try:
        return replace(spec, **tile)
    except SpecError:  # 192 rows of gate and up whose results have 16 bits
        return spec


def is_plain(fields: dict[str, Any]) -> bool:
    """Whether what is measured of few tokens holds: weights of 16 bits as they are, for rows."""
    return (
        fields.get("weights", "bf16") in HALVES
        and fields.get("precision") == "fast"
        and not fields.get("gated")
        and not fields.get("packed_out")
    )
