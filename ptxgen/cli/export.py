"""`ptxgen export`: a kernel, a model's kernels, or a whole model, for a host in another language."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ptxgen.cli._given import a_name, a_path, begins_names, given, given_by, goes_with, not_stdout
from ptxgen.cli._kernels import KernelGroup
from ptxgen.cli._model import (
    TARGET_NEEDED,
    asked,
    check_kv_dtype,
    config_options,
    opened,
    quantise_options,
    targets_option,
)
from ptxgen.cli._output import progress, say
from ptxgen.kernel import KernelType
from ptxgen.targets import target

if TYPE_CHECKING:
    from ptxgen.export import Part


def _options() -> list[click.Option]:
    return [
        targets_option(),
        click.Option(["-o", "--output"], metavar="DIR", callback=not_stdout, help="The directory to write to."),
        click.Option(["--no-cubin"], is_flag=True, help="Write no cubin: needs no assembler."),
    ]


def _kernel_options() -> list[click.Option]:
    return [
        *_options(),
        click.Option(
            ["--name"],
            metavar="NAME",
            callback=a_name,
            help="The kernel's name: of its entry, its files, in its stubs.",
        ),
    ]


def _act(spec: KernelType, targets: Sequence[str], output: str | None, no_cubin: bool, name: str | None) -> None:
    from ptxgen.export import Part
    from ptxgen.generator import generate

    where = [target(each) for each in dict.fromkeys(targets)]
    _write((Part(generate(spec, each, entry=name or ""), name or "") for each in where), len(where), output, no_cubin)


def _write(kernels: Iterable[Part], count: int, output: str | None, no_cubin: bool, **facts: Any) -> None:
    from ptxgen.assembler import available_assemblers
    from ptxgen.export import LISTING, export
    from ptxgen.files.listing import merged
    from ptxgen.files.output import write_files

    if not count:
        raise click.UsageError(TARGET_NEEDED)
    if not output:
        raise click.UsageError("-o: is needed: the directory to write to")
    cubin = not no_cubin and bool(available_assemblers())
    if not cubin and not no_cubin:
        say("no assembler is installed, so there is no cubin; pip install 'ptxgen[ptxas]' brings one")
    files = export(progress(kernels, "exporting", count), cubin=cubin, **facts)
    files[LISTING] = merged(Path(output) / LISTING, str(files[LISTING]))
    written = write_files(Path(output), files)
    if count > 2:
        say(f"wrote {count} kernels with their C headers and Rust modules, and {LISTING} to {output}")
        return
    for path in written:
        say(f"wrote {path}")


def _model(
    config: str | None,
    model: str | None,
    prefix: str,
    targets: Sequence[str],
    output: str | None,
    no_cubin: bool,
    quantise: str | None,
    quantise_head: str | None,
    **options: Any,
) -> None:
    """The group without a kernel: everything a model needs."""
    if model is None:
        goes_with("--model", "quantise", "quantise_head")
    if click.get_current_context().invoked_subcommand is not None:
        if config is not None or model is not None:
            raise click.UsageError("export: a kernel type, --config or --model: one of them")
        if before := given():
            raise click.UsageError(f"{before[0]}: goes behind the kernel type, or with --config")
        return
    if model is not None:
        for name, value in (("--config", config), ("--prefix", prefix)):
            if value:
                raise click.UsageError(f"export: {name} does not go with --model (got {value})")
        _write_program(model, targets, output, no_cubin, quantise, quantise_head, **options)
        return
    if config is None:
        raise click.UsageError("export: name a kernel type (see `ptxgen list`), or give --config or --model")
    from ptxgen.export.bundle import bundle_facts, parts

    wanted = asked(config, targets, **options)
    shape, steps = wanted.shape, wanted.steps
    facts = bundle_facts(shape, steps, prefix, wanted.programs)
    _write(parts(shape, steps, prefix), len(steps), output, no_cubin, caches=wanted.caches, **facts)


def _write_program(
    model: str, targets: Sequence[str], output: str | None, no_cubin: bool, quantise: str | None,
    quantise_head: str | None, *, max_len: int | None, kv_dtype: str | None, rings: int, **of_config: object,
) -> None:  # fmt: skip
    """A model file as program.json, kernels and weights."""
    from ptxgen.assembler import available_assemblers
    from ptxgen.export.program import LISTING, export_program
    from ptxgen.models.caches import CacheForm

    if len(targets) != 1 or not output:
        raise click.UsageError("export --model: needs one --target, and -o, a new directory")
    if others := given(*of_config):
        raise click.UsageError(f"export --model: {', '.join(others)} goes with --config")
    if kv_dtype is not None:
        check_kv_dtype(kv_dtype)
    cubin = not no_cubin and bool(available_assemblers())
    source = opened(model, max_len, quantise, quantise_head)
    with given_by("rings"):
        CacheForm(rings=rings).check_rings(source.spec.shape)
    with given_by("target"):
        listing = export_program(source, targets[0], output, kv_dtype=kv_dtype or "f16", cubin=cubin, rings=rings)
    kernels, launches = len(listing["kernels"]), len(listing["launches"])
    say(f"wrote {Path(output) / LISTING}: {kernels} kernels, {launches} launches a token")


command = KernelGroup(
    "export",
    _act,
    _kernel_options,
    invoke_without_command=True,
    callback=_model,
    help="""Write PTX, cubin, manifest.json, a C header and a Rust module of one KERNEL, or with --config of a model's:
    the manifest says what each is for, which layers it serves, and a token's launches in order. Kernels of other
    targets, or of the same model and step, join those in the folder.
    With --model a new folder with PTX, cubins, weights.bin and program.json: all that a host needs to decode that file,
    a token's launches with their arguments in order; no headers.

    \b
    ptxgen export kv-cache-scatter --max-len 4096 --head-dim 128 --n-kv-heads 8 --target sm_90 -o kernels/
    ptxgen export --config config.json --target sm_90 --prefix gemma_ -o kernels/
    ptxgen export --model model.gguf --target sm_90 -o exported/
    """,
    params=[
        *config_options(files=True),
        click.Option(
            ["--model"],
            metavar="FILE",
            callback=a_path,
            help="A model file: its decode step as program.json, with weights.",
        ),
        *quantise_options(),
        click.Option(
            ["--prefix"],
            default="",
            metavar="WORD",
            callback=begins_names,
            help="With --config: begins every kernel's name.",
        ),
        *_options(),
    ],
)
