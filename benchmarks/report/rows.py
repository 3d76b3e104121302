"""Rows of benchmark results: JSON lines in `results/<benchmark>.jsonl`, and the tables made from one run of them.

A row: `bench`, `case` (what was measured), `impl` (whose), the measures (`us`, `bytes`, `error`, …), and what all rows
of a run share: `run`, `device`, `commit`, `date`, and `partial` if it did not come to its end. A row with `why` has no
measures, and says why.
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
SHARED = ("bench", "case", "impl", "run", "device", "commit", "date", "partial")


class Run:
    """One run of one benchmark: `add` rows, then `save` them together.

    As a context it saves what was added at its end, marked as `partial` where that is an exception, and says where.
    `at_once`: every row is in the file as soon as it is added, marked as `partial` until the end comes.
    """

    def __init__(self, bench: str, device: str | None = None, at_once: bool = False) -> None:
        self.bench = bench
        self.at_once = at_once
        self.rows: list[dict[str, Any]] = []
        self._common = {
            "run": uuid.uuid4().hex[:12],
            "device": device or cpu_name(),
            "commit": commit(),
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        }

    def add(self, case: Mapping[str, Any], impl: str, **measures: float | str | Sequence[object]) -> dict[str, Any]:
        """Keep one row; a measure that is a float is rounded to four significant digits."""
        rounded = {n: float(f"{value:.4g}") if isinstance(value, float) else value for n, value in measures.items()}
        self.rows.append({"bench": self.bench, "case": dict(case), "impl": impl, **rounded, **self._common})
        if self.at_once:
            self._append([self.rows[-1] | {"partial": True}])
        return self.rows[-1]

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.rows:
            whose = " of an interrupted run" if kind else ""
            print(f"{len(self.rows)} rows{whose} appended to {self.save(partial=kind is not None)}")

    def save(self, *, partial: bool = False) -> Path:
        """Append the rows to the benchmark's file; of a run that was interrupted, marked as such."""
        for row in self.rows if partial else ():
            row["partial"] = True
        if self.at_once:
            path = RESULTS / f"{self.bench}.jsonl"
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            path.write_text("".join(line for line in lines if self._common["run"] not in line), encoding="utf-8")
        return self._append(self.rows)

    def _append(self, rows: Iterable[Mapping[str, Any]]) -> Path:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.bench}.jsonl"
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        return path


def commit(root: Path = RESULTS.parent.parent) -> str:
    """The commit checked out in `root`, with `+` where tracked files differ from it; "unknown" outside of git."""
    try:
        sha = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True)
        dirty = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=root, capture_output=True)
    except FileNotFoundError:
        return "unknown"
    return sha.stdout.strip() + ("+" if dirty.returncode else "") if sha.returncode == 0 else "unknown"


def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def runs(bench: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of every run of a benchmark, by its id, in the order of the file."""
    path = RESULTS / f"{bench}.jsonl"
    if not path.is_file():
        raise SystemExit(f"{path}: no rows yet; run the benchmark first")
    found: dict[str, list[dict[str, Any]]] = {}
    for line in filter(None, path.read_text(encoding="utf-8").splitlines()):
        row = json.loads(line)
        found.setdefault(row["run"], []).append(row)
    return found


def load(bench: str, run: str | None = None) -> list[dict[str, Any]]:
    """The rows of one run of a benchmark; of the last one that came to its end when `run` is not given."""
    found = runs(bench)
    wanted = run or next((name for name, rows in reversed(found.items()) if not rows[-1].get("partial")), "")
    if wanted not in found:
        raise SystemExit(f"{RESULTS / f'{bench}.jsonl'}: no rows of {f'run {run}' if run else 'a whole run'}")
    return found[wanted]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table, one line a row: the case, whose, the measures; then what the run shares."""
    measures = list(dict.fromkeys(name for row in rows for name in row if name not in SHARED))
    lines = [_line(["case", "impl", *measures]), _line(["---"] * (2 + len(measures)))]
    for row in rows:
        case = ", ".join(f"{k}={v}" for k, v in row["case"].items())
        lines.append(_line([case, row["impl"], *(_cell(row.get(m, "")) for m in measures)]))
    first = rows[0]
    return "\n".join([*lines, "", f"{first['device']}, {first['date']}, commit {first['commit']}, run {first['run']}"])


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
