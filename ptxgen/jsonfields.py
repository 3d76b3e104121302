"""Typed access to the values of a JSON object that somebody else wrote. Errors name the file, the key and the value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptxgen.errors import SpecError


@dataclass(frozen=True)
class Fields:
    """The values of one object of the file `source`; null counts as absent."""

    values: Mapping[str, Any]
    source: str

    def error(self, key: str, rule: str) -> SpecError:
        """`config.json: key: rule (got value)`."""
        return SpecError(f"{self.source}: {key}: {rule} (got {self.values.get(key)!r})")

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer of at least `least`."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or value < least:
            raise self.error(key, f"must be an integer of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.error(key, "must be a positive number")
        return float(value)

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
