"""The reasons why a specialisation is not legal, worded one way: `field: rule (got value; nearest: …)`.

Each function yields nothing when its rule holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def between(field: str, value: float, low: float, high: float) -> Iterator[str]:
    """`low ≤ value ≤ high`."""
    if not low <= value <= high:
        yield f"{field}: must be from {low} to {high} (got {value}; nearest: {low if value < low else high})"


def multiple_of(field: str, value: int, step: int, low: int, high: int) -> Iterator[str]:
    """A multiple of `step` from `low` to `high`."""
    if low <= value <= high and value % step == 0:
        return
    below = max(low, min(high, value // step * step))
    above = max(low, min(high, -(-value // step) * step))
    nearest = f"{below}" if below == above else f"{below} or {above}"
    yield f"{field}: must be a multiple of {step} from {low} to {high} (got {value}; nearest: {nearest})"


def divides(field: str, value: int, other: str, whole: int) -> Iterator[str]:
    """`value` divides `whole`."""
    if value < 1 or whole < 1 or whole % value == 0:
        return
    nearest = min((d for d in range(1, whole + 1) if whole % d == 0), key=lambda d: (abs(d - value), d))
    yield f"{other}: must be a multiple of {field} (got {other}={whole}, {field}={value}; nearest {field}: {nearest})"


def one_of(field: str, value: object, choices: Iterable[object]) -> Iterator[str]:
    """`value` is one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        yield f"{field}: must be one of {', '.join(map(str, choices))} (got {value})"
