"""What commands that launch have in common: device, sizes, inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ptxgen.errors import SpecError

if TYPE_CHECKING:
    from ptxgen.runtime.device import Device


def launch_options() -> list[click.Option]:
    """Options of a launch with an example's arguments."""
    return [
        click.Option(["--device"], default=None, help="cpu, cuda or cuda:N  [default: cuda where it is, else cpu]"),
        click.Option(["--target"], default=None, help="architecture to generate for  [default: the device's own]"),
        click.Option(["--mode"], type=click.Choice(["fast", "random", "check"]), default="check",
                     help="of the CPU executor  [default: check]"),
        click.Option(["--seed"], type=int, default=0, help="of the random inputs  [default: 0]"),
        click.Option(["--size", "sizes"], multiple=True, metavar="NAME=N", help="a capacity, length or position"),
        click.Option(["--seq-len"], type=int, default=None, help="the same as --size seq_len=N"),
    ]  # fmt: skip


def size_options(words: Sequence[str], seq_len: int | None) -> dict[str, int]:
    """`NAME=N` words, and the length, as a mapping."""
    sizes = {} if seq_len is None else {"seq_len": seq_len}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value.lstrip("-").isdigit():
            raise SpecError(f"--size: must be NAME=N (got {word!r})")
        sizes[name] = int(value)
    return sizes


def open_for(name: str | None, mode: str, seed: int) -> Device:
    """The device of that name; the CPU executor in that mode."""
    from ptxgen.runtime import open_device

    opened: Device = open_device(name)
    return open_device("cpu", mode=mode, seed=seed) if opened.kind == "cpu" else opened
