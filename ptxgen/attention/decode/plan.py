"""Which geometry an attention gets: main loop, warps, clusters, splits. Arithmetic on capacities; the data are the
tuning table's (`ptxgen.tuning`).

The same attention, target, batching and table give the same plan, whatever the lengths are at run time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ptxgen.attention.attention import Attention
from ptxgen.attention.decode.contract import MOST_SHARED_SPLITS, LoopShape, MainLoop, Partials
from ptxgen.attention.decode.loops.choice import choose
from ptxgen.errors import SpecError
from ptxgen.launch import Extent
from ptxgen.targets import Target
from ptxgen.targets import target as parse_target
from ptxgen.tuning import Choice, Model, Shape, in_force


class Chip(NamedTuple):
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
class CtaPlan:
    """What one CTA does: its main loop, and `parts` CTA columns a KV head where its group is too large for one."""

    loop: MainLoop
    shape: LoopShape
    parts: int
    v_dim: int

    @property
    def partials(self) -> Partials:
        """Where the main loop leaves its results."""
        start = 0 if self.shape.overlay else -(-self.shape.shared // 16) * 16
        return Partials(self.shape.warps, self.shape.heads, self.v_dim, start, self.shape.spread)

    @property
    def arena_bytes(self) -> int:
        """Shared memory of loop and partials."""
        return max(self.shape.shared, self.partials.offset + self.partials.bytes)


@dataclass(frozen=True)
class Plan(CtaPlan):
    """Geometry of one attention on one target.

    A *unit* is a (sequence, KV head, part of the group). `cluster` CTAs merge through distributed shared memory;
    `splits` clusters share a unit (an integer, or a formula of the capacity `batch`, at most `most_splits`) and merge
    through records in global memory. At run time only as many splits work as the length has tiles for; and where
    `split_tiles` is not 0, no more than the unit's equal share of `grid` CTAs, unless a split would get more tiles than
    that: long sequences of a ragged batch. `grid` 0: splits follow the length alone, `split_tiles` for each as long as
    there are splits. `room`: see `_share`; `rounds`: see `_whole_rounds`. `mergers`: at most so many CTAs of a unit (of
    each rank of its clusters) merge its records, the last to start; 0: one, the last to leave its record (`ticket`).
    `last_first`: the first CTAs take the last sequence. `late`: the next launch waits, see `release.py`.
    """

    cluster: int
    splits: Extent
    most_splits: int
    grid: int = 0
    split_tiles: int = 0
    mergers: int = 0
    room: int = 0
    rounds: int = 0
    last_first: bool = False
    late: bool = False

    @property
    def most_ctas(self) -> int:
        """CTAs that units which are more than the room are split into at most."""
        return _most_ctas(self.room, self.late)

    @property
    def split(self) -> bool:
        """Whether units are split, at some length."""
        return self.most_splits > 1


def cta_plan(attention: Attention, loop: MainLoop, shape: LoopShape) -> CtaPlan:
    """A CTA's plan alone, for a kernel type with a geometry of its own."""
    return CtaPlan(loop, shape, -(-attention.problem.group // shape.heads), attention.problem.v_dim)


def chip_of(target: Target) -> Chip:
    """The row of `CHIPS` for a target."""
    return _chip(target)[1]


def chip_name(target: Target) -> str:
    """The name of the target's row of `CHIPS`."""
    return _chip(target)[0]


def _chip(target: Target) -> tuple[str, Chip]:
    return [(name, chip) for name, chip in CHIPS.items() if target.includes(parse_target(name))][-1]


# CTAs of a batch have four warps, of which a multiprocessor holds several: they end more evenly than one of eight. But
# where a sequence has few units, a batch of one gets so many splits that merging them costs more, unless rows are short
# (64 dims of f16: 3, 4 and 8 units in batches of 1 to 48 were never slower). What a warp's registers hold beside tiles
# in flight, and bytes of a tile from which loads to registers are best.
_BATCH_WARPS, _BATCH_UNITS, _SHORT_ROW, _OTHER_REGISTERS, _WIDE_TILE = 4, 16, 128, 80, 8192
# Of the chip's room: units of a batch that are more than it are split until they fill most of so many. Fewer where the
# next launch's CTAs come in when these end, so that the last round is not a short one.
_WAVES, _OVERLAPPING_WAVES = 4, 3

# Outputs of so many values make long records: then pairs of CTAs merge first, if a unit gets so many CTAs.
_WIDE, _MANY_OF_WIDE = 1024, 16


def default_choice(
    attention: Attention,
    chip: Chip,
    model: Model,
    shape: LoopShape,
    *,
    batched: bool,
    invariant: bool = False,
    programmatic: bool = False,
    decided: bool = False,
) -> Choice:
    """What to do about an attention that no row of the table names; `decided`: one names its CTAs."""
    tiles, units = _visible_tiles(attention, shape), _units(attention, shape)
    in_flight = max(
        1, model.bytes_in_flight // (shape.tile * (attention.cache.k.row_bytes + attention.cache.v.row_bytes))
    )
    even = units >= _BATCH_UNITS or attention.cache.k.row_bytes <= _SHORT_ROW
    if batched and not invariant and not decided and chip.cluster > 1 and even:
        return _of_batch(attention, chip, shape, in_flight, model.split_positions, late=programmatic)
    share = max(1, chip.sms // units)
    fewer = tiles <= model.short and not (batched and programmatic and not invariant)  # one CTA, then the next launch's
    warps, cluster, grid = 4 if fewer else 8, 1, chip.sms
    if chip.cluster > 1 and not batched:
        whole = chip.cluster * units  # CTAs when each unit has one cluster
        fills = tiles <= model.middle and chip.sms // 3 <= whole
        room = whole * 8 <= chip.sms * 7  # not every GPC has the multiprocessors for two clusters of eight
        if room and model.tiny < tiles and (tiles <= model.single or fills):
            warps, cluster, grid = 8, chip.cluster, whole
        elif tiles <= model.short:
            cluster, grid = chip.cluster, min(chip.cluster, share) * units
        elif share >= model.many or (share >= _MANY_OF_WIDE and shape.heads * attention.problem.v_dim >= _WIDE):
            cluster, grid = 2, chip.sms - chip.sms % 16  # what clusters of two find room for at once
    if invariant and tiles <= model.short:  # the batch may be one sequence: a cluster gives it more CTAs
        cluster = min(chip.cluster, 4)
    return Choice(warps, cluster, grid, in_flight, model.invariant_positions if invariant else model.split_positions)


def _of_batch(
    attention: Attention, chip: Chip, shape: LoopShape, in_flight: int, split_positions: int, *, late: bool
) -> Choice:
    """Launches that overlap have tiles in registers: CTAs that wait would hold rings, too."""
    tile = shape.tile * (attention.cache.k.row_bytes + attention.cache.v.row_bytes)
    stages = in_flight if tile < _WIDE_TILE and not late else 0
    registers = 128 if stages else -(-(_OTHER_REGISTERS + in_flight * tile // 128) // 8) * 8
    room = chip.sms * max(1, 65536 // (32 * _BATCH_WARPS * registers))
    return Choice(_BATCH_WARPS, 1, 2 * chip.sms, in_flight, split_positions, stages, room=room, late=int(late))


def choice_of(
    attention: Attention, target: Target, *, batched: bool, invariant: bool = False, programmatic: bool = False
) -> Choice:
    """What the table in force says of an attention on a target."""
    (sm, chip), table = _chip(target), in_force()
    _, shape = _loop(attention, target, 8)
    shape_asked = shape_of(attention, target, batched=batched, invariant=invariant, programmatic=programmatic)
    decided = not table.decides(shape_asked).isdisjoint({"warps", "cluster", "grid"})
    model = table.model(sm)
    default = default_choice(
        attention, chip, model, shape, batched=batched, invariant=invariant, programmatic=programmatic, decided=decided
    )
    return table.choose(shape_asked, default)


def shape_of(
    attention: Attention, target: Target, *, batched: bool, invariant: bool = False, programmatic: bool = False
) -> Shape:
    """What rows of a table are matched against."""
    problem, cache = attention.problem, attention.cache
    return Shape(
        sm=chip_name(target), head_dim=problem.qk_dim, group=problem.group, n_kv_heads=problem.n_kv_heads,
        kv_dtype=problem.kv_dtype.name, kv_bytes=problem.kv_dtype.bytes,
        capacity=attention.variant.window or cache.max_len, batched=batched, paged=cache.page_size > 0,
        invariant=invariant, programmatic=programmatic, strided=cache.strided,
    )  # fmt: skip


def _visible_tiles(attention: Attention, shape: LoopShape) -> int:
    """Tiles that the visible positions of one sequence touch at most."""
    most, window = attention.cache.max_len, attention.variant.window
    visible = min(most, window + shape.tile) if window else most
    return -(-visible // shape.tile)


def plan(
    attention: Attention, target: Target, *, batched: bool, invariant: bool = False, programmatic: bool = False
) -> Plan:
    """The plan of an attention; `invariant`: the same for a sequence in every batch. `programmatic`: for launches that
    overlap, which want CTAs that leave room for the next kernel's.

    Raises `SpecError` when no main loop runs it on the target.
    """
    chip = chip_of(target)
    choice = choice_of(attention, target, batched=batched, invariant=invariant, programmatic=programmatic)
    loop, shape = _loop(attention, target, choice.warps, choice.stages)
    shape, units = shape._replace(in_flight=choice.in_flight, aside=choice.aside > 0), _units(attention, shape)
    last_first = batched and choice.last_first > 0
    late = programmatic and choice.late > 0
    turns = 2 if choice.room else 1  # of a warp, at least: merging records takes as long as a turn
    useful = max(1, -(-_visible_tiles(attention, shape) // (turns * shape.warps)))
    ctas = min(useful, max(1, choice.grid // units))
    cluster = 1
    while chip.cluster > 1 and cluster * 2 <= min(choice.cluster, ctas, attention.problem.v_dim // 4):
        cluster *= 2
    most = ctas // cluster
    share: Extent = most
    if batched and not invariant and most > 1:
        share = _share(choice, most, f"({units * cluster} * batch)")
    parts, v_dim = units // attention.problem.n_kv_heads, attention.problem.v_dim
    split_tiles = max(1, choice.split_positions // shape.tile)
    long_splits = -(-_visible_tiles(attention, shape) // split_tiles)
    if invariant:
        most = min(most, long_splits)
        mergers = _mergers(choice, most)
        return Plan(loop, shape, parts, v_dim, cluster, most, most, 0, split_tiles, mergers, last_first=last_first)
    if not batched:  # no more in flight than a warp ever gets
        turns = -(-_visible_tiles(attention, shape) // (shape.warps * cluster * most))
        shape = shape._replace(in_flight=min(shape.in_flight, turns), once=turns == 1)
    if not batched or long_splits == 1:
        mergers = _mergers(choice, most)
        room = choice.room if late else 0  # splits do not ask for it
        return Plan(loop, shape, parts, v_dim, cluster, share, most, 0, 0, mergers, room, 0, last_first, late)
    splits: Extent = long_splits if long_splits >= most else f"max({long_splits}, {share})"
    most = max(most, long_splits)
    mergers = _mergers(choice, most)
    rounds = choice.rounds if choice.room else 0
    if rounds:
        splits = _whole_rounds(str(splits), choice.room, f"({units * cluster} * batch)")
        most = max(most, 2 * long_splits, choice.room // (units * cluster))
        mergers = _mergers(choice, most)
    more = choice.room, rounds, last_first, late
    return Plan(loop, shape, parts, v_dim, cluster, splits, most, choice.grid, split_tiles, mergers, *more)


def _share(choice: Choice, most: int, units: str) -> str:
    """Splits of each of so many units: the grid's share. With room, two as long as there is room for them, and where
    there is not room for one of each, as many as `_most_ctas` lets them have, or two in place of one that leaves the
    third round short."""
    share = f"{choice.grid} // {units}"
    if choice.room:
        most_ctas = _most_ctas(choice.room, choice.late > 0)
        full, waves = f"min(2, {choice.room} // {units})", f"{most_ctas} // {units}"
        if not choice.late:
            waves = f"max({waves}, 2 * {_third_is_short(choice.room, units)})"
        share = f"max({share}, max({full}, min(1, {units} // {choice.room + 1}) * ({waves})))"
    return f"max(1, min({most}, {share}))"


def _third_is_short(room: int, units: str) -> str:
    """1 where one CTA for each of so many units fills two rounds and less than a quarter of the third, else 0."""
    return f"max(0, min(1, {units} - {2 * room})) * max(0, min(1, {2 * room + room // 4} - {units}))"


def _most_ctas(room: int, late: bool) -> int:
    return room * (_OVERLAPPING_WAVES if late else _WAVES)


def _whole_rounds(splits: str, room: int, units: str) -> str:
    """So many splits or more of each unit, that their CTAs fill whole rooms as far as units of one size can."""
    return f"max({splits}, ceil_div({splits} * {units}, {room}) * {room} // {units})"


def _mergers(choice: Choice, most_splits: int) -> int:
    """CTAs of a unit that merge: no more than it has splits, and one where the shared counter would overflow."""
    if most_splits == 1:
        return 0
    return min(choice.mergers, 1 if most_splits > MOST_SHARED_SPLITS else 1 << (most_splits.bit_length() - 1))


def _loop(attention: Attention, target: Target, warps: int, stages: int = 0) -> tuple[MainLoop, LoopShape]:
    """The main loop and its shape."""
    chosen = choose(attention, target, warps, stages)
    if isinstance(chosen, str):
        raise SpecError(chosen)
    return chosen


def _units(attention: Attention, shape: LoopShape) -> int:
    """Units of one sequence."""
    return attention.problem.n_kv_heads * -(-attention.problem.group // shape.heads)
