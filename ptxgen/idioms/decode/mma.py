"""The tensor-core main loop: 16-byte loads straight into mma fragments, no shared memory and no barrier between warps.

For sm_80 and later, and caches of f16, bf16, int8, and e4m3 where the hardware converts it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxgen.builder import Builder, Fragment
from ptxgen.idioms import convert
from ptxgen.idioms.decode.contract import Attention, LoopShape, Partials, Task
from ptxgen.idioms.decode.mma_layout import TILE, UNIT_REGISTERS, Ring, ring_of
from ptxgen.idioms.decode.mma_load import FRESH_LOAD, PREFETCH, Loader
from ptxgen.idioms.decode.mma_query import Query
from ptxgen.idioms.decode.mma_registers import layout_of, left_for_loads, stages_query
from ptxgen.idioms.decode.mma_step import Step
from ptxgen.idioms.decode.mma_store import store_partials
from ptxgen.targets import Target
from ptxgen.values import Shared

template = "decode_mma"

_LEAST_IN_FLIGHT, _MOST_IN_FLIGHT = 64, 128
_PARTIALS_LIMIT = 96 * 1024  # bytes; a CTA with more takes half the warps


@dataclass(frozen=True)
class Ahead:
    """A tile loaded ahead of the loop: the step to it, and its loads."""

    name: str
    move: Fragment
    loads: Fragment


@dataclass(frozen=True)
class Group:
    """Units of V that are loaded before the first is used: the fragment that clears hidden rows, and the product."""

    name: str
    clear: Fragment
    values: Fragment


@dataclass(frozen=True)
class Turn:
    """The fragments of one tile of the loop, and the suffix of its labels."""

    suffix: str
    scores: Fragment
    mask: Fragment
    maximum: Fragment
    raise_maximum: Fragment
    weights: Fragment
    groups: tuple[Group, ...]
    advance: Fragment


def head_tiles(attention: Attention) -> int:
    """8-head tiles that one warp carries: as many of the group's as leave registers for the loads in flight."""
    tiles = -(-attention.group // 8)
    while tiles > 1 and left_for_loads(attention, 8 * tiles, 8) < _LEAST_IN_FLIGHT:
        tiles -= 1
    return tiles


def shape(attention: Attention, target: Target, warps: int = 8) -> LoopShape | None:
    """How this loop runs an attention; None when the target or the cache type is not for it, or registers run short."""
    dtype = attention.kv_dtype.name
    needs = {"f16": "sm_80", "bf16": "sm_80", "s8": "sm_80", "e4m3": "sm_89"}.get(dtype)
    if needs is None or not target.includes_any((needs,)):
        return None
    parts = -(-attention.group // (8 * head_tiles(attention)))
    heads = -(-attention.group // parts)
    if left_for_loads(attention, heads, warps) < 2 * UNIT_REGISTERS:
        return None
    tiles = -(-attention.max_len // TILE)
    while warps > 1 and warps > tiles:
        warps //= 2
    limit = min(_PARTIALS_LIMIT, target.shared_limit)
    staged = Query.staged_bytes(attention, heads) if stages_query(attention, heads) else 0
    while warps > 1 and Partials(warps, heads, attention.head_dim).bytes + staged > limit:
        warps //= 2
    return LoopShape(warps, heads, TILE, staged)


def build(b: Builder, attention: Attention, shape: LoopShape, task: Task, partials: Partials, arena: Shared) -> None:
    """Build the fragments that `decode_mma.ptx.j2` places."""
    tiles = -(-attention.max_len // TILE)
    budget = min(left_for_loads(attention, shape.heads, shape.warps), _MOST_IN_FLIGHT)
    ring = ring_of(layout_of(attention), budget, min(shape.in_flight, -(-tiles // shape.warps)))
    loader = Loader(b, attention, task, ring)
    staged = stages_query(attention, shape.heads)
    query = Query(b, attention, shape, task, ring.layout, shared=staged)
    step = Step(b, attention, task, ring, loader, query)
    _first_loads(b, task, ring, loader)
    _query(b, query, arena, early=task.early)
    with b.fragment("run_start"):
        step.start()
        b.op("setp.lt.s32", "tile_has_work", task.tile, task.tile_end)
        if attention.alibi:
            step.load_slopes(shape)
    b.expose(turns=[_turn(b, attention, task, ring, step, turn) for turn in range(ring.unroll)])
    with b.fragment("acc_store"):
        store_partials(step, partials, arena)


def _first_loads(b: Builder, task: Task, ring: Ring, loader: Loader) -> None:
    """The first tile (early, if the task wants that), then the rest of what is in flight."""
    units = len(ring.units)
    with b.fragment("kv_locate"):
        loader.lanes()
        loader.first_tile()
    with b.fragment("kv_first_tile"):
        for position in range(min(ring.depth, units)):
            loader.issue(position, sure=True)
    if task.early:
        b.expose(early_part="decode_mma_early.ptx.j2")
    if task.late_newest:
        with b.fragment("kv_newest"):
            loader.newest_row()
        for name, load in (("kv_prefetch_newest", PREFETCH), ("kv_load_newest", FRESH_LOAD)):
            with b.fragment(name):
                for position in range(min(ring.depth, units)):
                    loader.issue(position, load)
        with b.fragment("kv_all_rows"):
            loader.all_rows()
    with b.fragment("kv_strides"):
        loader.strides()
    ahead = []
    for tile in range(1, ring.unroll):
        with b.fragment(f"kv_next_{tile}") as move:
            loader.next_tile()
        with b.fragment(f"kv_ahead_{tile}") as loads:
            for position in range(tile * units, (tile + 1) * units):
                loader.issue(position, sure=True)
        ahead.append(Ahead(f"ahead_{tile}", move, loads))
    b.expose(kv_ahead=tuple(ahead))


def _query(b: Builder, query: Query, arena: Shared, *, early: bool) -> None:
    if not query.shared:
        with b.fragment("early_query" if early else "q_load"):
            query.load()
        return
    with b.fragment("q_start"):
        query.stage_start()
    with b.fragment("q_stage"):
        query.stage(arena, b.exposed["q_end"])  # type: ignore[arg-type]
    with b.fragment("q_locate"):
        query.locate_staged(arena)


def _turn(b: Builder, attention: Attention, task: Task, ring: Ring, step: Step, turn: int) -> Turn:
    """The fragments of one tile of the unrolled loop."""
    suffix = f"_{turn}" if ring.unroll > 1 else ""
    with b.fragment(f"tile_scores{suffix}") as scores:
        step.scores(turn)
        step.bounds()
        step.finish_scores()
    with b.fragment(f"tile_mask{suffix}") as mask:
        step.mask()
    with b.fragment(f"tile_maximum{suffix}") as maximum:
        step.maximum()
    with b.fragment(f"tile_raise{suffix}") as raise_maximum:
        step.raise_maximum()
    with b.fragment(f"tile_weights{suffix}") as weights:
        step.weights()
    groups = []
    for index, group in enumerate(step.groups()):
        name = f"{suffix}_{index}" if len(step.groups()) > 1 else suffix
        with b.fragment(f"tile_clear{name}") as clear:
            step.clear_hidden(turn, group)
        with b.fragment(f"tile_values{name}") as values:
            step.values(turn, group)
        groups.append(Group(name, clear, values))
    with b.fragment(f"tile_advance{suffix}") as advance:
        b.op("add.s32", task.tile, task.tile, task.tile_step)
        b.op("setp.lt.s32", convert.scratch(b, "tile_more", "pred"), task.tile, task.tile_end)
    return Turn(suffix, scores, mask, maximum, raise_maximum, weights, tuple(groups), advance)
