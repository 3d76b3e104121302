"""Records what a GPU computes for every form: `python -m tests.evidence.instructions.record` writes `expected.npz`.

Entries run in child processes. One that does not load is taken apart form by form; one that fails or hangs costs a
child, is named, and the rest goes on. What could not be recorded stands in the file's `refused`.
`--corpus` also runs the corpus's cases on the GPU through the same bare driver calls.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.evidence.instructions.catalogue import FORMS, TOPICS, entries
from tests.evidence.instructions.form import Entry, Form
from tests.evidence.instructions.runner import run

OUTPUT = Path(__file__).parent / "expected.npz"
CHILD_SECONDS = 120
BATCH = 12


def pack(results: dict[str, list[np.ndarray]], refused: dict[str, str], device: str) -> dict[str, np.ndarray]:
    """The arrays of `expected.npz`: all results in one run of bytes, an index, and what was refused, as JSON."""
    names = [n for n in FORMS if n in results]
    blobs = [b"".join(row.tobytes() for row in results[n]) for n in names]
    return {
        "names": np.array(names), "digests": np.array([FORMS[n].digest for n in names], np.uint32),
        "ends": np.cumsum([len(b) for b in blobs]), "data": np.frombuffer(b"".join(blobs), np.uint8),
        "meta": np.array(json.dumps({"device": device, "refused": refused}, sort_keys=True)),
    }  # fmt: skip


def open_device(kind: str) -> tuple[Any, str]:
    """The GPU and what it is; or the oracle, to try the machinery without one."""
    if kind == "oracle":
        from tests.evidence.oracle import Oracle

        return Oracle(), "the NumPy oracle"
    from tests.evidence.instructions.cuda import CudaDevice

    device = CudaDevice()
    return device, device.describe()


def child(work: list[list[str]], folder: Path, kind: str) -> None:
    """Runs groups of forms, one file per group; `started` names the group under way."""
    from tests.evidence.instructions.cuda import LoadError

    device, description = open_device(kind)
    (folder / "device").write_text(description)
    for number, names in enumerate(work):
        (folder / "started").write_text(str(number))
        forms = tuple(FORMS[n] for n in names)
        try:
            results = run(Entry("forms", forms), device)
        except LoadError as refusal:
            (folder / f"{number}.refused").write_text(str(refusal))
            continue
        np.savez(folder / f"{number}.npz", **{f"{i}.{j}": row for i, f in enumerate(forms)
                                              for j, row in enumerate(results[f.name])})  # fmt: skip


def collect(names: list[str], file: Path) -> dict[str, list[np.ndarray]]:
    """The results of one group."""
    with np.load(file) as saved:
        return {n: [saved[f"{i}.{j}"] for j in range(len(FORMS[n].results))] for i, n in enumerate(names)}


class Recorder:
    """What has been recorded so far, and the groups still to run."""

    def __init__(self, groups: list[list[str]], kind: str) -> None:
        self.waiting, self.kind = groups, kind
        self.results: dict[str, list[np.ndarray]] = {}
        self.refused: dict[str, str] = {}
        self.device = ""

    def step(self) -> None:
        """One child over the next few groups; those that failed come back form by form."""
        batch, self.waiting = self.waiting[:BATCH], self.waiting[BATCH:]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "work").write_text(json.dumps(batch))
            command = [
                sys.executable,
                "-m",
                "tests.evidence.instructions.record",
                "--child",
                str(folder),
                "--device",
                self.kind,
            ]
            try:
                done = subprocess.run(command, timeout=CHILD_SECONDS, capture_output=True, text=True)
                trouble = (done.stderr.strip().splitlines() or ["?"])[-1] if done.returncode else ""
            except subprocess.TimeoutExpired:
                trouble = f"no end after {CHILD_SECONDS} s"
            self._gather(batch, folder, trouble)

    def _gather(self, batch: list[list[str]], folder: Path, trouble: str) -> None:
        if not (folder / "device").exists():
            raise SystemExit(f"record: no device could be opened: {trouble}")
        self.device = (folder / "device").read_text()
        started = folder / "started"
        broken = (int(started.read_text()) if started.exists() else 0) if trouble else -1
        for number, names in enumerate(batch):
            file, refusal = folder / f"{number}.npz", folder / f"{number}.refused"
            if number == broken:
                self._apart(names, trouble)
            elif refusal.exists():
                self._apart(names, refusal.read_text())
            elif file.exists():
                self.results |= collect(names, file)
            else:
                self.waiting.append(names)

    def _apart(self, names: list[str], why: str) -> None:
        if len(names) == 1:
            self.refused[names[0]] = why
            print(f"refused: {names[0]}: {why}", file=sys.stderr)
        else:
            self.waiting += [[n] for n in names]


def corpus(kind: str) -> int:
    """Runs every corpus case on the device; returns how many fail. A case that breaks the context costs a child."""
    from tests.evidence.corpus.cases import CASES

    waiting, failed = list(CASES), 0
    while waiting:
        command = [sys.executable, "-m", "tests.evidence.instructions.record", "--device", kind, "--cases", *waiting]
        try:
            text = subprocess.run(command, timeout=CHILD_SECONDS, capture_output=True, text=True).stdout
        except subprocess.TimeoutExpired as late:
            text = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        lines = text.splitlines()
        told = {line.split()[1] for line in lines if line.startswith("corpus ")}
        if waiting[0] not in told:
            lines.append(f"corpus {waiting[0]} FAILED: no word from it")
            told.add(waiting[0])
        waiting = [n for n in waiting if n not in told]
        failed += sum(" FAILED" in line for line in lines)
        print("\n".join(lines), flush=True)
    return failed


def run_cases(names: list[str], kind: str) -> None:
    """Corpus cases one after the other, one line each; ends at the first that leaves the context broken."""
    from tests.evidence.corpus.cases import CASES
    from tests.evidence.instructions.cuda import LaunchError

    device, _ = open_device(kind)
    for name in names:
        try:
            CASES[name].run(device)
            print(f"corpus {name} ok", flush=True)
        except Exception as failure:
            print(f"corpus {name} FAILED: {type(failure).__name__}: {' '.join(str(failure).split())[:400]}", flush=True)
            if isinstance(failure, LaunchError):
                return


def record(output: Path, kind: str, only: str = "") -> int:
    """Records the forms whose names hold `only`; returns how many were refused."""
    groups = [[f.name for f in e.forms if only in f.name] for topic in TOPICS for e in entries(topic)]
    recorder = Recorder([g for g in groups if g], kind)
    while recorder.waiting:
        recorder.step()
        print(f"{len(recorder.results)} of {len(FORMS)} forms recorded", flush=True)
        np.savez_compressed(output, **pack(recorder.results, recorder.refused, recorder.device))
    print(f"{recorder.device}: {output.name}, {output.stat().st_size} bytes, {len(recorder.refused)} refused")
    return len(recorder.refused)


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 when everything was recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--corpus", action="store_true", help="also run the corpus on the GPU")
    parser.add_argument("--device", choices=("cuda", "oracle"), default="cuda", help="the oracle tries the machinery")
    parser.add_argument("--only", default="", help="forms whose names hold this (with --output elsewhere)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cases", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        child(json.loads((given.child / "work").read_text()), given.child, given.device)
        return 0
    if given.cases:
        run_cases(given.cases, given.device)
        return 0
    failed = record(given.output, given.device, given.only)
    return int(bool(failed + (corpus(given.device) if given.corpus else 0)))


def load(file: Path = OUTPUT) -> tuple[dict[str, list[np.ndarray]], dict[str, int], dict[str, object]]:
    """Recorded results by form, the digests of what was run, and who recorded it."""
    with np.load(file) as saved:
        names, ends, data = saved["names"].tolist(), saved["ends"].tolist(), saved["data"]
        digests, meta = dict(zip(names, saved["digests"].tolist(), strict=True)), json.loads(str(saved["meta"]))
    starts = [0, *ends[:-1]]
    results = {n: split(FORMS[n], data[a:b]) for n, a, b in zip(names, starts, ends, strict=True) if n in FORMS}
    return results, digests, meta


def split(form: Form, data: np.ndarray) -> list[np.ndarray]:
    """The bytes of one form's results as arrays by result."""
    from tests.evidence.instructions.form import narrowed

    rows, at = [], 0
    for type_ in form.results:
        kind = narrowed(np.zeros(1, np.uint64), type_).dtype
        size = kind.itemsize * form.threads
        rows.append(data[at : at + size].view(kind))
        at += size
    return rows


if __name__ == "__main__":
    sys.exit(main())
