"""What of a PTX text a launch executes: lines, ways of branches and guards, and when warps met at barriers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ptxgen.errors import VersionWarning
from ptxgen.runtime.cpu.compile.counting import Counts, Event
from ptxgen.runtime.cpu.device import CpuDevice, CpuFunction
from ptxgen.runtime.tools.checker import Launch, one_run


@dataclass(frozen=True)
class Executed:
    """An instruction: `reached` lanes came to it, `ran` of them had its guard. `ways`: how it can go on (a guard that
    holds or not), in words, and whether it did."""

    line: int
    text: str
    reached: int
    ran: int
    ways: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True)
class Interval:
    """A warp from one event of the launch to another: running, or waiting at an instruction's `line`."""

    begin: int
    end: int
    waits: bool
    line: int


@dataclass(frozen=True)
class Coverage:
    """Of one launch in fast mode; instructions in the order of the text. `warps` by (CTA, warp); `more` events were
    not kept."""

    name: str
    instructions: tuple[Executed, ...]
    warps: dict[tuple[int, int], tuple[Interval, ...]]
    more: int

    @property
    def lines(self) -> dict[int, list[Executed]]:
        """The instructions by line."""
        found: dict[int, list[Executed]] = {}
        for one in self.instructions:
            found.setdefault(one.line, []).append(one)
        return found

    def summary(self) -> dict[str, int]:
        """Counts of lines and ways, and of those that ran. A line has run when all of its instructions were reached."""
        lines = self.lines
        ways = [ran for one in self.instructions for _, ran in one.ways]
        ran = sum(all(one.reached for one in those) for those in lines.values())
        return {"lines": len(lines), "lines_run": ran, "ways": len(ways), "ways_run": sum(ways)}

    def missing(self) -> list[tuple[int, str]]:
        """Lines that did not run, and ways not taken, in words."""
        found: list[tuple[int, str]] = []
        for one in self.instructions:
            if not one.reached:
                found.append((one.line, f"never reached: {one.text}"))
            found += [(one.line, f"never {way}: {one.text}") for way, ran in one.ways if not ran and one.reached]
        return list(dict.fromkeys(found))


def coverage(launch: Launch, time_limit: float | None = None) -> Coverage:
    """Launch once more, counting. What ends the launch early ends the counts with it."""
    device = CpuDevice(threads=1, time_limit=time_limit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VersionWarning)  # the check of the launch reports it
        name, block = launch.chosen(device)
        module = device.module(launch.text, launch.name)
    function = module[name].function
    assert isinstance(function, CpuFunction)
    counts = function.code.program.counted(name)
    one_run(replace(launch, entry=name, block=block), device, module=module)
    return of(launch.name, counts)


def of(name: str, counts: Counts) -> Coverage:
    """The coverage that these counts mean."""
    made = []
    for one, (reached, ran) in zip(counts.instructions, counts.lanes().tolist(), strict=False):
        ways: tuple[tuple[str, bool], ...] = ()
        if one.branch:
            guarded = "bra" in one.text.replace(".", " ").split()
            held, not_held = ("taken", "passed") if guarded else ("with its guard", "without its guard")
            # a guard of what waits is a branch around it
            if not guarded and any(other.text == one.text and not other.branch for other in counts.instructions):
                held, not_held = not_held, held
            ways = ((held, ran > 0), (not_held, reached > ran))
        made.append(Executed(one.line, one.text, reached, ran, ways))
    made.sort(key=lambda one: one.line)
    lines = [one.line for one in counts.instructions]
    return Coverage(name, tuple(made), _timeline(counts.events(), lines), counts.dropped)


def _timeline(events: Sequence[Event], lines: Sequence[int]) -> dict[tuple[int, int], tuple[Interval, ...]]:
    """Each warp's time, counted in events of all."""
    made: dict[tuple[int, int], list[Interval]] = {}
    since: dict[tuple[int, int], tuple[int, bool, int]] = {}  # begin, whether it waits, at which line
    for now, event in enumerate(events, 1):
        who, line = (event.cta, event.warp), lines[event.instruction]
        begin, waits, at = since.get(who, (0, False, 0))
        if waits and not event.goes_on and at == line:
            continue  # looks again
        made.setdefault(who, []).append(Interval(begin, now, waits, at))
        since[who] = (now, not event.goes_on, line)
    for who, (begin, waits, at) in since.items():
        made[who].append(Interval(begin, len(events) + 1, waits, at))
    return {who: tuple(made[who]) for who in sorted(made)}
