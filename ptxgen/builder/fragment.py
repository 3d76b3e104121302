"""A fragment: a named list of straight-line instructions, and how a skeleton places it."""

from __future__ import annotations

from ptxgen.errors import TemplateError

MARK = "\x1a"  # around a fragment's name in a rendered skeleton, where its lines will stand


class Absent:
    """Stands for a fragment that a text does not have: false, and nothing where it is placed."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return ""


ABSENT = Absent()


class Fragment:
    """A named list of instructions, which a skeleton places; it is no text that a skeleton could change."""

    __slots__ = ("built_at", "lines", "name", "placed")

    def __init__(self, name: str, built_at: str) -> None:
        self.name = name
        self.built_at = built_at  # file:line
        self.lines: list[str] = []
        self.placed = 0

    def __str__(self) -> str:
        raise TemplateError(f"a fragment is placed as it is: no filter, no operator (got one around {self.name!r})")

    def place(self) -> str:
        """The mark of its place, which is counted."""
        self.placed += 1
        return f"{MARK}{self.name}{MARK}"
