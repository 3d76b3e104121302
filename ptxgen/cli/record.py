"""`ptxgen record KERNEL … -o FILE`: one launch with everything it read and wrote, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ptxgen.cli._given import not_stdout
from ptxgen.cli._kernels import KernelGroup
from ptxgen.cli._output import show
from ptxgen.cli._run import launch_options, open_for, size_options
from ptxgen.files.output import check_place
from ptxgen.kernel import KernelType


def _options() -> Sequence[click.Option]:
    return [
        click.Option(["-o", "--output"], type=click.Path(dir_okay=False), required=True, metavar="FILE",
                     callback=not_stdout, help="the .npz to write"),
        *launch_options(),
    ]  # fmt: skip


def _record(
    spec: KernelType, output: str, device: str | None, target: str | None, mode: str, seed: int,
    sizes: Sequence[str], seq_len: int | None,
) -> None:  # fmt: skip
    import numpy as np

    from ptxgen.runtime.tools.recording import record
    from ptxgen.runtime.tools.trial import bind_example

    given = size_options(spec, sizes, seq_len)
    check_place(Path(output))
    opened = open_for(device, mode, seed)
    values = spec.example(np.random.default_rng(seed), **given)
    kernel = opened.load(spec, target)
    bound, _ = bind_example(kernel, values, given)
    path = record(kernel, bound).save(output)
    show(f"{path}: {spec!r} for {kernel.ptx.target}, run on {opened.name}")


command = KernelGroup("record", _record, _options, help="Launch a kernel once and keep PTX, arguments and buffers.")
