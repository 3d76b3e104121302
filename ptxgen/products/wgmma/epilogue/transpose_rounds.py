"""Results that change places in shared memory in rounds, between which the warps of a warpgroup meet."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.builder import Builder, Fragment
from ptxgen.builder.values import Reg
from ptxgen.products.wgmma.tiling.geometry import RESULT_BUFFERS, WARPS, Geometry


def build_rounds(
    b: Builder,
    at: Geometry,
    meeting: Reg,
    what: str,
    leave: Callable[[int], None],
    take: Callable[[int], None],
    *,
    alone: bool = False,
    left: Reg | None = None,
) -> None:
    """Fragments `leave<n>` and `take<n>` of every round, and what a template asks of them.

    `leave` and `take` append what brings `what` of some tokens, from the given one on, to shared memory and from there
    to the output. Warps meet at barrier `meeting`: with two buffers once a round, where a round has its buffer `alone`
    also before they leave the next.

    `left`: how many tokens there are from the tile's first on (s32; a tile may have room for more). Rounds that have
    none of them are left out then: a `begin<n>` of each but the first asks for that. So ptxas, which else begins all
    activations at once, has registers for those of one. Without it no round has a `begin` or a predicate.
    """
    rounds: list[tuple[Fragment | None, Reg | None, Fragment, Fragment]] = []
    has_round: Reg | None = None
    for number, first in enumerate(range(0, at.out_tokens, at.result_tokens)):
        begin: Fragment | None = None
        if left is not None and number:
            with b.fragment(f"begin{number}", "whether the tile has these tokens") as begin:
                has_round = b.op("setp.gt.s32", has_round or "has_round", left, first)
        with b.fragment(f"leave{number}", f"tokens {first} on: {what} to shared memory") as given:
            leave(first)
        with b.fragment(f"take{number}", "and from there to the output") as taken:
            take(first)
        rounds.append((begin, has_round, given, taken))
    # warpgroups that share k meet before they leave the next tile's results
    meets = at.shape.slices == 1 and not at.one_tile
    last = meets and (alone or left is not None or len(rounds) % RESULT_BUFFERS > 0)
    b.expose(result_rounds=rounds, result_meeting=(meeting, 32 * WARPS), meets_each=alone, meets_last=last)
