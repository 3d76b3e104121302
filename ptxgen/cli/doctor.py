"""`ptxgen doctor`: what this machine has, what ptxgen can do with it, and what a model takes of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ptxgen.cli._complete import kv_dtypes, target_names
from ptxgen.cli._given import Command, IntRange, a_path, a_target, given_by, goes_with
from ptxgen.cli._model import check_kv_dtype, opened, quantise_options
from ptxgen.cli._output import emit_json, json_option, table
from ptxgen.doctor import examine

if TYPE_CHECKING:
    from ptxgen.models.files import ModelFile


@click.command(name="doctor", cls=Command)
@click.option(
    "--model", metavar="FILE", callback=a_path, help="A model file: the memory that it takes, instead of the machine."
)
@click.option("--max-len", type=IntRange(1),
              help="With --model or --config: longest context  [default: the model's]")  # fmt: skip
@click.option("--kv-dtype", default="f16", show_default=True, shell_complete=kv_dtypes,
              help="With --model: KV cache element type.")  # fmt: skip
@click.option("--rings", type=IntRange(0), default=0, metavar="ROWS",
              help="With --model: layers with a window keep rings that take so many rows at a time.")  # fmt: skip
@click.option(
    "--config",
    metavar="DIR|FILE",
    callback=a_path,
    help="Which models of a folder of config.json files have attention kernels, and which decode.",
)
@click.option("--target", metavar="SM", shell_complete=target_names, callback=a_target,
              help="Architecture  [default: with --model sm_90a, with --config sm_90]")  # fmt: skip
@json_option
def command(
    model: str | None,
    max_len: int | None,
    kv_dtype: str,
    rings: int,
    config: str | None,
    target: str | None,
    quantise: str | None,
    quantise_head: str | None,
    as_json: bool,
) -> int:
    """Show driver, GPUs, highest PTX ISA, cache and optional parts. Exit 1 when something is wrong, not when absent;
    with --config when a model is refused."""
    if config is not None and model is not None:
        raise click.UsageError("doctor: --model or --config, not both")
    if model is None:
        goes_with("--model", "kv_dtype", "rings", "quantise", "quantise_head")
    if config is not None:
        return _survey(config, target or "sm_90", max_len, as_json)
    if model is not None:
        check_kv_dtype(kv_dtype)
        _memory(opened(model, max_len, quantise, quantise_head), kv_dtype, rings, target or "sm_90a", as_json)
        return 0
    goes_with("--model or --config", "max_len", "target")
    lines = examine()
    if as_json:
        emit_json([asdict(line) for line in lines])
    else:
        table(("", "state", "found"), [(line.topic, line.state, line.text) for line in lines])
    return int(any(line.state == "wrong" for line in lines))


command.params[-1:-1] = quantise_options()  # before --json


def _survey(path: str, target: str, max_len: int | None, as_json: bool) -> int:
    """A table of models: attention kernels served, warned of, refused; and whether the whole model decodes."""
    from ptxgen.models.survey import survey

    verdicts = list(survey(path, target, max_len))
    if as_json:
        emit_json([asdict(one) for one in verdicts])
    else:
        rows = [(one.model, one.verdict, "yes" if one.decodes else "no", "; ".join(one.reasons)) for one in verdicts]
        table(("model", "attention", "decodes", "why"), rows)
    return int(any(one.verdict == "refused" for one in verdicts))


def _memory(source: ModelFile, kv_dtype: str, rings: int, target: str, as_json: bool) -> None:
    """What a model file takes on a device."""
    from ptxgen.models.caches import CacheForm
    from ptxgen.models.memory_plan import memory_plan

    with given_by("rings"):
        CacheForm(rings=rings).check_rings(source.spec.shape)
    with given_by("target"):
        plan = memory_plan(source, kv_dtype, target, rings=rings)
    if as_json:
        emit_json({**asdict(plan), "weights": plan.weights, "total": plan.total, "max_len": source.spec.shape.max_len,
                   "target": target})  # fmt: skip
        return
    rows = [(f"weights in {name or 'f32 (vectors)'}", nbytes) for name, nbytes in plan.formats.items()]
    rows += [(f"cache of {source.spec.shape.max_len} positions in {kv_dtype}", plan.cache)]
    rows += [(f"scratch on {target}", plan.scratch), ("logits, counters, workspaces", plan.other), ("all", plan.total)]
    table(("memory", "bytes", "MiB"), [(name, f"{n:,}", f"{n / (1 << 20):.2f}") for name, n in rows])
