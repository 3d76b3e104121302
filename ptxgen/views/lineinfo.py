"""Texts that carry their origins: `.file` and `.loc` for profilers and debuggers, or comments for readers.

Both are made from a generated text and its source map; the code stays as it is.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ptxgen.checks import check
from ptxgen.lines.sources import SourceMap, remember
from ptxgen.nodes import Module, instructions
from ptxgen.parser import parse
from ptxgen.places import Origin, Place
from ptxgen.requires import Requirements, requirements

if TYPE_CHECKING:
    from ptxgen.views.generated_kernel import GeneratedKernel

_COLUMN = 88  # where annotations begin, behind shorter lines


class LineInfo(NamedTuple):
    """What differs of a kernel whose text has `.file` and `.loc`; the names are those of `Ptx`."""

    text: str
    requires: Requirements
    digest: str
    module: Module
    source_map: SourceMap


def annotated(ptx: GeneratedKernel) -> str:
    """The text with the origin of every instruction behind it, as a comment."""
    code = _instruction_lines(ptx)
    lines = []
    for number, line in enumerate(ptx.text.splitlines(), 1):
        source = ptx.source_map.at(number) if number in code else None
        lines.append(f"{line:<{_COLUMN}}  // {_ascii(str(source))}" if source else line)
    return "\n".join(lines) + "\n"


def with_line_info(ptx: GeneratedKernel) -> LineInfo:
    """The same kernel with `.file` and `.loc`: an instruction is at the line of Python that emitted it, inlined at the
    line of `build` that called an idiom, and this at the line of the kernel's template that places the fragment, or
    that calls the macro which does.

    Raises `.version` to 7.2, the first with such places.
    """
    text, came = _directives(ptx)
    source_map = ptx.source_map.spread(came)
    remember(text, source_map)
    module = parse(text, ptx.module.file, ptx.module.about)
    needs = requirements(module)
    if needs.ptx > module.version:
        was, now = (f".version {v[0]}.{v[1]}\n" for v in (module.version, needs.ptx))
        text = text.replace(was, now, 1)
        remember(text, source_map)
        module.version, module.source = needs.ptx, text
    check(module, ptx.target)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return LineInfo(text, needs, digest, module, source_map)


def _instruction_lines(ptx: GeneratedKernel) -> set[int]:
    return {each.line for f in ptx.module.functions.values() for each in instructions(f.body or ())}


def _directives(ptx: GeneratedKernel) -> tuple[str, list[int]]:
    """The text with its directives, and for each line the one that it comes from."""
    table = _Table()
    code = _instruction_lines(ptx)
    last: Origin | None = None
    lines: list[str] = []
    came: list[int] = []
    head = 0
    for number, line in enumerate(ptx.text.splitlines(), 1):
        source = ptx.source_map.at(number) if number in code else None
        if source and source != last:
            added = table.locations(source)
            lines += added
            came += [number] * len(added)
            last = source
        lines.append(line)
        came.append(number)
        if line.startswith(".address_size"):
            head = len(lines)
    files = table.file_lines()
    lines[head:head], came[head:head] = files, [0] * len(files)
    strings = table.string_lines()
    return "\n".join([*lines, *strings]) + "\n", [*came, *[0] * len(strings)]


class _Table:
    """The files and names that locations use, numbered as they are met."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self._known: set[tuple[Place | None, Place]] = set()  # places, and what they are inlined at

    def locations(self, source: Origin) -> list[str]:
        """The `.loc` of an instruction, behind those of the places that it is inlined at, where they are new."""
        places = list(dict.fromkeys(place for place in (source.template, source.caller, source.code) if place))
        lines = []
        for outer, place in pairwise([None, *places]):
            assert place is not None
            inlined = f", function_name {self._name(source.fragment)}, inlined_at {self._where(outer)}" if outer else ""
            if place == places[-1] or (outer, place) not in self._known:
                lines.append(f"    .loc {self._where(place)}{inlined}")
            self._known.add((outer, place))
        return lines

    def _where(self, place: Place) -> str:
        return f"{self.files.setdefault(place.file, len(self.files) + 1)} {place.line} 1"

    def _name(self, fragment: str) -> str:
        return f"$name{self.names.setdefault(fragment, len(self.names))}"

    def file_lines(self) -> list[str]:
        """The files, by absolute paths."""
        return [f'.file {number} "{_ascii(file)}"' for file, number in self.files.items()]

    def string_lines(self) -> list[str]:
        """The section that holds the names."""
        if not self.names:
            return []
        body = []
        for name, number in self.names.items():
            body += [f"$name{number}:", f".b8 {', '.join(map(str, [*name.encode(), 0]))}"]
        return [".section .debug_str", "{", *body, "}"]


def _ascii(text: str) -> str:
    return text.replace("→", "->").encode("ascii", "replace").decode()
