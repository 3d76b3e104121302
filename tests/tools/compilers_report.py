"""Counts of other compilers' texts: taken, right in each mode, findings; the table of docs/compilers.md.

`python -m tests.tools.compilers_report [--docs] [--seeds N] [COMPILER …]`: every text of tests/evidence/compilers, in
fast mode, in random order with N seeds (10), and in check mode. What is not right is listed. `--docs` writes the table.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ptxgen.errors import ExecutionError, ModuleLoadError, PtxgenError
from ptxgen.runtime import open_device
from tests.evidence.compilers.case import CASES, FOUND, TARGETS, Case, texts


def _outcome(case: Case, text: dict[str, Any], mode: str, seed: int = 0) -> str:
    """Nothing where all is right; else what kind of failure, and its text."""
    device = open_device("cpu", mode=mode, seed=seed, threads=1, time_limit=60)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            case.run(device, text)
    except ModuleLoadError as wrong:
        return f"refused: {wrong}"
    except ExecutionError as wrong:
        return f"finding: {wrong}"
    except AssertionError as wrong:
        return f"wrong: {wrong}"
    except PtxgenError as wrong:
        return f"error: {wrong}"
    return ""


def _counted(compiler: str, target: str, seeds: int, only: str) -> Iterator[tuple[str, str, str]]:
    """(case, column, text of a failure) of every count."""
    for name, text in texts(compiler, target).items():
        case = CASES.get((compiler, name))
        if case is None or only not in name:
            continue
        yield name, "texts", ""
        fast = _outcome(case, text, "fast")
        yield name, "fast", fast
        if fast.startswith("refused"):
            continue
        yield name, "taken", ""
        found = [_outcome(case, text, "random", seed) for seed in range(seeds)]
        yield name, "random", next(filter(None, found), "")
        yield name, "check", _outcome(case, text, "check")


def main(arguments: list[str]) -> int:
    """Prints the table and what is not right; exits 1 where something is not."""
    import tests.evidence.compilers.all_cases  # noqa: F401

    options = argparse.ArgumentParser()
    options.add_argument("compilers", nargs="*")
    options.add_argument("--docs", action="store_true")
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--target", default="")
    options.add_argument("--only", default="")
    given = options.parse_args(arguments)
    compilers = given.compilers or sorted({compiler for compiler, _ in CASES})
    rows, bad = [], 0
    for compiler in compilers:
        for target in [given.target] if given.target else TARGETS:
            count: Counter[str] = Counter()
            for name, column, wrong in _counted(compiler, target, given.seeds, given.only):
                count[column] += not wrong
                found = column == "check" and wrong.startswith("finding")
                count["findings"] += found
                count["false"] += found and FOUND.get((compiler, name), "\n") not in wrong
                if wrong:
                    bad += 1
                    print(f"{compiler} {target} {name}, {column}: {' '.join(wrong.split())[:400]}", flush=True)
            columns = [count[name] for name in ("texts", "taken", "fast", "random", "check", "findings", "false")]
            rows.append(f"| {compiler} | {target} | {' | '.join(map(str, columns))} |")
    head = (
        "| compiler | target | texts | taken | right in fast mode | in random order | in check mode | findings "
        "| of these false |"
    )
    table = "\n".join([head, "| --- " * 9 + "|", *rows])
    print(table)
    if given.docs:
        _write(table)
    return bool(bad)


def _write(table: str) -> None:
    from pathlib import Path

    path = Path(__file__).parents[2] / "docs" / "compilers.md"
    before, mark, rest = path.read_text().partition(
        "<!-- compilers: written by python -m tests.tools.compilers_report --docs -->\n"
    )
    _, end, after = rest.partition("<!-- end of compilers -->")
    path.write_text(f"{before}{mark}\n{table}\n\n{end}{after}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
