"""The CPU executor beside that of another checkout of this repository: CPU time of the same launches, in turn.

python -m benchmarks.executor_beside --beside FOLDER [--rounds 15]   measure, print, append rows
python -m benchmarks.executor_beside --report [--run ID]             the table of the last run, or of one
python -m benchmarks.executor_beside --docs                          write it into docs/cpu-executor.md

A process of each checkout runs the same PTX on the same arrays, on one thread; they take turns of some milliseconds, so
that what else the machine does meets both. A ratio is the median of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.cases.cpu_executor import CASES, CHECKED
from benchmarks.documents.cpu_executor import NAMES, table, write
from benchmarks.report.command import command
from benchmarks.report.rows import Run, commit, load
from benchmarks.report.sentence import in_a_sentence

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "cpu-executor.md"
MARKS = ("<!-- executor beside: written by python -m benchmarks.executor_beside --docs -->",
         "<!-- end of executor beside -->")  # fmt: skip
MODES = ("fast", "check")
# What a checkout's process does: jobs from a file, then a line of input for each turn of one
_CHILD = """
import json, pickle, sys, time
import numpy as np
from ptxgen.runtime import open_device
with open(sys.argv[1], "rb") as file:
    jobs = pickle.load(file)
ready = {}
def begin(number, mode):
    job = jobs[number]
    device = open_device("cpu", mode=mode, threads=1)
    given = [device.array(a) if isinstance(a, np.ndarray) else a for a in job["arguments"]]
    entry = device.module(job["text"])[job["entry"]]
    launch = entry.bind(job["grid"], job["block"], given, job["shared"], job["cluster"])
    launch.launch()
    end = time.perf_counter() + job["warm"]
    turns = 0
    while time.perf_counter() < end or not turns:
        launch.launch()
        turns += 1
    ready[number, mode] = launch, given
def turn(number, mode, times):
    launch, _ = ready[number, mode]
    start = time.process_time()
    for _ in range(times):
        launch.launch()
    return (time.process_time() - start) / times
for line in sys.stdin:
    what, *rest = json.loads(line)
    print(json.dumps({"begin": begin, "turn": turn}[what](*rest)), flush=True)
"""
_FIRST = """
import pickle, sys, time
import numpy as np
from ptxgen.runtime import open_device
with open(sys.argv[1], "rb") as file:
    job = pickle.load(file)[int(sys.argv[2])]
device = open_device("cpu", threads=1)
given = [device.array(a) if isinstance(a, np.ndarray) else a for a in job["arguments"]]
start = time.process_time()
device.module(job["text"])[job["entry"]].launch(job["grid"], job["block"], given, job["shared"], job["cluster"])
print(time.process_time() - start)
"""


def jobs(warm: float) -> dict[str, dict[str, Any]]:
    """Launches by name: `CASES` and the kernels of the corpus in `CHECKED`, as plain values."""
    from tests.evidence.corpus.cases import CASES as CORPUS

    found = {}
    for name, make in CASES.items():
        case = make()
        found[name] = dict(text=case.text, entry=case.entry, grid=case.grid, block=case.block, shared=case.shared,
                           cluster=case.cluster, arguments=case.make())  # fmt: skip
    for name in CHECKED:
        of = CORPUS[name]
        found[name] = dict(text=of.text, entry=of.entry, grid=of.grid, block=of.block, shared=of.shared,
                           cluster=of.cluster, arguments=list(of.work().args))  # fmt: skip
    return {name: job | {"warm": warm} for name, job in found.items()}


class Executor:
    """A process with a checkout's package that runs the jobs of a file when asked."""

    def __init__(self, checkout: Path, code: str, folder: str, *arguments: str) -> None:
        changed = {"PYTHONPATH": str(checkout), "PTXGEN_CACHE_DIR": "off", "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment = kept | changed  # bytecode, so that no first launch compiles a module of either checkout
        self.checkout = checkout
        self.child = subprocess.Popen(
            [sys.executable, "-c", code, f"{folder}/jobs", *arguments], cwd=folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.close()
        self.child.wait()
        self.child.stdout.close()

    def ask(self, *what: object) -> Any:
        """The answer to one line."""
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(what) + "\n")
        self.child.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        """The next line that it says."""
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit(f"{self.checkout}: the process ended with exit status {self.child.wait()}")
        return json.loads(line)


def measure(run: Run, given: argparse.Namespace) -> None:
    """Add two rows of each launch and mode, and of each first launch."""
    checkouts = {"before": Path(given.beside).resolve(), "ptxgen": ROOT}
    commits = {name: commit(path) for name, path in checkouts.items()}
    work = jobs(given.warm)

    def add(case: dict[str, Any], times: dict[str, list[float]]) -> None:
        ratio = median(ours / theirs for ours, theirs in zip(times["ptxgen"], times["before"], strict=True))
        for name, seconds in times.items():
            more = {"ratio": ratio} if name == "ptxgen" else {}
            run.add({**case, "rounds": given.rounds}, name, cpu_ms=median(seconds) * 1e3,
                    least_cpu_ms=min(seconds) * 1e3, of=commits[name], **more)  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "jobs").write_bytes(pickle.dumps(list(work.values())))
        with (
            Executor(checkouts["before"], _CHILD, folder) as theirs,
            Executor(checkouts["ptxgen"], _CHILD, folder) as ours,
        ):
            both = {"before": theirs, "ptxgen": ours}
            for number, name in enumerate(work):
                for mode in MODES:
                    for one in both.values():
                        one.ask("begin", number, mode)
                    often = max(1, round(0.004 / max(ours.ask("turn", number, mode, 1), 1e-6)))
                    asked = ("turn", number, mode, often)
                    times = _in_turn(given.rounds, both, partial(_asked, asked))
                    add({"kernel": name, "what": "run", "mode": mode}, times)
        for number, name in enumerate(work):
            if name in CASES:
                times = _in_turn(given.firsts, checkouts, partial(_first, folder, number))
                add({"kernel": name, "what": "first launch", "mode": "fast"}, times)


