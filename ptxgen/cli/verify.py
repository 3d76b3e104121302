"""`ptxgen verify`: assemble PTX files and show what each entry takes on the chip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ptxgen.cli._complete import target_names
from ptxgen.cli._given import Command, a_path, a_target
from ptxgen.cli._output import emit_json, json_option, progress, say, show, table
from ptxgen.errors import AssembleError
from ptxgen.targets import Target, target

_SHOWN = ("registers", "spill_stores", "spill_loads", "stack", "shared", "barriers")


@click.command(name="verify", cls=Command)
@click.argument("paths", nargs=-1, metavar="[PATHS]...", callback=a_path)
@click.option("--target", "targets", multiple=True, metavar="SM", shell_complete=target_names,
              callback=a_target, help="Assemble for it instead of the text's target.")  # fmt: skip
@click.option("--allow-spills", is_flag=True, help="Do not fail on spills and local memory.")
@json_option
def command(paths: Sequence[str], targets: Sequence[str], allow_spills: bool, as_json: bool) -> int:
    """Assemble every .ptx file of PATHS (files or directories; default golden_ptx). Nothing is written.

    Exit 1 when one does not assemble, spills registers, or uses local memory.
    """
    from ptxgen.assembler import assemble, available_assemblers

    if not available_assemblers():
        raise AssembleError("verify: no assembler is installed; pip install 'ptxgen[ptxas]'")
    wanted: list[Target | None] = [target(name) for name in dict.fromkeys(targets)]
    jobs = [(file, where) for file in _files(paths or ("golden_ptx",)) for where in wanted or [None]]
    results: list[dict[str, Any]] = []
    for file, where in progress(jobs, "assembling"):
        try:
            done = assemble(file.read_text(encoding="utf-8-sig", errors="replace"), where, name=str(file))
        except AssembleError as refused:
            results.append({"file": str(file), "target": str(where or ""), "ok": False, "error": str(refused)})
            continue
        for entry, taken in done.resources.items():
            about = {"file": str(file), "target": done.target.name, "entry": entry, "ok": taken.clean or allow_spills}
            results.append({**about, "clean": taken.clean, **asdict(taken)})
    _show(results, as_json)
    return int(not all(result["ok"] for result in results))


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for name in paths:
        path = Path(name)
        if path.is_dir():
            found = sorted(path.rglob("*.ptx"))
            if not found:
                raise click.UsageError(f"{name}: holds no .ptx file")
            yield from found
        elif path.is_file():
            yield path
        elif path.exists():
            raise click.UsageError(f"{name}: must be a file or a directory (got a device, a pipe or a socket)")
        else:
            raise click.UsageError(f"{name}: no such file or directory")


def _show(results: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        emit_json(results)
        return
    columns = ("file", "target", *_SHOWN)
    rows = [[r[name] for name in columns] for r in results if "error" not in r]
    if rows:
        table([name.replace("_", " ") for name in columns], rows)
    for result in results:
        if "error" in result:
            show(result["error"])
    bad = sum(not r["ok"] for r in results)
    clean = all(r.get("clean") for r in results)
    verdict = f"{bad} failed" if bad else "all assemble" + (", no spills, no local memory" if clean else "")
    say(f"{len(results)} {'entry' if len(results) == 1 else 'entries'}: {verdict}")
