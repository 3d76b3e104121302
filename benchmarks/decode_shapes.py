"""Decode attention of shapes without a row in the tuning table, beside the grid's nearest shape over as many bytes.

    python -m benchmarks.decode_shapes                       measure on a GPU, print, append rows
    python -m benchmarks.decode_shapes --report [--run ID]   the table of the last run, or of one

A case has 8 KV heads and a context that makes its cache as large as asked; `tuned` is the shape of the grid that is
nearest in head_dim and group, over the same number of bytes. Measured as in `decode_attention`.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.cases.decode import SHAPES, Case, Inputs
from benchmarks.peers.decode import kernels, ours, this_machine
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.schedule import SECONDS, in_time
from benchmarks.report.sentence import in_a_sentence
from benchmarks.timing.prepared import ahead, wait

HEAD_DIMS = (40, 80, 96, 192, 256, 512)
GROUPS = tuple(range(1, 17))
SIZES = (8 << 20, 32 << 20, 128 << 20)  # bytes of K and V
KV_HEADS = 8
LEAST = 0.6  # of the tuned shape's rate
LISTS: dict[str, tuple[tuple[int, int], ...]] = {
    "head_dims": tuple((dim, group) for dim in HEAD_DIMS for group in (1, 4, 16)),
    "groups": tuple((128, group) for group in GROUPS),
    "all": tuple((dim, group) for dim in HEAD_DIMS for group in GROUPS),
}


def sized(n_heads: int, n_kv_heads: int, head_dim: int, nbytes: int) -> Case:
    """The shape with one sequence, as long as makes its cache so large; a multiple of 16 positions."""
    return Case(n_heads, n_kv_heads, head_dim, 1, nbytes // (64 * n_kv_heads * head_dim) * 16)


def nearest(head_dim: int, group: int) -> tuple[int, int, int]:
    """The shape of the grid that is nearest in head_dim and group, by their ratios."""

    def distance(shape: tuple[int, int, int]) -> float:
        n_heads, n_kv_heads, dim = shape
        return abs(math.log(dim / head_dim)) + abs(math.log(n_heads / n_kv_heads / group))

    return min(SHAPES, key=distance)


def pairs(names: Sequence[str], sizes: Sequence[int] = SIZES) -> Iterator[tuple[Case, Case]]:
    """The cases of these lists, each with its tuned peer."""
    for head_dim, group in dict.fromkeys(shape for name in names for shape in LISTS[name]):
        for nbytes in sizes:
            yield sized(KV_HEADS * group, KV_HEADS, head_dim, nbytes), sized(*nearest(head_dim, group), nbytes)


def measure_all(run: Run, names: Sequence[str], sizes: Sequence[int], seconds: float) -> None:
    """A row a case, as far as the time goes: time, bytes/s, its peer's, and the ratio of the rates."""
    ends = time.monotonic() + seconds
    wanted = list(pairs(names, sizes))
    ahead(kernels((each for pair in wanted for each in pair), ["ptxgen"], this_machine()), this_machine())
    wait(ends)
    rates: dict[Case, tuple[float, float, float]] = {}  # µs, bytes/s, error
    for case, tuned in in_time(wanted, ends):
        for each in (case, tuned):
            if each not in rates:
                us, error = ours()(Inputs(each))
                rates[each] = us, each.bytes / us * 1e6, error
        us, rate, error = rates[case]
        peer = rates[tuned][1]
        row = run.add(
            case.fields(), "ptxgen", us=us, bytes=case.bytes, error=error, bytes_per_s=rate, tuned=shape(tuned),
            tuned_bytes_per_s=peer, ratio=rate / peer,
        )  # fmt: skip
        print(line(row), flush=True)


def shape(case: Case) -> str:
    """Query heads/KV heads/head_dim, as in 32/8/128."""
    return f"{case.n_heads}/{case.n_kv_heads}/{case.head_dim}"


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    case = Case(**row["case"])
    low = "" if row["ratio"] >= LEAST else f" below {LEAST}"
    rates = f"{row['bytes_per_s'] / 1e12:.2f} | {row['tuned']} | {row['tuned_bytes_per_s'] / 1e12:.2f}"
    size = f"{case.bytes / 1e6:.1f} | {case.context}"
    return f"| {shape(case)} | {case.group} | {size} | {row['us']:g} | {rates} | {row['ratio']:.2f}{low} |"


def report(rows: Sequence[dict[str, Any]]) -> str:
    """The table, the least ratio, and what is below the bound."""
    head = "| heads q/kv/dim | group | MB | context | µs | TB/s | tuned | its TB/s | ratio |"
    least = min(rows, key=lambda row: row["ratio"])
    below = sum(row["ratio"] < LEAST for row in rows)
    wrong = [row for row in rows if not row["error"] < 5e-3]
    summary = f"least ratio {least['ratio']:.2f} ({line(least)}); below {LEAST}: {below} of {len(rows)}"
    first = rows[0]
    run = f"{first['device']}, {first['date']}, commit {first['commit']}, run {first['run']}; wrong: {len(wrong)}"
    return "\n".join([head, "|---" * 9 + "|", *map(line, rows), "", summary, run])


def main() -> None:
    lists = f"lists: {', '.join(LISTS)} (default: %(default)s)"
    options = (
        ("--shapes", {"default": "head_dims,groups", "help": lists}),
        ("--mib", {"default": "8,32,128", "help": "sizes of the caches (default: %(default)s)"}),
        SECONDS,
    )

    def measure(run: Run, given: argparse.Namespace) -> None:
        sizes = [int(n) << 20 for n in given.mib.split(",")]
        measure_all(run, given.shapes.split(","), sizes, given.seconds)

    command("decode_shapes", __doc__, measure, *options, device=gpu, table=report, at_once=True)


if __name__ == "__main__":
    in_a_sentence(main)
