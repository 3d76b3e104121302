"""What counts as an integer where a caller gives one: Python's and NumPy's, and no bool."""

from __future__ import annotations

from operator import index


def as_index(value: object) -> int | None:
    """An int of Python or NumPy as Python's; None for anything else, bool included."""
    try:
        return None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
