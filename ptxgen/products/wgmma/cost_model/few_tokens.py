"""Which tile is likely the fastest for up to 64 tokens, launched programmatically one after the other: µs as they were
measured on an H200.

Three activities overlap, and a launch takes a little longer than the longest: reading all weights from memory, reading
those of the busiest multiprocessor, which loads some 45 bytes a nanosecond, and the work of its warps. So it matters
most that there are about as many tiles as multiprocessors, or many times as many. If warps convert weights, their work
takes longest. Three warpgroups of a CTA, or two CTAs on a multiprocessor, each convert nearly as fast as one alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ptxgen.dtypes import f16
from ptxgen.errors import SpecError
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tiling.shape import PROCESSORS
from ptxgen.products.wgmma.tokens.layout import GROUP, ROW_BYTES, TOKENS
from ptxgen.weights.f16 import Half

if TYPE_CHECKING:
    from ptxgen.products.wgmma.product import PackedProduct

P = TypeVar("P", bound="PackedProduct")


class Pace(NamedTuple):
    """Time of a CTA: µs for 128 bytes of a row, without tokens and for each token. In "fast" 192 rows have the pace of
    128: reading their weights took longer in all measurements, so their own pace is not known."""

    columns: float
    token: float


class Costs(NamedTuple):
    """Costs of one kind of product. `least`, `most`: rows of x that were measured. `split`: CTAs that shared k, at
    most. `tile`, `adding`: µs to store results of 128 rows by 64 tokens, and to add the sums of CTAs that share k.
    `paces`: by rows and warpgroups that share k. `converts`: warps convert weights, which two CTAs on a multiprocessor
    do in the time of one. `power`: exponent of the power mean over activities that overlap."""

    least: int
    most: int
    split: int
    tile: float
    adding: float
    paces: dict[tuple[int, int], Pace]
    converts: bool = False
    power: float = 4


COSTS = {
    "fast": Costs(1, 64, 8, 0.6, 0.5, {
        (64, 1): Pace(0.1, 0.0008), (128, 1): Pace(0.095, 0.002), (192, 1): Pace(0.095, 0.002),
        (64, 2): Pace(0.035, 0.0014),
    }),
    "exact": Costs(9, 32, 4, 1.2, 1.4, {
        (64, 1): Pace(0.155, 0.0025), (128, 1): Pace(0.14, 0.006), (192, 1): Pace(0.12, 0.013),
        (64, 2): Pace(0.07, 0.0027),
    }),
    "scaled": Costs(9, 32, 4, 0.6, 1.0, {
        (64, 1): Pace(0.09, 0.004), (128, 1): Pace(0.17, 0.0035), (192, 1): Pace(0.107, 0.0025),
        (64, 2): Pace(0.08, 0.0016),
    }),
    "e4m3": Costs(1, 64, 8, 1.6, 0.85, {
        (64, 1): Pace(0.238, 0.0018), (128, 1): Pace(0.25, 0.0006), (192, 1): Pace(0.328, 0.001),
        (256, 1): Pace(0.479, 0.0007), (64, 2): Pace(0.11, 0.0006),
    }, converts=True, power=2.5),
    "signed": Costs(1, 32, 8, 1, 1.85, {
        (64, 1): Pace(0.147, 0.0015), (128, 1): Pace(0.177, 0.0013), (192, 1): Pace(0.245, 0.001),
        (256, 1): Pace(0.303, 0.0024), (64, 2): Pace(0.09, 0.0009),
    }, converts=True, power=2.5),
    "nibbles": Costs(1, 64, 8, 1.8, 0.66, {
        (64, 1): Pace(0.117, 0.0016), (128, 1): Pace(0.141, 0.0006), (192, 1): Pace(0.212, 0.0013),
        (256, 1): Pace(0.259, 0.0014), (64, 2): Pace(0.069, 0.0009),
    }, converts=True, power=2.5),
    "k_quants": Costs(33, 64, 8, 1.7, 0.8, {
        (64, 1): Pace(0.275, 0.0009), (128, 1): Pace(0.19, 0.0014), (192, 1): Pace(0.333, 0.0013),
        (256, 1): Pace(0.477, 0.0009), (64, 2): Pace(0.131, 0.001),
    }, converts=True, power=2.5),
}  # fmt: skip
# Thousands of bytes of weights that a CTA loads in a µs, by rows and warpgroups that share k.
RATES = {(64, 1): 47, (128, 1): 46, (192, 1): 42, (64, 2): 48}
# Formats that are converted alike. One of each line was measured: e4m3_channel, q8_0, int4_g128 and q4_k.
CONVERTED = {
    "e4m3": ("e4m3", "e4m3_channel", "e4m3_block"),
    "signed": ("q8_0",),
    "nibbles": ("int4_g32", "int4_g64", "int4_g128", "q4_0", "q4_1", "q5_0", "q5_1"),
    "k_quants": ("q4_k", "q5_k", "q6_k"),
}
TILE = frozenset({"tile_rows", "split", "share", "stream", "carried", "slices"})  # fields of a tile, but for tokens
KEPT = 16  # tokens up to which weights in e4m3 have the policy evict_first when warpgroups share k
SPLITS = (1, 2, 3, 4, 8)
FEWEST_STEPS = 2  # least tiles of k of a CTA
MEMORY = 4700.0  # thousands of bytes that the memory delivers in a µs
BEFORE = 0.5  # share of a ring that is full before a launch has its tokens
BEGIN, TURN = 1.0, 0.4  # µs of a launch, and of a further round
ADDING = {1: 0, 2: 0.6, 3: 0.3, 4: 0.4, 8: 0.4}  # further µs, by CTAs that share k
LARGE, LEAST_ROWS = 128 * 64, 64


def multiplied(spec: PackedProduct) -> str:
    """How a spec's numbers are multiplied: "fast" and "exact" weights of 16 bits as they are, "scaled" ones in e4m3
    with a scale a row, those of a line of `CONVERTED` by tokens in bf16; "" for others."""
    if isinstance(spec.kind, Half):
        return spec.precision if spec.straight else ""
    if spec.scaled:
        return "" if spec.in_blocks or spec.promoted else "scaled"
    if spec.precision != "fast" or spec.x_dtype == f16:
        return ""
    return next((how for how, names in CONVERTED.items() if spec.weights in names), "")


def is_open(fields: dict[str, Any]) -> bool:
    """Whether a launch is programmatic, as those that were measured, and nothing of its tile is given but tokens."""
    return bool(fields.get("programmatic")) and not fields.keys() & TILE and not fields.get("by_memory")


def fastest(spec: P, fields: dict[str, Any], rows: int) -> P | None:
    """The candidate that takes the shortest time, in place of a legal spec with these fields; None: of that nothing was
    measured."""
    costs = COSTS.get(multiplied(spec))
    if costs is None or spec.gated or spec.packed_out or not is_open(fields):
        return None
    if not costs.least <= rows <= costs.most:
        return None
    found = candidates(type(spec), fields, rows, costs)
    chosen = min(found, key=lambda each: microseconds(each, rows), default=None)
    if chosen is None or costs.converts or "evict_first" in fields:
        return chosen
    alone = rows <= chosen.tokens  # else other CTAs read the same weights
    return replace(chosen, evict_first=alone and (chosen.slices == 1 or not chosen.scaled or chosen.tokens <= KEPT))


def candidates(kernel: type[P], fields: dict[str, Any], rows: int, costs: Costs) -> Iterator[P]:
    """Legal specs of a kernel type with these fields, whose tiles differ; CTAs share k where there is one for each."""
    counts = [fields["tokens"]] if "tokens" in fields else [count for count in TOKENS if count >= rows][:1]
    most = PROCESSORS * (2 if costs.converts else 1)
    for count, (tile_rows, slices), split in product(counts, costs.paces, SPLITS):
        if tile_rows - LEAST_ROWS >= fields["n"]:
            continue  # rows that are not there were not measured
        if split > 1 and (slices > 1 or split > costs.split or -(-fields["n"] // tile_rows) * split > most):
            continue
        tile = {"tokens": max(count, 2 * GROUP) if slices > 1 else count, "tile_rows": tile_rows, "split": split}
        try:
            spec = kernel(**{**tile, "share": 1, "slices": slices, **fields})
        except SpecError:
            continue
        if split == 1 or spec.k >= FEWEST_STEPS * split * spec.columns:
            yield spec


def microseconds(spec: PackedProduct, rows: int) -> float:
    """What a launch for so many rows takes."""
    at, costs = Geometry.of(spec), COSTS[multiplied(spec)]
    shape, tile = at.shape, (at.rows, at.shape.slices)
    pace = costs.paces[tile]
    clusters = at.row_groups // shape.share * -(-rows // at.tokens)
    turns = -(-clusters // shape.places)
    beside = min(shape.resident, -(-clusters * shape.split // PROCESSORS))  # CTAs that share a multiprocessor
    steps = turns * spec.k / spec.columns / shape.split * (1 if costs.converts else beside)
    work = steps * (pace.columns + pace.token * at.tokens)
    brought = 0.0  # of weights that are converted: in less time than it takes to convert them
    if not costs.converts:
        brought = max(0.0, steps * at.rows * ROW_BYTES - BEFORE * at.stages * at.stage_bytes) / (1000 * RATES[tile])
    read = spec.kind.nbytes(spec.n, spec.k) / (1000 * MEMORY)
    longest: float = (work**costs.power + brought**costs.power + read**costs.power) ** (1 / costs.power)
    large = at.rows * at.tokens / LARGE
    adding = ADDING[shape.split] + (costs.adding * large if shape.split > 1 else 0)
    return longest + BEGIN + TURN * (turns - 1) + costs.tile * large + adding
