"""`ptxgen check FILE.ptx`: run any PTX in every mode and several orders, and say what is wrong where."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptxgen.cli._given import Command, FloatRange, IntRange, as_options, not_stdout
from ptxgen.cli._output import emit_json, json_option, printable, say
from ptxgen.cli._run import SEED, isolate_options, limits_named, limits_of
from ptxgen.errors import SpecError
from ptxgen.finding import with_source

if TYPE_CHECKING:
    from ptxgen.runtime.tools.checker import Launch, Report, Seen
    from ptxgen.runtime.tools.coverage import Coverage


_FEW = 4  # instructions in a row that did not run are shown; more are counted


def _extent(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """`4`, `4,2` or `4x2x1` as a tuple."""
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,10}(?:[x,]\d{1,10}){0,2}", value):
        raise click.BadParameter(f"must be N, NxN or NxNxN (got {value!r})", ctx, param)
    return tuple(int(n) for n in re.split("[x,]", value))


@click.command(name="check", cls=Command)
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@click.option("--entry", help="The kernel to launch  [default: the only one of the file]")
@click.option("--grid", callback=_extent, default="1", help="CTAs: N or NxNxN  [default: 1]")
@click.option("--block", callback=_extent, help="Threads of a CTA  [default: the entry's .reqntid]")
@click.option("--cluster", callback=_extent, help="CTAs of a cluster.")
@click.option("--shared", type=IntRange(min=0), default=0, help="Bytes of dynamic shared memory.")
@click.option("--arg", "words", multiple=True, metavar="TYPE[N]=FILL",
              help="An argument, in order: u32=7 (a scalar), f32[1024]=random, u32[64]=index, f32[64]=0, "
                   "f32[64] (not initialised).")  # fmt: skip
@click.option("--args", "archive", type=click.Path(exists=True, dir_okay=False), metavar="FILE.npz",
              help="All arguments: arrays by the parameters' names, or in order (0 dimensions: a scalar).")  # fmt: skip
@click.option("--seeds", type=IntRange(min=0), default=5, help="Random orders to try  [default: 5]")
@click.option("--seed", type=SEED, default=0, help="The first of them, and of random data  [default: 0]")
@click.option("--time-limit", type=FloatRange(min=0, min_open=True), default=60.0,
              help="Seconds of a launch before it is given up  [default: 60]")  # fmt: skip
@click.option("--equal-stores", is_flag=True, help="Unordered stores of equal values are findings, not notes.")
@click.option("--any-order", is_flag=True, help="Results that depend on the order are notes, not findings.")
@click.option("--coverage", is_flag=True, help="Show the lines and branches of the PTX that did not run.")
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", callback=not_stdout,
              help="Write a page: listing, counts, findings, warps over barriers.")  # fmt: skip
@click.option("--sarif", type=click.Path(dir_okay=False), metavar="FILE", callback=not_stdout,
              help="Write the findings as SARIF.")  # fmt: skip
@isolate_options
@json_option
def command(
    file: str, coverage: bool, html: str | None, sarif: str | None, as_json: bool, isolate: bool, memory: int,
    seconds: float, **options: Any,
) -> int:  # fmt: skip
    """Launch a kernel of FILE in fast, random and check mode, and show all that is found.

    Exit 1 when there is a finding; notes (unordered stores of equal values) are none. Nothing but the CPU is needed.
    """
    import ptxgen.runtime.tools.checker
    import ptxgen.runtime.tools.coverage  # noqa: F401  whose records come back
    from ptxgen.files.output import check_place
    from ptxgen.runtime.tools.isolate import isolated

    for place in (html, sarif):
        if place is not None:
            check_place(Path(place))
    limits = limits_of(isolate, memory, seconds)
    wanted = (file, options, coverage or html is not None)
    with limits_named():
        report, counted = _report(*wanted) if limits is None else isolated(_report, *wanted, limits=limits)
    if html is not None:
        from ptxgen.cli._page import page

        assert counted is not None
        Path(html).write_text(page(report, counted), encoding="utf-8")
    if sarif is not None:
        from ptxgen.cli._sarif import sarif as as_sarif

        Path(sarif).write_text(json.dumps(as_sarif([report]), indent=1) + "\n", encoding="utf-8")
    if as_json:
        emit_json(_fields(report, counted if coverage else None))
    else:
        _show(report)
        if coverage and counted is not None:
            _show_coverage(counted)
    return 0 if report.ok else 1


def _report(file: str, options: dict[str, Any], covered: bool) -> tuple[Report, Coverage | None]:
    """What all runs found, and what of the text ran if that is asked for."""
    from ptxgen.runtime.tools.checker import TooFewArguments, check
    from ptxgen.runtime.tools.coverage import coverage

    launch = _launch(file, options)
    with as_options("Geometry"):
        try:
            report = check(
                launch, seeds=options["seeds"], first_seed=options["seed"], time_limit=options["time_limit"],
                equal_stores="finding" if options["equal_stores"] else "note",
                differences="note" if options["any_order"] else "finding",
            )  # fmt: skip
        except TooFewArguments as wrong:
            raise SpecError(f"{wrong}: --arg gives the next one") from None
    return report, coverage(launch, options["time_limit"]) if covered else None


def _launch(file: str, options: dict[str, Any]) -> Launch:
    from ptxgen.files.archive import read_arrays
    from ptxgen.runtime.cpu.device import CpuDevice
    from ptxgen.runtime.tools.arguments import Argument, from_arrays
    from ptxgen.runtime.tools.checker import Launch

    text = Path(file).read_bytes().decode("utf-8-sig", errors="replace")
    arguments = [Argument.parse(word) for word in options["words"]]
    launch = Launch(text, file, options["entry"], options["grid"], options["block"], arguments, options["shared"],
                    options["cluster"], options["seed"])  # fmt: skip
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


def _fields(report: Report, counted: Coverage | None) -> dict[str, Any]:
    covered: dict[str, Any] = {}
    if counted is not None:
        counts = [{"line": c.line, "text": c.text, "reached": c.reached, "ran": c.ran} for c in counted.instructions]
        covered = {"coverage": {**counted.summary(), "counts": counts}}
    return {
        **covered,
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
    count = len(report.findings)
    notes = len(report.seen) - count
    modes = f"fast, random ({sum(run.mode == 'random' for run in report.runs)} orders), check"
    also = f", {notes} note{'s' if notes > 1 else ''}" if notes else ""
    what = "nothing found" if not count else f"{count} finding{'s' if count > 1 else ''}"
    say(f"{report.launch.name}: {report.entry}: {what}{also} ({modes})")


def _show_coverage(counted: Coverage) -> None:
    """Print the lines that no launch reached."""
    reached = {one.line for one in counted.instructions if one.reached}
    for run in _runs(counted.missing(), reached):
        if len(run) > _FEW:
            click.echo(printable(f"{counted.name}:{run[0][0]}-{run[-1][0]}: never reached: {len(run)} instructions"))
            continue
        for line, what in run:
            click.echo(printable(f"{counted.name}:{line}: {what}"))
    of = counted.summary()
    lines, ways = f"{of['lines_run']} of {of['lines']} lines ran", f"{of['ways_run']} of {of['ways']} ways"
    say(f"{counted.name}: {lines}, {ways} of branches and guards")


def _runs(missing: list[tuple[int, str]], reached: set[int]) -> list[list[tuple[int, str]]]:
    """Instructions that were not reached, together where none between them was; all else apart."""
    runs: list[list[tuple[int, str]]] = []
    for line, what in missing:
        last = runs[-1][-1] if runs else (0, "")
        follows = last[1].startswith("never reached") and not reached & set(range(last[0], line + 1))
        if runs and follows and what.startswith("never reached"):
            runs[-1].append((line, what))
        else:
            runs.append([(line, what)])
    return runs


def _text(seen: Seen) -> str:
    """The finding, and in which runs it was seen; a note in one line."""
    if not seen.note:
        return printable(f"{with_source(seen.finding)}\n  in: {', '.join(seen.runs)}\n".expandtabs(1))
    finding = seen.finding
    source = finding.spots[0].source if finding.spots else None
    where = f" [{source[0]}:{source[1]}]" if source else ""
    what = f" {finding.spots[0].text}" if finding.spots else f" {finding.memory} of {finding.buffer}"
    return printable(f"note: {finding.kind}: {finding.file}:{finding.line}:{what}{where}".expandtabs(1))
