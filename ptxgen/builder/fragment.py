"""A fragment: a named list of straight-line instructions, and how a skeleton places it."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from types import CodeType

from ptxgen.errors import TemplateError
from ptxgen.lines.sources import Site, places

_CHAPTER = 4  # lines; what is shorter needs no heading
_TITLE = 90  # characters at most
_PLAIN = str.maketrans({"·": "*", "−": "-", "×": "x", "≤": "<=", "≥": ">=", "→": "->", "…": "...", "`": ""})
_HAS_DOCSTRING = 0x4000000  # of code objects from Python 3.13 on
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

    __slots__ = ("form", "helpers", "lines", "name", "opened", "placed", "sites", "what")

    def __init__(self, name: str, opened: Site, what: str = "") -> None:
        self.name = name
        self.what = what  # its author's words for it
        self.opened = opened  # where Python opened it
        self.lines: list[str] = []
        self.sites: list[Site] = []  # who emitted each line
        self.helpers: list[tuple[int, CodeType | None]] = []  # functions that its opener called, and their first lines
        self.placed = 0
        self.form = ""  # how a skeleton places it, where a macro does: "{{ reduce(total) }}"

    def __str__(self) -> str:
        raise TemplateError(f"a fragment is placed as it is: no filter, no operator (got one around {self.name!r})")

    @property
    def built_at(self) -> str:
        """The line of the kernel type's `build` that it comes from, and that of the idiom which opened it."""
        line, caller = places(self.opened)
        return f"{caller} → {line}" if caller else f"{line}"

    def add(self, line: str, site: Site) -> None:
        """Append a line that this call emitted."""
        self.lines.append(line)
        self.sites.append(site)

    def plain(self, count: int) -> bool:
        """Whether the last `count` lines are there, and none of them is a comment."""
        last = self.lines[-count:]
        return len(last) == count and not any(line.startswith("    //") for line in last)

    def heading(self) -> str:
        """The comment that its lines begin with: its name, and what it is said to do.

        Where nothing is said, it is for many lines only, and in the words of their helper's docstring.
        """
        if self.what:
            return f"    // {self._named(self.what)}" if self.lines else ""
        if len(self.lines) < _CHAPTER or self.lines[0].lstrip().startswith("//"):
            return ""
        helper = self._most()
        said = title(helper) if helper else ""
        if said[1:2].islower():  # no name, as K's and CTA are
            said = said[0].lower() + said[1:]
        return f"    // {self._named(said)}" if said else f"    // {self.name}"

    def _named(self, said: str) -> str:
        """What is said, behind the fragment's name where it does not begin with it."""
        return said if said.startswith(f"{self.name} ") else f"{self.name}: {said}"

    def _most(self) -> CodeType | None:
        """The function that at least half of the lines come from."""
        counts: dict[CodeType | None, int] = {}
        for (first, helper), (end, _) in pairwise([*self.helpers, (len(self.lines), None)]):
            counts[helper] = counts.get(helper, 0) + end - first
        helper = max(counts, key=counts.__getitem__, default=None)
        return helper if 2 * counts.get(helper, 0) >= len(self.lines) else None

    def place(self) -> str:
        """The mark of its place, which is counted."""
        self.placed += 1
        return f"{MARK}{self.name}{MARK}"


def title(code: CodeType) -> str:
    """The first clause of a function's docstring as plain ASCII, without its full stop; empty where none is short."""
    first = code.co_consts[0] if code.co_consts else None
    if not isinstance(first, str) or (sys.version_info >= (3, 13) and not code.co_flags & _HAS_DOCSTRING):
        return ""
    text = " ".join(first.partition("\n\n")[0].split()).translate(_PLAIN)
    clause = re.split(r"(?<!\.)[.;:](?: |$)", text)[0]
    while len(clause) > _TITLE and "," in clause:
        clause = clause.rpartition(",")[0]
    return clause if len(clause) <= _TITLE and clause.isascii() and not clause.startswith("Fragment") else ""
