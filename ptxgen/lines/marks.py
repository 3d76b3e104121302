"""Marks in rendered text that tell the template line of every line; they are taken out again. Owns their form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from jinja2.lexer import Token, TokenStream

from ptxgen.lines.sources import Mark, Placed

if TYPE_CHECKING:
    from jinja2 import Environment

_SIGN = "\x1b"  # around a mark: no template has it, no filter takes it away
_CALL, _END = ">", "<"  # with a line: what follows comes from a call on it, up to its end
_BODY, _BODY_END = "(", ")"  # with a line: what follows is the block that the call there was given, up to its end
_FILE, _FILE_END = "[", "]"  # what follows is another file's text, which is placed as if nothing called it
_NO_MACROS = ("caller", "guard", "unless")  # what they print is of their line, or has marks already
_KINDS = _CALL + _END + _BODY + _BODY_END + _FILE + _FILE_END
_files: dict[str, str] = {}  # of the templates, by their names


class _Marks(dict[str, Mark]):
    """File and line by what stands between the signs of a line's mark: the name of a template, and the line."""

    def __missing__(self, mark: str) -> Mark:
        name, _, line = mark.rpartition(":")
        self[mark] = _files[name], int(line)
        return self[mark]


_marks = _Marks()


def is_file_of(name: str, file: str) -> None:
    """Marks with the name of this template mean that file from now on."""
    if _files.get(name) != file:
        _files[name] = file
        _marks.clear()


class LineMarks:
    """Appends a mark to every line of a PTX template's own text, when the template is compiled; calls are marked too.

    What a line's end stands in tells where the line comes from: macros, call blocks, includes and parents keep theirs,
    and block tags, which print nothing, get none. Calls are `{% call %}`, and expressions with a call that have a line
    to themselves.

    An extension of Jinja's in all but its base class, whose module takes a millisecond to import.
    """

    identifier = "ptxgen.lines.marks.LineMarks"
    priority = 100
    tags: frozenset[str] = frozenset()

    def __init__(self, environment: Environment) -> None:
        """As Jinja makes extensions."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """The source as it is."""
        return source

    def filter_stream(self, stream: TokenStream) -> Iterable[Token]:
        """The tokens with marks in the text between tags."""
        name = stream.name or ""
        if not name.endswith(".ptx.j2"):
            yield from stream
            return
        opened: list[str] = []  # the calls with blocks that are open here
        fresh = True  # nothing printed on this line so far
        tag: list[Token] = []
        for token in stream:
            if tag:
                tag.append(token)
                if token.type in ("block_end", "variable_end"):
                    yield from _around(tag, f"{name}:{tag[0].lineno}", opened, fresh=fresh)
                    fresh = fresh and tag[0].type == "block_begin"
                    tag = []
            elif token.type in ("block_begin", "variable_begin"):
                tag.append(token)
            elif token.type == "data":
                *lines, last = token.value.split("\n")
                marked = (f"{line}{_SIGN}{name}:{token.lineno + i}{_SIGN}\n" for i, line in enumerate(lines))
                yield Token(token.lineno, token.type, "".join(marked) + last)
                fresh = not last.strip() if lines else fresh and not last.strip()
            else:
                yield token


def _around(tag: list[Token], mark: str, opened: list[str], *, fresh: bool) -> Iterator[Token]:
    """A tag with the marks that it needs before and behind it."""
    line, word = tag[0].lineno, tag[1].value

    def sign(*parts: str) -> Token:
        return Token(line, "data", "".join(f"{_SIGN}{part}{_SIGN}" for part in parts))

    if tag[0].type == "variable_begin":
        calls = fresh and word not in _NO_MACROS and any(token.type == "lparen" for token in tag)
        yield from (sign(_CALL + mark), *tag, sign(_END)) if calls else tag
    elif word == "call":
        opened.append(mark)
        yield from (sign(_CALL + mark), *tag, sign(_BODY + mark))
    elif word == "endcall" and opened:
        opened.pop()
        yield from (sign(_BODY_END), *tag, sign(_END))
    elif word == "include":
        yield from (sign(_FILE), *tag, sign(_FILE_END))
    else:
        yield from tag


class _Calls:
    """The calls that a place in the rendered text stands in, by the marks before it."""

    def __init__(self) -> None:
        self.lines: list[str] = []  # of calls, the outermost first
        self.outside: list[list[str]] = []  # the same around blocks and included files

    def read(self, mark: str) -> None:
        """Pass a mark that is no line's."""
        kind, line = mark[0], mark[1:]
        if kind == _CALL:
            self.lines = [*self.lines, line]
        elif kind == _END:
            self.lines = self.lines[:-1]
        elif kind in (_BODY, _FILE):
            self.outside.append(self.lines)
            self.lines = self.lines[: self.lines.index(line)] if kind == _BODY and line in self.lines else []
        elif self.outside:
            self.lines = self.outside.pop()

    def placed(self, mark: str) -> Placed:
        """A line of a template, and before it the line of another one that its macro was called on."""
        own = _marks[mark]
        others = [line for line in map(_marks.__getitem__, self.lines) if line[0] != own[0]]
        return ([line for line in others if line[0] == others[0][0]][-1], own) if others else (own,)


def marked_lines(text: str) -> Iterator[tuple[str, Placed]]:
    """The lines of a rendered text without their marks, and what placed them.

    A line that an expression printed with others has the mark of the last of them.
    """
    calls = _Calls()
    waiting: list[str] = []
    placed: Placed = ()
    for line in text.split("\n"):
        if _SIGN not in line:
            waiting.append(line)
            continue
        parts = line.split(_SIGN)
        found = False
        for mark in parts[1::2]:
            if mark[0] in _KINDS:
                calls.read(mark)
            elif not found:
                placed, found = calls.placed(mark), True
        waiting.append("".join(parts[::2]))
        if found:
            for each in waiting:
                yield each, placed
            waiting.clear()
    for each in waiting:
        yield each, placed
