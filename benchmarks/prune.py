"""Drops result rows that no document is made from and none names. Shows what it would drop; with --write it does.

python -m benchmarks.prune [--write]

Kept are the last whole run of each benchmark, and every run whose id stands in a document. Of decode attention the run
that the notes are about stays whole; of the others the times stay, and where only the table of all runs names one, the
times of the grid, which that table reads. Where the documents would change all the same, as those that list every run,
the file stays as it is.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import performance
from benchmarks.cases.decode import LISTS, Case
from benchmarks.documents import cpu_executor as cpu_executor_document
from benchmarks.documents import decode as decode_document
from benchmarks.documents import summary as summary_document
from benchmarks.report import rows

ROOT = Path(__file__).resolve().parents[1]
Rows = list[dict[str, Any]]
WHOLE = frozenset({"searches"})  # named in a document as a file


def documents() -> str:
    """All that is written from rows, as one text."""
    from tests.tools import gpu_report

    decode = decode_document.documented()
    return "\n".join(
        [
            performance.document(decode),
            summary_document.readme(decode),
            cpu_executor_document.section(rows.load("cpu_executor")),
            cpu_executor_document.fuzzing(cpu_executor_document.fuzz_rows()),
            *gpu_report.document(),
        ]
    )


def prose() -> str:
    """The documents that people write or commands fill, where run ids may stand."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *rows.RESULTS.glob("*.md")]
    return "\n".join(page.read_text(encoding="utf-8") for page in sorted(pages))


def kept(bench: str, text: str) -> Iterator[dict[str, Any]]:
    """The rows of a benchmark to keep, in order, given the documents' text."""
    first, notes = decode_document.notes()
    last = rows.load(bench)[0]["run"] if bench != "decode_attention" else first.split()[-1]
    for run, found in rows.runs(bench).items():
        if run == last or bench in WHOLE:
            yield from found
        elif run in text:
            every = bench != "decode_attention"
            yield from (row for row in found if every or ("us" in row and (run in notes or _of_grid(row))))


def _of_grid(row: dict[str, Any]) -> bool:
    return Case(**row["case"]) in LISTS["grid"]


def written(path: Path, found: Rows) -> int:
    """Write rows as their file has them; its bytes."""
    return path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")


def pruned(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Write what is kept of every file to `folder`; (benchmark, rows before, rows kept)."""
    text, wanted = prose(), documents()
    source = rows.RESULTS
    before = {path.stem: [json.loads(line) for line in path.open(encoding="utf-8")] for path in source.glob("*.jsonl")}
    after = {bench: list(kept(bench, text)) for bench in before}
    for bench, found in before.items():
        written(folder / f"{bench}.jsonl", found)
    rows.RESULTS = folder
    try:
        for bench in sorted(before):
            written(folder / f"{bench}.jsonl", after[bench])
            if not _same(wanted):
                after[bench] = before[bench]
                written(folder / f"{bench}.jsonl", before[bench])
            yield bench, len(before[bench]), len(after[bench])
    finally:
        rows.RESULTS = source


def _same(wanted: str) -> bool:
    try:
        return documents() == wanted
    except (KeyError, SystemExit):  # a run that a document needs is not there
        return False


def main() -> None:
    """Print a line for each file; with --write, replace the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace the files in benchmarks/results")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for bench, before, after in pruned(folder):
            print(f"{bench}: {after} of {before} rows")
        if write:
            for path in folder.iterdir():
                (rows.RESULTS / path.name).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
