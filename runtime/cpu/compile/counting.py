"""An entry that counts what it executes, linked into this process, and the counts. It is not kept on disk."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from ptxgen import nodes
from ptxgen.runtime.cpu.compile import support_objects
from ptxgen.runtime.cpu.compile.entry import Entry, described, module_text, needed_by
from ptxgen.runtime.cpu.emit.counting import (
    COUNTERS,
    EVENT_COUNT,
    EVENT_WORDS,
    EVENTS,
    EXPORTS,
    MOST_EVENTS,
    Counted,
    CountingEmitter,
)
from ptxgen.runtime.cpu.native.host import Host, Linked, compile_ir


@dataclass(frozen=True)
class Event:
    """A warp at a place where warps meet: `goes_on` or arrives. Events are in the order in which they happened."""

    cta: int
    warp: int
    instruction: int
    goes_on: bool
    lanes: int


class Counts:
    """What the launches of a counting entry came to; `instructions` by number."""

    def __init__(self, linked: Linked, instructions: list[Counted]) -> None:
        self.linked, self.instructions = linked, instructions

    def _words(self, name: str, count: int) -> np.ndarray:
        data = (ctypes.c_uint8 * (8 * count)).from_address(self.linked.address(name))
        return np.frombuffer(memoryview(data), np.uint8).view(np.int64)

    def lanes(self) -> np.ndarray:
        """Of each instruction: (lanes that reached it, lanes whose guard held), all launches together."""
        words: np.ndarray = self._words(COUNTERS, 2 * max(len(self.instructions), 1))
        return np.array(words.reshape(-1, 2))

    @property
    def dropped(self) -> int:
        """Events beyond those that there was room for."""
        return max(int(self._words(EVENT_COUNT, 1)[0]) - MOST_EVENTS, 0)

    def events(self) -> list[Event]:
        """Arrivals and departures, the first ones."""
        count = min(int(self._words(EVENT_COUNT, 1)[0]), MOST_EVENTS)
        rows = self._words(EVENTS, EVENT_WORDS * MOST_EVENTS).reshape(-1, EVENT_WORDS)[:count]
        return [
            Event(int(cta), int(warp), int(place) >> 1, bool(place & 1), int(mask)) for cta, warp, place, mask in rows
        ]


def counting(module: nodes.Module, name: str, host: Host, exports: list[str]) -> tuple[Entry, Linked, Counts]:
    """(description, code, counts) of an entry in fast mode."""
    entry, emitter, text = described(module, name, False, host, CountingEmitter)
    assert isinstance(emitter, CountingEmitter)
    names = tuple(needed_by(text, False))
    support = support_objects.of(host, False)
    warp = compile_ir(module_text([text]) + emitter.variables(), host, 0)
    linked = Linked([support.core(), *(g.image for g in support.quick(names)), warp], [*exports, *EXPORTS])
    return entry, linked, Counts(linked, emitter.counted)
