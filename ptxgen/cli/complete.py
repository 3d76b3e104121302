"""`ptxgen complete MODEL PROMPT`: a model file goes on with a text, on the GPU or on the CPU executor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ptxgen.cli._complete import kv_dtypes

if TYPE_CHECKING:
    from ptxgen.runtime.program.weights import Progress

_WORTH_A_BAR = 64 << 20  # bytes of weights whose loading is watched


@click.command(name="complete")
@click.argument("model", type=click.Path(exists=True))
@click.argument("prompt")
@click.option("--max-tokens", type=click.IntRange(1), default=128, show_default=True, help="most tokens to write")
@click.option("--device", default=None, help="cpu, cuda or cuda:N  [default: cuda where it is, else cpu]")
@click.option(
    "--max-len", type=click.IntRange(2), default=None, help="context to make room for  [default: what is needed]"
)
@click.option(
    "--kv-dtype", default="f16", show_default=True, shell_complete=kv_dtypes, help="element type of the cache"
)
def command(model: str, prompt: str, max_tokens: int, device: str | None, max_len: int | None, kv_dtype: str) -> None:
    """Complete PROMPT with a MODEL: a .gguf file, a folder with safetensors, a llama2.c checkpoint.

    Prompt and continuation go to standard output as they come, figures to standard error.
    """
    import time

    from ptxgen.runtime import open_device
    from ptxgen.runtime.tools.complete import Completion

    completion = Completion(model, prompt, max_tokens, max_len)
    started = time.perf_counter()
    opened = open_device(device)
    with _bar() as progress:
        loaded = completion.load(opened, kv_dtype, progress)
    seconds = time.perf_counter() - started
    click.echo(prompt, nl=False)
    for piece in completion.run(loaded):
        click.echo(piece, nl=False)
        sys.stdout.flush()
    click.echo()
    spec = loaded.spec
    said = f"{spec.shape.family} {spec.shape.n_layers} × {spec.dim}, context {spec.shape.max_len}, on {opened.name}"
    click.echo(f"{said}; loaded in {seconds:.2f} s; {completion.figures}", err=True)


@contextmanager
def _bar() -> Iterator[Progress | None]:
    """Weights on their way to the device: a bar on a terminal, where there are many."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = ("weights", BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("weights", visible=False)

        def told(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total, visible=total >= _WORTH_A_BAR)

        yield told
