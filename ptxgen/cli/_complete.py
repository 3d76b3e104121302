"""What a shell completes an option's value with: targets, and the choices of a kernel type's fields."""

from __future__ import annotations

from collections.abc import Callable

import click

from ptxgen.kernel import KernelType

Completion = Callable[[click.Context, click.Parameter, str], "list[str]"]


def target_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The architectures that begin so."""
    from ptxgen.targets import ALL_TARGETS

    return [target.name for target in ALL_TARGETS if target.name.startswith(incomplete)]


def choices_of(cls: type[KernelType], field: str) -> Completion:
    """The choices of a field, where its rule lists them."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        from ptxgen.spec.legality import choices

        return [choice for choice in choices(cls, field) if choice.startswith(incomplete)]

    return complete


def weight_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of weight formats that begin so, for a shell."""
    from ptxgen.weights import weight_formats

    return [name for name in weight_formats() if name.startswith(incomplete)]


def kv_dtypes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Element types of a KV cache."""
    from ptxgen.kernels import IncrementalAttention

    return choices_of(IncrementalAttention, "kv_dtype")(ctx, param, incomplete)
