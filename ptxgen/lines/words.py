"""Words of comments in texts: numbers with what they count."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """`1 pass`, `3 passes`; `many` is `one` with an s where it is not given."""
    return f"{number} {one if number == 1 else many or one + 's'}"
