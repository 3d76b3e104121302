"""What `ptxgen tune` measures of products with one token: a job per matrix, and the choices that are tried for it.
Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ptxgen.attention.decode.plan import chip_name, chip_of
from ptxgen.kernels import Gemv
from ptxgen.products.geometry.runs import Runs
from ptxgen.targets import Target
from ptxgen.tuning import ProductChoice, Row, fixed, using
from ptxgen.tuning_jobs.outcome import FINALISTS, LEAST_GAIN, Outcome, decide
from ptxgen.weights import weight_format

_WARPS = (4, 6, 8, 12, 16, 20)
_STAGES = (1, 2, 3, 4, 6)
_CTAS = (0.5, 0.75, 1, 1.5, 2)  # for each multiprocessor
_SPLITS = (2, 4)  # CTAs that share k, which are tried where there is no record for each multiprocessor
_CTAS_OF_SPLITS = (1, 2, 3)


@dataclass(frozen=True)
class ProductJob:
    """A matrix `[n, k]` in a format to tune; `gated`: two of them, gate and up."""

    n: int
    k: int
    weights: str
    gated: bool = False

    @property
    def spec(self) -> Gemv:
        """The kernel that is measured."""
        return Gemv(self.n, self.k, self.weights, activation="silu" if self.gated else "", gated=self.gated)

    @property
    def bytes(self) -> int:
        """Bytes of the packed weights."""
        matrices = 2 if self.gated else 1
        return matrices * weight_format(self.weights).nbytes(self.n, self.k)

    def label(self) -> str:
        """The product in a few words, for tables."""
        return f"{self.n} x {self.k} {self.weights}{', gate and up' if self.gated else ''}"

    def row(self, target: Target, choice: ProductChoice, note: str) -> Row:
        """The row of this matrix with that choice."""
        where = (
            ("sm", chip_name(target)), ("weights", self.weights), ("n", self.n), ("k", self.k), ("gated", self.gated),
            ("programmatic", False),  # as it was measured
        )  # fmt: skip
        return Row(where, tuple(vars(choice).items()), note)

    def runs(self, target: Target, choice: ProductChoice | None = None) -> Runs | None:
        """What a choice, or the table in force, becomes; None where the product is not for tensor cores."""
        if choice is not None:
            with using(fixed(choice)):
                return self.runs(target)
        made = self.spec.geometry(target)
        return made if isinstance(made, Runs) else None

    def choices(self, target: Target) -> Iterator[ProductChoice]:
        """What there is to try, each geometry once; the one in force first."""
        known = set()
        sms, records = chip_of(target).sms, weight_format(self.weights).records(self.n)
        few = records <= sms and target.includes_any(("sm_90",))
        for choice in (self.before(target), *_all(sms), *(_sharing_k(sms) if few else ())):
            runs = self.runs(target, choice)
            if runs not in known:
                known.add(runs)
                yield choice

    def before(self, target: Target) -> ProductChoice:
        """The geometry in force. Raises `ValueError` where there is none to choose."""
        runs = self.runs(target)
        if runs is None:
            raise ValueError(f"{self.label()}: on {target} this product is not shared out by the table")
        return ProductChoice(runs.warps, runs.stages, runs.launched, runs.split, int(runs.x_first))


class FoundProduct(Outcome[ProductJob, ProductChoice]):
    """The outcome of a job of a product."""


def search_product(
    job: ProductJob, target: Target, us: Callable[[ProductChoice], float], least_gain: float = LEAST_GAIN,
    prepare: Callable[[Sequence[ProductChoice]], None] = lambda choices: None,
) -> FoundProduct:  # fmt: skip
    """The fastest choice for a matrix: all are measured, and the best few and the one before once more, which decides.
    `prepare` is told what comes next."""
    before, *_ = every = list(job.choices(target))
    prepare(every)
    times = {choice: us(choice) for choice in every}
    finalists = sorted(every, key=times.__getitem__)[:FINALISTS]
    before_us, winner, winner_us = decide(before, finalists, us)
    return FoundProduct(job, before, before_us, winner, winner_us, len(every), least_gain)


def _all(sms: int) -> Iterator[ProductChoice]:
    for warps in _WARPS:
        for stages in _STAGES:
            for share in _CTAS:
                yield ProductChoice(warps, stages, max(1, round(share * sms)))


def _sharing_k(sms: int) -> Iterator[ProductChoice]:
    for split in _SPLITS:
        for warps in _WARPS:
            for stages in _STAGES[:3]:
                for share in _CTAS_OF_SPLITS:
                    yield ProductChoice(warps, stages, max(split, round(share * sms)), split)
