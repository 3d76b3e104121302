"""`ptxgen generate`: the PTX of one kernel, or of every kernel that a model needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ptxgen.cli._given import a_name, goes_with
from ptxgen.cli._kernels import KernelGroup
from ptxgen.cli._model import TARGET_NEEDED, asked, config_options, targets_option
from ptxgen.cli._output import emit_json, progress, say
from ptxgen.files.listing import merged
from ptxgen.files.output import write_files
from ptxgen.golden import INDEX
from ptxgen.golden.case import golden_file
from ptxgen.kernel import KernelType
from ptxgen.targets import Target
from ptxgen.targets import target as parse_target
from ptxgen.views.manifest import spec_fields


def _options(metavar: str, where: str) -> list[click.Option]:
    return [
        targets_option(),
        click.Option(["-o", "--output"], metavar=metavar, help=where),
        click.Option(["--json", "as_json"], is_flag=True, help="Print what was written, as JSON."),
    ]


def _kernel_options() -> list[click.Option]:
    return [
        *_options("DIR|FILE|-", "A directory, a file ending in .ptx, or - for stdout, which is the default."),
        click.Option(["--manifest"], is_flag=True, help="Also write the launch contract, as JSON."),
        click.Option(["--annotate"], is_flag=True, help="Behind each instruction: where it comes from, as a comment."),
        click.Option(["--line-info"], is_flag=True, help="With .file and .loc, for profilers and debuggers."),
        click.Option(["--entry"], metavar="NAME", callback=a_name, help="The entry's name  [default: the kernel's]"),
    ]


def _one(
    spec: KernelType,
    targets: Sequence[str],
    output: str | None,
    manifest: bool,
    annotate: bool,
    line_info: bool,
    entry: str | None,
    as_json: bool,
) -> None:
    """Generate one spec for its targets."""
    wanted = _targets(targets)
    if annotate and (line_info or manifest):
        raise click.UsageError("--annotate: is a listing to read; it goes with neither --line-info nor --manifest")
    if output == "":
        raise click.UsageError("-o: must be a directory, a file ending in .ptx, or - for stdout (got '')")
    to_directory = output not in (None, "-") and not str(output).endswith(".ptx")
    if manifest and output in (None, "-"):
        raise click.UsageError("--manifest: needs -o with a directory or a file; stdout is for the PTX")
    if len(wanted) > 1 and not to_directory:
        raise click.UsageError(f"-o: must be a directory when there is more than one target (got {output or '-'})")
    files: dict[str, str] = {}
    for where in wanted:
        name = golden_file(spec, where) if to_directory else Path(str(output)).name
        text, contract = _texts(spec, where, annotate, line_info, entry or "")
        files[name] = text
        if manifest:
            files[name.removesuffix(".ptx") + ".json"] = contract
    if output in (None, "-"):
        click.echo("".join(files.values()), nl=False)  # one: a target, and no manifest
        return
    folder = Path(str(output)) if to_directory else Path(str(output)).parent
    written = [str(path) for path in write_files(folder, files)]
    if as_json:
        emit_json({"kernel_type": spec.kernel_name, "spec": spec_fields(spec), "files": written})
    for path in [] if as_json else written:
        say(f"wrote {path}")


def _texts(spec: KernelType, where: Target, annotate: bool, line_info: bool, entry: str) -> tuple[str, str]:
    """The PTX, and the manifest."""
    from ptxgen.generator import generate
    from ptxgen.views.lineinfo import annotated

    ptx = generate(spec, where, line_info=line_info, entry=entry)
    return annotated(ptx) if annotate else ptx.text, json.dumps(ptx.manifest(), indent=2) + "\n"


def _targets(names: Sequence[str]) -> list[Target]:
    if not names:
        raise click.UsageError(TARGET_NEEDED)
    return [parse_target(name) for name in dict.fromkeys(names)]


def _act(spec: KernelType, **options: Any) -> None:
    """A kernel's command: what the group was given counts where the kernel's own options are absent."""
    parent = click.get_current_context().parent
    above = parent.params if parent else {}
    if above.get("config"):
        raise click.UsageError("generate: name a kernel type or give --config, not both")
    merged: dict[str, Any] = {
        name: above.get(name) if value in (None, False, ()) else value for name, value in options.items()
    }
    _one(spec, **merged)


def _model(
    config: str | None,
    targets: Sequence[str],
    output: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """The group without a kernel: everything a model needs."""
    if click.get_current_context().invoked_subcommand is not None:
        if config is None:
            goes_with("--config", *options)
        return
    if config is None:
        raise click.UsageError("generate: name a kernel type (see `ptxgen list`), or give --config")
    if output in (None, "-", ""):
        raise click.UsageError("-o: is needed with --config: the directory to write to")
    from ptxgen.export.kernels import bundle

    wanted = asked(config, targets, **options)
    folder, steps = Path(str(output)), wanted.steps
    files = bundle(wanted.shape, progress(steps, "generating"), caches=wanted.caches)
    files[INDEX] = merged(folder / INDEX, files[INDEX])
    written = write_files(folder, files)
    if as_json:
        click.echo(files[INDEX], nl=False)
    else:
        say(f"wrote {len(steps)} kernels, their manifests and index.json to {output} ({len(written)} files)")


command = KernelGroup(
    "generate",
    _act,
    _kernel_options,
    invoke_without_command=True,
    callback=_model,
    help="""Write the PTX of one KERNEL, or with --config of every attention and KV-cache kernel of a model,
    with --weights of every kernel of it.

    \b
    ptxgen generate kv-cache-scatter --max-len 4096 --head-dim 128 --n-kv-heads 8 --target sm_90
    ptxgen generate --config config.json --target sm_90 -o kernels/
    """,
    params=[
        *config_options(),
        *_options("DIR", "With --config: the directory to write to."),
    ],
)
