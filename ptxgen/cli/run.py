"""`ptxgen run KERNEL …`: generate, load, launch, compare with the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ptxgen.cli._given import as_options, not_stdout
from ptxgen.cli._kernels import KernelGroup
from ptxgen.cli._output import emit_json, table
from ptxgen.cli._run import isolate_list, launch_options, limits_named, limits_of, open_for, size_options
from ptxgen.errors import ExecutionError, SpecError
from ptxgen.files.output import check_place
from ptxgen.kernel import KernelType


def _options() -> Sequence[click.Option]:
    return [
        *launch_options(),
        click.Option(["--inputs"], type=click.Path(exists=True, dir_okay=False), default=None,
                     help="an .npz whose arrays replace arguments of the same name"),
        click.Option(["--output"], type=click.Path(dir_okay=False), default=None, metavar="FILE", callback=not_stdout,
                     help="the .npz to write results to"),
        *isolate_list(),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON for a machine to read."),
    ]  # fmt: skip


def _arguments(path: str | None, spec: KernelType, seed: int, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Arrays of an `.npz`, by parameter name, held against what the kernel takes at these sizes."""
    if path is None:
        return {}
    import numpy as np

    from ptxgen.files.archive import read_arrays
    from ptxgen.spec.examples import checked_inputs

    archive = read_arrays(path, "an .npz of arrays without Python objects")
    if twice := sorted(archive.keys() & sizes.keys()):
        raise SpecError(f"{path}: holds {', '.join(twice)}, which --size gives too")
    try:
        return checked_inputs(spec, spec.example(np.random.default_rng(seed), **sizes), archive, sizes)
    except SpecError as wrong:
        raise SpecError("\n".join(f"{path}: {line}" for line in str(wrong).splitlines())) from None


def _run(
    spec: KernelType,
    device: str | None,
    target: str | None,
    mode: str,
    seed: int,
    sizes: Sequence[str],
    seq_len: int | None,
    inputs: str | None,
    output: str | None,
    isolate: bool,
    memory: int,
    seconds: float,
    as_json: bool,
) -> int:
    from ptxgen.files.archive import write_arrays
    from ptxgen.runtime.tools.trial import trial

    given = size_options(spec, sizes, seq_len)
    if output is not None:
        check_place(Path(output))
    arguments = _arguments(inputs, spec, seed, given)
    opened = open_for(device, mode, seed)
    limits = limits_of(isolate, memory, seconds)
    try:
        with as_options("trial"), limits_named():
            result = trial(spec, opened, target=target, seed=seed, arguments=arguments, isolate=limits, **given)  # type: ignore[arg-type]
    except ExecutionError as found:
        if as_json:
            emit_json({
                "kernel": spec.kernel_name, "spec": repr(spec), "target": target or opened.target.name,
                "device": opened.name, "ok": False,
                "findings": [finding.fields() for finding in found.findings],
            })  # fmt: skip
        raise
    if output is not None:
        write_arrays(output, result.outputs)
    if as_json:
        emit_json({
            "kernel": spec.kernel_name, "spec": repr(spec), "target": result.ptx.target.name,
            "device": opened.name, "ok": result.ok, "load_s": result.load_s, "first_s": result.first_s,
            "run_s": result.run_s,
            "buffers": [{"name": v.name, "ok": v.ok, "error": v.error, "limit": v.limit, "why": v.why}
                        for v in result.verdicts],
        })  # fmt: skip
    else:
        rows = [(v.name, "ok" if v.ok else "WRONG", f"{v.error:.3g}", f"{v.limit:.3g}", v.why) for v in result.verdicts]
        table(("buffer", "verdict", "error", "limit", ""), rows, f"{spec!r} for {result.ptx.target}")
        click.echo(
            f"{opened.name}: generate and load {result.load_s * 1e3:.1f} ms, first launch {result.first_s * 1e3:.2f} ms"
            f", launch {result.run_s * 1e3:.3f} ms"
        )
    return 0 if result.ok else 1


command = KernelGroup(
    "run", _run, _options, help="Generate, load and launch a kernel, and compare it with its NumPy reference."
)
