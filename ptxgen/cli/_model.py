"""What commands that take `--config` share: its options, and the kernels it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ptxgen.models import ModelShape
    from ptxgen.plan import Step

TARGET_NEEDED = "--target: is needed, for example --target sm_90"


def config_options() -> list[click.Option]:
    """`--config` and what changes its meaning."""
    return [
        click.Option(["--config"], metavar="CONFIG.JSON", help="A model's Hugging Face config.json."),
        click.Option(["--max-len"], type=click.IntRange(1), help="With --config: longest context [default: model's]"),
        click.Option(["--kv-dtype"], help="With --config: KV cache element type [default: model's]"),
    ]


def steps_of(
    config: str, targets: Sequence[str], max_len: int | None, kv_dtype: str | None
) -> tuple[ModelShape, list[Step]]:
    """The model's shape, and every kernel it needs on each target."""
    from ptxgen.models import load_config
    from ptxgen.plan import plan

    if not targets:
        raise click.UsageError(TARGET_NEEDED)
    shape = load_config(config, max_len)
    return shape, [step for name in dict.fromkeys(targets) for step in plan(shape, name, kv_dtype=kv_dtype)]
