"""`Finding`: the text of something that is wrong in running PTX, with its parts. Owns no rule and no words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptxgen.places import Origin, shown_path


@dataclass(frozen=True, slots=True)
class Spot:
    """Where some lanes of a warp were: `line` and `text` of the PTX (0 and "" where none is known), the line's `origin`
    in a source, and which threads. `lanes` are numbers; none: the warp as a whole."""

    line: int
    text: str = ""
    origin: Origin | None = None
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    lanes: tuple[int, ...] = ()

    @property
    def source(self) -> tuple[str, int] | None:
        """File and line of the source (Python, Triton, CUDA), the caller's where the line was inlined."""
        place = (self.origin.caller or self.origin.code or self.origin.template) if self.origin else None
        return (shown_path(place.file), place.line) if place else None

    def fields(self) -> dict[str, Any]:
        """The parts by name, as JSON shows them."""
        source = self.source
        return {
            "line": self.line, "text": self.text, "cta": self.cta, "warp": self.warp, "lanes": self.lanes,
            "source": None if source is None else {"file": source[0], "line": source[1]},
        }  # fmt: skip


class Finding(str):
    """What was found, as a text of several lines, with its parts: `kind` (race, deadlock, …), `kernel`, `file` of the
    PTX, `spots` (the first is where it was noticed; a deadlock has one for each group of lanes), `buffer` (the argument
    or variable), `memory` (where in it), `advice`."""

    kind: str
    kernel: str
    file: str
    spots: tuple[Spot, ...]
    buffer: str
    memory: str
    advice: str

    def __new__(
        cls,
        text: str,
        kind: str = "",
        kernel: str = "",
        file: str = "",
        spots: Sequence[Spot] = (),
        buffer: str = "",
        memory: str = "",
        advice: str = "",
    ) -> Finding:
        made = super().__new__(cls, text)
        made.kind, made.kernel, made.file, made.spots = kind, kernel, file, tuple(spots)
        made.buffer, made.memory, made.advice = buffer, memory, advice
        return made

    @property
    def line(self) -> int:
        """Of the PTX, where it was noticed; 0: nowhere in particular."""
        return self.spots[0].line if self.spots else 0

    def fields(self) -> dict[str, Any]:
        """The parts by name, as JSON shows them."""
        return {
            "kind": self.kind, "kernel": self.kernel, "file": self.file, "buffer": self.buffer, "memory": self.memory,
            "advice": self.advice, "text": str(self), "spots": [spot.fields() for spot in self.spots],
        }  # fmt: skip


def lanes_of(mask: int) -> tuple[int, ...]:
    """The lanes whose bits are set."""
    return tuple(lane for lane in range(32) if mask >> lane & 1)


def with_source(finding: str) -> str:
    """A finding's text, and the line of its source (Python, Triton, CUDA) where that is known and can be read."""
    place = finding.spots[0].source if isinstance(finding, Finding) and finding.spots else None
    if place is None:
        return str(finding)
    return f"{finding}\n  {place[0]}:{place[1]}{_quoted(*place)}"


def _quoted(file: str, number: int) -> str:
    """` | x = tl.load(p)`, or nothing."""
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return ""
    return f" | {lines[number - 1].strip()}" if 0 < number <= len(lines) else ""
