"""Whole decode steps of real models' shapes with random weights: ours beside llama.cpp, transformers and the read.

    python -m benchmarks.decode_step --seconds 400 --llama SOURCE.tar.xz      measure on a GPU, print, append rows
    python -m benchmarks.decode_step --seconds 400 --models llama-3.2-1b --weights bf16
    python -m benchmarks.decode_step --report [--run ID]                      the table of the last run, or of one

`us` of ours: launches of a step's graph back to back; "ptxgen-fast": batches with precision="fast". `host_us`: what
`forward_to_token` (`Batch.step`) takes longer, token by token. `bytes`: weights, and keys and values at that depth.
Our steps of one sequence come first, with nothing else on the device. transformers compiles in processes of its own,
and llama.cpp is built, meanwhile; all of these stand still while a step is timed.
`floor`: only reading so many bytes; from 2 GB on at the rate of 2 GB. Rows of a step's ops go to
`decode_step_ops.jsonl` (`benchmarks.step_ops`). Every row is kept as soon as it is there; what fails or finds no time
says why.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.schedule import Task, work_off
from benchmarks.steps.our_steps import DEPTHS, FIRST, MORE, Ours, Quiet, case_of, chosen, impls

if TYPE_CHECKING:
    from benchmarks.peers.llama_cpp import LlamaCpp
    from benchmarks.peers.transformers_step import Transformers

# Batch and depth of transformers by process, in the order of compiling: a case of 32 layers compiles for 40 s or more.
TRANSFORMERS = (((1, 128), (32, 512), (1, 4096)), ((8, 512), (8, 4096)))
# Sequences and depth: of which models the time of each op is measured
ROLES = {
    (1, 4096): FIRST[::-1],
    (8, 512): (("llama-3-8b", "bf16"), ("llama-3.2-1b", "bf16"), ("llama-3-8b", "q4_k_m")),
}


# the others -----------------------------------------------------------------------------------------------------------
def llama_single(run: Run, llama: LlamaCpp, quiet: Quiet, name: str, depths: Sequence[int], ends: float) -> None:
    """llama-bench's tokens one by one."""
    with quiet():
        found = llama.bench(llama.file(name), ends - time.monotonic(), prompt=0, tokens=64, depths=depths)
    for row in found:
        if row["n_gen"]:
            tokens = float(row["avg_ts"])
            run.add(case_of(name, "q4_k_m", 1, row["n_depth"]), "llama.cpp", us=1e6 / tokens, tokens_s=tokens)
            print(run.rows[-1], flush=True)


def llama_batches(
    run: Run, llama: LlamaCpp, quiet: Quiet, name: str, batches: Sequence[int], depths: Sequence[int], ends: float
) -> None:
    """llama-batched-bench's steps."""
    left = ends - time.monotonic()
    with quiet():
        found = llama.batched(llama.file(name), left, depths=depths, batches=batches, tokens=32)
    for row in found:
        us = float(row["t_tg"]) / row["tg"] * 1e6
        case = case_of(name, "q4_k_m", row["pl"], row["pp"])
        print(run.add(case, "llama.cpp", us=us, tokens_s=row["pl"] * 1e6 / us), flush=True)


def transformers_step(run: Run, made: Transformers, quiet: Quiet, name: str, batch: int, depth: int) -> None:
    """A step of transformers'."""
    with quiet():
        row = made.measure((batch, depth))
    found = {"us": row["us"], "tokens_s": batch * 1e6 / row["us"]} if "us" in row else {"why": row["why"]}
    print(run.add(case_of(name, "bf16", batch, depth), "transformers-compiled", **found), flush=True)


def still(
    llama: LlamaCpp | None, transformers: Mapping[str, Sequence[Transformers]], but: Transformers | None = None
) -> AbstractContextManager[None]:
    """The processes of the others stand still, but those of one of them."""
    from benchmarks.peers.pauses import paused

    def processes() -> Iterator[subprocess.Popen[Any] | None]:
        yield from (each.process for each in itertools.chain(*transformers.values()) if each is not but)
        yield from llama.processes if llama is not None else ()

    return paused(processes())


# the run --------------------------------------------------------------------------------------------------------------
def one(ours: Ours, pair: tuple[str, str]) -> Task:
    """Our steps of one sequence."""
    # The depth between stands beside transformers, which runs bf16 alone; llama.cpp is measured at the other two.
    depths = DEPTHS[1] if pair[1] == "bf16" else (DEPTHS[1][0], DEPTHS[1][-1])
    return Task(case_of(*pair, 1, 0), "ptxgen", functools.partial(ours.single, *pair, depths), 6)


def alone(ours: Ours, given: argparse.Namespace) -> Iterator[Task]:
    """What is measured before anything else is on the device."""
    first = [pair for pair in FIRST if chosen(pair, given)]
    yield Task({}, "floor", ours.read, 5)
    for pair in first:
        yield one(ours, pair)
    for pair in first:
        if pair[1] == "bf16":
            work = functools.partial(ours.persistent, *pair, DEPTHS[1])
            yield Task(case_of(*pair, 1, 0), "ptxgen-persistent", work, 6)


