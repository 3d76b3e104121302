"""Measurements of several implementations in turns, and how their quotients scatter."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

LEAST, MOST = 2, 40  # rounds
LONG_ROUND = 6.0  # seconds: where one takes longer, the second is left out


class Ahead(NamedTuple):
    """How many times as fast as another one is, by the rounds' own quotients: their median, their quartiles, and of how
    many rounds. Of fewer than four rounds the quartiles are the least and the most."""

    middle: float
    low: float
    high: float
    rounds: int


def alternated(timers: Mapping[str, Callable[[], float]], long: float) -> dict[str, list[float]]:
    """Seconds of each, a number a round. In a round all are measured one after the other, in every second round the
    other way about, so that a clock that rises or falls meets all of them. After `long` seconds no two more begin."""
    found: dict[str, list[float]] = {impl: [] for impl in timers}
    began = time.perf_counter()
    for number in range(0, MOST, 2):
        if number >= LEAST and time.perf_counter() - began > long:
            break
        for impl, measured in timers.items():
            found[impl].append(measured())
        if time.perf_counter() - began > LONG_ROUND:
            break
        for impl, measured in reversed(tuple(timers.items())):
            found[impl].append(measured())
    return found


def ahead(found: Mapping[str, Sequence[float]], ours: str, others: Sequence[str]) -> Ahead | None:
    """Of `ours` beside the one of the others with the least median; None where one of the two sides is missing."""
    measured = [impl for impl in others if impl in found]
    if not measured or ours not in found:
        return None
    best = min(measured, key=lambda impl: statistics.median(found[impl]))
    quotients = [a / b for a, b in zip(found[best], found[ours], strict=True)]
    low, high = min(quotients), max(quotients)
    if len(quotients) >= 4:
        low, _, high = statistics.quantiles(quotients, n=4, method="inclusive")
    return Ahead(statistics.median(quotients), low, high, len(quotients))
