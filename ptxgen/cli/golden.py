"""`ptxgen golden`: check what is committed against what is generated, show the difference, write it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ptxgen.cli._complete import target_names
from ptxgen.cli._given import Group, IntRange, a_path, a_target
from ptxgen.cli._output import emit_json, json_option, say, show
from ptxgen.golden import Goldens
from ptxgen.golden.compare import Finding
from ptxgen.golden.diff import Change, changes, findings
from ptxgen.kernel import find_kernel_type
from ptxgen.targets import target


@click.group(name="golden", cls=Group)
def command() -> None:
    """Committed PTX and its resources, against what is generated now.

    Each command takes KERNELs, to look at these kernel types only. A directory that `ptxgen generate --config` wrote
    is a directory of goldens too: give it as --root.
    """


def _selection(function: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments of all three: kernel types, targets, the directory."""

    @click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
    @click.option("--target", "targets", multiple=True, metavar="SM", shell_complete=target_names,
                  callback=a_target, help="Only this architecture; repeatable.")  # fmt: skip
    @click.option("--root", default="golden_ptx", show_default=True, callback=a_path, help="The directory of goldens.")
    @functools.wraps(function)
    def wrapped(kernels: Sequence[str], targets: Sequence[str], root: str, **options: Any) -> Any:
        only = {find_kernel_type(name).kernel_name for name in kernels}
        return function(Goldens(Path(root), only, {target(name).name for name in targets}), **options)

    return wrapped


def _must_hold(goldens: Goldens) -> None:
    """Refuse what there is nothing to compare in."""
    if not goldens.is_there():
        raise click.UsageError(
            f"--root: must be a directory of goldens (got {goldens.root}); golden update --init makes one"
        )
    if goldens.cases() or goldens.orphans():
        return
    everything = Goldens(goldens.root).cases()
    targets = ", ".join(sorted({case.target.name for case in everything}))
    kernels = ", ".join(sorted({case.spec.kernel_name for case in everything}))
    chosen = " ".join([*sorted(goldens.only), *(f"--target {name}" for name in sorted(goldens.targets))])
    raise click.UsageError(f"golden: nothing to compare: no golden is chosen by {chosen or goldens.root} "
                           f"(kernels: {kernels or 'none'}; targets: {targets or 'none'})")  # fmt: skip


_strict_option = click.option("--strict", is_flag=True, help="Fail on what could not be compared, too.")


@command.command()
@_selection
@_strict_option
@json_option
def check(goldens: Goldens, strict: bool, as_json: bool) -> int:
    """Exit 1 when a file is missing, changed or an orphan, or a resource differs.

    Resources are compared where the assembler that recorded them is installed; elsewhere `not compared` says so.
    """
    _must_hold(goldens)
    found = findings(goldens)
    failed = _failed(found, strict)
    if as_json:
        emit_json([{"kind": f.kind, "file": f.file, "text": f.text, "fails": f.fails or strict} for f in found])
    else:
        for finding in found:
            show(str(finding))
        see = f"differences; see `ptxgen golden diff{' --strict' if strict else ''}`"
        say(f"{len(goldens.cases())} goldens: {see if failed else 'no difference'}")
    return int(failed)


def _failed(found: Sequence[Finding], strict: bool) -> bool:
    return any(finding.fails or strict for finding in found)


@command.command()
@_selection
@click.option("--init", is_flag=True, help="Make the directory one of goldens: of every kernel type, or those named.")
def update(goldens: Goldens, init: bool) -> None:
    """Write every golden and its resources; remove those that were recorded and are no golden any more.

    Refused where CI is set, and for a directory that holds no goldens (unless --init).
    """
    there = next(path for path in (goldens.root, *goldens.root.absolute().parents) if path.exists())
    if not there.is_dir():
        raise click.UsageError(f"--root: must be a directory, or a new one's name (got {goldens.root})")
    if not init:
        _must_hold(goldens)
    changed, removed = goldens.update(init=init)
    for verb, files in (("wrote", changed), ("removed", removed)):
        for file in files:
            show(f"{verb} {goldens.root / file}")
    named = {case.spec.kernel_name for case in goldens.cases()}
    for kernel in sorted({file.split("/")[1] for file in removed} - named):
        say(f"{kernel} has no goldens any more: all its files were removed")
    if not changed and not removed:
        say("nothing to update")


@command.command()
@_selection
@_strict_option
@click.option("--against", metavar="REV", help="Compare the directory with this git revision of it instead.")
@click.option("--context", type=IntRange(0), default=3, show_default=True, help="Lines around a change.")
@click.option("--markdown", is_flag=True, help="For a pull request's summary.")
def diff(goldens: Goldens, strict: bool, against: str | None, context: int, markdown: bool) -> int:
    """Show each finding of `check`: its lines, its instruction counts, its resources. Exit 1 when there is one."""
    _must_hold(goldens)
    found = findings(goldens, against)
    for change in changes(found):
        _show(change, context, markdown)
    if not found:
        say("no difference")
    return int(_failed(found, strict))


def _show(change: Change, context: int, markdown: bool) -> None:
    deltas = [f"{name} {old} → {new}" for name, (old, new) in change.resources().items()]
    opcodes = [f"{name} {new - old:+d} ({old} → {new})" for name, (old, new) in change.opcodes().items()]
    lines = "\n".join(change.lines(context))
    if markdown:
        show(f"### `{change.file}`: {change.kind}\n")
    for finding in change.findings:
        if not (finding.delta or lines):  # nothing else shows it
            show(f"{finding.text if markdown else finding}\n")
    for label, items in (("resources", deltas), ("instructions", opcodes)):
        if items:
            show(f"{'**' + label + '**' if markdown else label + ' of ' + change.file}: {', '.join(items)}\n")
    if lines:
        show(f"```diff\n{lines}\n```\n" if markdown else lines + "\n")
