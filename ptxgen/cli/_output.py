"""What commands print: tables, JSON, progress. rich is imported only where somebody looks at a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click

T = TypeVar("T")


def say(text: str) -> None:
    """A line for people, on stderr, so that stdout stays the result."""
    click.echo(printable(text), err=True)


def show(text: str) -> None:
    """A line of the result, on stdout, that holds names or texts of files."""
    click.echo(printable(text))


def emit_json(value: Any) -> None:
    """The result as indented JSON."""
    click.echo(json.dumps(value, indent=2))


def printable(text: str) -> str:
    """The text without what a terminal would obey: control characters as Python writes them, line ends kept."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table: drawn on a terminal, else aligned columns that nothing wraps or cuts."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    title = printable(title)
    if sys.stdout.isatty():
        _rich_table(columns, cells, title)
        return
    if title:
        click.echo(title)
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    for line in [list(columns), *cells]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _rich_table(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(*columns, title=escape(title) or None, title_justify="left")
    for line in cells:
        drawn.add_row(*map(escape, line))
    Console().print(drawn)


def progress(items: Iterable[T], label: str, count: int = 0) -> Iterator[T]:
    """The items one by one, with a bar on a terminal's stderr; `count` says how many, where they do not."""
    if not sys.stderr.isatty() or (count or len(items)) < 2:  # type: ignore[arg-type]
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description=label, total=count or None, console=Console(stderr=True), transient=True)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for a machine to read.")
