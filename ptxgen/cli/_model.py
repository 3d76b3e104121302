"""What commands that take `--config` or a model file share: their options, and the kernels a config asks for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ptxgen.cli._complete import kv_dtypes, target_names, weight_names
from ptxgen.cli._given import IntRange, a_format, a_path, a_target, given_by, goes_with

if TYPE_CHECKING:
    from ptxgen.models import ModelShape
    from ptxgen.models.caches import CacheForm
    from ptxgen.models.files import ModelFile
    from ptxgen.models.plan import Step
    from ptxgen.models.program import Program

TARGET_NEEDED = "--target: is needed, for example --target sm_90"


def config_options(*, files: bool = False) -> list[click.Option]:
    """`--config` and what changes its meaning. `files`: the command has `--model`, which some of them go with."""
    either, own = ("With --config or --model", "model's; with --model f16") if files else ("With --config", "model's")
    return [
        click.Option(["--config"], metavar="CONFIG.JSON", callback=a_path,
                     help="A model's Hugging Face config.json, or the folder with it."),
        click.Option(["--max-len"], type=IntRange(1), help=f"{either}: longest context [default: model's]"),
        click.Option(["--kv-dtype"], shell_complete=kv_dtypes,
                     help=f"{either}: KV cache element type [default: {own}]"),
        click.Option(["--strict"], is_flag=True, help="With --config: what is only warned of is an error."),
        click.Option(["--weights"], metavar="FORMAT", shell_complete=weight_names, callback=a_format,
                     help="With --config: kernels of the whole model with matrices so, not of attention alone."),
        click.Option(["--page-size"], type=IntRange(0), default=0, metavar="N",
                     help="With --config: caches of batches in pages of so many positions, a multiple of 16."),
        click.Option(["--layout", "page_layout"], type=click.Choice(["hnd", "nhd"]), default="hnd", show_default=True,
                     help="With --page-size: order of a page's axes, heads or positions first."),
        click.Option(["--rings"], type=IntRange(0), default=0, metavar="ROWS",
                     help=f"{either}: caches of layers with a window are rings that take so many rows at a time."),
        click.Option(["--batch"], type=IntRange(1, 65535), default=1, metavar="N",
                     help="With --config: sequences whose caches' memory the manifest says."),
    ]  # fmt: skip


_LAYERS, _HEAD = "matrices of the layers in another weight format, as q4_k.", "head and embedding in another format."


def quantise_options(*, alone: bool = False) -> list[click.Option]:
    """Weight formats that a model file's matrices are quantised to; `alone`: the command opens nothing else."""
    options = {"--quantise": _LAYERS, "--quantise-head": _HEAD}
    return [
        click.Option([name], metavar="FORMAT", shell_complete=weight_names, callback=a_format,
                     help=text[0].upper() + text[1:] if alone else f"With --model: {text}")
        for name, text in options.items()
    ]  # fmt: skip


def opened(path: str, max_len: int | None, quantise: str | None, quantise_head: str | None) -> ModelFile:
    """A model file, its matrices as the options say."""
    from ptxgen.models.files import open_model, quantised

    source = open_model(path, max_len)
    with given_by("quantise", "quantise_head"):
        return quantised(source, quantise, quantise_head)


def targets_option() -> click.Option:
    """`--target`, once or several times."""
    return click.Option(["--target", "targets"], multiple=True, metavar="SM", shell_complete=target_names,
                        callback=a_target, help="Architecture, as sm_90; repeatable.")  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What a command with `--config` was asked for: a model's kernels on their targets, and how it keeps its caches."""

    shape: ModelShape
    steps: list[Step]
    programs: dict[str, Program]
    caches: dict[str, Any]


def asked(
    config: str, targets: Sequence[str], *, max_len: int | None, kv_dtype: str | None, weights: str | None = None,
    strict: bool = False, page_size: int = 0, page_layout: str = "hnd", batch: int = 1, rings: int = 0,
) -> Asked:  # fmt: skip
    """Every kernel that the model needs on each target: of attention, or with `weights` all, and then the decode step
    of one sequence by target."""
    from ptxgen.models.caches import CacheForm

    if not targets:
        raise click.UsageError(TARGET_NEEDED)
    if kv_dtype is not None:
        check_kv_dtype(kv_dtype)
    if page_layout != "hnd" and not page_size:
        goes_with("--page-size", "page_layout")
    form, where = CacheForm(page_size, page_layout, rings), list(dict.fromkeys(targets))
    with given_by("max_len", "page_size", "rings", "target"):
        return _planned(config, where, form, max_len, kv_dtype, weights, strict, batch)


def _planned(
    config: str, where: Sequence[str], form: CacheForm, max_len: int | None, kv_dtype: str | None,
    weights: str | None, strict: bool, batch: int,
) -> Asked:  # fmt: skip
    """The kernels, and the decode step where they are the whole model's."""
    from ptxgen.models import load_config
    from ptxgen.models.plan import plan, whole_plan, whole_program
    from ptxgen.models.spec import load_spec

    if weights is None:
        shape = load_config(config, max_len, strict=strict, kv_dtype=kv_dtype)
        form.check_rings(shape)
        steps = [step for name in where for step in plan(shape, name, kv_dtype, form)]
        return Asked(shape, steps, {}, form.said(shape, kv_dtype or shape.dtype, batch))
    model = load_spec(config, max_len, strict=strict)
    form.check_rings(model.shape)
    steps = [step for name in where for step in whole_plan(model, weights, name, kv_dtype, form)]
    names = dict.fromkeys(step.target.name for step in steps)
    programs = {name: whole_program(model, weights, name, kv_dtype, form=form) for name in names}
    return Asked(model.shape, steps, programs, form.said(model.shape, kv_dtype or model.shape.dtype, batch))


def check_kv_dtype(name: str) -> None:
    """Refuse an element type once, rather than once a kernel of the model."""
    from ptxgen.dtypes import dtype
    from ptxgen.errors import SpecError
    from ptxgen.kernels import IncrementalAttention
    from ptxgen.rules import one_of
    from ptxgen.spec.legality import choices

    with suppress(SpecError):
        name = dtype(name).name
    for reason in one_of("--kv-dtype", name, choices(IncrementalAttention, "kv_dtype")):
        raise click.UsageError(reason)
