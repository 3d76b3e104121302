"""Runs the GPU suite and keeps its figures: tests, seconds, and the largest errors, by file and by kernel type.

python -m tests.tools.gpu_report [--doc docs/gpu-report.md] [pytest arguments]      needs a GPU; -n 14: 14 processes
python -m tests.tools.gpu_report --report --doc docs/gpu-report.md    the document from the rows of the last run

Errors are those that `ptxgen.parity.compare` judges, as a share of its limit: results against references, and (for
every golden) the GPU's against the CPU executor's.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ptxgen.parity as parity
from benchmarks.report.sentence import in_a_sentence

_real = parity.compare
EXECUTOR = "test_golden_gives_what_the_executor_gives"  # of tests/cuda/test_goldens.py: what it compares


class Compared(NamedTuple):
    """What a comparison found, and what it may."""

    error: float
    limit: float


class Figures:
    """A pytest plugin: outcomes and times by test file, comparisons by what was compared. Other processes that run
    tests (pytest-xdist) send theirs when they end."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.seconds: Counter[str] = Counter()
        self.errors: dict[tuple[str, str], list[Compared]] = defaultdict(list)
        self._now = ""
        self._against = ""

    def pytest_runtest_setup(self, item: Any) -> None:
        self._now = f"{item.path.parent.name}/{item.path.stem.removeprefix('test_')}"
        file = item.callspec.params.get("file") if hasattr(item, "callspec") else None
        if file is not None:
            self._now = str(file).split("/")[1]
        self._against = "executor" if getattr(item, "originalname", "") == EXECUTOR else "reference"

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.partition("::")[0].removeprefix("tests/").removesuffix(".py")
        self.seconds[name] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[name][report.outcome] += 1

    def compare(self, name: str, *rest: Any) -> parity.Verdict:
        """`ptxgen.parity.compare`, remembered."""
        verdict = _real(name, *rest)
        if not math.isfinite(verdict.limit):  # the test looks at the results by itself: infinities and NaNs
            return verdict
        self.errors[self._now, self._against].append(Compared(float(verdict.error), float(verdict.limit)))
        return verdict

    def pytest_sessionfinish(self, session: Any) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["errors"] = [
                (family, against, [tuple(one) for one in found]) for (family, against), found in self.errors.items()
            ]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for family, against, found in getattr(node, "workeroutput", {}).get("errors", ()):
            self.errors[family, against] += [Compared(*one) for one in found]


def pytest_configure(config: Any) -> None:
    """In a process that runs tests for another: figures of its own."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(patched(), "figures")


def patched() -> Figures:
    """Figures that see every comparison of this process."""
    figures = Figures()
    setattr(parity, "compare", figures.compare)  # noqa: B010 - before any test module takes it
    return figures


def measure(arguments: list[str]) -> int:
    """Run the suite and append its rows; pytest's exit status."""
    figures = patched()
    plugin = ["-p", "tests.tools.gpu_report"]
    status = int(pytest.main([*plugin, "-m", "gpu", *(arguments or ["tests"])], plugins=[figures]))
    from benchmarks.report.rows import Run
    from ptxgen.runtime import open_device

    run = Run("gpu_suite", open_device("cuda").model)
    for name, counts in figures.outcomes.items():
        kinds = {kind: counts[kind] for kind in ("passed", "failed", "skipped")}
        run.add({"file": name}, "tests", **kinds, seconds=float(figures.seconds[name]))
    for (family, against), verdicts in figures.errors.items():
        floats = [v for v in verdicts if v.limit]
        worst = max((v.error / v.limit for v in floats), default=0.0)
        error = max((v.error for v in floats), default=0.0)
        equal = sum(v.error == 0 for v in verdicts)
        run.add({"family": family, "against": against}, "errors", comparisons=len(verdicts), exact=equal,
                largest_error=float(error), of_limit=float(worst))  # fmt: skip
    print(run.save())
    return status


def document() -> Iterable[str]:
    """The report, from the rows of the last run."""
    from benchmarks.report.rows import load

    rows = load("gpu_suite")
    first = rows[0]
    tests = [r for r in rows if r["impl"] == "tests"]
    total = {kind: sum(r[kind] for r in tests) for kind in ("passed", "failed", "skipped", "seconds")}
    yield "# The GPU suite\n"
    yield f"{first['device']}, {first['date']}, commit {first['commit']}, run {first['run']}. Written from"
    yield "`benchmarks/results/` by `python -m tests.tools.gpu_report --report --doc docs/gpu-report.md`; measure again"
    yield "with `python -m tests.tools.gpu_report` on a machine with a GPU.\n"
    yield f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped, {total['seconds']:.0f} s.\n"
    yield "| tests | passed | failed | skipped | seconds |\n| --- | --- | --- | --- | --- |"
    for row in tests:
        yield (
            f"| {row['case']['file']} | {row['passed']} | {row['failed']} | {row['skipped']} | {row['seconds']:.1f} |"
        )
    for against, title in (
        ("reference", "Results against their references (float64 NumPy), as ‖got − want‖ / ‖want‖"),
        ("executor", "The goldens on the GPU against the same text on the CPU executor"),
    ):
        shown = [row for row in rows if row["case"].get("against") == against]
        if not shown:
            continue
        yield f"\n## {title}\n"
        yield "| | comparisons | exact | largest error | of its limit |\n| --- | --- | --- | --- | --- |"
        for row in shown:
            error = f"{row['largest_error']:.2g}" if math.isfinite(row["largest_error"]) else "—"
            figures = f"{error} | {row['of_limit']:.2g}"
            yield f"| {row['case']['family']} | {row['comparisons']} | {row['exact']} | {figures} |"
        if not all(math.isfinite(row["largest_error"]) for row in shown):
            yield "\n—: this run counted tests, too, whose results must not be finite, and which look at these by"
            yield "themselves; the largest of the other errors was not kept, their share of the limit was."
    yield from outcomes(first["date"], first["commit"])
    yield from others()


