"""A text and a position in it: what comes next, up to where, and what is said of it. Owns no grammar."""

from __future__ import annotations

import re
from typing import NoReturn

from ptxgen.errors import IsaError
from ptxgen.nodes import finding
from ptxgen.parser.limits import MOST_FINDINGS

_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_STATEMENT_END = re.compile(r";|^[ \t]*\}", re.MULTILINE)
_BLANK = re.compile(r"\s*")


class Reader:
    """One text being read: `at` is the position, `line` its line."""

    def __init__(self, text: str, file: str, about: str) -> None:
        self.source, self.file, self.about = text, file, about
        self.found: list[str] = []  # statements that cannot be read
        self.within = ""  # the function that is being read
        self.text = text
        self.at, self.line = 0, 1
        self.begun = 0  # where the statement begins that is being read

    def finding(self, what: str, line: int | None = None) -> str:
        """What is wrong in a line, by default the one that is being read."""
        return finding(self.source, self.file, self.about or self.within, line or self.line, what)

    def fail(self, what: str, line: int | None = None) -> NoReturn:
        """Raise `IsaError` with a finding."""
        raise IsaError(self.finding(what, line))

    def skip(self, wrong: IsaError) -> None:
        """Go on behind the statement that cannot be read, at the latest at a line that closes a body; raises where
        there is no end to it."""
        end = _STATEMENT_END.search(self.text, self.begun)
        if end is None or len(self.found) + 1 == MOST_FINDINGS:
            raise wrong
        self.at, self.line = self.begun, 1 + self.text.count("\n", 0, self.begun)
        self.move(end.end() if end[0] == ";" else end.start())
        self.found.append(str(wrong))

    def move(self, to: int) -> None:
        """Go on to a position, blanks after it skipped."""
        blank = _BLANK.match(self.text, to)
        end = blank.end() if blank else to
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def until(self, end: str, what: str) -> str:
        """The text up to a mark; goes on behind it."""
        stop = self.text.find(end, self.at)
        if stop < 0:
            self.fail(f"{what}: {end!r} is missing")
        found = self.text[self.at : stop]
        self.move(stop + len(end))
        return found

    def braces(self, opening: str, closing: str) -> str:
        """The text inside the brackets that open here; goes on behind them."""
        depth, start = 0, self.at
        for match in re.compile(f"[{re.escape(opening + closing)}]").finditer(self.text, start):
            depth += 1 if match[0] == opening else -1
            if depth == 0:
                self.move(match.end())
                return self.text[start + 1 : match.start()]
        self.fail(f"{opening} without {closing}")

    def without_comments(self) -> str:
        """The text with blanks and line ends in the place of comments."""
        if "//" not in self.source and "/*" not in self.source:
            return self.source
        return _COMMENT.sub(self.blanked, self.source)

    def blanked(self, match: re.Match[str]) -> str:
        """A string stays; a comment becomes its line ends."""
        found = match[0]
        if found[0] == '"':
            return found
        if found[1] == "*" and (len(found) < 4 or not found.endswith("*/")):
            self.fail("/* without */", 1 + self.source.count("\n", 0, match.start()))
        return "\n" * found.count("\n") or " "
