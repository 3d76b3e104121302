"""Typed access to the values of a JSON object from outside. Errors name the file, the key and the value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from ptxgen.errors import SpecError, brief

MOST = (1 << 31) - 1  # of a count: what a 32-bit index reaches
NUMBERS = (1e-18, 1e18)  # of a number: products and logarithms of a few of them stay finite


def is_number(value: object) -> TypeGuard[float]:
    """Whether a JSON value is a number within `NUMBERS` (true and false are none)."""
    return type(value) in (int, float) and NUMBERS[0] <= value <= NUMBERS[1]  # type: ignore[operator]


def got(values: Mapping[str, Any], key: str) -> str:
    """The end of an error: `got 7`, `got null`, or `it is absent`."""
    if key not in values:
        return "it is absent"
    return f"got {'null' if values[key] is None else brief(values[key])}"


@dataclass(frozen=True)
class Fields:
    """The values of one object of the file `source`; null counts as absent, but for errors. `names`: what the file
    calls a key."""

    values: Mapping[str, Any]
    source: str
    names: Mapping[str, str] = field(default_factory=dict)

    def error(self, key: str, rule: str) -> SpecError:
        """`config.json: key: rule (got value)`, or `(it is absent)`."""
        return SpecError(f"{self.source}: {self.names.get(key, key)}: {rule} ({got(self.values, key)})")

    def count(self, key: str, default: int | None = None, *, least: int = 1, most: int = MOST) -> int:
        """An integer from `least` to `most`."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value <= most:
            raise self.error(key, f"must be an integer from {least} to {most}")
        return value

    def number(
        self, key: str, default: float | None = None, *, above: float | None = None, most: float = NUMBERS[1]
    ) -> float:
        """A positive number within `NUMBERS`, above `above` and at most `most`."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if is_number(value) and value <= most and (above is None or value > above):
            return float(value)
        least = f"of at least {NUMBERS[0]:g}" if above is None else f"above {above:g}"
        raise self.error(key, f"must be a number {least}, at most {most:g}")

    def flag(self, key: str) -> bool:
        """A truth value; absent is false."""
        value = self.values.get(key)
        if value not in (None, True, False):
            raise self.error(key, "must be true or false")
        return bool(value)

    def table(self, key: str) -> dict[str, Any]:
        """A JSON object; absent is empty."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.error(key, "must be a JSON object")
        return value or {}
