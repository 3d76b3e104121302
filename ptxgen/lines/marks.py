"""Marks in rendered text that tell the template line of every line; they are taken out again. Owns their form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from ptxgen.lines.sources import Mark

_SIGN = "\x1b"  # around a mark: no template has it, no filter takes it away
_files: list[str] = []  # of the templates that were compiled
_marks: dict[str, Mark] = {}  # by what stands between the signs: the index of a file, and a line


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
                *lines, last = token.value.split("\n")
                marks = {f"{index}:{token.lineno + i}": (file, token.lineno + i) for i in range(len(lines))}
                _marks.update(marks)
                marked = (f"{line}{_SIGN}{mark}{_SIGN}\n" for line, mark in zip(lines, marks, strict=True))
                yield Token(token.lineno, token.type, "".join(marked) + last)
            else:
                yield token


def marked_lines(text: str) -> Iterator[tuple[str, Mark | None]]:
    """The lines of a rendered text without their marks, and the marks.

    A line that an expression printed with others has the mark of the last of them.
    """
    waiting: list[str] = []
    mark: Mark | None = None
    for line in text.split("\n"):
        first, sign, rest = line.partition(_SIGN)
        if not sign:
            waiting.append(line)
            continue
        number, _, more = rest.partition(_SIGN)
        mark = _marks[number]
        if waiting:
            for each in waiting:
                yield each, mark
            waiting.clear()
        yield first + "".join(more.split(_SIGN)[::2]) if more else first, mark
    for each in waiting:
        yield each, mark
