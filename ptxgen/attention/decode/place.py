"""Where a CTA finds its work: its unit, its rows, the positions that its sequence's length leaves to its warps."""

from __future__ import annotations

from typing import NamedTuple

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.contract import Task
from ptxgen.attention.decode.plan import Plan
from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.lines.words import counted

MOST_SEQUENCES = 65535  # of a grid's z


class Place(NamedTuple):
    """Registers of the CTA's place in the grid. `works` is None when no CTA is ever idle, `split` … `splits` when units
    are never split."""

    unit: Reg
    sequence: Reg | None
    query_index: Reg  # of the CTA's first head among all sequences' heads
    works: Reg | None
    split: Reg | None
    active: Reg | None
    splits: Reg | None
    strided: tuple[Reg, Reg] | None = None  # s32: the sequence's first row, the rows of a head


def place(b: Builder, attention: Attention, plan: Plan, *, batched: bool) -> tuple[Place, Task]:
    """Indices and base addresses: everything that does not depend on a length."""
    tid = b.op("mov.u32", "thread", b.special("tid.x"))
    lane = b.op("and.b32", "lane", tid, 31)
    warp = b.op("shr.u32", "warp", tid, 5)
    column = b.op("mov.u32", "column", b.special("ctaid.y"))
    kv_head, part = column, None
    if plan.parts > 1:
        kv_head = b.op("div.u32", "kv_head", column, plan.parts)
        part = b.op("rem.u32", "part", column, plan.parts)
    sequence = _sequence(b, plan) if batched else None
    unit = column
    if sequence is not None:
        unit = b.op("mad.lo.u32", "unit", sequence, attention.problem.n_kv_heads * plan.parts, column)
    first_head = b.op("mul.lo.u32", "group_first_head", kv_head, attention.problem.group)
    heads_left = None
    if part is not None:
        first_head = b.op("mad.lo.u32", "first_head", part, plan.shape.heads, first_head)
        if attention.problem.group % plan.shape.heads:
            heads_left = b.op("mad.lo.s32", "heads_left", part, -plan.shape.heads, attention.problem.group)
    query_index = first_head
    if sequence is not None:
        query_index = b.op("mad.lo.u32", "query_index", sequence, attention.problem.n_heads, first_head)
    q_row = b.ld_param("q")
    b.op("mad.wide.u32", q_row, query_index, attention.problem.query_bytes, q_row)
    strided = None
    if attention.cache.strided:
        assert sequence is not None
        strided = _first_row(b, sequence), b.ld_param("kv_rows")
    rows = _rows(b, attention, kv_head, sequence, strided)
    per_head = {}
    for value in attention.variant.per_head:
        at = per_head[value] = b.ld_param(value.param)
        b.op("mad.wide.u32", at, kv_head if value.of_kv_head else first_head, 4, at)
    split, works, active, splits, cta = _splits(b, plan)
    tile = b.reg("tile", "s32")
    if cta is None:
        b.op("mov.b32", tile, warp)
    else:
        b.op("mad.lo.s32", tile, cta, plan.shape.warps, warp)
    task = Task(
        tid, lane, warp, kv_head, first_head, heads_left, q_row, rows.k, rows.v, rows.k_scales, rows.v_scales,
        rows.pages, per_head,
        b.reg("length", "s32"), b.reg("start", "s32") if attention.variant.window else None,
        tile, b.reg("tile_end", "s32"), b.reg("tile_step", "s32"),
    )  # fmt: skip
    return Place(unit, sequence, query_index, works, split, active, splits, strided), task


def _sequence(b: Builder, plan: Plan) -> Reg:
    """The CTA's sequence."""
    sequence: Reg = b.op("mov.u32", "sequence", b.special("ctaid.z"))
    if plan.last_first:
        b.note("the last sequence first: of rows that were just written, the L2 may still hold the last")
        last = b.op("mov.u32", "last_sequence", b.special("nctaid.z"))
        b.op("sub.u32", last, last, 1)
        b.op("sub.u32", sequence, last, sequence)
        b.op("min.u32", sequence, sequence, MOST_SEQUENCES - 1)  # a bound for everything that is computed from it
    return sequence


