"""`ptxgen golden`: check what is committed against what is generated, show the difference, write it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ptxgen.cli._output import emit_json, json_option, say
from ptxgen.golden import Goldens
from ptxgen.golden_diff import Change, changes
from ptxgen.kernel import find_kernel_type
from ptxgen.targets import target


@click.group(name="golden")
def command() -> None:
    """Committed PTX and its resources, against what is generated now.

    Each command takes KERNELs, to look at these kernel types only. A directory that `ptxgen generate --config` wrote
    is a directory of goldens too: give it as --root.
    """


def _selection(function: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments of all three: kernel types, targets, the directory."""

    @click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
    @click.option("--target", "targets", multiple=True, metavar="SM", help="Only this architecture; repeatable.")
    @click.option("--root", default="golden_ptx", show_default=True, help="The directory of goldens.")
    @functools.wraps(function)
    def wrapped(kernels: Sequence[str], targets: Sequence[str], root: str, **options: Any) -> Any:
        only = {find_kernel_type(name).kernel_name for name in kernels}
        return function(Goldens(Path(root), only, {target(name).name for name in targets}), **options)

    return wrapped


def _must_exist(goldens: Goldens) -> None:
    if not goldens.root.is_dir():
        raise click.UsageError(f"--root: must be a directory of goldens (got {goldens.root})")


@command.command()
@_selection
@json_option
def check(goldens: Goldens, as_json: bool) -> int:
    """Exit 1 when a file is missing, changed or an orphan, or a resource differs."""
    _must_exist(goldens)
    findings = list(goldens.check())
    failed = any(f.fails for f in findings)
    if as_json:
        emit_json([{"kind": f.kind, "file": f.file, "text": f.text, "fails": f.fails} for f in findings])
    else:
        for finding in findings:
            click.echo(str(finding))
        verdict = "differences; see `ptxgen golden diff`" if failed else "no difference"
        say(f"{len(goldens.cases())} goldens: {verdict}")
    return int(failed)


@command.command()
@_selection
def update(goldens: Goldens) -> None:
    """Write every golden and its resources; remove those that no kernel type has any more. Refused where CI is set."""
    changed, removed = goldens.update()
    for verb, files in (("wrote", changed), ("removed", removed)):
        for file in files:
            click.echo(f"{verb} {goldens.root / file}")
    if not changed and not removed:
        say("nothing to update")


@command.command()
@_selection
@click.option("--against", metavar="REV", help="Compare the directory with this git revision of it instead.")
@click.option("--context", default=3, show_default=True, help="Lines around a change.")
@click.option("--markdown", is_flag=True, help="For a pull request's summary.")
def diff(goldens: Goldens, against: str | None, context: int, markdown: bool) -> int:
    """Show each change: its lines, its instruction counts, its resources. Exit 1 when there is one."""
    _must_exist(goldens)
    found = list(changes(goldens, against))
    for change in found:
        _show(change, context, markdown)
    if not found:
        say("no difference")
    return int(bool(found))


def _show(change: Change, context: int, markdown: bool) -> None:
    deltas = [f"{name} {old} → {new}" for name, (old, new) in change.resources().items()]
    opcodes = [f"{name} {new - old:+d} ({old} → {new})" for name, (old, new) in change.opcodes().items()]
    if markdown:
        click.echo(f"### `{change.file}`: {change.kind}\n")
    for label, items in (("resources", deltas), ("instructions", opcodes)):
        if items:
            click.echo(f"{'**' + label + '**' if markdown else label + ' of ' + change.file}: {', '.join(items)}\n")
    lines = "\n".join(change.lines(context))
    if lines:
        click.echo(f"```diff\n{lines}\n```\n" if markdown else lines + "\n")
