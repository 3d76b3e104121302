"""How much of a long sweep is tried: a fixed part of it, spread evenly; or, with PTXGEN_SWEEP=1 (`make sweep`), all.

Besides, of a test with many cases one of PTXGEN_DRAW is run: `make test` says 5, continuous integration 10.
Which one moves on with PTXGEN_DRAW_FROM: there it is another each time.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

import pytest

S = TypeVar("S")
T = TypeVar("T")
ALL = os.environ.get("PTXGEN_SWEEP", "0") != "0"
DRAW = 1 if ALL else max(int(os.environ.get("PTXGEN_DRAW", "1")), 1)
FROM = int(os.environ.get("PTXGEN_DRAW_FROM", "0"))
FEW = 2  # cases of a test that are all run


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


def is_drawn(n: int, draw: int, start: int = 0) -> bool:
    """Whether case `n` is the one that is run of its round of `draw`. It moves on from round to round, and not evenly:
    cases a fixed number apart would leave out values of every axis whose length has a divisor in common with it. Of
    `draw` starts in a row, each case is drawn by one."""
    turn = n // draw
    return n % draw == (2 * turn + turn // draw + start) % draw


def drawn(values: Iterable[T], draw: int = DRAW, start: int = FROM) -> list[T]:
    """One of `draw` of the values, or one where these are fewer: in a test that goes over many by itself."""
    every = list(values)
    chosen = [value for n, value in enumerate(every) if is_drawn(n, draw, start)]
    return chosen or [every[start % len(every)]] if every else []


def undrawn(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """What is left out of tests with many cases; no test that needs a GPU."""
    cases: defaultdict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("gpu"):
            cases[item.nodeid.partition("::")[0], getattr(item, "originalname", item.name)].append(item)
    kept = {item for group in cases.values() if len(group) > FEW for item in drawn(group)}
    return [item for group in cases.values() if len(group) > FEW for item in group if item not in kept]
