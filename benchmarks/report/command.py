"""The command line of a benchmark with one table: measure and print, or print what was measured."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.report.rows import Run, load, markdown
from benchmarks.report.sentence import in_a_sentence

Option = tuple[str, dict[str, Any]]  # a further argument: its name, and argparse's keywords
Table = Callable[[Sequence[dict[str, Any]]], str]


def command(
    bench: str, text: str | None, measure: Callable[[Run, argparse.Namespace], None], *options: Option,
    device: Callable[[], str] | None = None, table: Table = markdown, argv: Sequence[str] | None = None,
    at_once: bool = False,
) -> None:  # fmt: skip
    """Run `python -m benchmarks.<bench>` with these arguments (default: the process's).

    `measure` adds rows to a run on `device` (default: the processor), and `table` shows them. Of a run that is
    interrupted the rows are kept and marked; `at_once`, also of one that is killed. With --report nothing is measured.
    """
    started = getattr(sys.modules["__main__"], "__spec__", None)  # several commands add rows to one table
    name = started.name if started and started.name.startswith("benchmarks.") else f"benchmarks.{bench}"
    parser = argparse.ArgumentParser(
        prog=f"python -m {name}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", action="store_true", help="print a run's table, measure nothing")
    parser.add_argument("--run", metavar="ID", help="the run to report (default: the last)")
    for name, keywords in options:
        parser.add_argument(name, **keywords)
    given = parser.parse_args(argv)
    if given.run and not given.report:
        parser.error("--run: names a run to --report")
    if given.report:
        print(table(load(bench, given.run)))
        return

    def measured() -> None:
        with Run(bench, device() if device else None, at_once) as run:
            measure(run, given)
        print(table(run.rows) if run.rows else "nothing was measured")

    in_a_sentence(measured)


def gpu() -> str:
    """The name of the GPU that is measured on."""
    from ptxgen.runtime import open_device

    name: str = open_device("cuda").model
    return name