def _splits(b: Builder, plan: Plan) -> tuple[Reg | None, Reg | None, Reg | None, Reg | None, Reg | None]:
    """(split, works, active, splits, index of the CTA in its unit), as far as the plan has them."""
    if plan.cluster == 1 and plan.most_splits == 1:
        return None, None, None, None, None
    cta = b.op("mov.u32", "cta", b.special("ctaid.x"))
    if not isinstance(plan.splits, int):  # a bound for everything that is computed from it
        cta = b.op("min.u32", "bounded_cta", cta, plan.cluster * plan.most_splits - 1)
    if plan.most_splits == 1:
        return None, None, None, None, cta
    split = cta
    if plan.cluster > 1:
        split = b.op("shr.u32", "split", cta, plan.cluster.bit_length() - 1)
    splits = b.reg("splits", "u32")
    if isinstance(plan.splits, int):
        b.op("mov.u32", splits, plan.splits)
    else:
        ctas = b.op("mov.u32", "ctas", b.special("nctaid.x"))
        b.op("shr.u32", ctas, ctas, plan.cluster.bit_length() - 1)
        b.op("min.u32", splits, ctas, plan.most_splits)
    return split, b.reg("works", "pred"), b.reg("active", "u32"), splits, cta


class CacheRows(NamedTuple):
    """Addresses of a KV head's first rows, of their scales, and of the sequence's row of the page table."""

    k: Reg
    v: Reg
    k_scales: Reg | None
    v_scales: Reg | None
    pages: Reg | None = None


def _rows(
    b: Builder, attention: Attention, kv_head: Reg, sequence: Reg | None, strided: tuple[Reg, Reg] | None
) -> CacheRows:
    """The rows where the work begins; 64 bits from the row on."""
    pages = None
    row = b.reg("first_row", "u64")
    if strided is not None:
        begin, pitch = strided
        index = b.op("mad.lo.u32", "cache_index", sequence, attention.problem.n_kv_heads, kv_head)
        b.op("cvt.u64.u32", row, begin)
        b.op("mad.wide.u32", row, index, pitch, row)
    elif attention.cache.page_size:
        assert sequence is not None
        pages = b.ld_param("page_table")
        b.op("mad.wide.u32", pages, sequence, 4 * attention.cache.pages, pages)
        if attention.cache.heads_inside:
            b.op("cvt.u64.u32", row, kv_head)
        else:
            b.op("mul.wide.u32", row, kv_head, attention.cache.page_size)
    elif attention.cache.batched:
        assert sequence is not None
        index = b.op("mad.lo.u32", "cache_index", sequence, attention.problem.n_kv_heads, kv_head)
        b.op("mul.wide.u32", row, index, attention.cache.rows)
    else:
        b.op("mul.wide.u32", row, kv_head, attention.cache.rows)

    def first(name: str, nbytes: int) -> Reg:
        base = b.ld_param(name)
        b.op("mad.lo.u64", base, row, nbytes, base)
        return base

    sides = attention.cache.buffers.items()  # where V is in K, K's are V's
    k, *v = (first(f"{x}_cache", side.row_bytes) for x, side in sides)
    if not attention.cache.quantised:
        return CacheRows(k, v[0] if v else k, None, None, pages)
    k_scales, *v_scales = (first(f"{x}_scales", side.row_scale_bytes) for x, side in sides)
    return CacheRows(k, v[0] if v else k, k_scales, v_scales[0] if v_scales else k_scales, pages)


def _first_row(b: Builder, sequence: Reg) -> Reg:
    """The row that the sequence's position 0 lies in; below 0 counts as 0."""
    at = b.ld_param("starts")
    b.op("mad.wide.u32", at, sequence, 4, at)
    first: Reg = b.op("ld.global.s32", "sequence_first", at[0])
    b.op("max.s32", first, first, 0)
    return first


def load_length(b: Builder, task: Task, where: Place, *, name: str, kind: str) -> None:
    """Start reading the length. `name` is the parameter: `kind` "scalar", "buffer" (one value) or "batch" (a value a
    sequence)."""
    source = b.ld_param(name)
    if kind == "batch":
        assert where.sequence is not None
        b.op("mad.wide.u32", source, where.sequence, 4, source)
    if kind == "scalar":
        b.op("mov.b32", task.length, source)
    else:
        b.op("ld.global.s32", task.length, source[0])


