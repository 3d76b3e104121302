"""Results that change places in shared memory in rounds, between which the warps of a warpgroup meet."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.products.wgmma.geometry import RESULT_BUFFERS, WARPS, Geometry


def build_rounds(
    b: Builder,
    at: Geometry,
    meeting: Reg,
    what: str,
    leave: Callable[[int], None],
    take: Callable[[int], None],
    *,
    alone: bool = False,
) -> None:
    """Fragments `leave<n>` and `take<n>` of every round, and what a template asks of them.

    `leave` and `take` append what brings `what` of some tokens, from the given one on, to shared memory and from there
    to the output. Warps meet at barrier `meeting`: with two buffers once a round, where a round has its buffer `alone`
    also before they leave the next.
    """
    rounds = []
    for number, first in enumerate(range(0, at.out_tokens, at.result_tokens)):
        with b.fragment(f"leave{number}", f"tokens {first} on: {what} to shared memory") as left:
            leave(first)
        with b.fragment(f"take{number}", "and from there to the output") as taken:
            take(first)
        rounds.append((left, taken))
    last = alone or len(rounds) % RESULT_BUFFERS > 0
    b.expose(result_rounds=rounds, result_meeting=(meeting, 32 * WARPS), meets_each=alone, meets_last=last)
