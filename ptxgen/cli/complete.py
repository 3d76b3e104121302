"""`ptxgen complete MODEL PROMPT`: a model file goes on with a text, on the GPU or on the CPU executor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ptxgen.cli._complete import kv_dtypes
from ptxgen.cli._given import Command, IntRange, a_device, as_options, given, given_by, goes_with
from ptxgen.cli._model import check_kv_dtype, quantise_options

if TYPE_CHECKING:
    from ptxgen.runtime.model.weights import Progress

_WORTH_A_BAR = 64 << 20  # bytes of weights whose loading is watched


@click.command(name="complete", cls=Command)
@click.argument("model", type=click.Path(exists=True))
@click.argument("prompt")
@click.option("--max-tokens", type=IntRange(1), default=128, show_default=True, help="Most tokens to write.")
@click.option("--device", callback=a_device, help="cpu, cuda or cuda:N  [default: cuda where it is, else cpu]")
@click.option("--max-len", type=IntRange(2), help="Context to make room for.  [default: what is needed]")
@click.option(
    "--kv-dtype", default="f16", show_default=True, shell_complete=kv_dtypes, help="Element type of the cache."
)
@click.option(
    "--precision",
    type=click.Choice(["exact", "fast", "e4m3"]),
    default="exact",
    show_default=True,
    help="Of the prompt; fast rounds to bf16 on GPUs with wgmma, e4m3 for weights in e4m3 to e4m3.",
)
@click.option("--temperature", type=float, default=0.0, show_default=True,
              help="Above 0 tokens are drawn; 0 takes the likeliest.")  # fmt: skip
@click.option("--top-k", type=int, default=0, show_default=True,
              help="With --temperature: draw from so many likeliest; 0 is off.")  # fmt: skip
@click.option("--top-p", type=float, default=1.0, show_default=True,
              help="With --temperature: draw from the likeliest of this weight.")  # fmt: skip
@click.option("--min-p", type=float, default=0.0, show_default=True,
              help="With --temperature: least weight, of the likeliest's.")  # fmt: skip
@click.option("--penalty", type=float, default=1.0, show_default=True, help="Divisor of logits of tokens before.")
@click.option("--seed", type=int, default=0, show_default=True,
              help="With --temperature: of the random numbers.")  # fmt: skip
@click.option("--persistent", is_flag=True,
              help="A step is one kernel that stays on the GPU; not with --temperature or --penalty.")  # fmt: skip
def command(
    model: str, prompt: str, max_tokens: int, device: str | None, max_len: int | None, kv_dtype: str,
    precision: str, temperature: float, top_k: int, top_p: float, min_p: float, penalty: float, seed: int,
    persistent: bool, quantise: str | None, quantise_head: str | None,
) -> None:  # fmt: skip
    """Complete PROMPT with a MODEL: a .gguf file, a folder with safetensors, a llama2.c checkpoint.

    Prompt and continuation go to standard output as they come, figures to standard error.
    """
    import time

    from ptxgen.runtime import Sampling, open_device
    from ptxgen.runtime.tools.complete import Completion

    check_kv_dtype(kv_dtype)
    with as_options("Sampling"):
        sampling = Sampling(temperature, top_k, top_p, min_p, penalty, seed)
    if not given("temperature"):
        goes_with("--temperature, without which the likeliest token is taken", "top_k", "top_p", "min_p", "seed")
    drawn = sampling.temperature > 0 or sampling.penalises
    if persistent and drawn:
        others = " or ".join(given("temperature", "penalty"))
        raise click.UsageError(f"--persistent: has no tokens that are drawn or penalised; leave out {others}")
    with given_by("quantise", "quantise_head"):
        completion = Completion(model, prompt, max_tokens, max_len, quantise=quantise, quantise_head=quantise_head)
    started = time.perf_counter()
    opened = open_device(device)
    with as_options("Model"), _bar() as progress:
        loaded = completion.load(opened, kv_dtype, progress, precision=precision, persistent=persistent)
    seconds = time.perf_counter() - started
    click.echo(prompt, nl=False)
    for piece in completion.run(loaded, sampling=sampling if drawn else None):
        click.echo(piece, nl=False)
        sys.stdout.flush()
    click.echo()
    spec = loaded.spec
    said = f"{spec.shape.family} {spec.shape.n_layers} × {spec.dim}, context {spec.shape.max_len}, on {opened.name}"
    click.echo(f"{said}; loaded in {seconds:.2f} s; {completion.figures}", err=True)
    if completion.filled:
        click.echo(f"the context is full: {completion.figures.tokens} of {max_tokens} tokens were written", err=True)


command.params += quantise_options(alone=True)


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
