"""The merges of a decode kernel put together: from the partials of a CTA's warps to the output, as fragments.

warps → (ranks of a cluster) → (splits of a unit) → output, each stage only where the plan has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.contract import Task
from ptxgen.attention.decode.merge import finish
from ptxgen.attention.decode.merge.cluster import Exchange
from ptxgen.attention.decode.merge.cta import Elements, Partial, merge_warps, partial
from ptxgen.attention.decode.merge.records import Records
from ptxgen.attention.decode.merge.ticket import EarlyTicket, LateTicket, SharedTicket
from ptxgen.attention.decode.place import Place
from ptxgen.attention.decode.plan import Plan
from ptxgen.attention.variant import V_SCALE
from ptxgen.builder import Builder, Fragment
from ptxgen.builder.values import Reg, Shared

# What writes the output: told its address and the CTA's place, it gives what writes four elements.
Outlet = Callable[[Builder, Reg, Place, Task], finish.Keep]


class Walk(NamedTuple):
    """Fragments: the thread's first element of what its CTA merges, and its next."""

    first: Fragment
    following: Fragment


def build_merges(
    b: Builder, attention: Attention, plan: Plan, where: Place, task: Task, arena: Shared, *, lse: bool, sinks: bool,
    outlet: Outlet | None = None, together: int = 1,
) -> None:  # fmt: skip
    """Build the fragments of every merge of the plan, and of the output (`out`, `lse`, `sinks` are parameters).
    `outlet`: what writes the output, where that is not rows of heads; so many lanes of it are `together`."""
    elements = Elements(b, plan.shape.heads, attention.problem.v_dim, plan.shape.threads, task.tid, together)
    merged = partial(b, "merged")
    with b.fragment("warps_start") as first:
        elements.start(task.tid, elements.count)
    with b.fragment("warps_merge"):
        elements.locate()
        merge_warps(b, elements, plan.partials, arena, merged)
    with b.fragment("warps_next") as following:
        elements.advance(elements.count)
    walk, exchange = Walk(first, following), None
    if plan.cluster > 1:
        exchange, walk = _cluster(b, plan, elements, merged)
    else:
        b.without("exchange_prepare")
    rows = _output_rows(b, attention, where, task, lse=lse, sinks=sinks, outlet=outlet)
    with b.fragment("finish", "values over their sum to out"):
        exists = None
        if task.heads_left is not None:
            exists = b.op("setp.lt.u32", "head_exists", elements.head, task.heads_left)
        if rows.sinks is not None:
            finish.apply_sink(b, elements, merged, rows.sinks, exists)
        if rows.lse is not None:
            finish.store_lse(b, elements, merged, rows.lse, exists)
        finish.store_output(b, elements, merged, attention.problem.q_dtype, rows.out, exists, rows.scale, rows.keep)
    if plan.split:
        _splits(b, plan, where, elements, merged, exchange, walk)
    else:
        b.without("records_locate")


class OutputRows(NamedTuple):
    """Addresses of the CTA's first head in everything that is per head; None where there is none."""

    out: Reg
    lse: Reg | None
    sinks: Reg | None
    scale: Reg | None  # of the KV head's values: the f32 itself
    keep: finish.Keep | None = None


def _output_rows(
    b: Builder, attention: Attention, where: Place, task: Task, *, lse: bool, sinks: bool, outlet: Outlet | None
) -> OutputRows:
    """Fragment `output_rows`."""

    def row(name: str, index: Reg, nbytes: int) -> Reg:
        at = b.ld_param(name)
        b.op("mad.wide.u32", at, index, nbytes, at)
        return at

    def scale() -> Reg:
        loaded: Reg = b.op("ld.global.f32", V_SCALE.name, row(V_SCALE.param, task.kv_head, 4)[0])
        return loaded

    with b.fragment("output_rows", "the output rows of the KV head"):
        out = b.ld_param("out") if outlet else row("out", where.query_index, attention.problem.output_bytes)
        return OutputRows(
            out,
            row("lse", where.query_index, 4) if lse else None,
            row("sinks", task.first_head, 4) if sinks else None,
            scale() if attention.variant.head_scales else None,
            outlet(b, out, where, task) if outlet else None,
        )


def _cluster(b: Builder, plan: Plan, elements: Elements, merged: Partial) -> tuple[Exchange, Walk]:
    exchange = Exchange(b, elements, plan.cluster)
    with b.fragment("exchange_prepare"):
        exchange.prepare()
    with b.fragment("push"):
        exchange.push(merged)
    with b.fragment("inbox_poll"):
        exchange.poll()
    with b.fragment("slice_start") as first:
        exchange.start()
    with b.fragment("slice_merge"):
        elements.locate()
        exchange.merge(merged)
    with b.fragment("slice_next") as following:
        elements.advance(exchange.end)
    return exchange, Walk(first, following)


def _splits(
    b: Builder,
    plan: Plan,
    where: Place,
    elements: Elements,
    merged: Partial,
    exchange: Exchange | None,
    walk: Walk,
) -> None:
    assert where.splits is not None, "a plan with splits has their registers"
    assert where.active is not None
    assert where.split is not None
    ticket = _ticket(b, plan, where.active, elements, exchange)
    late = isinstance(ticket, LateTicket)
    records = Records(b, elements, where.splits, where.active, where.split, plan.most_splits, late=late)
    with b.fragment("records_locate"):
        b.expose(divided=~records.locate(where.unit))
    with b.fragment("record_store"):
        records.store(merged)
    with b.fragment("ticket_draw"):
        ticket.draw(where.unit, exchange)
    if isinstance(ticket, EarlyTicket):
        with b.fragment("ticket_tell"):
            ticket.tell()
    with b.fragment("ticket_read"):
        ticket.read()
    if isinstance(ticket, SharedTicket):
        walk = _share(b, ticket, elements)
    b.expose(records_first=walk.first, records_next=walk.following)
    with b.fragment("records_begin"):
        elements.locate()
        records.begin(merged)
    with b.fragment("records_read"):
        records.read()
    with b.fragment("records_check"):
        records.check()
    with b.fragment("records_merge"):
        records.merge(merged)


def _ticket(
    b: Builder, plan: Plan, active: Reg, elements: Elements, exchange: Exchange | None
) -> LateTicket | EarlyTicket:
    if plan.mergers == 0:
        return LateTicket(b, active, elements.thread)
    if plan.mergers == 1:
        return EarlyTicket(b, active, elements.thread)
    if exchange is None:
        return SharedTicket(b, active, elements, plan.mergers, 0, elements.count)
    return SharedTicket(b, active, elements, plan.mergers, exchange.first, exchange.end)


def _share(b: Builder, ticket: SharedTicket, elements: Elements) -> Walk:
    """The fragments of several mergers; the walk over a part."""
    with b.fragment("ticket_leader"):
        ticket.leads()
    with b.fragment("ticket_ask"):
        ticket.ask()
    with b.fragment("parts_divide"):
        ticket.divide()
    with b.fragment("part_take"):
        ticket.take()
    with b.fragment("part_start") as first:
        ticket.start(elements)
    with b.fragment("part_next") as following:
        elements.advance(ticket.part_end)
    return Walk(first, following)
