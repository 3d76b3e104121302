"""`ptxgen check FILE.ptx`: run any PTX in every mode and several orders, and say what is wrong where."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptxgen.cli._output import emit_json, json_option, say
from ptxgen.cli._run import SEED, isolate_options, limits_of
from ptxgen.errors import SpecError

if TYPE_CHECKING:
    from ptxgen.runtime.tools.checker import Launch, Report, Seen


def _extent(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """`4`, `4,2` or `4x2x1` as a tuple."""
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,10}(?:[x,]\d{1,10}){0,2}", value):
        raise click.BadParameter(f"must be N, NxN or NxNxN (got {value!r})", ctx, param)
    return tuple(int(n) for n in re.split("[x,]", value))


@click.command(name="check")
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@click.option("--entry", help="The kernel to launch  [default: the only one of the file]")
@click.option("--grid", callback=_extent, default="1", help="CTAs: N or NxNxN  [default: 1]")
@click.option("--block", callback=_extent, help="Threads of a CTA  [default: the entry's .reqntid]")
@click.option("--cluster", callback=_extent, help="CTAs of a cluster.")
@click.option("--shared", type=click.IntRange(min=0), default=0, help="Bytes of dynamic shared memory.")
@click.option("--arg", "words", multiple=True, metavar="TYPE[N]=FILL",
              help="An argument, in order: u32=7 (a scalar), f32[1024]=random, u32[64]=index, f32[64]=0, "
                   "f32[64] (not initialised).")  # fmt: skip
@click.option("--args", "archive", type=click.Path(exists=True, dir_okay=False), metavar="FILE.npz",
              help="All arguments: arrays by the parameters' names, or in order; 0-dimensional ones are scalars.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=0), default=5, help="Random orders to try  [default: 5]")
@click.option("--seed", type=SEED, default=0, help="The first of them, and of random data  [default: 0]")
@click.option("--time-limit", type=click.FloatRange(min=0, min_open=True), default=60.0,
              help="Seconds of a launch before it is given up  [default: 60]")  # fmt: skip
@click.option("--equal-stores", is_flag=True, help="Unordered stores of equal values are findings, not notes.")
@click.option("--any-order", is_flag=True, help="Results that depend on the order are notes, not findings.")
@click.option("--coverage", is_flag=True, help="Show the lines and branches of the PTX that did not run.")
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE",
              help="Write a page: listing, counts, findings, warps over barriers.")  # fmt: skip
@click.option("--sarif", type=click.Path(dir_okay=False), metavar="FILE", help="Write the findings as SARIF.")
@isolate_options
@json_option
def command(
    file: str, coverage: bool, html: str | None, sarif: str | None, as_json: bool, isolate: bool, memory: int,
    seconds: float, **options: Any,
) -> int:  # fmt: skip
    """Launch a kernel of FILE in fast, random and check mode, and show all that is found.

    Exit 1 when there is a finding; notes (unordered stores of equal values) are none. Nothing but the CPU is needed.
    """
    import ptxgen.runtime.tools.checker  # noqa: F401  whose records come back
    from ptxgen.output import check_place
    from ptxgen.runtime.tools.isolate import isolated

    for place in (html, sarif):
        if place is not None:
            check_place(Path(place))
    limits = limits_of(isolate, memory, seconds)
    report = _report(file, options) if limits is None else isolated(_report, file, options, limits=limits)
    if sarif is not None:
        from ptxgen.cli._sarif import sarif as as_sarif

        Path(sarif).write_text(json.dumps(as_sarif([report]), indent=1) + "\n", encoding="utf-8")
    if as_json:
        emit_json(_fields(report))
    else:
        _show(report)
    return 0 if report.ok else 1


def _report(file: str, options: dict[str, Any]) -> Report:
    from ptxgen.runtime.tools.checker import check

    return check(
        _launch(file, options), seeds=options["seeds"], first_seed=options["seed"], time_limit=options["time_limit"],
        equal_stores="finding" if options["equal_stores"] else "note",
        differences="note" if options["any_order"] else "finding",
    )  # fmt: skip


def _launch(file: str, options: dict[str, Any]) -> Launch:
    from ptxgen.archive import read_arrays
    from ptxgen.runtime.cpu.device import CpuDevice
    from ptxgen.runtime.tools.arguments import Argument, from_arrays
    from ptxgen.runtime.tools.checker import Launch

    text = Path(file).read_bytes().decode("utf-8-sig", errors="replace")
    launch = Launch(text, file, options["entry"], options["grid"], options["block"], [Argument.parse(w) for w in options["words"]],
                    options["shared"], options["cluster"], options["seed"])  # fmt: skip
    if options["archive"] is None:
        return launch
    if launch.arguments:
        raise SpecError("--args gives all arguments: no --arg beside it")
    from dataclasses import replace

    arrays = read_arrays(options["archive"], "an .npz of arrays without Python objects")
    try:
        return replace(launch, arguments=from_arrays(arrays, launch.parameters(CpuDevice(threads=1))))
    except SpecError as wrong:
        raise SpecError(f"{options['archive']}: {wrong}") from None


def _fields(report: Report) -> dict[str, Any]:
    return {
        "file": report.launch.name, "entry": report.entry, "ok": report.ok,
        "runs": [
            {"mode": run.mode, "seed": run.seed, "findings": len(run.findings), "seconds": run.seconds}
            for run in report.runs
        ],
        "findings": [{**one.finding.fields(), "note": one.note, "runs": one.runs} for one in report.seen],
    }  # fmt: skip


def _show(report: Report) -> None:
    for one in report.seen:
        click.echo(_text(one))
        click.echo("")
    count = len(report.findings)
    notes = len(report.seen) - count
    modes = f"fast, random ({sum(run.mode == 'random' for run in report.runs)} orders), check"
    also = f", {notes} note{'s' if notes > 1 else ''}" if notes else ""
    what = "nothing found" if not count else f"{count} finding{'s' if count > 1 else ''}"
    say(f"{report.launch.name}: {report.entry}: {what}{also} ({modes})")


def _text(seen: Seen) -> str:
    """The finding, the line of its source where that can be read, and in which runs it was seen."""
    lines = [("note: " if seen.note else "") + str(seen.finding)]
    first = seen.finding.spots[0] if seen.finding.spots else None
    if first is not None and first.source is not None:
        file, number = first.source
        lines.append(f"  {file}:{number}{_quoted(file, number)}")
    return "\n".join([*lines, f"  in: {', '.join(seen.runs)}"])


def _quoted(file: str, number: int) -> str:
    try:
        lines: Sequence[str] = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return ""
    return f" | {lines[number - 1].strip()}" if 0 < number <= len(lines) and os.path.isfile(file) else ""
