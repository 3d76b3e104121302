"""Triton's own unit tests on the CPU executor: what passes, and what the rest says. Their sources are not part of this.

python -m tests.tools.triton_unit_tests FOLDER --of "triton-lang/triton 1234abcd" [--mode fast] [--target sm_80]
    [--each 8] [--seed 1] [--seconds 60] [--only WORD]
python -m tests.tools.triton_unit_tests --docs

FOLDER is a checkout of Triton (or its `python` folder alone) of about the version that is installed; triton and torch
are needed. Of the tests of reductions, scans, atomics, dots, histograms, gathers and sorts `--each` cases a function
are drawn with a seed. The outcome of every one is written into tests/evidence/compilers/triton_unit_tests.json, under
the mode and target; `--docs` writes the table of docs/compilers.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import re
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.packages import ROOT

ROWS = ROOT / "tests" / "evidence" / "compilers" / "triton_unit_tests.json"
GUIDE = ROOT / "docs" / "compilers.md"
BEGIN = "<!-- triton's unit tests: written by python -m tests.tools.triton_unit_tests --docs -->"
END = "<!-- end of triton's unit tests -->"
FILES = ("test/unit/language/test_core.py", "test/unit/language/test_standard.py")
# The part that a function's name puts it into; the first that fits
PARTS = {
    "atomics": r"atomic",
    "scans": r"scan|cumsum",
    "histograms": r"histogram",
    "gathers": r"gather",
    "sorts": r"test_sort",
    "reductions": r"reduc|arg?max|argmin|max_returns|max_min|sum_dtype",
    "dots": r"_dot",
}
# What the message of a failure says of its reason; the first that fits
REASONS = (
    ("indexes a scalar, which this version of Triton refuses", r"too many indices for tensor of rank 0"),
    ("refused by Triton's compiler for the target", r"CompilationError|PassManager|Unsupported|not supported|OutOfRes"),
    ("Triton's PTX has what the target has not, so that ptxas refuses it, too", r"needs PTX ISA .* the target is"),
    ("does not end in the time given", r"_OutOfTime"),
    ("a finding of the executor", r"ExecutionError|race in kernel|out of bounds"),
    ("refused by the executor", r"ModuleLoadError|SpecError|LaunchError"),
    ("needs a GPU of its own (torch.cuda, ptxas, cubin)", r"torch\.cuda|No CUDA|NVIDIA driver|ptxas|cubin|'sass'"),
    ("another number than the test expects", r"AssertionError|Mismatched|not equal|Not equal"),
)


class _OutOfTime(Exception):
    """A test that took longer than it was given."""


def part_of(name: str) -> str:
    """The part of PARTS that a test's name belongs to; empty where it is in none."""
    return next((part for part, words in PARTS.items() if re.search(words, name)), "")


def reason_of(text: str) -> str:
    """The reason of REASONS that a failure's message gives."""
    return next((reason for reason, words in REASONS if re.search(words, text)), "another error")


class Plugin:
    """Draws the tests, holds each to its time, and keeps what came of them."""

    def __init__(self, each: int, seed: int, seconds: int, only: str, base: Path = ROOT) -> None:
        self.each, self.seed, self.seconds, self.only, self.base = each, seed, seconds, only, base
        self.collected: Counter[str] = Counter()
        self.rows: list[dict[str, str]] = []

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """As many cases of each function as `each` says."""
        functions: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            name = getattr(item, "originalname", item.name)
            if part_of(name) and self.only in name:
                functions[name].append(item)
        drawn = []
        for name, cases in functions.items():
            self.collected[name] = len(cases)
            drawn += random.Random(f"{self.seed} {name}").sample(cases, min(self.each, len(cases)))
        chosen = set(map(id, drawn))
        items[:] = [item for item in items if id(item) in chosen]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """An alarm around the test."""

        def over(*_: object) -> None:
            raise _OutOfTime(f"not over after {self.seconds} s")

        before = signal.signal(signal.SIGALRM, over)
        signal.alarm(self.seconds)
        try:
            yield
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One row a test: of its call, or of what came before where that failed or skipped."""
        if report.when != "call" and not (report.when == "setup" and report.outcome != "passed"):
            return
        row = {"test": report.nodeid.rpartition("/")[2], "outcome": report.outcome}
        if report.outcome == "skipped":
            longrepr: Any = report.longrepr
            row["says"] = str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)[:160]
        elif report.outcome == "failed":
            crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", str(report.longrepr))
            said = " ".join(crash.replace(f"{self.base}{os.sep}", "").split())
            row["says"] = said if len(said) <= 300 else f"{said[:60]} … {said[-240:]}"  # a compiler's reason ends it
            row["reason"] = reason_of(f"{crash}\n{str(report.longrepr)[-4000:]}")
        self.rows.append(row)
        print(row["test"], row["outcome"], row.get("reason", ""), flush=True)


def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Run the tests under the driver; the record of the run."""
    base = folder / "python" if (folder / "python").is_dir() else folder
    files = [base / name for name in FILES]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise SystemExit(f"{', '.join(missing)}: no such file; FOLDER must be a checkout of Triton")
    import torch
    import triton

    from ptxgen.testing import triton as on_cpu

    driver = on_cpu.install(given.mode, given.target, time_limit=given.seconds)
    # The tests ask torch, not the driver, what the GPU is.
    torch.cuda.get_device_capability = lambda device=None: driver.get_device_capability()
    torch.cuda.get_device_name = lambda device=None: f"CPU executor, {given.target}"
    plugin = Plugin(given.each, given.seed, given.seconds, given.only, base)
    arguments = ["-q", "-p", "no:cacheprovider", "--tb=short", "--device", "cpu", "-c", os.devnull, f"--rootdir={base}"]
    arguments += ["-W", "ignore", *(["-p", "no:ptxgen-triton"])]
    pytest.main([*arguments, *map(str, files)], plugins=[plugin])
    launches = driver.launches
    on_cpu.uninstall()
    return {
        "tests of": given.of, "triton": triton.__version__, "torch": torch.__version__.partition("+")[0],
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), "mode": given.mode,
        "target": given.target, "each": given.each, "seed": given.seed, "seconds": given.seconds,
        "launches": launches, "collected": dict(sorted(plugin.collected.items())), "rows": plugin.rows,
    }  # fmt: skip


