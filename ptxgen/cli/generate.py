"""`ptxgen generate`: the PTX of one kernel, or of every kernel that a model needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ptxgen.cli._kernels import KernelGroup
from ptxgen.cli._model import TARGET_NEEDED, config_options, steps_of
from ptxgen.cli._output import emit_json, progress, say
from ptxgen.golden import golden_file
from ptxgen.kernel import KernelType
from ptxgen.manifest import spec_fields
from ptxgen.output import write_files
from ptxgen.targets import Target
from ptxgen.targets import target as parse_target


def _options(metavar: str, where: str) -> list[click.Option]:
    return [
        click.Option(["--target", "targets"], multiple=True, metavar="SM", help="Architecture, as sm_90; repeatable."),
        click.Option(["-o", "--output"], metavar=metavar, help=where),
        click.Option(["--json", "as_json"], is_flag=True, help="Print what was written, as JSON."),
    ]


def _kernel_options() -> list[click.Option]:
    return [
        *_options("DIR|FILE|-", "A directory, a file ending in .ptx, or - for stdout, which is the default."),
        click.Option(["--manifest"], is_flag=True, help="Also write the launch contract, as JSON."),
    ]


def _one(spec: KernelType, targets: Sequence[str], output: str | None, manifest: bool, as_json: bool) -> None:
    """Generate one spec for its targets."""
    wanted = _targets(targets)
    to_directory = output not in (None, "-") and not str(output).endswith(".ptx")
    if len(wanted) > 1 and not to_directory:
        raise click.UsageError(f"-o: must be a directory when there is more than one target (got {output or '-'})")
    files: dict[str, str] = {}
    for where in wanted:
        name = golden_file(spec, where) if to_directory else Path(str(output)).name
        text, contract = _texts(spec, where)
        files[name] = text
        if manifest:
            files[name.removesuffix(".ptx") + ".json"] = contract
    if output in (None, "-"):
        click.echo([*files.values()][-1], nl=False)
        return
    folder = Path(str(output)) if to_directory else Path(str(output)).parent
    written = [str(path) for path in write_files(folder, files)]
    if as_json:
        emit_json({"kernel_type": spec.kernel_name, "spec": spec_fields(spec), "files": written})
    for path in [] if as_json else written:
        say(f"wrote {path}")


def _texts(spec: KernelType, where: Target) -> tuple[str, str]:
    """The PTX, and the manifest."""
    from ptxgen.generator import generate

    ptx = generate(spec, where)
    return ptx.text, json.dumps(ptx.manifest(), indent=2) + "\n"


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
    merged: dict[str, Any] = {name: value or above.get(name) for name, value in options.items()}
    _one(spec, **merged)


def _model(
    config: str | None,
    targets: Sequence[str],
    output: str | None,
    as_json: bool,
    max_len: int | None,
    kv_dtype: str | None,
) -> None:
    """The group without a kernel: everything a model needs."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    if config is None:
        raise click.UsageError("generate: name a kernel type (see `ptxgen list`), or give --config")
    if output in (None, "-"):
        raise click.UsageError("-o: is needed with --config: the directory to write to")
    from ptxgen.plan import bundle

    shape, steps = steps_of(config, targets, max_len, kv_dtype)
    files = bundle(shape, progress(steps, "generating"))
    written = write_files(Path(str(output)), files)
    if as_json:
        click.echo(files["index.json"], nl=False)
    else:
        say(f"wrote {len(steps)} kernels, their manifests and index.json to {output} ({len(written)} files)")


command = KernelGroup(
    "generate",
    _act,
    _kernel_options,
    invoke_without_command=True,
    callback=_model,
    help="""Write the PTX of one KERNEL, or with --config of every attention and KV-cache kernel of a model.

    \b
    ptxgen generate kv-cache-scatter --max-len 4096 --head-dim 128 --n-kv-heads 8 --target sm_90
    ptxgen generate --config config.json --target sm_90 -o kernels/
    """,
    params=[
        *config_options(),
        *_options("DIR", "With --config: the directory to write to."),
    ],
)