def outcomes(since: str, commit: str) -> Iterable[str]:
    """Runs of that day or later, of other commits, that kept their outcome only: pytest alone ran their tests."""
    from benchmarks.report.rows import RESULTS, runs

    if not (RESULTS / "gpu_suite_outcome.jsonl").is_file():
        return
    found = [row for (row,) in runs("gpu_suite_outcome").values()]
    later = [row for row in found if row["date"] >= since and row["commit"] != commit]
    if later:
        yield "\n## Later runs, of which only the outcome was kept\n"
        yield "| date | commit | command | passed | failed | skipped | seconds | skipped for want of |"
        yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for r in later:
        counts = f"{r['passed']} | {r['failed']} | {r['skipped']} | {r['seconds']:.0f}"
        yield f"| {r['date']} | {r['commit']} | `{r['case']['command']}` | {counts} | {r['why_skipped']} |"


def others() -> Iterable[str]:
    """What the sanitizers said, and the soaks and the benchmark of cold starts in their last runs."""
    from benchmarks.report.rows import RESULTS, load, runs

    if (RESULTS / "sanitizer.jsonl").is_file():
        yield "\n## compute-sanitizer (`python -m tests.tools.sanitize`)\n"
        yield "All runs so far.\n"
        yield "| commit | tests | tool | passed | findings | failed | |\n| --- | --- | --- | --- | --- | --- | --- |"
        for line in (RESULTS / "sanitizer.jsonl").read_text(encoding="utf-8").splitlines():
            r = json.loads(line)
            case, figures = r["case"], f"{r['tests']} | {r['findings']} | {r['failed']}"
            part, note = case.get("part", "all").replace("|", r"\|"), case.get("note", "")
            if not note and (missing := r.get("of", r["tests"]) - r["tests"]):
                ended = "not to their end, for want of time" if r["unfinished"] else "skipped"
                note = f"{missing} of {r['of']} {ended}"
            yield f"| {r['commit']} | {part} | {case['tool']} | {figures} | {note} |"
    if (RESULTS / "soak.jsonl").is_file():
        yield "\n## Soak (`python -m tests.tools.soak --device cuda --save`)\n"
        yield "With --steps 100000 --jobs 12; and with --steps 20000 --shapes 8, whose shapes come round again."
        last = {r["steps"] >= 100000: r for (r,) in runs("soak").values()}
        for r in (last[True], last[False]):
            yield (
                f"\n{r['steps']} steps over {r['shapes']} random shapes in {r['seconds']:.0f} s, largest error "
                f"{r['of_limit']} of\nits limit; device memory in use {r['used_first']} bytes at first and "
                f"{r['used_last']} at the end.\nCommit {r['commit']}.\n"
            )
            yield ", ".join(f"{count} × {name}" for name, count in r["case"]["done"].items()) + "."
    if (RESULTS / "cold_start.jsonl").is_file():
        rows = load("cold_start")
        yield "\n## From a fresh process to the first launch (`python -m benchmarks.cold_start`)\n"
        yield "Medians. The driver's row is a process that only imports the bindings and makes a context.\n"
        yield "| | ms |\n| --- | --- |"
        for r in rows:
            case = r["case"]
            state = f", {case['kernels']} kernels {case['state']}, " if "kernels" in case else ": "
            yield f"| {case['what']}{state}{r['impl']} | {r['us'] / 1e3:.1f} |"
        notes = "".join(f" {r['note'][0].upper()}{r['note'][1:]}." for r in rows if "note" in r)
        yield f"\nCommit {rows[0]['commit']}.{notes}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="write the document, measure nothing")
    parser.add_argument("--doc", type=Path, help="write the document here")
    options, arguments = parser.parse_known_args()
    status = 0 if options.report else measure(arguments)
    if options.doc:
        options.doc.write_text("\n".join(document()) + "\n", encoding="utf-8")
    sys.exit(status)


if __name__ == "__main__":
    in_a_sentence(main)
