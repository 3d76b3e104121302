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

    A *unit* is a (sequence, KV head, part of the group); `parts` CTA columns share a KV head when the group is too
    large for one. `cluster` CTAs merge through distributed shared memory; `splits` clusters share a unit (an integer,
    or a formula of the capacity `batch`, at most `most_splits`) and merge through records in global memory. At run
    time only as many splits work as the length has tiles for; and where `split_tiles` is not 0, no more than the
    unit's equal share of `grid` CTAs, unless a split would get more tiles than that: long sequences of a ragged batch.
    """

    loop: MainLoop
    shape: LoopShape
    parts: int
    cluster: int
    splits: Extent
    most_splits: int
    head_dim: int
    grid: int = 0
    split_tiles: int = 0

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
    """What of a plan is a matter of speed, all upper bounds: warps of a CTA, CTAs of a cluster, CTAs of the grid that
    units may be split into, tiles a warp has in flight."""

    warps: int
    cluster: int
    grid: int
    in_flight: int


# Bounds of the default choice, in tiles of the visible positions and in CTAs, from measurements on an H200.
_SHORT = 64  # up to here all is latency: one cluster of small CTAs a unit
_MIDDLE = 384  # up to here one cluster a unit beats records, where the units' clusters fill a third of the chip
_MANY = 24  # CTAs a unit gets: from here on pairs of CTAs merge before they leave records
_BYTES_IN_FLIGHT = 8192  # of a warp
_SPLIT_POSITIONS = 4096  # of a split of a long sequence in a batch


def default_choice(attention: Attention, chip: Chip, shape: LoopShape, units: int, *, batched: bool) -> Choice:
    """What to do about an attention that no table names."""
    tiles = _visible_tiles(attention, shape)
    in_flight = max(1, _BYTES_IN_FLIGHT // (2 * shape.tile * attention.row_bytes))
    share = max(1, chip.sms // units)
    if chip.cluster > 1 and not batched:
        if tiles <= _SHORT:
            return Choice(4, chip.cluster, min(chip.cluster, share) * units, in_flight)
        if tiles <= _MIDDLE and chip.sms // 3 <= chip.cluster * units <= chip.sms:
            return Choice(8, chip.cluster, chip.cluster * units, in_flight)
        return Choice(8, 2 if share >= _MANY else 1, chip.sms, in_flight)
    return Choice(4 if tiles <= _SHORT else 8, 1, chip.sms, in_flight)


def _visible_tiles(attention: Attention, shape: LoopShape) -> int:
    """Tiles that the visible positions of one sequence touch at most."""
    visible = min(attention.max_len, attention.window + shape.tile) if attention.window else attention.max_len
    return -(-visible // shape.tile)


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
        _, shape, units = _columns(attention, target, 8)
        choice = default_choice(attention, chip, shape, units, batched=batched)
    loop, shape, units = _columns(attention, target, choice.warps)
    shape = replace(shape, in_flight=choice.in_flight)
    useful = max(1, -(-_visible_tiles(attention, shape) // shape.warps))  # CTAs that have a tile for every warp
    ctas = min(useful, max(1, choice.grid // units))
    cluster = 1
    while chip.cluster > 1 and cluster * 2 <= min(choice.cluster, ctas, attention.head_dim // 4):
        cluster *= 2
    most = ctas // cluster
    share: Extent = most
    if batched and most > 1:
        share = f"max(1, min({most}, {choice.grid} // ({units * cluster} * batch)))"
    parts = units // attention.n_kv_heads
    split_tiles = _SPLIT_POSITIONS // shape.tile
    long_splits = -(-_visible_tiles(attention, shape) // split_tiles)
    if not batched or long_splits == 1:
        return Plan(loop, shape, parts, cluster, share, most, attention.head_dim)
    splits: Extent = long_splits if long_splits >= most else f"max({long_splits}, {share})"
    return Plan(
        loop, shape, parts, cluster, splits, max(most, long_splits), attention.head_dim, choice.grid, split_tiles
    )


def _columns(attention: Attention, target: Target, warps: int) -> tuple[MainLoop, LoopShape, int]:
    """The main loop, its shape, and the units of one sequence."""
    chosen = loops.choose(attention, target, warps)
    if chosen is None:
        raise SpecError(f"kv_dtype: no main loop for {attention.kv_dtype} on {target}")
    loop, shape = chosen
    return loop, shape, attention.n_kv_heads * -(-attention.group // shape.heads)
