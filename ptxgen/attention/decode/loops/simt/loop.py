"""The main loop without tensor cores: f32 arithmetic on 16-byte loads, for every cache type on every target.

It is what f32 caches get everywhere, and all caches below sm_80. A warp takes a tile of positions at a time: lanes over
positions and dims (`layout.py`), so that a score is a sum over few lanes; a group's query heads share every K and V
that is loaded. K of the next tile loads from when the scores are done, V from when the outputs are.
"""

from __future__ import annotations

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.contract import LoopParts, LoopShape, Partials, Task
from ptxgen.attention.decode.loops.simt.layout import lanes_of
from ptxgen.attention.decode.loops.simt.load import Loader
from ptxgen.attention.decode.loops.simt.query import Query
from ptxgen.attention.decode.loops.simt.step import Step
from ptxgen.builder import Builder
from ptxgen.builder.values import Shared
from ptxgen.idioms import convert
from ptxgen.lines.words import counted
from ptxgen.targets import Target

MOST_WARPS = 8  # for which `layout.py` counts registers
_PARTIALS_LIMIT = 80 * 1024  # bytes; a CTA with more takes half the warps


def shape(attention: Attention, target: Target, warps: int = 8, stages: int = 0) -> LoopShape | str:
    """How this loop runs an attention, without stages; it runs all whose rows of K and V are of one width."""
    problem = attention.problem
    if problem.qk_dim != problem.v_dim:
        return (
            "v_dim: must be qk_dim where tensor cores do not compute it "
            f"(got v_dim={problem.v_dim}, qk_dim={problem.qk_dim}; nearest: {problem.qk_dim})"
        )
    lanes = lanes_of(attention, target)
    warps, tiles = min(warps, MOST_WARPS), -(-attention.cache.max_len // lanes.tile)
    while warps > 1 and warps > tiles:
        warps //= 2
    staged = Query.staged_bytes(attention, lanes)
    limit = min(_PARTIALS_LIMIT, target.shared_limit * 3 // 4) - staged  # the merges want some, too
    while warps > 1 and Partials(warps, lanes.heads, attention.problem.v_dim).bytes > limit:
        warps //= 2
    return LoopShape(warps, lanes.heads, lanes.tile, staged)


def build(
    b: Builder, attention: Attention, shape: LoopShape, task: Task, partials: Partials, arena: Shared
) -> LoopParts:
    """Build the fragments of `attention/decode/simt/`."""
    lanes = lanes_of(attention, b.target)
    loader = Loader(b, attention, task, lanes)
    query = Query(b, attention, task, lanes, loader)
    step = Step(b, attention, task, lanes, loader, query)
    early = task.early and not task.late_newest
    b.expose(lanes=lanes)
    with b.fragment("kv_first_tile", "the lane's place in a tile, and the loads of the first tile"):
        loader.start()
        loader.first_tile()
        loader.issue(loader.k)
        loader.issue(loader.v)
    query_part = _query(b, query, shape, arena, early=early)
    with b.fragment("run_start", "nothing seen so far: maxima, sums and output"):
        loader.tiles.find_steps()
        step.start()
        step.load_per_head()
        b.op("setp.lt.s32", "tile_has_work", task.tile, task.tile_end)
    _tile(b, task, loader, step)
    if lanes.token_lanes > 1:
        with b.fragment("acc_collect_start"):
            step.collect_start()
        with b.fragment("acc_collect"):
            step.collect()
    else:
        b.without("acc_collect")
    with b.fragment("acc_store"):
        step.store(partials, arena)
    return LoopParts("simt/loop", "simt/early", query_part, early)


def _query(b: Builder, query: Query, shape: LoopShape, arena: Shared, *, early: bool) -> str:
    """The fragments of the query; the part that places them."""
    if not query.lanes.staged:
        b.without("q_locate", "q_load" if early else "early_query")
        with b.fragment("early_query" if early else "q_load", "load the lane's dims of every head"):
            query.load()
        return "query/registers"
    b.without("early_query")
    b.expose(staged_heads=counted(query.lanes.heads, "head"))
    with b.fragment("q_start"):
        query.stage_start()
    with b.fragment("q_stage"):
        query.stage(arena, shape.threads)
    with b.fragment("q_locate"):
        query.locate_staged(arena)
    return "query/staged"


def _tile(b: Builder, task: Task, loader: Loader, step: Step) -> None:
    with b.fragment("tile_scores"):
        step.dot()
        step.bounds.find()
        step.finish_scores()
    with b.fragment("tile_keys_ahead", "load K of the warp's next tile"):
        loader.next_tile()
        loader.issue(loader.k)
    with b.fragment("tile_mask"):
        step.mask()
    with b.fragment("tile_maximum", "whether a score is so large that the sums must be rescaled"):
        step.maximum()
    with b.fragment("tile_raise"):
        step.raise_maximum()
    with b.fragment("tile_weights"):
        step.weights()
    with b.fragment("tile_clear"):
        step.clear_hidden()
    with b.fragment("tile_values"):
        step.values()
    with b.fragment("tile_values_ahead", "load V of the warp's next tile"):
        loader.issue(loader.v)
        b.op("add.s32", task.tile, task.tile, task.tile_step)
        b.op("setp.lt.s32", convert.scratch(b, "tile_more", "pred"), task.tile, task.tile_end)