def tasks(
    run: Run, ours: Ours, llama: LlamaCpp | None, transformers: Mapping[str, Sequence[Transformers]],
    given: argparse.Namespace, ends: float,
) -> Iterator[Task]:  # fmt: skip
    """Everything else, the most important first. `transformers`: the processes by model, one for each part of
    `TRANSFORMERS`."""
    first = [pair for pair in FIRST if chosen(pair, given)]
    packed = [name for name, weights in first if weights == "q4_k_m"]
    plain = [pair for pair in first if pair[1] == "bf16"]

    def several(pair: tuple[str, str], slots: int) -> Task:
        case, work = case_of(*pair, slots, 512), functools.partial(ours.batch, *pair, slots, DEPTHS[slots])
        return Task(case, "ptxgen", work, 9)

    for name, processes in transformers.items():
        for made, cases in zip(processes, TRANSFORMERS, strict=True):
            for sizes in cases:
                quiet = functools.partial(still, llama, transformers, made)
                work = functools.partial(transformers_step, run, made, quiet, name, *sizes)
                ready = functools.partial(made.ready, sizes)
                yield Task(case_of(name, "bf16", *sizes), "transformers-compiled", work, 3, ready)
    if llama is not None:
        for name in packed:
            work = functools.partial(llama_single, run, llama, ours.quiet, name, (0, 4096), ends)
            yield Task(case_of(name, "q4_k_m", 1, 0), "llama.cpp", work, 12, functools.partial(llama.ready, name))
    yield from (several(pair, 8) for pair in first)
    if llama is not None:
        for name in packed:
            work = functools.partial(llama_batches, run, llama, ours.quiet, name, (8, 32), (512, 4096), ends)
            yield Task(case_of(name, "q4_k_m", 8, 512), "llama.cpp", work, 25, functools.partial(llama.ready, name))
    yield from (several(pair, 32) for pair in first)
    yield from (several(pair, slots) for slots in (2, 4) for pair in plain)
    more = [pair for pair in MORE if chosen(pair, given)]
    yield from (one(ours, pair) for pair in more)
    yield from (several(pair, slots) for slots in (8, 32) for pair in more)
    for (batch, depth), pairs in ROLES.items():
        for pair, impl in itertools.product((pair for pair in pairs if chosen(pair, given)), impls(batch)):
            work = functools.partial(ours.roles, *pair, batch, depth, impl)
            yield Task(case_of(*pair, batch, depth), f"{impl} ops", work, 4)


def main(run: Run, given: argparse.Namespace) -> None:
    """All of it, in `given.seconds`."""
    from benchmarks.peers.llama_cpp import WEIGHTS, LlamaCpp
    from benchmarks.peers.transformers_step import Transformers
    from ptxgen.runtime import open_device

    ends = time.monotonic() + given.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what stands still shall not stay behind
    wanted = [pair for pair in FIRST if chosen(pair, given)]
    llama = LlamaCpp(Path(given.llama), given.work and Path(given.work)) if given.llama else None
    plain = [name for name, weights in wanted if weights == "bf16" and given.transformers]
    transformers: dict[str, list[Transformers]] = {}
    try:
        if llama is not None:
            llama.write([name for name, weights in wanted if weights == WEIGHTS])
        with Run("decode_step_ops", gpu(), at_once=True) as ops:
            quiet = functools.partial(still, llama, transformers)
            ours = Ours(run, ops, open_device("cuda"), quiet=quiet)
            work_off(run, list(alone(ours, given)), ends)
            for name in plain:
                transformers[name] = [Transformers(name, cases) for cases in TRANSFORMERS]
            work_off(run, list(tasks(run, ours, llama, transformers, given, ends)), ends)
    finally:
        for each in (*itertools.chain(*transformers.values()), *((llama,) if llama is not None else ())):
            each.stop()


OPTIONS = (
    ("--seconds", {"type": float, "default": 400.0, "help": "end after so many (default: 400)"}),
    (
        "--llama",
        {
            "metavar": "SOURCE",
            "help": "llama.cpp: an archive of its source, built while ours is measured, or an "
            "archive or a folder with its programs",
        },
    ),
    ("--work", {"metavar": "FOLDER", "help": "where llama.cpp and its files are, or will be (default: a new one)"}),
    ("--no-transformers", {"dest": "transformers", "action": "store_false", "help": "leave transformers out"}),
    ("--models", {"help": "only these models, separated by commas"}),
    ("--weights", {"help": "only these weights"}),
)
PEERS = ("llama.cpp", "transformers-compiled")
IMPLS = ("ptxgen", "ptxgen-fast", "ptxgen-persistent", *PEERS, "floor")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a case: µs of every implementation, the share of the read, how much faster than the best of the others;
    then what has no row, and why."""
    cases: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if "us" in row:
            cases.setdefault(tuple(row["case"].values()), {})[row["impl"]] = row
    heads = ("model", "weights", "batch", "depth", "MB", *IMPLS, "host", "of the read", "times a peer")
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for case in sorted(cases):
        found = cases[case]
        us = [f"{found[impl]['us']:.0f}" if impl in found else "" for impl in IMPLS]
        ours = found.get("ptxgen", {})
        peers = [found[impl]["us"] for impl in PEERS if impl in found]
        size = f"{ours['bytes'] / 1e6:.0f}" if ours else ""
        host = f"{ours['host_us']:.0f}" if ours else ""
        share = f"{found['floor']['us'] / ours['us']:.2f}" if ours and "floor" in found else ""
        times = f"{min(peers) / ours['us']:.2f}" if ours and peers else ""
        lines.append("| " + " | ".join([*map(str, case), size, *us, host, share, times]) + " |")
    for row in rows:
        if "why" in row:
            lines.append(f"\n{row['impl']}, {', '.join(map(str, row['case'].values()))}: {row['why']}")
    return "\n".join(lines)


if __name__ == "__main__":
    command("decode_step", __doc__, main, *OPTIONS, device=gpu, table=table, at_once=True)
