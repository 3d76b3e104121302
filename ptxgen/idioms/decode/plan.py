"""Which geometry an attention gets: main loop, warps, clusters, splits. Data and arithmetic on capacities, no code.

The same attention, target and batching give the same plan, whatever the lengths are at run time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ptxgen.errors import SpecError
from ptxgen.idioms.decode import loops
from ptxgen.idioms.decode.contract import Attention, LoopShape, MainLoop, Partials
from ptxgen.launch import Extent
from ptxgen.targets import Target
from ptxgen.targets import target as parse_target


@dataclass(frozen=True)
class Chip:
    """What a plan takes from an architecture: `sms` of its largest common part, CTAs of a cluster (1: no clusters)."""

    sms: int
    cluster: int = 1


# The newest row that a target includes counts.
CHIPS: dict[str, Chip] = {
    "sm_75": Chip(40),
    "sm_80": Chip(108),
    "sm_86": Chip(84),
    "sm_89": Chip(128),
    "sm_90": Chip(132, 8),
    "sm_100": Chip(148, 8),
    "sm_120": Chip(170, 8),
}


@dataclass(frozen=True)
class Plan:
    """Geometry of one attention on one target.

    A *unit* is a (sequence, KV head, part of the group); `parts` CTA columns share a KV head when the group is too large
    for one. `cluster` CTAs merge through distributed shared memory; `splits` clusters share a unit (an integer, or a
    formula of the capacity `batch`, at most `most_splits`) and merge through records in global memory. At run time a
    split works only when every warp gets `least_tiles` tiles.
    """

    loop: MainLoop
    shape: LoopShape
    parts: int
    cluster: int
    splits: Extent
    most_splits: int
    least_tiles: int
    head_dim: int

    @property
    def partials(self) -> Partials:
        """Where the main loop leaves its results."""
        start = 0 if self.shape.overlay else -(-self.shape.shared // 16) * 16
        return Partials(self.shape.warps, self.shape.heads, self.head_dim, start)

    @property
    def arena_bytes(self) -> int:
        """Shared memory of loop and partials."""
        return max(self.shape.shared, self.partials.offset + self.partials.bytes)


def chip_of(target: Target) -> Chip:
    """The row of `CHIPS` for a target."""
    found = [chip for name, chip in CHIPS.items() if target.includes(parse_target(name))]
    return found[-1]


@dataclass(frozen=True)
class Choice:
    """What of a plan is a matter of speed: warps of a CTA, CTAs of a cluster, CTAs that share a unit (all splits
    together), tiles in flight, tiles per warp before another split works. All are upper bounds."""

    warps: int
    cluster: int
    ctas: int
    in_flight: int = 2
    least_tiles: int = 2


def default_choice(attention: Attention, chip: Chip, units: int, *, batched: bool) -> Choice:
    """What to do about an attention that no table names: a CTA for every SM, clusters as large as that allows."""
    share = max(1, chip.sms // units)
    cluster = 1
    while not batched and cluster * 2 <= min(share, chip.cluster):
        cluster *= 2
    return Choice(8, cluster, share)


_forced: Choice | None = None


@contextmanager
def forced(choice: Choice) -> Iterator[None]:
    """Every plan within takes this choice (for tuning; what `generate` has cached must be forgotten)."""
    global _forced
    before, _forced = _forced, choice
    try:
        yield
    finally:
        _forced = before


def plan(attention: Attention, target: Target, *, batched: bool) -> Plan:
    """The plan of an attention. Raises `SpecError` when no main loop runs it on the target."""
    chip = chip_of(target)
    choice = _forced
    if choice is None:
        _, _, units = _columns(attention, target, 8)
        choice = default_choice(attention, chip, units, batched=batched)
    loop, shape, units = _columns(attention, target, choice.warps)
    shape = replace(shape, in_flight=choice.in_flight)
    visible = min(attention.max_len, attention.window + shape.tile) if attention.window else attention.max_len
    tiles = -(-visible // shape.tile)
    useful = max(1, -(-tiles // shape.warps))  # CTAs that have a tile for every warp
    ctas = min(choice.ctas, useful)
    cluster = 1
    while chip.cluster > 1 and cluster * 2 <= min(choice.cluster, ctas, attention.head_dim // 4):
        cluster *= 2
    most = max(1, ctas // cluster)
    splits: Extent = most
    if batched and most > 1:
        splits = f"max(1, min({most}, {choice.ctas * units} // ({units * cluster} * batch)))"
    parts = units // attention.n_kv_heads
    return Plan(loop, shape, parts, cluster, splits, most, choice.least_tiles, attention.head_dim)


def _columns(attention: Attention, target: Target, warps: int) -> tuple[MainLoop, LoopShape, int]:
    """The main loop, its shape, and the units of one sequence."""
    chosen = loops.choose(attention, target, warps)
    if chosen is None:
        raise SpecError(f"kv_dtype: no main loop for {attention.kv_dtype} on {target}")
    loop, shape = chosen
    return loop, shape, attention.n_kv_heads * -(-attention.group // shape.heads)
