"""tests/evidence/known_races under compute-sanitizer's racecheck and synccheck, beside check mode: recall
and false positives.

python -m tests.tools.known_races --gpu ROWS.json [--jobs 12] [--seconds 60]    on a GPU: run, and write what was seen
python -m tests.tools.known_races --docs [ROWS.json]                            write the table of docs/checking.md

Every broken kernel is a process of its own for each tool, ended after 12 s; the mended ones, which end by themselves,
share a few. Those that never end on a GPU (`gpu:` in their files) are left out there.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report.rows import commit
from ptxgen.errors import PtxgenError
from ptxgen.runtime import open_device
from tests.evidence.known_races.pair import Pair, pairs
from tests.tools.sanitize import SUMMARY

TOOLS = ("racecheck", "synccheck")
ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "benchmarks" / "results" / "known_races.json"
DOCUMENT = ROOT / "docs" / "checking.md"
MARKS = ("<!-- known races: written by python -m tests.tools.known_races --docs -->", "<!-- end of known races -->")
_PATIENCE = 12.0  # seconds of a process with one kernel
_BATCH = 16  # mended kernels of a process
_SAID = re.compile(r"^=========\s+(?:Error|Warning|ERROR|WARN|Barrier|Race)\b.*$", re.MULTILINE)


@dataclass(frozen=True)
class Job:
    """A process: a tool over one broken kernel, or over some mended ones."""

    tool: str
    names: tuple[str, ...]
    broken: bool


def jobs(batch: int = _BATCH) -> Iterator[Job]:
    """The mended ones first, as they are the longest."""
    names = [name for name, pair in pairs().items() if not pair.gpu]
    every = list(pairs())
    for tool in TOOLS:
        yield from (Job(tool, tuple(every[i : i + batch]), False) for i in range(0, len(every), batch))
    for name in names:
        yield from (Job(tool, (name,), True) for tool in TOOLS)


def child(names: Sequence[str], broken: bool, device: str) -> None:
    """Launch kernels, each under its pair's name, so that the tools name them so."""
    from ptxgen.runtime import open_device

    opened = open_device(device)
    for name in names:
        try:
            renamed(pairs()[name]).run(opened, broken)
        except PtxgenError as error:  # the others of a batch are to run all the same
            print(f"{name}: {error}", flush=True)
        else:
            print("ran", name, flush=True)


def renamed(pair: Pair) -> Pair:
    """The pair with its name as the name of its last entry, `k`."""
    text = re.sub(r"\.entry k\b", f".entry {pair.name}", pair.text)
    launches = tuple(re.sub(r"^k\b", pair.name, launch) for launch in pair.fields["launch"])
    return Pair(pair.name, text, {**pair.fields, "launch": launches})


def run(job: Job, logs: Path, deadline: float, device: str) -> list[dict[str, Any]]:
    """One row for each kernel of a job."""
    stem = f"{job.tool}-{'broken' if job.broken else 'mended'}-{job.names[0]}"
    log, out = logs / f"{stem}.log", logs / f"{stem}.out"
    log.write_text("")
    side = "--broken" if job.broken else "--mended"
    command = [
        "compute-sanitizer", "--tool", job.tool, "--target-processes", "all", "--require-cuda-init", "no",
        "--report-api-errors", "no", "--print-limit", "40", "--log-file", str(log),
        sys.executable, "-m", "tests.tools.known_races", side, ",".join(job.names), "--device", device,
    ]  # fmt: skip
    started = time.monotonic()
    patience = min(_PATIENCE if job.broken else 4 * _PATIENCE, deadline - started)
    if patience <= 0:
        return [_row(job, name, False, None, 0.0, "") for name in job.names]
    with out.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, cwd=ROOT)
        try:
            process.wait(timeout=patience)
            ended = True
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended = False
    text, seconds = log.read_text(errors="replace"), time.monotonic() - started
    ran = set(re.findall(r"^ran (\w+)$", out.read_text(errors="replace"), re.MULTILINE))
    counted = SUMMARY.findall(text)
    total = sum(int(a or b) for a, b in counted) if counted else None
    rows = []
    for name in job.names:
        said = [
            line.strip("= ") for line in _SAID.findall(text) if len(job.names) == 1 or re.search(rf"\b{name}\b", line)
        ]
        if len(job.names) > 1:
            findings = len(said) if name in ran else None
        else:
            findings = total if counted else len(said) or None
        rows.append(_row(job, name, ended and name in ran, findings, seconds, said[0] if said else ""))
    return rows


def _row(job: Job, name: str, ended: bool, findings: int | None, seconds: float, said: str) -> dict[str, Any]:
    return {
        "name": name, "tool": job.tool, "broken": job.broken, "ended": ended, "findings": findings,
        "seconds": round(seconds, 1), "said": said[:200],
    }  # fmt: skip


