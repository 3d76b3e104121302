"""The page of `ptxgen check --html`: findings, warps over barriers, the listing with counts; one file of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxgen.finding import with_source
from ptxgen.lines.sources import origin

if TYPE_CHECKING:
    from ptxgen.runtime.tools.checker import Report, Seen
    from ptxgen.runtime.tools.coverage import Coverage, Executed

_TEMPLATE = "check/page.html.j2"
_WIDTH = 900  # pixels of the time line
_MOST_ROWS = 64
_MOST_BARS = 20_000


@dataclass(frozen=True)
class _Line:
    number: int
    text: str
    lanes: str
    kind: str  # ran, never, part (a way was not taken), or nothing: no instruction
    source: str
    remarks: tuple[str, ...]
    seen: tuple[_Shown, ...]


@dataclass(frozen=True)
class _Shown:
    text: str
    note: bool
    finding: Any


def page(report: Report, counted: Coverage) -> str:
    """The coverage of a text as one HTML page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from ptxgen.packages import templates_folder

    environment = Environment(
        loader=FileSystemLoader(templates_folder()), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    shown = [_shown(one) for one in report.seen]
    count = len(report.findings)
    return environment.get_template(_TEMPLATE).render(
        name=report.launch.name, entry=report.entry, runs=report.runs, seen=shown, counts=counted.summary(),
        verdict="Nothing was found." if not count else f"{count} finding{'s' if count > 1 else ''}.",
        listing=_listing(report.launch.text, counted, shown), rows=_rows(counted), width=_WIDTH, more=counted.more,
    )  # fmt: skip


def _shown(one: Seen) -> _Shown:
    text = f"{with_source(one.finding)}\n  in: {', '.join(one.runs)}"
    return _Shown(f"note: {text}" if one.note else text, one.note, one.finding)


def _listing(text: str, counted: Coverage, shown: list[_Shown]) -> list[_Line]:
    by_line, made = counted.lines, []
    for number, line in enumerate(text.splitlines(), 1):
        here = by_line.get(number, [])
        place = origin(text, number) if here else None
        there = (place.caller or place.code or place.template) if place else None
        lanes = max((one.ran for one in here), default=0)
        seen = tuple(one for one in shown if one.finding.line == number)
        made.append(
            _Line(number, line, f"{lanes:,}" if here else "", _kind(here), str(there or ""), _remarks(here), seen)
        )
    return made


def _kind(here: list[Executed]) -> str:
    if not here:
        return ""
    if not all(one.reached for one in here):
        return "never"
    return "ran" if all(ran for one in here for _, ran in one.ways) else "part"


def _remarks(here: list[Executed]) -> tuple[str, ...]:
    return tuple(f"never {way}" for one in here if one.reached for way, ran in one.ways if not ran)


def _rows(counted: Coverage) -> list[dict[str, Any]]:
    """A row for each of the first warps; lengths in pixels."""
    warps = list(counted.warps.items())[:_MOST_ROWS]
    last = max((interval.end for _, intervals in warps for interval in intervals), default=1)
    rows, left = [], _MOST_BARS
    for number, ((cta, warp), intervals) in enumerate(warps):
        bars = []
        for interval in intervals[:left]:
            x = round(_WIDTH * interval.begin / last, 1)
            width = max(round(_WIDTH * (interval.end - interval.begin) / last, 1), 0.5)
            where = f"line {interval.line}" if interval.line else "its beginning"
            title = f"waits at {where}" if interval.waits else f"runs from {where} on"
            bars.append({"x": x, "width": width, "waits": interval.waits, "title": title})
        left -= len(bars)
        rows.append({"label": f"CTA {cta} warp {warp}", "y": number * 18 + 2, "bars": bars})
    return rows
