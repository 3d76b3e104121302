"""The CPU executor: opening, first launch, launch from the object cache, run, check mode, growth with the CTAs, and
the interpreter of tests/evidence/oracle beside it.

python -m benchmarks.cpu_executor [--json] [--rounds 25]      measure, append rows, print them
python -m benchmarks.cpu_executor --report                    the table of the last run
python -m benchmarks.cpu_executor --docs                      write the figures of docs/cpu-executor.md from that run
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.cpu_executor import CASES, CHECKED, SCALED, Case
from benchmarks.report.rows import Run, load, markdown
from benchmarks.report.sentence import in_a_sentence
from ptxgen.runtime import open_device

ROOT = Path(__file__).resolve().parent.parent
WARM_SECONDS = 1.0  # longer than code runs before its support functions are optimised
MARKS = ("<!-- executor: written by python -m benchmarks.cpu_executor --docs -->", "<!-- end of executor -->")
FUZZ_MARKS = ("<!-- fuzz: written by python -m benchmarks.cpu_executor --docs -->", "<!-- end of fuzz -->")


def median_ms(jobs: Sequence[Callable[[], object]], rounds: int, warm: float = WARM_SECONDS) -> list[dict[str, float]]:
    """For each job, warm medians of wall time and of CPU time of all threads, and the least wall time; in turns, so
    that what else the machine does is the same for all.
    """
    for job in jobs:
        end = time.perf_counter() + warm
        while time.perf_counter() < end:
            job()
    samples: list[list[tuple[float, float]]] = [[] for _ in jobs]
    for _ in range(rounds):
        for job, taken in zip(jobs, samples, strict=True):
            start, used = time.perf_counter(), time.process_time()
            job()
            taken.append((time.perf_counter() - start, time.process_time() - used))
    found = []
    for taken in samples:
        wall, cpu = (1e3 * np.array(column) for column in zip(*taken, strict=True))
        found.append({"ms": float(np.median(wall)), "cpu_ms": float(np.median(cpu)), "least_ms": float(min(wall))})
    return found


def bound(case: Case, device: Any) -> tuple[Any, list[Any], np.ndarray]:
    """(a launch that is ready, its arguments, what it must give)."""
    arguments, expected = case.prepare(device)
    entry = device.module(case.text)[case.entry]
    return entry.bind(case.grid, case.block, arguments, case.shared, case.cluster), arguments, expected


def runs(run: Run, rounds: int) -> Iterator[dict[str, Any]]:
    """Launches when everything is warm: fast and check mode, one thread and as many as there are CPUs."""
    for name, make in CASES.items():
        case = make()
        for threads in sorted({1, os.cpu_count() or 1}):
            modes = {mode: bound(case, open_device("cpu", mode=mode, threads=threads)) for mode in ("fast", "check")}
            times = median_ms([launch.launch for launch, _, _ in modes.values()], rounds)
            for (mode, (_, arguments, expected)), measured in zip(modes.items(), times, strict=True):
                measured["error"] = case.error(arguments, expected)
                if case.flops:
                    measured["gflops"] = case.flops / measured["cpu_ms"] / 1e6  # a thread
                yield run.add({"kernel": name, "what": "run", "threads": threads}, mode, **measured)


def firsts(run: Run, processes: int) -> Iterator[dict[str, Any]]:
    """What a new process waits for, with an empty object cache and with a filled one: medians of several processes."""
    for name in CASES:
        samples: dict[str, list[dict[str, float]]] = {"empty cache": [], "object cache": []}
        with tempfile.TemporaryDirectory() as bytecode:
            for number in range(processes + 1):
                with tempfile.TemporaryDirectory() as directory:
                    for state in samples:
                        measured = _in_a_process(name, directory, bytecode)
                        if number:  # the first process compiles the Python sources, as an installation does
                            samples[state].append(measured)
        for state, rows in samples.items():
            medians = {key: float(np.median([row[key] for row in rows])) for key in rows[0]}
            for key in ("ms", "cpu_ms"):
                medians[f"least_{key}"] = min(row[key] for row in rows)
            yield run.add({"kernel": name, "what": "first launch", "cache": state}, "fast", **medians)


def _in_a_process(name: str, directory: str, bytecode: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.cpu_executor", "--first", name]
    environment = {
        **os.environ, "PTXGEN_CACHE_DIR": directory, "PYTHONPYCACHEPREFIX": bytecode,
        "OPENBLAS_NUM_THREADS": "1",  # its threads spin for a while after the reference's product, on our account
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def first(name: str) -> dict[str, float]:
    """One process's account: importing llvmlite, opening the device besides, loading the kernel until it can be
    launched, its first launch.
    """
    case = CASES[name]()
    marks: list[tuple[float, float]] = []

    def mark() -> None:
        marks.append((time.perf_counter(), time.process_time()))

    mark()
    import_module("llvmlite.binding")
    mark()
    device = open_device("cpu")
    mark()
    arguments, expected = case.prepare(device)
    mark()
    launch = device.module(case.text)[case.entry].bind(case.grid, case.block, arguments, case.shared, case.cluster)
    mark()
    launch.launch()
    mark()
    assert case.error(arguments, expected) < 1e-2
    spans = {"llvmlite": (0, 1), "open": (1, 2), "load": (3, 4), "": (3, 5)}
    return {
        "_".join(filter(None, (name, clock))): 1e3 * (marks[end][which] - marks[begin][which])
        for name, (begin, end) in spans.items() for which, clock in enumerate(("ms", "cpu_ms"))
    }  # fmt: skip


def checks(run: Run, rounds: int) -> Iterator[dict[str, Any]]:
    """Kernels of other kinds than `CASES`, fast and in check mode, on one thread."""
    from tests.evidence.corpus.cases import CASES as CORPUS

    for name in CHECKED:
        case = CORPUS[name]
        jobs = []
        for mode in ("fast", "check"):
            device = open_device("cpu", mode=mode, threads=1)
            arguments = [device.array(a) if isinstance(a, np.ndarray) else a for a in case.work().args]
            entry = device.module(case.text)[case.entry]
            jobs.append(entry.bind(case.grid, case.block, arguments, case.shared, case.cluster).launch)
        for mode, measured in zip(("fast", "check"), median_ms(jobs, rounds), strict=True):
            yield run.add({"kernel": name, "what": "check", "threads": 1}, mode, **measured)


def growth(run: Run, rounds: int) -> Iterator[dict[str, Any]]:
    """Time of a CTA for one grid and its multiples, on one thread."""
    for name, make in SCALED.items():
        cases = [make(factor) for factor in (1, 2, 4, 8, 16)]
        jobs = [bound(case, open_device("cpu", threads=1))[0].launch for case in cases]
        for case, measured in zip(cases, median_ms(jobs, rounds), strict=True):
            measured["cpu_us_per_cta"] = 1e3 * measured["cpu_ms"] / case.ctas
            yield run.add({"kernel": name, "what": "growth", "ctas": case.ctas}, "fast", **measured)


def oracle(run: Run) -> Iterator[dict[str, Any]]:
    """The interpreter in NumPy over the whole grid, which the tests hold the executor against."""
    from tests.evidence.oracle import Oracle

    for name, make in CASES.items():
        case, device = make(), Oracle()
        arguments, expected = case.prepare(device)
        kernel = device.module(case.text)[case.entry]

        def launch() -> None:
            kernel.launch(case.grid, case.block, arguments, case.shared, case.cluster)  # noqa: B023

        (measured,) = median_ms([launch], 1, 0.0)
        measured["error"] = case.error(arguments, expected)
        yield run.add({"kernel": name, "what": "run", "threads": 1}, "numpy", **measured)


def machine(run: Run) -> dict[str, Any]:
    """What the figures depend on besides the code."""
    import llvmlite
    import llvmlite.binding as llvm

    facts = {
        "what": "machine", "cpus": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__,
        "llvmlite": llvmlite.__version__, "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "llvm_cpu": llvm.get_host_cpu_name(), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    return run.add(facts, "machine")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON lines")
    parser.add_argument("--report", action="store_true", help="print the table of the last run, measure nothing")
    parser.add_argument("--docs", action="store_true", help="write the last run's figures into docs/cpu-executor.md")
    parser.add_argument("--first", choices=CASES, help=argparse.SUPPRESS)  # a process of `firsts`
    options = parser.parse_args()
    if options.first:
        print(json.dumps(first(options.first)))
    elif options.report:
        print(markdown(load("cpu_executor")))
    elif options.docs:
        from benchmarks.documents.cpu_executor import fuzz_rows, fuzzing, section, write

        write(ROOT / "docs" / "cpu-executor.md", MARKS, section(load("cpu_executor")))
        write(ROOT / "docs" / "cpu-executor.md", FUZZ_MARKS, fuzzing(fuzz_rows()))
    else:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Add the rows of every part: first launches, runs, check mode, growing grids, the oracle."""
    run = Run("cpu_executor")
    machine(run)
    rounds = options.rounds
    parts = (firsts(run, options.processes), runs(run, rounds), checks(run, rounds), growth(run, rounds), oracle(run))
    for rows in parts:
        for row in rows:
            if not options.json:
                measures = {k: v for k, v in row.items() if isinstance(v, float)}
                print(*row["case"].values(), row["impl"], *(f"{k} {v:.4g}" for k, v in measures.items()), flush=True)
    path = run.save()
    print("\n".join(map(json.dumps, run.rows)) if options.json else path)


if __name__ == "__main__":
    in_a_sentence(main)
