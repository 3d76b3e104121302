"""`ptxgen doctor`: what this machine has, and what ptxgen can do with it."""

from __future__ import annotations

from dataclasses import asdict

import click

from ptxgen.cli._output import emit_json, json_option, table
from ptxgen.doctor import examine


@click.command(name="doctor")
@json_option
def command(as_json: bool) -> int:
    """Show driver, GPUs, highest PTX ISA, cache and optional parts. Exit 1 when something is wrong, not when absent."""
    lines = examine()
    if as_json:
        emit_json([asdict(line) for line in lines])
    else:
        table(("", "state", "found"), [(line.topic, line.state, line.text) for line in lines])
    return int(any(line.state == "wrong" for line in lines))
