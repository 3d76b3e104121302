"""Random operations on caches of one sequence and of several, eager and replayed, against the float64 oracle.

python -m tests.tools.soak --device cuda --steps 100000 [--seed 0] [--jobs 12] [--save]
python -m tests.tools.soak --device cuda --steps 20000 --shapes 8      memory, on a device that no other process uses

A shape lives for some hundred steps, and gives back what it took.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.report.sentence import in_a_sentence
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.core.backend import MemoryUse
from ptxgen.tuning import Row, Table, using
from tests.tools.soaked import LIVES

SLACK = 64 << 20  # bytes of the driver's free memory that come and go: lazily loaded code, launches deeper than before

# Lives take turns: who merges the splits of a unit is as the table has it, the last CTA to start, the last four.
MERGERS = (Table(), *(Table(tuple(Row((("invariant", i),), (("mergers", n),)) for i in (False, True))) for n in (1, 4)))


def soak(
    device: Device, steps: int, seed: int, per_life: int = 300, shapes: int = 0, *, counted: bool = True
) -> dict[str, Any]:
    """Run; raises `AssertionError` at the first difference, and where memory is not given back after a shape (unless it
    is not `counted`: a sanitizer holds back what was freed).

    With `shapes`, so many shapes come round again and again: from the second round on nothing is loaded any more, and
    the device's free memory may not shrink. That holds only where no other process works on the device. What was done,
    the largest error, the memory in use.
    """
    rng = np.random.default_rng(seed)
    done: Counter[str] = Counter()
    worst, lives, started = 0.0, 0, time.perf_counter()
    before, free = memory(device), 0
    while sum(done.values()) < steps:
        number = lives % shapes if shapes else lives
        with using(MERGERS[number // len(LIVES) % len(MERGERS)]):
            life = LIVES[number % len(LIVES)](device, np.random.default_rng((seed, number)), rng)
            for _ in range(min(per_life, steps - sum(done.values()))):
                done[f"{type(life).__name__}.{life.step()}"] += 1
        worst, lives = max(worst, life.worst), lives + 1
        del life
        now = memory(device)
        left = now.used - before.used if counted else 0
        assert not left, f"{left:,} bytes of shape {number} were not given back"
        if lives == shapes:
            free = now.free
        gone = free - now.free if counted else 0
        assert gone <= SLACK, f"{gone:,} bytes of the device are gone since the first round"
    return {
        "steps": dict(done), "shapes": min(lives, shapes or lives), "largest error / limit": round(worst, 3),
        "memory used before and after": (before.used, now.used),
        "free after the first round and at the end": (free, now.free if free else 0),
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def memory(device: Device) -> MemoryUse:
    """What is in use when all that nobody holds is gone."""
    gc.collect()
    device.synchronize()
    return device.memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=None)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-life", type=int, default=300, help="steps with one shape")
    parser.add_argument("--shapes", type=int, default=0, help="come round again; watches the device's free memory")
    parser.add_argument("--uncounted", action="store_true", help="leave memory out: for runs under a sanitizer")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side, with seeds of their own")
    parser.add_argument("--save", action="store_true", help="append a row to benchmarks/results/soak.jsonl")
    options = parser.parse_args()
    if options.jobs > 1 and options.shapes:
        parser.error("--shapes needs the device for itself: not with --jobs")
    device = open_device(options.device)
    if options.jobs > 1:
        report = merged(list(side_by_side(options)))
    else:
        counted = not options.uncounted
        report = soak(device, options.steps, options.seed, options.per_life, options.shapes, counted=counted)
    print(json.dumps(report))
    if options.save:
        save(report, device, options.seed)


def side_by_side(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The reports of processes that share the steps; one that fails fails all."""
    command = [sys.executable, "-m", "tests.tools.soak", "--steps", str(-(-options.steps // options.jobs))]
    command += ["--per-life", str(options.per_life)] + (["--device", options.device] if options.device else [])
    command += ["--uncounted"] if options.uncounted else []
    seeds = range(options.seed, options.seed + options.jobs)
    running = [subprocess.Popen([*command, "--seed", str(seed)], stdout=subprocess.PIPE, text=True) for seed in seeds]
    for seed, process in zip(seeds, running, strict=True):
        out, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"soak: the process with seed {seed} failed")
        yield json.loads(out.splitlines()[-1])


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """One report of several: counts summed, the worst of the rest."""
    done: Counter[str] = Counter()
    for report in reports:
        done.update(report["steps"])
    first, last = (sum(r["memory used before and after"][i] for r in reports) for i in (0, 1))
    return {
        "steps": dict(done), "shapes": sum(r["shapes"] for r in reports),
        "largest error / limit": max(r["largest error / limit"] for r in reports),
        "memory used before and after": (first, last),
        "seconds": max(r["seconds"] for r in reports),
    }  # fmt: skip


def save(report: dict[str, Any], device: Device, seed: int) -> None:
    """A row of this run."""
    from benchmarks.report.rows import Run

    run = Run("soak", getattr(device, "model", None))
    first, last = report["memory used before and after"]
    run.add(
        {"seed": seed, "done": dict(report["steps"])}, "ptxgen", steps=sum(report["steps"].values()),
        shapes=report["shapes"], of_limit=report["largest error / limit"], used_first=first, used_last=last,
        seconds=float(report["seconds"]),
    )  # fmt: skip
    print(run.save())


if __name__ == "__main__":
    in_a_sentence(main)
