"""`ptxgen requires`: what a PTX file demands, the lines that force it, and whether a driver and a GPU can load it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from ptxgen.cli._given import Command, a_path
from ptxgen.cli._output import emit_json, json_option, show
from ptxgen.errors import IsaError, TargetError
from ptxgen.parser import parse
from ptxgen.requires import LoadVerdict, explain_load, requirements, spare_suffix
from ptxgen.targets import ALL_TARGETS, cuda_of_driver, driver_for_ptx, target
from ptxgen.views.manifest import driver_text


def _dotted(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """`12.8` as (12, 8)."""
    match = re.fullmatch(r"(\d{1,4})\.(\d)", value or "", re.ASCII)
    if value is not None and not match:
        raise click.BadParameter(f"must be a version such as 12.8: major.minor (got {value!r})", ctx, param)
    return (int(match[1]), int(match[2])) if match else None


def _driver(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """A driver's CUDA version, or its own (`570.12`, as `nvidia-smi` shows it first), as its CUDA version."""
    match = re.match(r"(\d{3})(\.|$)", value or "", re.ASCII)
    if match is None:
        return _dotted(ctx, param, value)
    try:
        return cuda_of_driver(int(match[1]))
    except TargetError as unknown:
        raise click.BadParameter(str(unknown), ctx, param) from None


def _capability(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """`9.0`, `sm_90`, `sm90` or `compute_90`, with a suffix or without, as (9, 0)."""
    name = re.fullmatch(r"(?:(?:sm|compute)_?(\d{1,3})(\d)|(\d{1,3})\.(\d))[af]?", value or "", re.ASCII)
    if value is not None and not name:
        raise click.BadParameter(f"must be a GPU's architecture, as sm_90 or 9.0 (got {value!r})", ctx, param)
    return (int(name[1] or name[3]), int(name[2] or name[4])) if name else None


@click.command(name="requires", cls=Command)
@click.argument("file", metavar="FILE", callback=a_path)
@click.option("--driver", metavar="X.Y", callback=_driver,
              help="A driver, by its CUDA version (12.8) or its own (570.12): can it load the file?")  # fmt: skip
@click.option("--sm", metavar="X.Y", callback=_capability,
              help="Compute capability of a GPU (9.0, or sm_90): can it load the file?")  # fmt: skip
@json_option
def command(file: str, driver: tuple[int, int] | None, sm: tuple[int, int] | None, as_json: bool) -> int:
    """Show the lowest PTX ISA version and architecture of FILE (- is stdin), and the lines that force them.

    With --driver, --sm or both: exit 1 when they cannot load it.
    """
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    text = data.decode("utf-8-sig", errors="replace")
    module = parse(text, file=file)
    needs = requirements(module)
    spare = spare_suffix(module, needs)
    verdict = _verdict(text, driver, sm) if driver or sm else None
    minimum = driver_text(driver_for_ptx(module.version))
    if as_json:
        emit_json(
            {
                "file": file,
                "version": ".".join(map(str, module.version)),
                "target": list(module.targets),
                "driver": minimum,
                "needs": {"ptx": ".".join(map(str, needs.ptx)), "sm": list(needs.sm), "suffix": spare is None},
                "because": [{"line": line, "word": word, "demand": demand} for line, word, demand in needs.because],
                "loads": None if verdict is None else {"ok": verdict.ok, "text": verdict.text},
            }
        )
    else:
        version = ".".join(map(str, module.version))
        show(f"{file}: .version {version}, .target {', '.join(module.targets)}; driver {minimum or '?'} or newer")
        show(f"needs {needs}")
        for line, word, demand in needs.because:
            show(f"  {file}:{line}: {word} needs {demand} | {module.source_line(line).expandtabs(1)}")
        if spare:
            show(spare)
        if verdict is not None:
            show(verdict.text)
    return int(verdict is not None and not verdict.ok)


def _verdict(text: str, driver: tuple[int, int] | None, sm: tuple[int, int] | None) -> LoadVerdict:
    """Where one of them is not given, one that loads anything of its kind stands in: it adds no reason."""
    module = parse(text)
    named = next((w for w in module.targets if w.startswith("sm_")), None)
    if named is None:
        raise IsaError(".target: names no architecture")
    capability = sm or (target(named).major, target(named).minor)
    newest = max(filter(None, (driver_for_ptx(v) for v in [module.version, *(t.lowest_ptx for t in ALL_TARGETS)])))
    verdict = explain_load(text, driver[0] * 1000 + driver[1] * 10 if driver else newest, capability)
    if driver and sm:
        return verdict
    asked = f"driver {driver[0]}.{driver[1]}" if driver else f"compute capability {capability[0]}.{capability[1]}"
    said = "loads it" if verdict.ok else "; ".join(verdict.reasons)
    return LoadVerdict(verdict.ok, f"{asked}: {said}", verdict.reasons)
