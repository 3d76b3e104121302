"""Marks in rendered text that tell the template line of every line; they are taken out again. Owns their form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from ptxgen.sources import Mark

_SIGN = "\x1b"  # around a mark: no template has it, no filter takes it away
_files: list[str] = []  # of the templates that were compiled; a mark has an index


class LineMarks(Extension):
    """Appends a mark to every line of a PTX template's own text, when the template is compiled.

    What a line's end stands in tells where the line comes from: macros, call blocks, includes and parents keep theirs,
    and block tags, which print nothing, get none.
    """

    def filter_stream(self, stream: TokenStream) -> Iterable[Token]:
        """The tokens with marks in the text between tags."""
        name = stream.name or ""
        if not name.endswith(".ptx.j2"):
            yield from stream
            return
        file = stream.filename or name
        if file not in _files:
            _files.append(file)
        index = _files.index(file)
        for token in stream:
            if token.type == "data" and "\n" in token.value:
                lines = token.value.split("\n")
                marked = (f"{line}{_SIGN}{index}:{token.lineno + i}{_SIGN}\n" for i, line in enumerate(lines[:-1]))
                yield Token(token.lineno, token.type, "".join(marked) + lines[-1])
            else:
                yield token


def marked_lines(text: str) -> Iterator[tuple[str, Mark | None]]:
    """The lines of a rendered text without their marks, and the marks.

    A line that an expression printed with others has the mark of the last of them.
    """
    waiting: list[str] = []
    mark: Mark | None = None
    for line in text.split("\n"):
        if _SIGN not in line:
            waiting.append(line)
            continue
        first, number, *rest = line.split(_SIGN)
        index, _, at = number.partition(":")
        mark = _files[int(index)], int(at)
        for each in waiting:
            yield each, mark
        waiting.clear()
        yield first + "".join(rest[::2]), mark
    for each in waiting:
        yield each, mark
