"""How much of a long sweep is tried: a fixed part of it, spread evenly; or, with PTXGEN_SWEEP=1 (`make sweep`), all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")
ALL = os.environ.get("PTXGEN_SWEEP", "0") != "0"


def some(values: Iterable[T], count: int) -> list[T]:
    """`count` of the values, the first and the last among them; all of them in a sweep."""
    every = list(values)
    if ALL or len(every) <= count:
        return every
    return [every[round(i * (len(every) - 1) / (count - 1))] for i in range(count)]


def examples(count: int, sweep: int) -> int:
    """How many random examples are drawn: `count`, or so many in a sweep."""
    return sweep if ALL else count


def pairs(first: Iterable[S], second: Iterable[T], every: int) -> list[tuple[S, T]]:
    """One of `every` pairs, each value of either side with others in turn; all pairs in a sweep."""
    rows, columns = list(first), list(second)
    return [(a, b) for i, a in enumerate(rows) for j, b in enumerate(columns) if ALL or (i + j) % every == 0]
