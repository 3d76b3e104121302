"""Which template parts a decode kernel is composed of: decided by its plan, named here and nowhere else."""

from __future__ import annotations

from typing import NamedTuple

from ptxgen.attention.decode.contract import LoopParts
from ptxgen.attention.decode.plan import Plan
from ptxgen.builder import Builder


class Parts(NamedTuple):
    """Files of `templates/attention/decode/`; a tuple holds those that stand in a place, if any.

    `start`: what comes before the main loop, in which `idle` lets splits without work go and `arrive` is the cluster's
    barrier. `draw` and `tell` stand around the main loop, behind which a launch may let the next one begin; `meet`
    behind its first loads. `merge` leaves an element's `output`, and `records` merges those of other splits, which
    `read` reads.
    """

    start: str
    idle: tuple[str, ...]
    arrive: tuple[str, ...]
    draw: tuple[str, ...]
    tell: tuple[str, ...]
    meet: tuple[str, ...]
    merge: str
    output: str
    records: tuple[str, ...]
    read: str


def parts_of(plan: Plan, *, programmatic: bool, meets_early: bool, drains: bool) -> Parts:
    """The parts of a plan; `meets_early`: the cluster meets before the length; `drains`: a tile was brought before."""
    clustered, mergers = plan.cluster > 1, {0: "late", 1: "early"}.get(plan.mergers, "shared")
    drawn = plan.mergers > 0
    return Parts(
        start=_part("start/programmatic" if programmatic else "start/meeting" if meets_early else "start/early"),
        idle=_some(plan.split, "idle/drain" if drains else "idle/leave"),
        arrive=_some(clustered, "cluster/arrive"),
        draw=_some(drawn, f"ticket/draw_{mergers}"),
        tell=_some(plan.late, "start/release") + _some(drawn, f"ticket/tell_{mergers}"),
        meet=_some(clustered and not meets_early, "cluster/meet") + _some(plan.mergers > 1, "ticket/ask"),
        merge=_part("merge/cluster" if clustered else "merge/warps"),
        output=_part("output/record" if plan.split else "output/finish"),
        records=_some(plan.split, f"records/{mergers}"),
        read=_part("records/read" if drawn else "records/read_unread"),
    )


def place_loop(b: Builder, loop: LoopParts, meet: tuple[str, ...] = ()) -> None:
    """Give the skeleton a main loop, whose first loads come early or with the rest."""
    first = (_part(loop.first),)
    b.expose(
        main_loop=_part(loop.main),
        query_part=_part(loop.query),
        early_parts=first if loop.early else (),
        late_parts=() if loop.early else first,
        meet_parts=meet,
    )


def _part(name: str) -> str:
    return f"attention/decode/{name}.ptx.j2"


def _some(there: bool, name: str) -> tuple[str, ...]:
    return (_part(name),) if there else ()
