"""Where the lines of a text come from: fragment, Python line, template line. Kept beside the text, never in it.

A generated text has a `SourceMap`; of any other the `.loc` directives tell, where it has some.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, starmap
from types import CodeType
from weakref import WeakValueDictionary

from ptxgen.places import Origin, Place

Site = tuple[CodeType, int, CodeType, int]  # a call of the builder as the interpreter knows it, and the one in `build`
Places = tuple[Place, Place | None]  # of a call: its line, and the line of `build` it comes from where that is another


def places(site: Site | Places) -> Places:
    """The lines of a call, which are looked up when somebody asks."""
    if len(site) == 2:
        return site
    code, caller = _place(site[0], site[1]), _place(site[2], site[3])
    return code, caller if caller != code else None


def _place(code: CodeType, at: int) -> Place:
    return Place(code.co_filename, next((n for a, b, n in code.co_lines() if a <= at < b and n), code.co_firstlineno))


Mark = tuple[str, int]  # a template's file and line
Placed = tuple[Mark, ...]  # what placed a line: none, a template's line, or that and the line inside of what it called
Run = tuple[Placed, str, Sequence[Site | Places]]
"""Lines that follow each other: what placed them, their fragment, who emitted each. Without a fragment: one line."""


class SourceMap:
    """The origins of a text's lines, by their 1-based numbers."""

    __slots__ = ("__weakref__", "_runs", "_starts", "lines")

    def __init__(self, runs: Sequence[Run] = ()) -> None:
        self._runs = runs
        self._starts = list(accumulate((len(sites) or 1 for _, _, sites in runs), initial=1))
        self.lines = self._starts[-1] - 1

    def at(self, line: int) -> Origin | None:
        """The origin of a line; None where it has none."""
        if not 0 < line <= self.lines:
            return None
        from bisect import bisect_right

        index = bisect_right(self._starts, line) - 1
        placed, fragment, sites = self._runs[index]
        template, macro = [*starmap(Place, placed), None, None][:2]
        if sites:
            return Origin(fragment, *places(sites[line - self._starts[index]]), template, macro)
        return Origin(template=template, macro=macro) if template else None

    def __reduce__(self) -> tuple[type[SourceMap], tuple[list[Run]]]:
        """For a pickle, with lines in the place of code objects."""
        return SourceMap, ([(placed, name, tuple(map(places, sites))) for placed, name, sites in self._runs],)

    def spread(self, lines: Iterable[int]) -> SourceMap:
        """The map of a text whose lines come from these lines of this one; 0: from none."""
        runs: list[Run] = []
        for line in lines:
            source = self.at(line)
            placed = tuple((p.file, p.line) for p in (source.template, source.macro) if p) if source else ()
            sites = [(source.code, source.caller)] if source and source.code else []
            runs.append((placed, source.fragment if source else "", sites))
        return SourceMap(runs)


_KNOWN: WeakValueDictionary[str, SourceMap] = WeakValueDictionary()


def remember(text: str, source_map: SourceMap) -> None:
    """Find this map for that text from now on, as long as somebody holds the map."""
    _KNOWN[text] = source_map


def forget(text: str) -> None:
    """Do not find a map for that text any more."""
    _KNOWN.pop(text, None)


@lru_cache(maxsize=1)
def lines_of(text: str) -> list[str]:
    """The lines of a text, split once for all that is said of it; not to be changed."""
    return text.splitlines()


def origin(text: str, line: int) -> Origin | None:
    """Where a line of a text comes from: by the map of a generated text, else by the `.loc` before it."""
    known = _KNOWN.get(text)
    return known.at(line) if known is not None else _by_loc(text, line)


# compiled when they are asked for: few texts have such lines
_FILE = r'(?m)^[ \t]*\.file\s+(\d+)\s+"([^"\n]*)"'
_LOC = r"\s*\.loc\s+(\d+)\s+(\d+)\s+\d+(?:.*inlined_at\s+(\d+)\s+(\d+))?"
_ENDS = r"\s*[})]|.*\.(?:entry|func)\b"


def _by_loc(text: str, line: int) -> Origin | None:
    if ".loc" not in text:
        return None
    loc, ends = re.compile(_LOC), re.compile(_ENDS)
    for before in reversed(lines_of(text)[: line - 1]):
        found = loc.match(before)
        if found:
            files = dict(re.findall(_FILE, text))
            code, caller = ((files.get(found[i]), found[i + 1]) for i in (1, 3))
            places = [Place(file, int(number)) if file else None for file, number in (code, caller)]
            return Origin("", *places) if places[0] else None
        if ends.match(before):
            return None
    return None


def has_line_info(text: str) -> bool:
    """Whether a text has `.loc`, which assemblers keep when they are asked to."""
    return re.search(_HAS_LOC, text) is not None


def sets_registers(text: str) -> bool:
    """Whether a text has `setmaxnreg`, which an assembler heeds only where it knows the whole program: ptxas and
    cuModuleLoadData do, nvJitLink and cuLinkAddData make code to be linked, and leave it out."""
    return re.search(r"(?m)^[ \t]*setmaxnreg\.", text) is not None


def is_of_warpgroups(text: str) -> bool:
    """Whether a text has `wgmma`, which reads shared memory aligned further than code to be linked has it."""
    return re.search(r"(?m)^[ \t]*wgmma\.", text) is not None


_HAS_LOC = r"(?m)^[ \t]*\.loc\s"
_NAMED = r"\bline\s+(\d+)"


def quoted(text: str, said: str) -> str:
    """What an assembler said, and behind each line of it the PTX line that it names, with its origin."""
    lines = text.splitlines()
    shown = []
    for sentence in said.splitlines():
        shown.append(f"  {sentence.strip()}")
        found = re.search(_NAMED, sentence)
        if found and 0 < int(found[1]) <= len(lines):
            number = int(found[1])
            shown.append(f"    {number} | {lines[number - 1].strip()}{in_brackets(origin(text, number))}")
    return "\n".join(shown)


def in_brackets(source: Origin | None) -> str:
    """` [fragment 'store', a.py:12, templates/k.ptx.j2:3]`, or nothing."""
    return f" [{source}]" if source else ""
