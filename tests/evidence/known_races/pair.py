"""A pair of kernels in one file: one with a synchronisation bug that was reported somewhere, one in which it is mended.

The file is PTX with a head of comments: `report:` (who met the bug), `wrong:` (one sentence), `launch: ENTRY grid=…
block=…` (several in order; also cluster=, shared=, args=0,1, programmatic), `args:` (as `ptxgen check --arg` takes
them), `finds:` (the finding's title), `missed:` (why check mode finds nothing), `gpu:` (why it does not run on one). In
the body `// mended` ends a line that only the mended kernel has, `// broken` one that only the broken one has, and
`// found` the line where the finding is expected. Lines keep their numbers in both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ptxgen.runtime.tools.arguments import Argument

HERE = Path(__file__).parent
_FIELD = re.compile(r"^// (report|wrong|launch|args|finds|missed|gpu): (.*)$", re.M)
_MARK = re.compile(r"//\s*((?:broken|mended|found)(?:, found)?)\s*$")


@dataclass(frozen=True)
class Launch:
    """One launch of an entry; `arguments` are positions in the pair's list."""

    entry: str
    options: dict[str, Any]
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """A kernel with a race and its twin without, as a file states them."""

    name: str
    text: str
    fields: dict[str, tuple[str, ...]]

    def __getattr__(self, name: str) -> str:
        if name not in ("report", "wrong", "finds", "missed", "gpu"):
            raise AttributeError(name)
        return " ".join(self.fields.get(name, ()))

    def source(self, broken: bool) -> str:
        """The PTX of one of the two."""
        other = "mended" if broken else "broken"
        return "\n".join("" if other in _marks(line) else line for line in self.text.splitlines()) + "\n"

    @property
    def lines(self) -> tuple[int, ...]:
        """Where the finding is expected."""
        return tuple(n for n, line in enumerate(self.text.splitlines(), 1) if "found" in _marks(line))

    @property
    def arguments(self) -> list[Argument]:
        """Of all launches together."""
        return [Argument.parse(word) for text in self.fields.get("args", ()) for word in text.split()]

    @property
    def launches(self) -> list[Launch]:
        """The launches, in order."""
        return [_launch(text, len(self.arguments)) for text in self.fields["launch"]]

    def run(self, device: Any, broken: bool) -> list[bytes]:
        """Launch one of the two; what the buffers hold afterwards."""
        rng = np.random.default_rng(0)
        given = [argument.on(device, rng) for argument in self.arguments]
        module = device.module(self.source(broken))
        for launch in self.launches:
            entry = module[launch.entry]
            entry.launch(args=[given[n] for n in launch.arguments], **launch.options)
        device.synchronize()
        return [value.numpy().tobytes() for value in given if hasattr(value, "numpy")]


def _marks(line: str) -> str:
    found = _MARK.search(line)
    return found[1] if found else ""


def _launch(text: str, count: int) -> Launch:
    entry, *words = text.split()
    options: dict[str, Any] = {"grid": 1, "block": 32}
    arguments = tuple(range(count))
    for word in words:
        key, _, value = word.partition("=")
        if key == "args":
            arguments = tuple(int(n) for n in value.split(",") if n)
        elif key == "programmatic":
            options[key] = True
        else:
            options[key] = tuple(map(int, value.split(","))) if "," in value else int(value)
    return Launch(entry, options, arguments)


@lru_cache(maxsize=1)
def pairs() -> dict[str, Pair]:
    """All of the folder, by name."""
    found = {}
    for path in sorted(HERE.glob("*.ptx")):
        text = path.read_text(encoding="utf-8")
        fields: dict[str, tuple[str, ...]] = {}
        for key, value in _FIELD.findall(text):
            fields[key] = (*fields.get(key, ()), value)
        found[path.stem] = Pair(path.stem, text, fields)
    return found
