"""What a tuning job comes to, whatever it tunes: the choice before, the best one, and whether it is worth a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

J = TypeVar("J")
C = TypeVar("C")
LEAST_GAIN = 0.02  # a row is written for no less: times differ by as much from run to run
FINALISTS = 5


@dataclass(frozen=True)
class Outcome(Generic[J, C]):
    """µs of the choice in force before and of the best one, and how many were measured."""

    job: J
    before: C
    before_us: float
    best: C
    best_us: float
    measured: int
    least_gain: float = LEAST_GAIN

    @property
    def gain(self) -> float:
        """Share of the time that the best choice saves."""
        return 1 - self.best_us / self.before_us

    @property
    def better(self) -> bool:
        """Whether it is worth a row."""
        return self.gain >= self.least_gain


def decide(before: C, finalists: Iterable[C], us: Callable[[C], float]) -> tuple[float, C, float]:
    """The finalists and the choice before are measured once more, as the least of many measurements is partly luck:
    µs of the choice before, the best of them, and its µs."""
    again = {choice: us(choice) for choice in dict.fromkeys((before, *finalists))}
    winner = min(again, key=again.__getitem__)
    return again[before], winner, again[winner]
