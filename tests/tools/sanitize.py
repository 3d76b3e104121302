"""The GPU suite under compute-sanitizer: memcheck, racecheck, synccheck, initcheck, in parallel processes.

python -m tests.tools.sanitize [--tools memcheck,initcheck] [--jobs 12] [--seconds 400] [--logs DIR] [--save]

First every golden (each branch of each template) and a short soak under every tool, then the rest of the suite as far
as the time goes. Compiled code is shared through PTXGEN_TEST_CACHE; fill it with one plain run of the suite.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

TOOLS = ("memcheck", "initcheck", "synccheck", "racecheck")
FIRST = "tests/cuda/test_goldens.py::test_golden_matches_its_reference"
# Not under a sanitizer, and why.
LEFT_OUT = {
    "test_a_kernel_fault": "a kernel faults on purpose",
    "test_a_gpu_ends": "copies fault on purpose, in processes of their own",
    "test_a_fork": "forks a process that holds a context",
    "test_a_spawned": "starts processes of its own",
    "test_a_cold_process": "starts processes of its own, and times them",
    "test_warmup_in_parallel": "times the compiler",
    "test_golden_gives_what_the_executor": "launches what the first goldens' test has launched",
    "test_a_short_soak": "too long; a shorter one runs on its own",
    "test_out_of_memory": "asks for more than there is, on purpose",
    "test_jax_arrays": "XLA's own kernels and threads",
    "test_memory_is_flat": "counts memory, of which the tools hold back what was freed",
    "test_close_gives_memory": "counts memory, of which the tools hold back what was freed",
}
# Parts of ids of tests that are not under one of the tools, and why.
# synccheck counts cp.async.mbarrier.arrive as an arrival of the thread, and calls the mbarrier.arrive beside it one
# without a wait; PTX means them to be used so (PTX ISA, cp.async.mbarrier.arrive).
NOT_UNDER = {
    "synccheck": ("test_gpu[token_pipeline]",),
    # The page does not fill its caches, and says what initcheck says of that.
    "initcheck": ("test_the_page_runs[cuda]",),
    # racecheck itself ends (2025.3, without a finding) where modules come and go beside their launches. In a persistent
    # step and in products of many tokens it takes each lane of a warp for itself: all lanes read a slot of the ring,
    # meet (bar.warp.sync; the wgmma that takes what they read), and one of them arrives at the slot's mbarrier, on
    # which the warp waits that fills the slot anew. It reports the reads of the 31 that do not arrive themselves and
    # never those of the one that does. Of products it says nothing where each lane arrives for itself (tried; slower).
    # Sums that warpgroups give each other are read so, too: a tile's before its lanes meet and one of them arrives. And
    # so are queries that prefill's warpgroups have in registers, where a CTA has several items: `ldmatrix` of all lanes
    # but lane 0, which arrives, beside the copies for the next item.
    # A persistent step is some hundred times slower there, while polls of global memory are not: most likely a wait of
    # a model's step gave up. So do waits of CTAs that share k by memory.
    "racecheck": (
        "test_released_memory_waits_for_its_last_launch",
        "persistent_step",
        "test_parts_on_a_gpu[96-",
        "/packed_gemm/",
        "test_carried_products",
        "test_last_split",
        "test_split_by_memory",
        "test_shared_k",
        "test_sliced_products",
    ),
}
SLOW = ("runtime/test_capture", "test_torch_ops", "runtime/test_executor", "test_incremental_attention")  # begin early
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) errors?$|RACECHECK SUMMARY: (\d+) hazards?)", re.MULTILINE)
PASSED = re.compile(r"(\d+) passed| PASSED ")  # at the end, and until then
PYTEST = (sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider")
SOAK = (sys.executable, "-m", "tests.tools.soak", "--device", "cuda", "--uncounted",
        "--steps", "160", "--per-life", "40")  # fmt: skip
SOAK_NAME = "soak"
BANNER = "========= COMPUTE-SANITIZER"
FOUND = 86  # exit status of compute-sanitizer when it has something to report


@dataclass(frozen=True)
class Item:
    """One process: a tool, what it runs, and how many tests that is."""

    tool: str
    name: str
    command: tuple[str, ...]
    tests: int


@dataclass(frozen=True)
class Outcome:
    """What came of an item: finished in time, tests that passed and were skipped, findings (None: the tool did not come
    to count them), whether the tests themselves failed, the exit status (below 0: the signal that ended it), and how
    often it was begun."""

    item: Item
    done: bool
    passed: int
    skipped: int
    findings: int | None
    failed: bool
    seconds: float
    status: int
    starts: int = 1


def suite(*folders: str) -> list[str]:
    """Every GPU test that is not left out, of some folders or of all."""
    command = [*PYTEST, "-q", "-m", "gpu", "--collect-only", *(folders or ["tests"])]
    listed = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return [line for line in listed if "::" in line and not any(f"::{name}" in line for name in LEFT_OUT)]


def chunks(tests: list[str], size: int) -> Iterator[list[str]]:
    """Runs of neighbours, so that the tests of one file share a process."""
    by_file: dict[str, list[str]] = {}
    for test in tests:
        by_file.setdefault(test.partition("::")[0], []).append(test)
    for there in by_file.values():
        yield from (there[i : i + size] for i in range(0, len(there), size))


def items(tools: list[str], size: int, only: str = "") -> list[Item]:
    """The goldens and the soak under every tool, then the rest, tools in turn; of some files `only` (a regex)."""
    tests = [t for t in suite() if re.search(only, t)]
    first = [t for t in tests if t.startswith(FIRST)]
    rest = [t for t in tests if not t.startswith(FIRST)]
    found = []
    later = sorted(chunks(rest, size), key=lambda chunk: not any(f"/{name}" in chunk[0] for name in SLOW))
    for group in ([first[i::4] for i in range(4)], later):
        for number, chunk in enumerate(c for c in group if c):
            file = chunk[0].partition("::")[0].removeprefix("tests/").removesuffix(".py").replace("/", ".")
            for tool in tools:
                if mine := [t for t in chunk if not any(part in t for part in NOT_UNDER.get(tool, ()))]:
                    found.append(Item(tool, f"{file}-{number}", (*PYTEST, "-v", "-m", "gpu", *mine), len(mine)))
        if group and group[0] and group[0][0].startswith(FIRST):
            found += [Item(tool, SOAK_NAME, SOAK, 1) for tool in tools]
    return found


def run(item: Item, logs: Path, deadline: float) -> Outcome:
    """One item, killed at the deadline. compute-sanitizer (2025.3) itself died of a signal at two of some 1000 starts,
    before it or its process had said a word. Then the item is begun once more; not the soak, which is silent to its
    end."""
    outcome = _begin(item, logs, deadline)
    out, log = _files(item, logs)
    silent = not out.stat().st_size and log.read_text(errors="replace").strip() in ("", BANNER)
    if outcome.done and outcome.status < 0 and silent and item.name != SOAK_NAME:
        outcome = replace(_begin(item, logs, deadline), starts=2)
    return outcome


def _files(item: Item, logs: Path) -> tuple[Path, Path]:
    """Where the process's words go, and the tool's."""
    return logs / f"{item.tool}-{item.name}.out", logs / f"{item.tool}-{item.name}.log"


def _begin(item: Item, logs: Path, deadline: float) -> Outcome:
    out, log = _files(item, logs)
    out.write_text("")
    log.write_text("")
    command = [
        "compute-sanitizer", "--tool", item.tool, "--target-processes", "all", "--error-exitcode", str(FOUND),
        "--require-cuda-init", "no", "--report-api-errors", "no", "--print-limit", "60", "--log-file", str(log),
        *item.command,
    ]  # fmt: skip
    started = time.monotonic()
    if started >= deadline:
        return Outcome(item, False, 0, 0, None, False, 0.0, 0)
    with out.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(timeout=deadline - started)
            done = True
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status, done = process.wait(), False
    summed = SUMMARY.findall(log.read_text(errors="replace"))
    findings = sum(int(a or b) for a, b in summed) if summed else None
    text = out.read_text(errors="replace")
    failed = done and (status not in (0, FOUND) or " failed" in text)
    skipped = sum(map(int, re.findall(r"(\d+) skipped", text)))
    passed = _passed(item, text, status)
    return Outcome(item, done, passed, skipped, findings, failed, time.monotonic() - started, status)


def _passed(item: Item, text: str, status: int) -> int:
    """Tests that passed: as pytest sums them up, or as many as it named before it was ended."""
    found = [match[1] for match in PASSED.finditer(text)]
    summed = [int(count) for count in found if count]
    return sum(summed) if summed else len(found) or int(status == 0 and item.name == SOAK_NAME)


def clean(outcome: Outcome) -> bool:
    """Whether it came to its end without a finding or a failure."""
    return outcome.done and outcome.status == 0 and not outcome.findings and not outcome.failed


def complaints(outcome: Outcome, logs: Path) -> Iterator[str]:
    """An outcome that is not clean in one line, and what pytest says of tests that failed, or the last it said."""
    item = outcome.item
    end = "unfinished" if not outcome.done else f"exit status {outcome.status}"
    findings = "findings not summed up" if outcome.findings is None else f"{outcome.findings} findings"
    yield f"{item.tool} {item.name}: {findings}, {end} after {outcome.seconds:.0f} s, see {logs}"
    out, _ = _files(item, logs)
    lines = out.read_text(errors="replace").splitlines()
    said = [line for line in lines if line.startswith(("FAILED", "ERROR", "E   "))][:20] or lines[-3:]
    yield from (f"    {line}" for line in said)


def table(outcomes: list[Outcome], tools: list[str]) -> Iterator[tuple[str, dict[str, int | float]]]:
    """Figures of each tool."""
    for tool in tools:
        mine = [o for o in outcomes if o.item.tool == tool]
        yield (
            tool,
            {
                "tests": sum(o.passed for o in mine),
                "skipped": sum(o.skipped for o in mine),
                "of": sum(o.item.tests for o in mine),
                "findings": sum(o.findings or 0 for o in mine),
                "failed": sum(o.failed for o in mine),
                "unfinished": sum(not o.done for o in mine),
                "restarted": sum(o.starts - 1 for o in mine),
                "seconds": round(sum(o.seconds for o in mine), 1),
            },
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seconds", type=float, default=3600, help="kill what runs longer than this in all")
    parser.add_argument("--only", default="", help="tests whose id this regular expression finds")
    parser.add_argument("--chunk", type=int, default=24, help="tests of a process")
    parser.add_argument("--logs", type=Path, help="where to keep what the tools say (default: a temporary directory)")
    parser.add_argument("--save", action="store_true", help="append rows to benchmarks/results/sanitizer.jsonl")
    options = parser.parse_args()
    if shutil.which("compute-sanitizer") is None:
        raise SystemExit("compute-sanitizer: is not on the PATH; it is part of the CUDA toolkit")
    tools = options.tools.split(",")
    logs = options.logs or Path(tempfile.mkdtemp(prefix="sanitize-"))
    logs.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.seconds
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(lambda item: run(item, logs, deadline), items(tools, options.chunk, options.only)))
    for outcome in outcomes:
        if not clean(outcome):
            print(*complaints(outcome, logs), sep="\n")
    rows = dict(table(outcomes, tools))
    for tool, row in rows.items():
        print(tool, row, flush=True)
    if options.save:
        save(rows, options.only or "all")
    print(f"logs: {logs}")
    sys.exit(not all(map(clean, outcomes)))


def save(rows: dict[str, dict[str, int | float]], part: str) -> None:
    """Rows of this run, with the GPU's name."""
    from benchmarks.report.rows import Run
    from ptxgen.runtime import open_device

    kept = Run("sanitizer", open_device("cuda").model)
    for tool, row in rows.items():
        kept.add({"tool": tool, "part": part}, "ptxgen", **row)
    print(kept.save())


if __name__ == "__main__":
    main()
