"""Prompts on shapes that no table was made with: attention beside cuDNN and FlashAttention 2, products beside cuBLAS.

    python -m benchmarks.unseen attention --seconds 60     measure on a GPU, print, append rows
    python -m benchmarks.unseen products --seconds 60
    python -m benchmarks.unseen products --report [--run ID]

The cases are those of `benchmarks/cases/unseen.py`, in a random order; those for which no time is left are named.
Attention is measured as by `benchmarks.prefill`, products as by `benchmarks.packed_products`: `programmatic`, results
in bf16. The report has the cases in the order of peer ÷ ours, the worst first.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks import packed_products, prefill
from benchmarks.cases import unseen
from benchmarks.peers.prefill import Prepare, varlen
from benchmarks.report.command import command, gpu
from benchmarks.report.decode import mean
from benchmarks.report.rows import Run
from benchmarks.report.sentence import in_a_sentence

IMPLEMENTATIONS: dict[str, Prepare] = {
    name: prefill.IMPLEMENTATIONS[name] for name in ("ptxgen", "sdpa-flash", "sdpa-cudnn")
} | {"flash-varlen": prefill.only(lambda case: "lengths" in case, varlen)}
OURS = ("ptxgen", "programmatic")
ROUNDS = 3


def attention(run: Run, seconds: float) -> None:
    """As many cases as there is time for."""
    ends = time.monotonic() + seconds
    for case in _shuffled(unseen.attention()):
        if time.monotonic() < ends:
            prefill.measure_case(run, case, IMPLEMENTATIONS)
        else:
            print("no time for", case)


def products(run: Run, seconds: float) -> None:
    """The same; kernels are made ahead."""
    chosen = _shuffled(unseen.products())
    specs = [spec for case in chosen for spec in packed_products.specs(case, "programmatic").values()]
    wanted = [each for spec in specs for each in (packed_products.packing(spec), spec)]
    how = partial(packed_products.measure, impls="programmatic", rounds=ROUNDS)
    packed_products.as_time_allows(run, chosen, wanted, how, seconds)


MEASURES = {"attention": attention, "products": products}


def _shuffled(cases: Any) -> list[dict[str, Any]]:
    found = list(cases)
    return random.Random(0).sample(found, len(found))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a case: the best peer's time ÷ ours, the µs of all, ours in TFLOP/s; then means."""
    cases: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["impl"] != "floor":
            cases.setdefault(str(row["case"]), {})[row["impl"]] = row
    lines = []
    for each in cases.values():
        ours = next((each[impl] for impl in OURS if impl in each), None)
        peers = {impl: row["us"] for impl, row in each.items() if impl not in OURS}
        if ours is None or not peers:
            continue
        ratio = min(peers.values()) / ours["us"]
        said = ", ".join(f"{impl} {us:.1f}" for impl, us in peers.items())
        what = ", ".join(f"{name} {value}" for name, value in ours["case"].items())
        lines.append((ratio, f"| {what} | {ratio:.3f} | {ours['us']:.1f} | {said} | {ours['tflops']:.0f} |"))
    head = ["| case | peer ÷ ours | ours, µs | peers, µs | TFLOP/s |", "| --- " * 5 + "|"]
    found = [ratio for ratio, _ in lines]
    ends = f"{len(found)} cases: {mean(found):.3f} in the mean, least {min(found):.3f}" if found else "no case"
    return "\n".join([*head, *(line for _, line in sorted(lines)), "", ends])


def main(run: Run, given: argparse.Namespace) -> None:
    MEASURES[given.what](run, given.seconds)


CHOICES = (
    ("what", {"choices": tuple(MEASURES), "help": "what is measured"}),
    ("--seconds", {"type": float, "default": 60.0, "help": "how long to measure"}),
)

if __name__ == "__main__":
    in_a_sentence(partial(command, "unseen", __doc__, main, *CHOICES, device=gpu, table=table, at_once=True))
