"""What `ptxgen tune` measures: a job per class of shapes, and the choices that are tried for it. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ptxgen.attention.decode.plan import Plan, chip_name, chip_of, choice_of
from ptxgen.kernels import IncrementalAttention
from ptxgen.targets import Target
from ptxgen.tuning import Choice, Row, fixed, using
from ptxgen.tuning_jobs.outcome import FINALISTS, LEAST_GAIN, Outcome, decide

_WAVES = (0.25, 0.5, 1, 1.5, 2, 3, 4)  # CTAs of the grid, in CTAs an SM
_WARPS = (2, 4, 6, 8, 12, 16)
_IN_FLIGHT = (1, 2, 4)
_MERGERS = (0, 1, 2, 4, 8, 16)
_MERGERS_FIRST = (0, 8)
_STAGES = (0, 2, 3, 4)
_SPLIT_POSITIONS = (1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Job:
    """A class of shapes to tune: the heads of a layer, the cache's element type, a capacity, and either one sequence
    (`batches` empty) or batches of these sizes. `fills`: how full the cache is, as shares of the capacity.

    The class reaches from half the capacity up to it.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    kv_dtype: str
    capacity: int
    batches: tuple[int, ...] = ()
    fills: tuple[float, ...] = (1.0,)

    @property
    def spec(self) -> IncrementalAttention:
        """The kernel that is measured."""
        return IncrementalAttention(
            max_len=self.capacity, head_dim=self.head_dim, n_heads=self.n_heads, n_kv_heads=self.n_kv_heads,
            q_dtype=self.kv_dtype if self.kv_dtype in ("f32", "bf16") else "f16", kv_dtype=self.kv_dtype,
            batched=bool(self.batches), indirect=not self.batches,
        )  # fmt: skip

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sequences of each launch that is measured."""
        return self.batches or (1,)

    def bytes(self, batch: int) -> int:
        """K and V of a full cache, in bytes; scales included."""
        attention = self.spec.attention
        row: int = attention.cache.k.row_bytes + (attention.cache.k.row_scale_bytes if attention.cache.quantised else 0)
        return 2 * batch * self.capacity * self.n_kv_heads * row

    def label(self) -> str:
        """The shape in a few words, for tables."""
        batches = f"batches of {', '.join(map(str, self.batches))}" if self.batches else "one sequence"
        return f"{self.n_heads}/{self.n_kv_heads}/{self.head_dim} {self.kv_dtype}, {self.capacity} positions, {batches}"

    def row(self, target: Target, choice: Choice, note: str) -> Row:
        """The row of this class with that choice."""
        where = (
            ("sm", chip_name(target)), ("head_dim", self.head_dim), ("group", self.n_heads // self.n_kv_heads),
            ("n_kv_heads", self.n_kv_heads), ("kv_dtype", self.spec.kv_dtype.name),
            ("capacity", (self.capacity // 2 + 1, self.capacity)), ("batched", bool(self.batches)),
            ("programmatic", False),  # as it was measured
        )  # fmt: skip
        return Row(where, tuple(vars(choice).items()), note)

    def plan(self, target: Target, choice: Choice) -> Plan:
        """The plan that a choice becomes on a target."""
        with using(fixed(choice)):
            made: Plan = self.spec.plan(target)
        return made


class Found(Outcome[Job, Choice]):
    """The outcome of a job of attention."""


def search(
    job: Job, target: Target, us: Callable[[Choice], float], least_gain: float = LEAST_GAIN,
    prepare: Callable[[Sequence[Choice]], None] = lambda choices: None,
) -> Found:  # fmt: skip
    """The fastest choice for a job: every division of the work with every CTA, then stages, how many merge, neighbours.

    `us` measures a choice, `prepare` is told all that come next; plans that are equal are measured once. The best few
    and the one before decide (`outcome.decide`).
    """
    before = choice_of(job.spec.attention, target, batched=bool(job.batches))
    known: dict[Plan, tuple[float, Choice]] = {}

    def measure(choices: Iterable[Choice]) -> None:
        new: dict[Plan, Choice] = {}
        for choice in choices:
            new.setdefault(job.plan(target, choice), choice)
        new = {plan: choice for plan, choice in new.items() if plan not in known}
        prepare(list(new.values()))
        for plan, choice in new.items():
            known[plan] = us(choice), choice

    def best(count: int) -> list[Choice]:
        return [choice for _, choice in sorted(known.values(), key=lambda found: found[0])[:count]]

    measure([before])
    for step in STEPS:
        (base,) = best(1)
        measure(step(job, target, base))
    before_us, winner, winner_us = decide(before, best(FINALISTS), us)
    return Found(job, before, before_us, winner, winner_us, len(known), least_gain)


def ways(job: Job, target: Target, base: Choice) -> Iterator[Choice]:
    """Every division with every CTA, merged by one and by several: which is best depends on the others."""
    for division in divisions(job, target, base):
        for shape in shapes(job, target, division):
            for count in _MERGERS_FIRST:
                yield replace(shape, mergers=count)


def divisions(job: Job, target: Target, base: Choice) -> Iterator[Choice]:
    """Clusters, and CTAs of the grid: one cluster a unit, and around so many waves."""
    chip, units, base = chip_of(target), _units(job, target, base), replace(base, room=0)
    cluster = 1
    while cluster <= chip.cluster:
        if not job.batches:
            yield replace(base, cluster=cluster, grid=cluster * units)
        for waves in _WAVES:
            splits = max(1, round(waves * chip.sms / (units * cluster)))
            grid = round(waves * chip.sms) if job.batches else splits * units * cluster
            yield replace(base, cluster=cluster, grid=max(1, grid))
        cluster *= 2
    for positions in _SPLIT_POSITIONS if job.batches else ():
        yield replace(base, split_positions=positions)


def shapes(job: Job, target: Target, base: Choice) -> Iterator[Choice]:
    """Warps of a CTA, and tiles in flight."""
    for warps in _WARPS:
        for in_flight in _IN_FLIGHT:
            yield replace(base, warps=warps, in_flight=in_flight)


def staged(job: Job, target: Target, base: Choice) -> Iterator[Choice]:
    """Tiles through shared memory, where they can come that way: then a warp may carry more heads of a large group."""
    for stages in _STAGES:
        for warps in _WARPS:
            for cluster in (base.cluster, 1, 2):
                yield replace(base, stages=stages, warps=warps, cluster=min(cluster, chip_of(target).cluster))


def mergers(job: Job, target: Target, base: Choice) -> Iterator[Choice]:
    """How many CTAs merge, where units are split (elsewhere the plan is the same)."""
    for count in _MERGERS:
        yield replace(base, mergers=count)


def neighbours(job: Job, target: Target, base: Choice) -> Iterator[Choice]:
    """A split more or less, and half or twice the cluster."""
    step = _units(job, target, base) * base.cluster
    for more in (-2, -1, 1, 2):
        if base.grid + more * step > 0:
            yield replace(base, grid=base.grid + more * step)
    for cluster in (base.cluster // 2, base.cluster * 2):
        if 1 <= cluster <= chip_of(target).cluster:
            yield replace(base, cluster=cluster)


STEPS = (ways, staged, mergers, neighbours)


def choices(job: Job, target: Target) -> int:
    """About how many choices a search measures."""
    base = choice_of(job.spec.attention, target, batched=bool(job.batches))
    tried = (choice for step in STEPS for choice in step(job, target, base))
    return len({job.plan(target, choice) for choice in (base, *tried)})


def _units(job: Job, target: Target, base: Choice) -> int:
    return job.n_kv_heads * job.plan(target, base).parts
