"""The reasons why a specialisation is not legal, worded one way: `field: rule (got value; nearest: …)`.

Each function yields nothing when its rule holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

__all__ = ["Bounds", "OneOf", "between", "divides", "multiple_of", "one_of", "softmax_factors"]

# Between these, whatever `scale` and `soft_cap` are together, the f32 constants that texts make of them
# (scale · log2 e, 2 · log2 e · scale / soft_cap, soft_cap · log2 e) are normal: not infinite, not 0, all bits there.
SOFTMAX_FACTORS = (1e-18, 1e18)


MOST_TRIED = 1 << 16  # below a value, and above it, in the search for the nearest divisor


class Bounds(str):
    """The reason that `between` and `multiple_of` give; `low`, `high` and `step` are what would be legal."""

    __slots__ = ("high", "low", "step")
    low: float
    high: float
    step: int


def _bounded(reason: str, low: float, high: float, step: int) -> Bounds:
    made = Bounds(reason)
    made.low, made.high, made.step = low, high, step
    return made


def between(field: str, value: float, low: float, high: float) -> Iterator[str]:
    """`low ≤ value ≤ high`."""
    if not low <= value <= high:
        nearest = "" if math.isnan(value) else f"; nearest: {low if value < low else high}"
        yield _bounded(f"{field}: must be from {low} to {high} (got {value}{nearest})", low, high, 1)


def multiple_of(field: str, value: int, step: int, low: int, high: int) -> Iterator[str]:
    """A multiple of `step` from `low` to `high`."""
    if low <= value <= high and value % step == 0:
        return
    below = max(low, min(high, value // step * step))
    above = max(low, min(high, -(-value // step) * step))
    nearest = f"{below}" if below == above else f"{below} or {above}"
    rule = f"must be a multiple of {step} from {low} to {high}"
    yield _bounded(f"{field}: {rule} (got {value}; nearest: {nearest})", low, high, step)


def divides(field: str, value: int, other: str, whole: int) -> Iterator[str]:
    """`value` divides `whole`. The nearest divisor is named if it is not far away."""
    if value < 1 or whole < 1 or whole % value == 0:
        return
    start = min(value, whole)  # nothing above `whole` divides it
    around = (d for far in range(min(start, MOST_TRIED)) for d in (start - far, start + far))
    nearest = next((f"; nearest {field}: {d}" for d in around if whole % d == 0), "")
    yield f"{other}: must be a multiple of {field} (got {other}={whole}, {field}={value}{nearest})"


class OneOf(str):
    """The reason that `one_of` gives; `choices` are what would be legal."""

    __slots__ = ("choices",)
    choices: tuple[str, ...]


def one_of(field: str, value: object, choices: Iterable[object]) -> Iterator[str]:
    """`value` is one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        known = ", ".join(str(one) or "''" for one in choices)
        reason = OneOf(f"{field}: must be one of {known} (got {value})")
        reason.choices = tuple(map(str, choices))
        yield reason


def softmax_factors(scale: float | None, soft_cap: float, *, signed: bool = False) -> Iterator[str]:
    """`scale` (None: the default) and `soft_cap` (0: none) within `SOFTMAX_FACTORS`; `signed`: |scale| counts."""
    if scale is not None:
        yield from _factor("scale", scale, "None for 1/sqrt(head_dim)", signed)
    if soft_cap:
        yield from _factor("soft_cap", soft_cap, "0 for none")


def _factor(field: str, value: float, instead: str, signed: bool = False) -> Iterator[str]:
    low, high = SOFTMAX_FACTORS
    size, sign = (abs(value), math.copysign(1.0, value)) if signed else (value, 1.0)
    if not low <= size <= high:
        kind = "number of magnitude" if signed else "positive number"
        nearest = "" if math.isnan(value) else f"; nearest: {sign * min(max(size, low), high)}"
        yield f"{field}: must be a {kind} from {low} to {high}, or {instead} (got {value}{nearest})"


def __dir__() -> list[str]:
    return list(__all__)
