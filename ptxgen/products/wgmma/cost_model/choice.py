"""Which tile is likely the fastest for a matrix and a number of tokens: cycles as they were measured on an H200.

Those of 16-bit weights as they lie are in `weights_16bit.py`. The others were fitted to times with shared memory as the
limit: it takes the stage's bytes, and gives weights once, and tokens once for every 64 rows of weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from ptxgen.dtypes import e4m3, f32
from ptxgen.errors import SpecError
from ptxgen.products.wgmma.cost_model import few_tokens, waves, weights_16bit, weights_converted
from ptxgen.products.wgmma.cost_model.weights_16bit import (
    BY_MEMORY,
    BY_MEMORY_LARGE,
    MANY_TOKENS,
    TENSOR,
    is_lone_pair,
    of_large,
)
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tiling.refusals import CARRIED_TOKENS, SLICED_TOKENS
from ptxgen.products.wgmma.tiling.shape import (
    CLUSTERS,
    MOST_BY_MEMORY,
    MOST_ROWS_FIRST,
    PROCESSORS,
    SPILLING,
    tile_by_row,
)
from ptxgen.products.wgmma.tokens.layout import CHUNK_BYTES, COLUMNS, ROW_BYTES, TOKENS
from ptxgen.weights.e4m3 import BLOCK
from ptxgen.weights.f16 import Half

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

P = TypeVar("P", bound="PackedProduct")
IN_BYTES = 1.2  # cycles of tensor cores for one that 8-bit numbers would take: their power lowers the clock
ALONE = 1.6  # the same where a warpgroup's sums go to the totals and no other multiplies meanwhile
SHARED = 128  # bytes of shared memory in a cycle
CONVERTING = 200  # cycles for 128 rows by 64 columns of weights that are not of 16 bits
LATENCY = 2500  # cycles from asking for a stage to having it
TURN = 420  # cycles of a stage at least, from its bytes' arrival to its release
MEMORY, MEMORY_BEGINS = 2050, 8300  # bytes of the GPU's memory in a cycle; cycles before the first and after the last
BESIDE = 0.05  # of what is shorter, the multiprocessors' work or the read, that is not hidden behind the other
EDGES, RESULTS = 2400, 8800  # cycles of a tile beside its products: of any, and of 128 rows by 256 tokens
ADDING, SUMS = {1: 0, 2: 450, 3: 2500, 4: 4500, 8: 5500}, 7500  # the same where so many CTAs add up their sums
MEETING, SHARING = 6000, 0.985  # cycles of a launch whose CTAs share tokens, and what remains of a stage's
BESIDE_PLAIN = 0.2  # of what is shorter, products or the read, that is not hidden behind the other
CARRIED_ROWS, CARRIED_COUNTS = 128, (160, 192, 256)  # of tiles whose results are carried: rows, and tokens
# rows of x from which the last tiles of rows are those of one warpgroup where that saves so much of the cycles
ENDED_FROM, WORTH = 385, 0.98
ENDED_OF_ONE = 257  # and of one matrix in 16 bits, whose tiles may be of any size
UNBEATEN = (192,)  # tokens of tiles that these were not faster than
ENDED_CONVERTED = ("q4_k", "int4_g128", "q8_0")  # and of which weights that are converted, gate and up
LONE_CONVERTING = 1.1  # and how much longer they take where `LONE_PAIR` holds
READ_ONCE = (128, 192)  # rows of a CTA with more than 64 tokens whose weights leave the L2 first
SPLITS = (1, 2, 4, 8)
SPLITS_OF_ONE = (1, 2, 3, 4, 8)
ROWS_OF_THREE = 64  # of a CTA where three share k: with two warpgroups clusters of three are slower than counted
# how many more cycles a tile may take, to be taken rather than one that shares k by memory, or in the last turn
RATHER_OTHERS, RATHER_WHOLE = 1.01, 1.02
SMALLEST_SHARED = 96 * 128  # sums of a tile from which k of the last turn is shared: smaller ones took 8 to 12 % longer
LEAST_OF_K = 4  # blocks of columns of each CTA that shares k by memory
FEWEST_BY_MEMORY = 92  # CTAs of a launch that share k by memory: fewer leave multiprocessors idle
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

# Tiles of 16-bit weights as they lie, of results of 16 bits, that were measured to be faster than the fewest cycles':
# outputs, columns, tokens from and to; tokens, rows, split, share and slices of a CTA. Where power or the L2 is the
# limit; of programmatic launches, or of plain ones, where the begin and the end count.
MEASURED_PROGRAMMATIC = (
    *((2048, 2048, least, most, most, 128, 4, 1, 1) for least, most in ((1, 8), (9, 16), (17, 32))),
    (2048, 2048, 65, 128, 64, 64, 1, 1, 2),
)
MEASURED_PLAIN = ((2048, 8192, 33, 64, 64, 128, 4, 1, 1), (28672, 4096, 385, 512, 256, 64, 1, 1, 1))
TILE = ("tokens", "tile_rows", "split", "share", "slices")
# Tiles of few tokens that two warpgroups with the same rows (`slices`) were measured to beat, in programmatic launches:
# how numbers are multiplied, whether gate and up are; rows of x from and to, blocks of 64 rows of weights and columns
# from, CTAs that share k from and to; whether weights leave the L2 first. Of others `few_tokens.py` says so.
SLICED = (
    ("fast", True, 9, 64, 176, 0, 1, 8, True),
    ("exact", True, 9, 32, 176, 2048, 1, 8, True),
    ("scaled", False, 33, 64, 32, 0, 1, 2, False),
    ("signed", False, 33, 64, 32, 0, 2, 2, False),
)


def candidates(kernel: type[P], fields: dict[str, Any], rows: int) -> Iterator[P]:
    """Legal specs of a kernel type with these fields, whose tiles differ; for a few rows and weights that are not of 16
    bits the one that the tables have."""
    few = rows <= MOST_ROWS_FIRST
    counts = [fields["tokens"]] if "tokens" in fields else list(TOKENS)
    enough = [count for count in counts if count >= rows] or counts[-1:]
    if few and not _plain(fields):
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
    if not few and _plain(fields):
        yield from _of_one_matrix(kernel, fields, rows)
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


def _of_one_matrix(kernel: type[P], fields: dict[str, Any], rows: int) -> Iterator[P]:
    """Those of many tokens by one matrix, whose results are rows."""
    table = OF_ONE_MATRIX if _plain(fields) else weights_converted.TRIED
    given: dict[str, tuple[int, ...]] = {name: (fields[name],) for name in TILE[:4] if name in fields}
    for tokens in given.get("tokens", table):
        tile_rows, shares = table.get(tokens, OF_FEW)
        for tile in given.get("tile_rows", tile_rows):
            ctas = -(-fields["n"] // (tile or CARRIED_ROWS)) * -(-rows // tokens)  # 0: by the table
            each = {"tokens": tokens, "tile_rows": tile}
            ways = _by_memory(fields, given, ctas)
            if (tile or CARRIED_ROWS) * tokens >= SMALLEST_SHARED or fields.get("last_split"):
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
    if not _plain(fields) or wanted is False or (fields.get("share") or 1) > 1:
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
    if not (_plain(fields) and alone and left) or ctas < PROCESSORS:
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


def _plain(fields: dict[str, Any]) -> bool:
    """Whether what is measured of few tokens holds: weights of 16 bits as they are, for rows."""
    return (
        fields.get("weights", "bf16") in HALVES
        and fields.get("precision") == "fast"
        and not fields.get("gated")
        and not fields.get("packed_out")
    )


def cycles(spec: PackedProduct, rows: int) -> float:
    """What a launch for so many rows takes."""
    at, kind = Geometry.of(spec), spec.kind
    if isinstance(kind, Half) and spec.straight and spec.precision == "fast" and spec.tokens > MOST_ROWS_FIRST:
        return _read_too(spec, weights_16bit.cycles(spec, at, rows), BESIDE_PLAIN, weights_16bit.written(spec, at))
    shape = at.shape
    steps = -(-kind.tiles(spec.k) * kind.tile_k // (spec.columns * shape.split))
    size = shape.split * shape.share
    clusters = at.row_groups // shape.share * -(-rows // at.tokens)
    beside = min(shape.resident, -(-clusters * size // PROCESSORS))  # CTAs that share a multiprocessor
    large = of_large(at)
    slower = SHARING if shape.share > 1 else 1
    whole = 0.0
    for turns, groups in zip(waves.turns(at, rows), (shape.groups, 1), strict=True):
        step = slower * _stage(spec, at, 64 * groups * shape.blocks, beside)
        if spec.weights in ENDED_CONVERTED and rows >= ENDED_FROM and is_lone_pair(at):
            step *= LONE_CONVERTING
        whole += turns * (steps * step + EDGES + RESULTS * large * groups / shape.groups)
    if shape.by_memory:
        whole += BY_MEMORY + BY_MEMORY_LARGE * large
    elif shape.split > 1:
        whole += ADDING[shape.split] + SUMS * large
    if shape.share > 1:
        whole += MEETING
    return _read_too(spec, whole)


def _stage(spec: PackedProduct, at: Geometry, tile_rows: int, beside: int) -> float:
    """Of 64 columns of so many rows, `beside` of such CTAs on a multiprocessor: of all but 16-bit weights as they
    lie."""
    kind, shape = spec.kind, at.shape
    passes = {"fast": 1, "exact": 3 if isinstance(kind, Half) else 6}[spec.precision]
    tensor = passes * tile_rows * at.tokens * COLUMNS / TENSOR
    if spec.scaled:
        tensor *= IN_BYTES * (ALONE if spec.promotes and shape.groups == 1 else 1)
    elif not isinstance(kind, Half):
        tensor += CONVERTING * tile_rows / 128
    per_row = kind.tile_bytes / (kind.tile_k * 16) * spec.columns
    tokens_bytes = at.tokens * ROW_BYTES
    reads = passes * tile_rows / 64 * tokens_bytes + tile_rows * per_row
    shared = (reads + tile_rows * per_row + tokens_bytes * spec.digits) / SHARED
    wait = max(LATENCY / (at.stages - 1), TURN) / (at.chunks * CHUNK_BYTES // ROW_BYTES)
    return max(beside * tensor, beside * shared, wait)


def _read_too(spec: PackedProduct, whole: float, beside: float = BESIDE, behind: float = 0) -> float:
    """What it takes where weights come from memory meanwhile; `beside`: of what is shorter, what is not hidden;
    `behind`: cycles after the last weights."""
    memory = spec.parts * spec.kind.nbytes(spec.n, spec.k) / MEMORY + MEMORY_BEGINS + behind
    return max(whole, memory) + beside * min(whole, memory)


def _counted(spec: PackedProduct, rows: int) -> float:
    """Cycles by which candidates are compared."""
    rather = RATHER_OTHERS if spec.by_memory else RATHER_WHOLE if spec.last_split else 1
    return cycles(spec, rows) * rather


def _measured(fields: dict[str, Any], rows: int) -> dict[str, int]:
    """The fields of a tile that the table has, where none of them is given."""
    given = fields.keys() & {*TILE, "stream"}
    if given or fields.get("last_tiles") or not _plain(fields) or str(fields.get("out_dtype", f32)) == f32.name:
        return {}
    for n, k, least, most, *tile in MEASURED_PROGRAMMATIC if fields.get("programmatic") else MEASURED_PLAIN:
        if (n, k) == (fields["n"], fields["k"]) and least <= rows <= most:
            return dict(zip(TILE, tile, strict=True))
    return {}


def _once(spec: P, fields: dict[str, Any], rows: int) -> P:
    """The spec whose weights leave the L2 first, where one CTA alone reads them, in tiles that were seen to gain."""
    seen = spec.tokens <= MOST_ROWS_FIRST or (spec.tokens <= MANY_TOKENS and spec.tile_rows in READ_ONCE)
    once = seen and _plain(fields) and rows <= spec.tokens
    return replace(spec, evict_first=True) if once and "evict_first" not in fields else spec


def _carried(spec: P, fields: dict[str, Any], rows: int) -> P:
    """The spec with results that other warps store, in tiles that were seen to gain of which a CTA has several."""
    seen = _plain(fields) and spec.tokens in CARRIED_COUNTS and spec.tile_rows == CARRIED_ROWS
    if not seen or "carried" in fields or sum(waves.turns(Geometry.of(spec), rows)) < 2:
        return spec
    try:
        return replace(spec, carried=True)
    except SpecError:
        return spec


def _ended(found: list[P], fields: dict[str, Any], rows: int) -> list[P]:
    """Those whose last tiles of rows are of one warpgroup, where that was seen to gain: large tiles, of 16-bit weights
    as they lie, or of gate and up."""
    one = _plain(fields)
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


def _between(kernel: type[P], fields: dict[str, Any], rows: int, chosen: P) -> P:
    """The spec, or another of those that `weights_converted.py` tries where its cycles are so much fewer there."""
    fitted = {chosen: _fitted(chosen, rows)}
    fitted |= {
        spec: _fitted(spec, rows) for spec in _of_one_matrix(kernel, fields, rows) if weights_converted.tries(spec)
    }
    shortest = min(fitted, key=lambda spec: fitted[spec])
    return shortest if fitted[shortest] < weights_converted.WORTH * fitted[chosen] else chosen


def _fitted(spec: PackedProduct, rows: int) -> float:
    """Cycles as they are fitted for `weights_converted.py`, of a tile that it knows."""
    if not weights_converted.is_known(spec, rows):
        return cycles(spec, rows)
    at = Geometry.of(spec)
    return _read_too(spec, weights_converted.cycles(spec, at, rows, waves.turns(at, rows)), weights_converted.BESIDE)


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
    if tile := _measured(fields, rows):
        return _once(kernel(**fields | tile), fields, rows)
    found = list(candidates(kernel, fields, rows))
    if rows >= MANY_IN_BLOCKS and not fields.get("residual"):  # with which large tiles are none of them
        found = [spec for spec in found if Geometry.of(spec).pipelined] or found
    if not found:
        return kernel(**fields)  # raises with the reasons, or is legal as it is
    if few := few_tokens.fastest(found[0], fields, rows):
        return few
    found = [_carried(spec, fields, rows) for spec in found]
    chosen = min(found, key=lambda spec: (_counted(spec, rows), -spec.tokens if spec.precision == "fast" else 0))
    if (ended := _ended(found, fields, rows)) and (_plain(fields) or chosen.tokens not in UNBEATEN):
        shortest = min(ended, key=lambda spec: cycles(spec, rows))
        # a last turn that is shared has passed for the better one before: small tiles need not be better by as much
        most = _counted(chosen, rows) if chosen.last_split else WORTH * cycles(chosen, rows)
        chosen = shortest if cycles(shortest, rows) < most else chosen
    if weights_converted.is_open(fields, rows):
        chosen = _between(kernel, fields, rows, chosen)
    return _sliced(_once(chosen, fields, rows), fields, rows)