def lengths(b: Builder, attention: Attention, plan: Plan, task: Task, where: Place) -> None:
    """Visible positions, the warp's tiles and which splits work, from the length, or the row that a strided cache's
    sequence ends at. Lengths below 0 count as 0, lengths above max_len as max_len."""
    if where.strided is not None:
        first, rows = where.strided
        b.op("min.s32", task.length, task.length, rows)
        b.op("sub.s32", task.length, task.length, first)
    b.op("max.s32", task.length, task.length, 0)
    b.op("min.s32", task.length, task.length, attention.cache.max_len)
    tile = plan.shape.tile
    shift = tile.bit_length() - 1
    b.op("add.s32", task.tile_end, task.length, tile - 1)
    b.op("shr.s32", task.tile_end, task.tile_end, shift)
    span = task.tile_end
    if task.start is not None:
        b.note(f"window={attention.variant.window}: earlier positions are not visible")
        b.op("sub.s32", task.start, task.length, attention.variant.window)
        b.op("max.s32", task.start, task.start, 0)
        first = b.op("shr.s32", "tile_first", task.start, shift)
        b.op("add.s32", task.tile, task.tile, first)
        span = b.op("sub.s32", "tile_span", task.tile_end, first)
    step = plan.cluster * plan.shape.warps
    if where.active is None:
        b.op("mov.b32", task.tile_step, step)
        return
    assert where.works is not None
    assert where.split is not None
    assert where.splits is not None
    if plan.split_tiles and not plan.grid:
        b.note(f"splits that work now: {counted(plan.split_tiles, 'tile')} for each, whatever the batch")
        busy = _ceil_div(b, "splits_busy", span, plan.split_tiles)
    else:
        b.note(f"splits that work now: a tile for each of {counted(step, 'warp')} before another split does")
        busy = _ceil_div(b, "splits_busy", span, step)
    if plan.split_tiles and plan.grid:
        busy = _for_long_sequences(b, attention, plan, busy, span)
    b.op("max.u32", busy, busy, 1)
    b.op("min.u32", where.active, busy, where.splits)
    b.op("mul.lo.s32", task.tile_step, where.active, step)
    b.op("setp.lt.u32", where.works, where.split, where.active)


def _for_long_sequences(b: Builder, attention: Attention, plan: Plan, busy: Reg, span: Reg) -> Reg:
    """At most the sequence's equal share of the chip, unless its splits would be longer than `split_tiles` then."""
    b.note(f"an equal share of the chip; more where a split would get over {counted(plan.split_tiles, 'tile')}")
    share = b.op("mov.u32", "share", b.special("nctaid.z"))
    b.op("mul.lo.u32", share, share, attention.problem.n_kv_heads * plan.parts * plan.cluster)
    units = b.op("mov.u32", "units", share) if plan.rounds else share
    share = _share(b, plan, share)
    b.op("max.u32", share, share, 1)
    if plan.rounds:
        long = _ceil_div(b, "splits_long", span, plan.split_tiles)
        b.op("max.u32", share, share, long)
        b.note(f"and so many more that their CTAs fill whole rounds of {plan.room}")
        rounds = b.op("mad.lo.u32", "rounds", share, units, plan.room - 1)
        b.op("div.u32", rounds, rounds, plan.room)
        b.op("mul.lo.u32", rounds, rounds, plan.room)
        b.op("div.u32", rounds, rounds, units)
        b.op("max.u32", share, share, rounds)
        b.op("min.u32", busy, busy, share)
        return busy
    b.op("min.u32", busy, busy, share)
    long = _ceil_div(b, "splits_long", span, plan.split_tiles)
    b.op("max.u32", busy, busy, long)
    return busy


def _share(b: Builder, plan: Plan, units: Reg) -> Reg:
    """A unit's share of the chip, as the plan's `_share` has it before its bounds; `units` is written over."""
    if not plan.room:
        b.op("div.u32", units, plan.grid, units)
        return units
    share: Reg = b.op("div.u32", "share_of_grid", plan.grid, units)
    full = b.op("div.u32", "share_of_room", plan.room, units)
    b.op("min.u32", full, full, 2)
    b.op("max.u32", share, share, full)
    more = b.op("setp.gt.u32", "no_room", units, plan.room)
    b.op("div.u32", full, plan.most_ctas, units)
    b.op("max.u32", share, share, full, pred=more)
    return share


def _ceil_div(b: Builder, name: str, value: Reg, by: int) -> Reg:
    made: Reg = b.op("add.s32", name, value, by - 1)
    b.op("div.u32", made, made, by)
    return made
