"""`python -m tests.evidence.fuzz --count 10000`: random programs on the CPU executor and here; 1 on a difference."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from tests.evidence.devices import open_device
from tests.evidence.fuzz import backends
from tests.evidence.fuzz.program import THREADS, Program, make


def difference(program: Program, got: np.ndarray, expected: np.ndarray) -> str:
    """Where two results part, in words; empty when they are equal."""
    if np.array_equal(got, expected):
        return ""
    a, b = (v.view(np.uint64).reshape(THREADS, -1) for v in (got, expected))
    thread, slot = np.argwhere(a != b)[0]
    return f"seed {program.seed}: thread {thread}, slot {slot}: {a[thread, slot]:#018x}, not {b[thread, slot]:#018x}"


def run(seeds: range, device: Any) -> list[str]:
    """Differences, and failures, of the programs of some seeds."""
    programs, level = [make(s) for s in seeds], seeds.start // max(len(seeds), 1) % 3
    expected = backends.on_host(programs)
    try:
        got = backends.on_device(programs, device, level)
    except Exception as failure:
        if len(seeds) > 1:
            return [line for s in seeds for line in run_one(s, device, level)]
        return [f"seed {seeds.start} at level {level}: {type(failure).__name__}: {failure}"]
    lines = (difference(p, g, e) for p, g, e in zip(programs, got, expected, strict=True))
    return [f"{line} (level {level})" for line in lines if line]


def run_one(seed: int, device: Any, level: int) -> list[str]:
    """One program at a level."""
    program = make(seed)
    try:
        line = difference(program, backends.on_device([program], device, level)[0], backends.on_host([program])[0])
    except Exception as failure:
        line = f"seed {seed}: {type(failure).__name__}: {failure}"
    return [f"{line} (level {level})"] if line else []


def save(device: str, seed: int, count: int, differences: int, seconds: float) -> None:
    """A row of the outcome; the levels take turns, batch by batch."""
    from benchmarks.report.rows import Run

    run = Run("fuzz")
    case = {"device": device, "first_seed": seed, "programs": count, "levels": [0, 1, 2]}
    run.add(case, "ptxgen", differences=differences, seconds=seconds, llvm=".".join(map(str, llvm.llvm_version_info)))
    run.save()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--batch", type=int, default=8, help="programs in one module")
    parser.add_argument("--device", default="fast", help="fast, random, check, oracle, cpu or cuda")
    parser.add_argument("--level", type=int, choices=(0, 1, 2), help="one program, this optimisation level")
    parser.add_argument("--save", action="store_true", help="append the outcome to benchmarks/results/fuzz.jsonl")
    parser.add_argument("--dump", type=Path, help="write the PTX of the first seed here")
    given = parser.parse_args()
    if given.dump:
        given.dump.write_text(backends.to_ptx([make(given.seed)], given.level or 0))
    device, started, found = open_device(given.device), time.monotonic(), 0
    if given.level is not None:
        lines = run_one(given.seed, device, given.level)
        print("\n".join(lines) or "equal")
        return int(bool(lines))
    for start in range(given.seed, given.seed + given.count, given.batch):
        for line in run(range(start, min(start + given.batch, given.seed + given.count)), device):
            print(line, flush=True)
            found += 1
        if (start - given.seed) // given.batch % 50 == 49:
            print(f"… {start - given.seed + given.batch} programs, {time.monotonic() - started:.0f} s", file=sys.stderr)
    seconds = time.monotonic() - started
    print(f"{given.count} programs, {found} differences, {seconds:.0f} s")
    if given.save:
        save(given.device, given.seed, given.count, found, seconds)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
