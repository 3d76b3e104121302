"""A fragment: a named list of straight-line instructions, and how a skeleton places it."""

from __future__ import annotations

from ptxgen.errors import TemplateError
from ptxgen.sources import Place, Site, places

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

    __slots__ = ("lines", "name", "opened", "placed", "sites")

    def __init__(self, name: str, opened: Site) -> None:
        self.name = name
        self.opened = opened  # where Python opened it
        self.lines: list[str] = []
        self.sites: list[Site] = []  # who emitted each line
        self.placed = 0

    def __str__(self) -> str:
        raise TemplateError(f"a fragment is placed as it is: no filter, no operator (got one around {self.name!r})")

    @property
    def built_at(self) -> Place:
        """The line of Python that opened it."""
        return places(self.opened)[0]

    def add(self, line: str, site: Site) -> None:
        """Append a line that this call emitted."""
        self.lines.append(line)
        self.sites.append(site)

    def place(self) -> str:
        """The mark of its place, which is counted."""
        self.placed += 1
        return f"{MARK}{self.name}{MARK}"
