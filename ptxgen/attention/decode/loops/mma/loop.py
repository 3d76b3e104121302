"""The tensor-core main loop: 16-byte loads straight into mma fragments, or out of stages in shared memory that bulk
copies fill (`stages.py`); no barrier between warps.

For sm_80 and later, and caches of f16, bf16, e4m3 and int8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.contract import LoopParts, LoopShape, Partials, Task
from ptxgen.attention.decode.loops.mma.layout import TILE, UNIT_REGISTERS, Ring, ring_of, tile_ring
from ptxgen.attention.decode.loops.mma.load import FRESH_LOAD, PREFETCH, Loader
from ptxgen.attention.decode.loops.mma.query import Query
from ptxgen.attention.decode.loops.mma.registers import budget_for_loads, layout_of, left_for_loads, stages_query
from ptxgen.attention.decode.loops.mma.stages import ALIGN, MBARRIER_BYTES, Stages, stage_bytes, stages_for
from ptxgen.attention.decode.loops.mma.step import Step
from ptxgen.attention.decode.loops.mma.store import Store, spread_of
from ptxgen.builder import Builder, Fragment
from ptxgen.builder.values import Reg, Shared
from ptxgen.idioms import convert
from ptxgen.lines.words import counted
from ptxgen.targets import Target

_LEAST_IN_FLIGHT, _MOST_IN_FLIGHT = 64, 128  # registers
_LEAST_OF_STAGE = 2 * UNIT_REGISTERS  # where what is in flight is in shared memory
_LEAST_STAGES = 2  # with one, more heads a warp are not worth their room
_PARTIALS_LIMIT = 160 * 1024  # bytes; a CTA with more takes fewer warps
_WARPS_OF_255 = 8  # so many have all of a thread's registers
_DTYPES = ("f16", "bf16", "e4m3", "s8")
_TILE_REGISTERS = 64  # for the part of a tile that is read from a stage at a time


class Ahead(NamedTuple):
    """A tile loaded ahead of the loop: the step to it, and its loads."""

    name: str
    move: Fragment
    loads: Fragment


class Held(NamedTuple):
    """A tile that may hold the newest position, which is loaded behind the wait: whether it does, and its loads."""

    name: str
    find: Fragment
    holds: Reg
    loads: Fragment


class Group(NamedTuple):
    """Units of V that are loaded before the first is used: the fragment that clears hidden rows, and the product."""

    name: str
    clear: Fragment
    values: Fragment


class Turn(NamedTuple):
    """The fragments of one tile of the loop, and the suffix of its labels; of the only tile, without what follows on
    another: `raise_maximum` and `advance`."""

    suffix: str
    scores: Fragment
    mask: Fragment
    maximum: Fragment
    raise_maximum: Fragment | None
    weights: Fragment
    groups: tuple[Group, ...]
    advance: Fragment | None


def head_tiles(attention: Attention) -> int:
    """8-head tiles that one warp carries: as many of the group's as leave registers for the loads in flight."""
    return _most_tiles(attention, lambda heads: left_for_loads(attention, heads, 8) >= _LEAST_IN_FLIGHT)


def staged_head_tiles(attention: Attention, target: Target) -> int:
    """The same where tiles lie in stages: as many as leave registers for the part of a tile that is in use."""
    return _most_tiles(attention, lambda heads: budget_for_loads(attention, heads, 8, target) >= _LEAST_OF_STAGE)