def table(records: list[dict[str, Any]]) -> str:
    """The table of the guide: each part's tests in each run, and below what did not pass."""
    lines = ["| mode | target | tests | there are | run | passed | failed | skipped by the test |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for record in records:
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for name, number in record["collected"].items():
            counts[part_of(name)]["there"] += number
        for row in record["rows"]:
            counts[part_of(_function(row))][row["outcome"]] += 1
        counts["all"] = sum(counts.values(), Counter())
        for part in (*(part for part in PARTS if part in counts), "all"):
            c = counts[part]
            run = c["passed"] + c["failed"]
            lines.append(f"| {record['mode']} | {record['target']} | {part} | {c['there']:,} | {run} | {c['passed']} "
                         f"| {c['failed']} | {c['skipped']} |")  # fmt: skip
    lines += ["", "| why a test did not pass | mode | target | tests |", "| --- | --- | --- | --- |"]
    for record in records:
        grouped: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for row in record["rows"]:
            if row["outcome"] == "failed":
                grouped[row["reason"]][_function(row)] += 1
        for reason, functions in sorted(grouped.items()):
            listed = ", ".join(f"`{name}` ({number})" for name, number in sorted(functions.items()))
            lines.append(f"| {reason} | {record['mode']} | {record['target']} | {listed} |")
    said = {(r["tests of"], r["triton"], r["torch"], r["date"]) for r in records}
    lines += ["", *(f"Tests of {of}, Triton {version}, torch {torch} on the CPU, {date}."
                    for of, version, torch, date in sorted(said))]  # fmt: skip
    return "\n".join(lines)


def with_table(guide: str) -> str:
    """The guide with the table of the committed rows in its place."""
    before, _, rest = guide.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{table(read())}\n\n{END}{after}"


def _function(row: dict[str, str]) -> str:
    return row["test"].partition("::")[2].partition("[")[0]


def read() -> list[dict[str, Any]]:
    """The records of the runs, by mode and target."""
    return list(json.loads(ROWS.read_text(encoding="utf-8"))) if ROWS.exists() else []


def main(arguments: list[str]) -> int:
    """Run them, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="a checkout of Triton")
    parser.add_argument("--of", default="", help="what the checkout is: repository and commit")
    parser.add_argument("--mode", default="fast", choices=("fast", "random", "check"))
    parser.add_argument("--target", default="sm_80")
    parser.add_argument("--each", type=int, default=8, help="cases drawn of each function (default: 8)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")
    parser.add_argument("--seconds", type=int, default=60, help="that a test may take (default: 60)")
    parser.add_argument(
        "--only", default="", metavar="WORD", help="functions with this in their names; nothing is written"
    )
    parser.add_argument("--docs", action="store_true", help="write the table of docs/compilers.md")
    given = parser.parse_args(arguments)
    if given.docs:
        GUIDE.write_text(with_table(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    if given.folder is None:
        parser.error("FOLDER or --docs is needed")
    if not given.of and not given.only:
        parser.error("--of is needed: the repository and the commit of the checkout")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        record = measure(given.folder, given)
    if not given.only:
        kept = [r for r in read() if (r["mode"], r["target"]) != (given.mode, given.target)]
        records = sorted([*kept, record], key=lambda r: (r["mode"] != "fast", r["mode"], r["target"]))
        ROWS.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    counts = Counter(row["outcome"] for row in record["rows"])
    print(
        f"{counts['passed']} of {counts['passed'] + counts['failed']} pass, {counts['skipped']} skipped by themselves"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
