"""A place in a source, and how messages say it. Of a text's lines `lines/sources.py` knows the places."""

from __future__ import annotations

import os
from typing import NamedTuple

_PACKAGE = os.path.dirname(os.path.realpath(__file__))


class Place(NamedTuple):
    """A line of a file. `str()` shortens the file's path for reading."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{shown_path(self.file)}:{self.line}"


class Origin(NamedTuple):
    """Where one line comes from. `code` emitted it (a kernel type's line, or an idiom's); `caller` is the line of the
    kernel type's `build` that called the idiom, None where that is the same; `template` is the line of the kernel's own
    template that placed it, `macro` the line inside of what that called, None where it called nothing."""

    fragment: str = ""
    code: Place | None = None
    caller: Place | None = None
    template: Place | None = None
    macro: Place | None = None

    def __str__(self) -> str:
        python = f"{self.code} from {self.caller}" if self.caller else self.code
        named = f"fragment {self.fragment!r}" if self.fragment else ""
        placed = f"{self.template} → {self.macro}" if self.macro else self.template
        return ", ".join(str(part) for part in (named, python, placed) if part)


def shown_path(file: str) -> str:
    """The path as messages show it: from the package's folder on, else from the working directory on, else whole."""
    beside = os.path.dirname(_PACKAGE)
    for root, inside in ((_PACKAGE, os.path.join(_PACKAGE, "templates")), (beside, beside), (os.getcwd(), os.getcwd())):
        if file.startswith(inside + os.sep):
            return file[len(root) + 1 :].replace(os.sep, "/")
    return file
