"""What commands that launch have in common: device, sizes, inputs."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ptxgen.cli._complete import target_names
from ptxgen.cli._given import FloatRange, IntRange, a_device, a_target, goes_with
from ptxgen.errors import ExecutionError, SpecError, brief

if TYPE_CHECKING:
    from ptxgen.kernel import KernelType
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.tools.isolate import Limits

T = TypeVar("T", bound=Callable[..., Any])
SEED = IntRange(min=0)  # what NumPy's generators take


def launch_options() -> list[click.Option]:
    """Options of a launch with an example's arguments."""
    return [
        click.Option(["--device"], callback=a_device,
                     help="cpu, cuda or cuda:N  [default: cuda where it is, else cpu]"),
        click.Option(["--target"], default=None, shell_complete=target_names, callback=a_target,
                     help="architecture to generate for  [default: the device's own]"),
        click.Option(["--mode"], type=click.Choice(["fast", "random", "check"]), default="check",
                     help="of the CPU executor  [default: check]"),
        click.Option(["--seed"], type=SEED, default=0, help="of the random inputs  [default: 0]"),
        click.Option(["--size", "sizes"], multiple=True, metavar="NAME=N", help="a capacity, length or position"),
        click.Option(["--seq-len"], type=int, default=None, help="the same as --size seq_len=N"),
    ]  # fmt: skip


_ISOLATE: list[tuple[str, dict[str, Any]]] = [
    ("--isolate", dict(is_flag=True, help="Run in a process of its own, which can write no file.")),
    ("--memory", dict(type=IntRange(1, 1 << 20), default=4096, metavar="MIB",
                      help="What --isolate allows it  [default: 4096]")),
    ("--seconds", dict(type=FloatRange(0, 1e6, min_open=True), default=60.0,
                       help="How long --isolate lets it run  [default: 60]")),
]  # fmt: skip


def isolate_list() -> list[click.Option]:
    """Options of a command that may run in a process of its own."""
    return [click.Option([name], **how) for name, how in _ISOLATE]


def isolate_options(command: T) -> T:
    """The same for a command that is a decorated function."""
    for name, how in reversed(_ISOLATE):
        command = click.option(name, **how)(command)
    return command


def limits_of(isolate: bool, memory: int, seconds: float) -> Limits | None:
    """What `isolate_options` ask for; CPU time follows wall time, over all host threads."""
    from ptxgen.runtime.tools.isolate import Limits

    if not isolate:
        goes_with("--isolate", "memory", "seconds")
        return None
    return Limits(seconds, math.ceil(seconds) * (os.cpu_count() or 1), memory << 20)


@contextmanager
def limits_named() -> Iterator[None]:
    """What an isolated process was ended for names the option that allows more."""
    try:
        yield
    except ExecutionError as ended:
        if not str(ended).startswith("isolated: "):
            raise
        text = re.sub(r"Limits\.(?:cpu_)?(\w+)", r"--\1 allows more", str(ended))
        raise ExecutionError(text) from None


def size_options(spec: KernelType, words: Sequence[str], seq_len: int | None) -> dict[str, int]:
    """`NAME=N` words, and the length, as a mapping; `SpecError` for what the spec lacks or would not run as told."""
    from ptxgen.spec.examples import check_sizes

    sizes = {} if seq_len is None else {"seq_len": seq_len}
    for word in words:
        name, _, value = word.partition("=")
        if not re.fullmatch(r"[-+]?\d{1,18}", value, re.ASCII):
            raise SpecError(f"--size: must be NAME=N (got {brief(word)})")
        if sizes.setdefault(name, int(value)) != int(value):
            raise SpecError(f"--size: {name} was given as {sizes[name]} already (got {word!r})")
    check_sizes(spec, sizes)
    return sizes


def open_for(name: str | None, mode: str, seed: int) -> Device:
    """The device of that name; the CPU executor in that mode."""
    from ptxgen.runtime import open_device

    opened: Device = open_device(name)
    return open_device("cpu", mode=mode, seed=seed) if opened.kind == "cpu" else opened
