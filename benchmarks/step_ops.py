"""Where the time of a decode step goes: a row an op of a model's step, and the ends of its launches one by one.

    python -m benchmarks.step_ops --seconds 60                 measure on a GPU, print, append rows
    python -m benchmarks.step_ops --models llama-3.2-1b --weights bf16 --sizes 1x4096,8x512
    python -m benchmarks.step_ops --report [--run ID]          the tables of the last run, or of one
    python -m benchmarks.step_ops --plot [MODEL/WEIGHTS]       draw docs/images/decode_step.png from the last run

`us`: what all launches of an op add to the step: differences of graphs that end with a launch and with the one before
it, both behind the launches of two layers. So nothing is added to the step, and launches overlap as they do in it. Of a
kernel with many launches the first ones are measured, and the others taken to be as long. `ends`: microseconds from the
begin of the step to the end of each of its launches, in their order. `alone_us`: the launches of an op in a graph of
nothing else. `bytes`: what they have to move. Batches are measured twice: "ptxgen-fast" has precision="fast".
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.cases.models import MIXES, MODELS
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run, load
from benchmarks.steps.bound_step import TIMELINE
from benchmarks.steps.our_steps import FIRST, MORE, Ours, chosen, impls

CHART = Path(__file__).resolve().parents[1] / "docs" / "images" / "decode_step.png"


def measure_floor(run: Run) -> None:
    """Microseconds of reading 2 GB."""
    from benchmarks.peers.read_floor import Floor

    size = 2_000_000_000
    run.add({"op": "read"}, "floor", us=Floor().us(size), bytes=size)


# tables and a picture -------------------------------------------------------------------------------------------------
def steps_of(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    """The rows of every step that was measured, by model, weights, batch, depth and implementation."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if "model" in row["case"] and "us" in row:
            found.setdefault(key_of(row), []).append(row)
    return found


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The step that a row is of: model, weights, batch, depth and implementation."""
    return *(row["case"][name] for name in ("model", "weights", "batch", "depth")), row["impl"]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table a step."""
    rate = next((row["bytes"] / row["us"] for row in rows if row["case"]["op"] == "read"), 0.0)
    return "\n\n".join(_table(key, of, rate) for key, of in steps_of(rows).items())


def _table(key: Sequence[Any], rows: Sequence[Mapping[str, Any]], rate: float) -> str:
    ops = sorted((row for row in rows if row["case"]["op"] != TIMELINE), key=lambda row: -row["us"])
    model, weights, batch, depth, impl = key
    whole = next(row["us"] for row in rows if row["case"]["op"] == TIMELINE)
    lines = [
        f"{model}, {weights}, batch {batch}, depth {depth} ({impl}): {whole:.0f} µs, "
        f"{sum(row['count'] for row in ops)} launches",
        "",
        "| op | kernel | launches | MB | µs in the step | of it | µs each | alone, µs each | read, µs each "
        "| of the read |",
        "|" + " --- |" * 10,
    ]
    for row in ops:
        each = [row[name] / row["count"] for name in ("us", "alone_us")]
        read = row["bytes"] / rate if rate else 0.0
        share = f"{read / row['us']:.2f}" if rate and row["us"] > 0 else ""
        lines.append(
            f"| {row['case']['op']} | {row['case']['kernel']} | {row['count']} | {row['bytes'] / 1e6:.1f} | "
            f"{row['us']:.1f} | {row['us'] / whole:.1%} | {each[0]:.2f} | {each[1]:.2f} | "
            f"{read / row['count']:.2f} | {share} |"
        )
    sums = [sum(row[name] for row in ops) for name in ("count", "bytes", "us", "alone_us")]
    read = sums[1] / rate if rate else 0.0
    share = f"{read / whole:.2f}" if rate else ""
    lines.append(
        f"| all |  | {sums[0]} | {sums[1] / 1e6:.1f} | {sums[2]:.1f} |  |  | {sums[3]:.1f} in all | "
        f"{read:.1f} in all | {share} |"
    )
    return "\n".join(lines)


def plot(rows: Sequence[Mapping[str, Any]], wanted: str, path: Path) -> None:
    """Draw the timeline of one token: the whole step above, its first layers below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = wanted.split("/")
    row = next(
        row for row in rows
        if row["case"]["op"] == TIMELINE and [row["case"]["model"], row["case"]["weights"], row["case"]["batch"]]
        == [*names, 1]
    )  # fmt: skip
    roles = [name.split(".", 2)[2] if name.startswith("layers.") else name for name in row["names"]]
    colours = {role: f"C{index}" for index, role in enumerate(dict.fromkeys(roles))}
    figure, axes = plt.subplots(2, 1, figsize=(11, 3.6), constrained_layout=True)
    spans = [(begin, max(0.0, end - begin)) for begin, end in pairwise([0.0, *row["ends"]])]
    shown = sum(name.startswith(("embed", *(f"layers.{layer}." for layer in range(3)))) for name in row["names"])
    for axis, until in ((axes[0], len(spans)), (axes[1], shown)):
        for role, colour in colours.items():
            mine = [span for span, of in zip(spans[:until], roles, strict=False) if of == role]
            axis.broken_barh(mine, (0, 1), color=colour, label=role, linewidth=0)
        axis.set(yticks=[], xlim=(0, row["ends"][until - 1]), xlabel="µs")
    case = row["case"]
    axes[0].set_title(f"One token of {case['model']}, {case['weights']}, depth {case['depth']}: {row['device']}")
    axes[1].set_title("its first three layers")
    axes[0].legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=len(colours), frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


# the run --------------------------------------------------------------------------------------------------------------
def main(run: Run, given: argparse.Namespace) -> None:
    """All steps that are wanted, as far as the time goes."""
    from ptxgen.runtime import open_device

    ends = time.monotonic() + given.seconds
    device = open_device("cuda")
    measure_floor(run)
    ours = Ours(run, run, device)
    sizes = [tuple(map(int, each.split("x"))) for each in given.sizes.split(",")]
    pairs = [pair for pair in (*FIRST, *MORE) if chosen(pair, given)]
    for (batch, depth), (name, weights) in itertools.product(sizes, pairs):
        for impl in impls(batch):
            if time.monotonic() > ends:
                return
            began = time.monotonic()
            ours.roles(name, weights, batch, depth, impl)
            print(f"{name} {weights} {batch}x{depth} {impl}: {time.monotonic() - began:.1f} s", flush=True)


OPTIONS = (
    ("--seconds", {"type": float, "default": 120.0, "help": "begin no step after so many (default: 120)"}),
    ("--models", {"help": f"only these of {', '.join(MODELS)}, separated by commas"}),
    ("--weights", {"help": f"only these of {', '.join(MIXES)}"}),
    ("--sizes", {"default": "1x4096", "help": "sequences by positions before the token (default: 1x4096)"}),
)

if __name__ == "__main__":
    if "--plot" in sys.argv:
        wanted = sys.argv[sys.argv.index("--plot") + 1 :] or ["llama-3.2-1b/bf16"]
        plot(load("decode_step_ops"), wanted[0], CHART)
    else:
        command("decode_step_ops", __doc__, main, *OPTIONS, device=gpu, table=functools.partial(table), at_once=True)
