"""When the next launch of a chain of programmatic ones may begin: at once, or when this one's CTAs have read their
tiles.

CTAs of the next launch take places as they become free, and wait in them. Where a launch fills the chip about once, its
own CTAs then have three places of some multiprocessors and none of others, which does not even out before its end; so
the next launch begins late. Launches of which two find room side by side, those of several rounds, and short ones are
not in each other's way.
"""

from __future__ import annotations

from ptxgen.attention.decode.contract import Task
from ptxgen.attention.decode.place import Place
from ptxgen.attention.decode.plan import Plan
from ptxgen.builder import Builder
from ptxgen.idioms.convert import scratch

SHORT_TURNS = 4  # tiles of a warp: the next launch begins no later where there are no more


def at_once(b: Builder, plan: Plan) -> None:
    """Let the next launch begin, unless lengths decide about that."""
    if not plan.late:
        b.op("griddepcontrol.launch_dependents")


def later(b: Builder, plan: Plan, task: Task, where: Place) -> None:
    """Fragments `release_early`, behind the lengths, and `release`, behind the main loop, where lengths decide.

    A CTA counts those of its sequence that work, as if all sequences were like it.
    """
    if not plan.late:
        b.without("release_early", "release")
        return
    half = plan.room // 2
    with b.fragment("release_early", f"the next launch may begin, unless {half + 1} to {plan.room} CTAs work for long"):
        ctas = b.reg("launch_ctas", "u32")
        b.op("mov.u32", ctas, where.active if where.active is not None else plan.cluster)
        if where.active is not None and plan.cluster > 1:
            b.op("mul.lo.u32", ctas, ctas, plan.cluster)
        for axis in "yz":
            extent = b.op("mov.u32", scratch(b, "launch_extent", "u32"), b.special(f"nctaid.{axis}"))
            b.op("mul.lo.u32", ctas, ctas, extent)
        b.op("sub.u32", ctas, ctas, half + 1)
        far = b.op("mad.lo.s32", "tile_far", task.tile_step, SHORT_TURNS, task.tile)
        begins = b.op("setp.ge.s32", "next_begins", far, task.tile_end)
        b.op("setp.ge.or.u32", begins, ctas, plan.room - half, begins)
        b.op("griddepcontrol.launch_dependents", pred=begins)
    with b.fragment("release", "the next launch may begin now"):
        b.op("griddepcontrol.launch_dependents")