def _most_tiles(attention: Attention, fits: Callable[[int], bool]) -> int:
    """The most tiles of eight query heads whose registers fit; at least one."""
    tiles = -(-attention.problem.group // 8)
    while tiles > 1 and not fits(8 * tiles):
        tiles -= 1
    return tiles


def shape(attention: Attention, target: Target, warps: int = 8, stages: int = 0) -> LoopShape | str:
    """How this loop runs an attention; why not when target or cache type are not for it, or registers run short."""
    dtype = attention.problem.kv_dtype.name
    if dtype not in _DTYPES or not target.includes_any(("sm_80",)):
        return f"kv_dtype: tensor cores take {', '.join(_DTYPES)} from sm_80 on (got {dtype} on {target})"
    if not stages_for(attention, target):
        stages = 0
    found = _shape(attention, target, head_tiles(attention), warps, stages)
    if stages:
        wide = _shape(attention, target, staged_head_tiles(attention, target), warps, stages)
        if wide and wide.stages >= min(stages, _LEAST_STAGES) and (found is None or wide.warps >= found.warps):
            return wide
    if found is None:
        problem = attention.problem
        return (
            f"n_heads: tensor cores have too few registers for so many query heads a KV head and rows so wide (got "
            f"{problem.group} heads, qk_dim={problem.qk_dim}, v_dim={problem.v_dim}, kv_dtype={dtype})"
        )
    return found


def _shape(attention: Attention, target: Target, tiles: int, warps: int, stages: int) -> LoopShape | None:
    """The same with at most so many head tiles a warp, and as many stages as there is room for."""
    parts = -(-attention.problem.group // (8 * tiles))
    heads = -(-attention.problem.group // parts)
    while budget_for_loads(attention, heads, warps, target) < _needed(attention, warps):
        if warps <= _WARPS_OF_255 or (attention.problem.kv_dtype.bytes == 2 and attention.problem.group == 1):
            return None  # one head gains nothing by tensor cores: by the other loop, but for bytes, which cost it more
        warps = _fewer(warps)
    kv_tiles = -(-attention.cache.max_len // TILE)
    while warps > 1 and warps > kv_tiles:
        warps = _fewer(warps)
    limit = min(_PARTIALS_LIMIT, target.shared_limit * 3 // 4)  # the merges want some, too
    staged = Query.staged_bytes(attention, heads) if stages_query(attention, heads) else 0
    while warps > 1 and Partials(warps, heads, attention.problem.v_dim).bytes + staged > limit:
        warps = _fewer(warps)
    spread = spread_of(heads, attention.problem.v_dim)
    start, size = _stages_start(staged), stage_bytes(attention)
    merges = 4 * heads * attention.problem.v_dim + 128 * heads + 1024  # a cluster's inboxes, and their mbarrier
    room = target.shared_limit - merges - Partials(warps, heads, attention.problem.v_dim).bytes - start
    stages = max(0, min(stages, room // (warps * (size + MBARRIER_BYTES)), -(-kv_tiles // warps)))
    shared = start + warps * stages * size if stages else staged
    return LoopShape(warps, heads, TILE, shared, stages=stages, spread=spread)


def _stages_start(staged: int) -> int:
    """Where the stages begin, behind a staged query."""
    return -(-staged // ALIGN) * ALIGN


def _fewer(warps: int) -> int:
    """The next smaller power of two."""
    return 1 << ((warps - 1).bit_length() - 1)


def _needed(attention: Attention, warps: int) -> int:
    """Registers for loads without which the loop is not worth its while: of more warps, each has a whole tile."""
    whole = sum(unit.registers for unit in layout_of(attention).units)
    return 2 * UNIT_REGISTERS if warps <= _WARPS_OF_255 or attention.problem.kv_dtype.bytes == 2 else whole


def build(
    b: Builder, attention: Attention, shape: LoopShape, task: Task, partials: Partials, arena: Shared
) -> LoopParts:
    """Build the fragments of the loop on loads to registers, or on stages."""
    if shape.stages:
        return _build_staged(b, attention, shape, task, partials, arena)
    tiles = -(-attention.cache.max_len // TILE)
    budget = min(budget_for_loads(attention, shape.heads, shape.warps, b.target), _MOST_IN_FLIGHT)
    ring = ring_of(layout_of(attention), budget, min(shape.in_flight, -(-tiles // shape.warps)))
    loader = Loader(b, attention, task, ring, aside=shape.aside)
    staged = stages_query(attention, shape.heads)
    query = Query(b, attention, shape, task, loader, shared=staged)
    once = shape.once and ring.ahead > 0
    step = Step(b, attention, task, ring, loader, query, once=once)
    _first_loads(b, task, ring, loader, once=once)
    query_part = _query(b, query, arena, early=task.early)
    _start(b, shape, task, step)
    b.expose(turns=[_turn(b, task, ring, step, turn) for turn in range(ring.unroll)])
    if once:
        with b.fragment("run_nothing", "the softmax over no key"):
            step.nothing()
    with b.fragment("acc_store"):
        Store(step, partials).emit(arena)
    return LoopParts("mma/once" if once else "mma/loop", "mma/early", query_part, task.early)


def _build_staged(
    b: Builder, attention: Attention, shape: LoopShape, task: Task, partials: Partials, arena: Shared
) -> LoopParts:
    """The same with tiles that come through shared memory."""
    ring = tile_ring(layout_of(attention), min(left_for_loads(attention, shape.heads, shape.warps), _TILE_REGISTERS))
    in_shared = stages_query(attention, shape.heads)
    start = _stages_start(Query.staged_bytes(attention, shape.heads) if in_shared else 0)
    stages = Stages(b, attention, shape, task, ring, arena, start)
    query = Query(b, attention, shape, task, stages, shared=in_shared)
    step = Step(b, attention, task, ring, stages, query)
    blind = task.early and not task.late_newest
    with b.fragment("kv_prepare"):
        stages.prepare()
        stages.point()
        if task.late_newest:
            stages.strides()
            stages.bring_older()
        else:
            tiles = -(-attention.cache.max_len // TILE)
            stages.exists(tiles if blind else task.tile_end)
            stages.bring(stages.first_stage, stages.first_mbarrier)
        if blind:
            b.op("mov.pred", "tile_brought", stages.live)
    with b.fragment("kv_rest"):
        if task.late_newest:
            stages.bring_newest()
        else:
            stages.strides()
            stages.bring_rest()
    if blind:
        with b.fragment("stage_poll_first"):
            b.expose(first_full=stages.poll_first())
    with b.fragment("stage_begin"):
        stages.begin()
    query_part = _query(b, query, arena, early=task.early)
    _start(b, shape, task, step)
    with b.fragment("stage_poll"):
        stages.poll()
    with b.fragment("stage_read"):
        stages.read_first()
    with b.fragment("stage_next"):
        stages.release()
        stages.turn()
    b.expose(turns=[_turn(b, task, ring, step, 0)])
    with b.fragment("acc_store"):
        Store(step, partials).emit(arena)
    main = "mma/staged" if blind else "mma/staged_known"
    return LoopParts(main, "mma/staged_early", query_part, task.early, drains=blind)


def _first_loads(b: Builder, task: Task, ring: Ring, loader: Loader, *, once: bool) -> None:
    """The first tile (early, if the task wants that), then the rest of what is in flight."""
    units = len(ring.units)
    with b.fragment("kv_locate"):
        loader.lanes()
        loader.first_tile()
    with b.fragment("kv_first_tile", "load the first tile"):
        for position in range(min(ring.depth, units)):
            loader.issue(position, sure=True)
    deep = task.late_newest and not once and ring.unroll > 1 and not loader.tiles.from_lanes
    if task.late_newest:
        with b.fragment("kv_newest"):
            is_newest = loader.newest_row()
        for name, load in (("kv_prefetch_newest", PREFETCH), ("kv_load_newest", FRESH_LOAD)):
            with b.fragment(name):
                for position in range(min(ring.depth, units)):
                    loader.issue(position, load)
        if deep:
            _older_loads(b, ring, loader, is_newest)
        with b.fragment("kv_all_rows"):
            loader.all_rows()
        if deep:
            _held_loads(b, ring, loader)
            return
    else:
        b.without("kv_newest")
    b.without("kv_older", "kv_held")
    if once:
        return
    with b.fragment("kv_strides"):
        loader.tiles.find_steps()
    ahead = []
    for tile in range(1, ring.unroll):
        with b.fragment(f"kv_next_{tile}") as move:
            loader.next_tile()
        with b.fragment(f"kv_ahead_{tile}", "load a tile ahead of its turn") as loads:
            for position in range(tile * units, (tile + 1) * units):
                loader.issue(position, sure=True)
        ahead.append(Ahead(f"ahead_{tile}", move, loads))
    b.expose(kv_ahead=tuple(ahead))


def _older_loads(b: Builder, ring: Ring, loader: Loader, is_newest: Reg) -> None:
    """The tiles in flight behind the first, before the wait for the kernel ahead: up to that of the newest position."""
    units = len(ring.units)
    with b.fragment("kv_strides"):
        loader.tiles.find_steps()
        loader.find_newest_tile()
        b.op("not.pred", "tile_before_newest", is_newest)
    older = []
    for tile in range(1, ring.unroll):
        with b.fragment(f"kv_older_{tile}") as move:
            loader.older_tile(tile)
        with b.fragment(f"kv_ahead_{tile}", "load a tile ahead of its turn") as loads:
            for position in range(tile * units, (tile + 1) * units):
                loader.issue(position, sure=True)
        older.append(Ahead(f"ahead_{tile}", move, loads))
    b.expose(kv_older=tuple(older), kv_ahead=())


def _held_loads(b: Builder, ring: Ring, loader: Loader) -> None:
    """Behind the wait: the tile of the newest position, if it is one of those."""
    units, held = len(ring.units), []
    for tile in range(1, ring.unroll):
        with b.fragment(f"kv_find_held_{tile}") as find:
            holds = loader.is_held(tile)
        with b.fragment(f"kv_held_{tile}", "load the tile of the newest position") as loads:
            for position in range(tile * units, (tile + 1) * units):
                loader.issue(position, sure=True)
        held.append(Held(f"held_{tile}", find, holds, loads))
    b.expose(kv_held=tuple(held))


def _query(b: Builder, query: Query, arena: Shared, *, early: bool) -> str:
    """The fragments of the query; the part that places them."""
    if not query.shared:
        b.without("q_locate", "q_load" if early else "early_query")
        with b.fragment("early_query" if early else "q_load", "load the query into registers, where it stays"):
            query.load()
        return "query/registers"
    b.without("early_query")
    b.expose(staged_heads=f"{counted(query.attention.problem.group, 'head')} a KV head")
    with b.fragment("q_start"):
        query.stage_start()
    with b.fragment("q_stage"):
        query.stage(arena)
    with b.fragment("q_locate"):
        query.locate_staged(arena)
    return "query/staged"


def _start(b: Builder, shape: LoopShape, task: Task, step: Step) -> None:
    with b.fragment("run_start", "nothing seen so far: maxima, sums and output"):
        step.start()
        b.op("setp.lt.s32", "tile_has_work", task.tile, task.tile_end)
        step.load_per_head(shape)


def _turn(b: Builder, task: Task, ring: Ring, step: Step, turn: int) -> Turn:
    """The fragments of one tile of the unrolled loop."""
    suffix = f"_{turn}" if ring.unroll > 1 else ""
    with b.fragment(f"tile_scores{suffix}") as scores:
        step.scores(turn)
        step.bounds.find()
        step.finish_scores()
    with b.fragment(f"tile_mask{suffix}") as mask:
        step.mask()
    with b.fragment(f"tile_maximum{suffix}", "the tile's maxima, or whether the sums must be rescaled") as maximum:
        if step.once:
            step.first_maximum()
        else:
            step.maximum()
    raise_maximum = advance = None
    if not step.once:
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
    if not step.once:
        with b.fragment(f"tile_advance{suffix}") as advance:
            b.op("add.s32", task.tile, task.tile, task.tile_step)
            b.op("setp.lt.s32", convert.scratch(b, "tile_more", "pred"), task.tile, task.tile_end)
    return Turn(suffix, scores, mask, maximum, raise_maximum, weights, tuple(groups), advance)
