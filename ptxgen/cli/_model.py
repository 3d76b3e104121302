"""What commands that take `--config` share: its options, and the kernels it asks for."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from ptxgen.cli._complete import kv_dtypes, target_names, weight_names
from ptxgen.errors import ConfigWarning

if TYPE_CHECKING:
    from ptxgen.models import ModelShape
    from ptxgen.models.plan import Step
    from ptxgen.models.program import Program

TARGET_NEEDED = "--target: is needed, for example --target sm_90"


def config_options() -> list[click.Option]:
    """`--config` and what changes its meaning."""
    return [
        click.Option(["--config"], metavar="CONFIG.JSON", help="A model's Hugging Face config.json."),
        click.Option(["--max-len"], type=click.IntRange(1), help="With --config: longest context [default: model's]"),
        click.Option(["--kv-dtype"], shell_complete=kv_dtypes,
                     help="With --config: KV cache element type [default: model's]"),
        click.Option(["--strict"], is_flag=True, help="With --config: what is only warned of is an error."),
        click.Option(["--weights"], metavar="FORMAT", shell_complete=weight_names,
                     help="With --config: kernels of the whole model with matrices so, not of attention alone."),
    ]  # fmt: skip


def targets_option() -> click.Option:
    """`--target`, once or several times."""
    return click.Option(["--target", "targets"], multiple=True, metavar="SM", shell_complete=target_names,
                        help="Architecture, as sm_90; repeatable.")  # fmt: skip


def steps_of(
    config: str,
    targets: Sequence[str],
    max_len: int | None,
    kv_dtype: str | None,
    weights: str | None = None,
    strict: bool = False,
) -> tuple[ModelShape, list[Step]]:
    """The model's shape, and every kernel it needs on each target: of attention, or with `weights` all."""
    from ptxgen.models import load_config
    from ptxgen.models.plan import plan, whole_plan
    from ptxgen.models.spec import load_spec

    if not targets:
        raise click.UsageError(TARGET_NEEDED)
    if kv_dtype is not None:
        _check_kv_dtype(kv_dtype)
    if weights is not None:
        model = load_spec(config, max_len, strict=strict)
        return model.shape, [s for name in dict.fromkeys(targets) for s in whole_plan(model, weights, name, kv_dtype)]
    shape = load_config(config, max_len, strict=strict)
    return shape, [step for name in dict.fromkeys(targets) for step in plan(shape, name, kv_dtype=kv_dtype)]


def decode_programs(
    config: str, steps: Sequence[Step], max_len: int | None, kv_dtype: str | None, weights: str | None
) -> dict[str, Program]:
    """The decode step of one sequence of a whole model, for each target of its kernels; nothing without `weights`."""
    from ptxgen.models.plan import whole_program
    from ptxgen.models.spec import load_spec

    if weights is None:
        return {}
    with warnings.catch_warnings():  # `steps_of` has issued them
        warnings.simplefilter("ignore", ConfigWarning)
        model = load_spec(config, max_len)
    return {name: whole_program(model, weights, name, kv_dtype) for name in {step.target.name for step in steps}}


def _check_kv_dtype(name: str) -> None:
    """Refuse an element type once, rather than once a kernel of the model."""
    from ptxgen.dtypes import dtype
    from ptxgen.errors import SpecError
    from ptxgen.kernels import IncrementalAttention
    from ptxgen.legality import choices
    from ptxgen.rules import one_of

    with suppress(SpecError):
        name = dtype(name).name
    for reason in one_of("--kv-dtype", name, choices(IncrementalAttention, "kv_dtype")):
        raise click.UsageError(reason)
