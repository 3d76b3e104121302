"""`ptxgen replay FILE`: a recorded launch again, on this or another device."""

from __future__ import annotations

import click

from ptxgen.cli._given import Command, a_device
from ptxgen.cli._output import table
from ptxgen.cli._run import SEED, open_for


@click.command(name="replay", cls=Command)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--device", default="cpu", callback=a_device, help="cpu, cuda or cuda:N  [default: cpu]")
@click.option("--mode", type=click.Choice(["fast", "random", "check"]), default="check",
              help="of the CPU executor  [default: check]")  # fmt: skip
@click.option("--seed", type=SEED, default=0, help="of the executor's random order")
def command(file: str, device: str, mode: str, seed: int) -> int:
    """Launch what `ptxgen record` kept, and compare every buffer with what it became then."""
    from ptxgen.runtime.tools.recording import Recording, replay

    recording = Recording.load(file)
    opened = open_for(device, mode, seed)
    verdicts = replay(recording, opened)
    rows = [(v.name, "ok" if v.ok else "WRONG", f"{v.error:.3g}", v.why) for v in verdicts]
    table(("buffer", "verdict", "error", ""), rows, f"{recording.entry}, recorded on {recording.device}")
    return 0 if all(v.ok for v in verdicts) else 1
