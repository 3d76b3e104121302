"""What an error of Jinja's says to a template's author: the line of the template, what is wrong, what would work."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from jinja2 import TemplateNotFound

from ptxgen.errors import near, nearest
from ptxgen.lines.macros import Macros


class _Frame(NamedTuple):
    """A line of a template that was rendered when an error arose."""

    file: str
    line: int

    @property
    def name(self) -> str:
        return Path(self.file).name

    @property
    def source(self) -> str:
        return Path(self.file).read_text(encoding="utf-8")

    def calls(self, name: str) -> bool:
        """Whether the line calls something of this name."""
        return re.search(rf"\b{name}\(", self.source.splitlines()[self.line - 1]) is not None


def explained(wrong: BaseException, context: Mapping[str, object], macros: Macros) -> str:
    """`file:line: what is wrong; what would work`, of an error that arose in a skeleton which knows `context`."""
    frames = _frames(wrong)
    return f"{_where(wrong, frames)}: {_said(str(wrong), frames, context, macros)}"


def missing(wrong: TemplateNotFound, places: str, known: Iterable[str]) -> str:
    """The same of a template that does not exist; `places`: where it was looked for besides."""
    frames = _frames(wrong)
    where = f"{_shown(frames)}: " if frames else ""
    return f"{where}template {wrong.name} does not exist{places}{nearest(wrong.name, known) if frames else ''}"


def _frames(wrong: BaseException) -> list[_Frame]:
    """The lines of templates on the way to an error, from the skeleton inwards; of calls and parents that lead back to
    a file, only where that is now."""
    found: list[_Frame] = []
    for each in traceback.extract_tb(wrong.__traceback__):
        if not each.filename.endswith(".j2") or not each.lineno:
            continue
        frame = _Frame(each.filename, each.lineno)
        if found and found[-1].file != frame.file:
            first = next((n for n, before in enumerate(found) if before.file == frame.file), len(found))
            del found[first:]
        if frame not in found:
            found.append(frame)
    return found


def _where(wrong: BaseException, frames: list[_Frame]) -> str:
    """What the error itself knows, or the lines."""
    name, line = getattr(wrong, "name", None), getattr(wrong, "lineno", None)
    return f"{name}:{line}" if name and line else _shown(frames) or "template"


def _shown(frames: list[_Frame]) -> str:
    return " → ".join(f"{frame.name}:{frame.line}" for frame in frames)


def _said(message: str, frames: list[_Frame], context: Mapping[str, object], macros: Macros) -> str:
    """The message in words of templates, and the nearest thing that would work."""
    macro = macros.at(frames[-1].line) if frames and frames[-1].name == macros.__name__ else ""
    if named := re.match(r"'(\w+)' is undefined", message):
        return f"{message}; {_nearest(named[1], frames, context, macros)}"
    if named := re.match(r"macro '(\w+)' was invoked with two values for the special caller argument", message):
        return f"the macro {named[1]} takes no block: {{{{ {_signature(named[1], macros)} }}}}"
    if named := re.match(r"macro '(\w+)' ", message):
        return f"{message}; it is {_signature(named[1], macros)}"
    if message == "No caller defined":
        what, call = (f"the macro {macro}", _signature(macro, macros)) if macro else ("the macro", "name(…)")
        return f"{what} needs a block: {{% call {call} %}} … {{% endcall %}}"
    if re.match(r"parameter '\w+' was not provided", message) and macro:
        return f"{message}; it is {_signature(macro, macros)}"
    if named := re.match(r"'[\w.]+ object' has no attribute '(\w+)'", message):
        return _of_another_kind(message, named[1], macro, frames, context)
    if message == "Required block 'body' not found":
        return f"{message}: {{% block body %}} … {{% endblock %}} around what the entry does"
    return message


def _nearest(name: str, frames: list[_Frame], context: Mapping[str, object], macros: Macros) -> str:
    """The known name that an undefined one resembles, or how it would come to be known."""
    if name in macros:
        return f"import it: {_import(name, macros)}"
    own = next((frame for frame in reversed(frames) if frame.name != macros.__name__), None)
    if own is not None and own.calls(name):
        there = re.findall(r"\w+", " ".join(re.findall(r"{%-? *(?:from .* import|macro) ([^%(]*)", own.source)))
        close = near(name, {*macros, *there})
        if not close:
            return macros.nearest(name)
        return f"nearest macro: {close}" + ("" if close in there else f"; import it: {_import(close, macros)}")
    close = near(name, context)
    absent = f"build() makes no fragment or register of this name, exposes none, and has no b.without({name!r})"
    return f"nearest: {close}" if close else absent


def _of_another_kind(
    message: str, attribute: str, macro: str, frames: list[_Frame], context: Mapping[str, object]
) -> str:
    """A macro was given something of another kind than it takes: what there is of the right kind."""
    own = next((frame for frame in reversed(frames[:-1])), None)
    given = re.search(rf"\b{macro}\((\w+)\)", own.source.splitlines()[own.line - 1]) if own and macro else None
    if given is None:
        return message
    right = [name for name, value in context.items() if hasattr(value, attribute)]
    made = f"a {type(context[right[0]]).__name__}" if right else f"what has a part {attribute!r}"
    kind = f"{type(context[given[1]]).__name__} " if given[1] in context else ""
    calls = ", ".join(f"{{{{ {macro}({name}) }}}}" for name in right)
    remedy = f"place {calls}" if len(right) == 1 else f"there are {calls}" if right else "build() makes none"
    return f"{macro} takes {made} (got {kind}{given[1]!r}); {remedy}"


def _import(name: str, macros: Macros) -> str:
    return f'{{% from "{macros.__name__}" import {name} %}}'


def _signature(name: str, macros: Macros) -> str:
    return macros.signature(name) if name in macros else f"{name}(…)"