def on_gpu(path: Path, count: int, seconds: float, device: str) -> list[dict[str, Any]]:
    """All jobs in parallel; the rows are in the file when this returns, whatever has ended by then."""
    if shutil.which("compute-sanitizer") is None:
        raise SystemExit("compute-sanitizer: is not on the PATH; it is part of the CUDA toolkit")
    logs, deadline = Path(tempfile.mkdtemp(prefix="known-races-")), time.monotonic() + seconds
    rows: list[dict[str, Any]] = []
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with ThreadPoolExecutor(count) as pool:
            for found in pool.map(lambda job: run(job, logs, deadline, device), jobs()):
                rows += found
    finally:
        path.write_text(json.dumps(_run_of(device) | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
    return rows


def _run_of(device: str) -> dict[str, str]:
    """What a run was made with: the sanitizer's version, the device, the day and the commit."""
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {"tools": _version(), "device": open_device(device).model, "date": day, "commit": commit()}


def _version() -> str:
    said = subprocess.run(["compute-sanitizer", "--version"], capture_output=True, text=True).stdout
    found = re.search(r"Version (\S+)", said)
    return found[1] if found else "unknown version"


# the table ------------------------------------------------------------------------------------------------------------
def table(data: dict[str, Any] | None) -> str:
    """Recall, false positives, and a row for each pair. Check mode's column is what the tests hold it to."""
    rows = {(r["name"], r["tool"], r["broken"]): r for r in (data or {}).get("rows", ())}
    all_ = pairs()
    missed = [name for name, pair in all_.items() if pair.missed]
    lines = [
        "| | broken kernels tried | found | mended kernels tried | false positives |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines.append(f"| check mode, on a CPU | {len(all_)} | {len(all_) - len(missed)} | {len(all_)} | 0 |")
    for tool in TOOLS if rows else ():
        tried = {side: [r for (_, t, b), r in rows.items() if t == tool and b == side] for side in (True, False)}
        known = {side: [r for r in found if r["findings"] is not None] for side, found in tried.items()}
        hits = {side: sum(r["findings"] > 0 for r in found) for side, found in known.items()}
        lines.append(f"| {tool}, on a GPU | {len(known[True])} | {hits[True]} | {len(known[False])} | {hits[False]} |")
    either = [name for name in all_ if any(_hit(rows, name, tool, True) for tool in TOOLS)]
    if rows:
        lines.append(f"| either of the two | | {len(either)} | | |")
    lines += ["", "| known race | what is wrong | check mode says |" + "".join(f" {t} |" for t in TOOLS if rows)]
    lines.append("| --- | --- | --- |" + " --- |" * (len(TOOLS) if rows else 0))
    for name, pair in all_.items():
        ours = f"nothing: {pair.missed}" if pair.missed else pair.finds
        theirs = "".join(f" {_words(rows, pair, tool)} |" for tool in TOOLS if rows)
        lines.append(f"| [{name.replace('_', ' ')}]({pair.report}) | {pair.wrong} | {ours} |{theirs}")
    if data:
        run = f"compute-sanitizer {data['tools']} on an {data['device']}, {data['date']}, commit {data['commit']}"
        lines += ["", f"{run}; a broken kernel that would not end on a GPU was not run there."]
    return "\n".join(lines)


def _hit(rows: dict[tuple[str, str, bool], dict[str, Any]], name: str, tool: str, broken: bool) -> bool:
    return bool((rows.get((name, tool, broken)) or {}).get("findings"))


def _words(rows: dict[tuple[str, str, bool], dict[str, Any]], pair: Pair, tool: str) -> str:
    row = rows.get((pair.name, tool, True))
    if row is None:
        return "not run"
    end = "" if row["ended"] else ", did not end"
    said = "?" if row["findings"] is None else "found" if row["findings"] else "nothing"
    twin = " (and in the mended one)" if _hit(rows, pair.name, tool, False) else ""
    return f"{said}{twin}{end}"


def write_docs(path: Path) -> str:
    """The document with the table of these rows (none: check mode only)."""
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(MARKS[0])
    return f"{before}{MARKS[0]}\n{table(data)}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=Path, metavar="ROWS.json")
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=60, help="what has not begun by then is not run")
    parser.add_argument("--docs", type=Path, nargs="?", const=ROWS, metavar="ROWS.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--broken", help=argparse.SUPPRESS)
    parser.add_argument("--mended", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if names := options.broken or options.mended:
        child(names.split(","), bool(options.broken), options.device)
    elif options.gpu:
        rows = on_gpu(options.gpu, options.jobs, options.seconds, options.device)
        known = sum(row["findings"] is not None for row in rows)
        print(f"{len(rows)} rows, {known} of them with an answer: {options.gpu}")
    elif options.docs:
        DOCUMENT.write_text(write_docs(options.docs), encoding="utf-8")
    else:
        parser.error("--gpu or --docs")


if __name__ == "__main__":
    main()