def _asked(what: tuple[object, ...], one: Executor) -> float:
    seconds: float = one.ask(*what)
    return seconds


def _first(folder: str, number: int, checkout: Path) -> float:
    with Executor(checkout, _FIRST, folder, str(number)) as process:
        seconds: float = process.answer()
        return seconds


def _in_turn(rounds: int, both: dict[str, Any], seconds: Callable[[Any], float]) -> dict[str, list[float]]:
    """Rounds of both, the first of each not counted; who begins changes."""
    times: dict[str, list[float]] = {name: [] for name in both}
    for turn in range(rounds + 1):
        for name in sorted(both, reverse=turn % 2 == 1):
            taken = seconds(both[name])
            if turn:
                times[name].append(taken)
    return times


def figures(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The paragraph and the table of a run."""
    said = {(r["case"]["kernel"], r["case"]["what"], r["case"]["mode"], r["impl"]): r for r in rows}
    before = next(r["of"] for r in rows if r["impl"] == "before")
    kinds = [("run", "fast"), ("run", "check"), ("first launch", "fast")]
    means = []
    for what, mode in kinds:
        ratios = [r["ratio"] for (_, w, m, impl), r in said.items() if (w, m, impl) == (what, mode, "ptxgen")]
        means.append(f"{float(np.exp(np.mean(np.log(ratios)))):.2f}")
    yield (
        f"Beside commit {before}, now at {rows[0]['commit']}: the same texts and arrays in two processes that take "
        f"turns ({rows[0]['case']['rounds']} of each), milliseconds of CPU time on one thread, medians; a ratio, now ÷ "
        "before, is the median of neighbours' ratios, and is right within some hundredths, as the machine has other "
        "work. "
        f"Geometric means: fast mode {means[0]}, check mode {means[1]}, first launch with nothing cached {means[2]}. "
        f"{rows[0]['device']}, {rows[0]['date']}, run {rows[0]['run']}.\n"
    )
    lines = []
    for kernel in dict.fromkeys(r["case"]["kernel"] for r in rows):
        cells = [NAMES.get(kernel) or f"{CHECKED[kernel]} (`{kernel}`)"]
        for what, mode in kinds:
            ours, theirs = (said.get((kernel, what, mode, impl)) for impl in ("ptxgen", "before"))
            if ours is None or theirs is None:
                cells += ["", ""]
            else:
                cells += [f"{theirs['cpu_ms']:.3g} → {ours['cpu_ms']:.3g}", f"{ours['ratio']:.2f}"]
        lines.append(cells)
    yield table(["kernel", "fast, ms", "ratio", "check mode, ms", "ratio", "first launch, ms", "ratio"], lines)


def main() -> None:
    if "--docs" in sys.argv[1:]:
        write(DOC, MARKS, "\n".join(figures(load("executor_beside"))))
        return
    options = (
        ("--beside", {"metavar": "FOLDER", "help": "another checkout of this repository"}),
        ("--rounds", {"type": int, "default": 15, "help": "turns of each checkout a launch (default: 15)"}),
        ("--firsts", {"type": int, "default": 5, "help": "processes of each checkout a first launch (default: 5)"}),
        ("--warm", {"type": float, "default": 0.8, "help": "seconds that a launch is repeated before (default: 0.8)"}),
        ("--docs", {"action": "store_true", "help": "write the last run's table into docs/cpu-executor.md"}),
    )

    def measured(run: Run, given: argparse.Namespace) -> None:
        if not given.beside:
            raise SystemExit("--beside: names another checkout of this repository")
        measure(run, given)

    command("executor_beside", __doc__, measured, *options)


if __name__ == "__main__":
    in_a_sentence(main)
