"""Programmatic dependent launch: a kernel that starts while the one before it still runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.reduce import WARP

if TYPE_CHECKING:
    from ptxgen.targets import Target


def programmatic_rules(programmatic: bool, target: Target) -> Iterator[str]:
    """griddepcontrol needs sm_90."""
    if programmatic and not target.includes_any(("sm_90",)):
        yield f"programmatic: needs sm_90 or later (got {target}; nearest: False)"


def depend(b: Builder, releases: bool = True) -> None:
    """Let the next kernel start, if this one `releases` it, and wait until the one before has ended and its writes are
    visible."""
    if releases:
        b.op("griddepcontrol.launch_dependents")
    b.op("griddepcontrol.wait")


LOOKED_AT = 64  # sequences


def are_short(b: Builder, positions: Reg, rows: Reg, limit: int, lane: Reg) -> Reg:
    """Whether none of the first sequences is at position `limit` or beyond. All lanes of a warp, behind the wait;
    `positions`: the address of s32 `[rows]`."""
    at = b.op("mad.wide.u32", "positions_of_lane", lane, 4, positions)
    index, has, short = b.reg("sequence_of_lane", "s32"), b.reg("has_sequence", "pred"), b.reg("are_short", "pred")
    b.op("setp.eq.u32", short, 0, 0)
    for begin in range(0, LOOKED_AT, WARP):
        position = b.op("mov.s32", f"position_{begin}", -1)
        b.op("add.u32", index, lane, begin)
        b.op("setp.lt.s32", has, index, rows)
        b.op("ld.global.s32", position, at[4 * begin], pred=has)
        b.op("setp.lt.and.s32", short, position, limit, short)
    b.op("vote.sync.all.pred", short, short, -1)
    return short


def release_if_short(b: Builder, positions: Reg, rows: Reg, limit: int, lane: Reg) -> None:
    """Let the next kernel start if `are_short`."""
    b.op("griddepcontrol.launch_dependents", pred=are_short(b, positions, rows, limit, lane))


def may_release(
    b: Builder, programmatic: bool, releases: bool | Callable[[Reg, Reg], None], lane: Reg, rows: Reg
) -> None:
    """Fragment `may_release`, in which a function lets the next kernel start or not, told of lanes and rows."""
    if isinstance(releases, bool) or not programmatic:
        b.without("may_release")
        return
    with b.fragment("may_release", "the next kernel may start, if it finds little to do"):
        releases(lane, rows)


def wait_for_producer(b: Builder, programmatic: bool, releases: bool = True) -> None:
    """Fragment `depends`, which waits in a kernel that is `programmatic` and is absent from others."""
    if programmatic:
        with b.fragment("depends"):
            depend(b, releases)
    else:
        b.without("depends")


def release_and_wait(b: Builder, programmatic: bool, releases: bool = True) -> None:
    """The same in two fragments: `release`, where the kernel `releases`, lets the next one start, `depends` waits for
    the one before."""
    if not programmatic:
        b.without("release", "depends")
        return
    if releases:
        with b.fragment("release", "the next kernel may start"):
            b.op("griddepcontrol.launch_dependents")
    else:
        b.without("release")
    with b.fragment("depends"):
        b.op("griddepcontrol.wait")
