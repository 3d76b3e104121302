"""The figures of docs/cpu-executor.md, from a run of `benchmarks.cpu_executor` and of `tests.evidence.fuzz`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases.cpu_executor import CHECKED
from benchmarks.report.rows import runs

NAMES = {
    "attention-nvcc-f32": "decode attention by nvcc, f32",
    "attention-ours-f32": "decode attention, ours, f32",
    "attention-ours-f16": "decode attention, ours, f16 (mma, clusters)",
    "sgemm": "SGEMM 256³ by nvcc",
}
Row = dict[str, Any]
_WHERE = {"fast": "in fast mode", "check": "in check mode", "random": "in random order",
          "oracle": "in the NumPy interpreter"}  # fmt: skip


def pick(rows: Iterable[Row], impl: str, **case: object) -> Row:
    """The one row of an implementation whose case has these fields."""
    (found,) = [r for r in rows if r["impl"] == impl and case.items() <= r["case"].items()]
    return found


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines]) + "\n"


def figures(rows: Sequence[Row]) -> Iterator[str]:
    """Paragraphs and tables."""
    facts = pick(rows, "machine")["case"]
    threads = _threads(rows)
    first = rows[0]
    yield (
        f"{first['device']} ({facts['llvm_cpu']}), {facts['cpus']} CPUs, Python {facts['python']}, NumPy "
        f"{facts['numpy']}, llvmlite {facts['llvmlite']} with LLVM {facts['llvm']}; {first['date']}, commit "
        f"{first['commit']}. Milliseconds of CPU time (of wall time where it says so: others used the machine, whose "
        f"load was {facts['load']}); warm medians, and for first launches medians (and the least) of new processes. "
        "Attention: 32 heads of 128 dimensions, 512 positions.\n"
    )
    lines = []
    for kernel, name in NAMES.items():
        empty, cached = (pick(rows, "fast", kernel=kernel, cache=c) for c in ("empty cache", "object cache"))
        one, all_ = (pick(rows, "fast", kernel=kernel, what="run", threads=n) for n in (1, threads))
        numpy = pick(rows, "numpy", kernel=kernel)
        lines.append([
            name, f"{empty['cpu_ms']:.0f} ({empty['least_cpu_ms']:.0f})", f"{cached['load_cpu_ms']:.1f}",
            f"{cached['cpu_ms']:.1f}", f"{cached['least_ms']:.1f}", f"{one['cpu_ms']:.2f}", f"{all_['least_ms']:.2f}",
            f"{numpy['cpu_ms']:,.0f}",
        ])  # fmt: skip
    head = ["kernel", "first launch, nothing cached", "ready from the object cache",
            "from the object cache to the end of the first run", f"the same, {threads} threads (least wall time)",
            "run, 1 thread", f"run, {threads} threads (least wall time)", "NumPy interpreter"]  # fmt: skip
    yield table(head, lines)
    yield _beginning(rows)
    gflops = pick(rows, "fast", kernel="sgemm", what="run", threads=1)["gflops"]
    yield f"SGEMM runs at {gflops:.1f} GFLOP/s on one thread.\n"
    yield from _checking(rows)
    yield "Microseconds of CPU time a CTA, as the grid grows (one thread):\n"
    grown = [r for r in rows if r["case"].get("what") == "growth"]
    kernels = list(dict.fromkeys(r["case"]["kernel"] for r in grown))
    lines = [[k, *(f"{r['cpu_us_per_cta']:.3g} ({r['case']['ctas']} CTAs)" for r in grown if r["case"]["kernel"] == k)]
             for k in kernels]  # fmt: skip
    yield table(["kernel", "1 ×", "2 ×", "4 ×", "8 ×", "16 ×"], lines)


def _threads(rows: Sequence[Row]) -> int:
    found: int = max(r["case"]["threads"] for r in rows if r["case"].get("what") == "run")
    return found


def _beginning(rows: Sequence[Row]) -> str:
    cached = [r for r in rows if r["case"].get("cache") == "object cache"]
    ready, ended, wall, opened, llvmlite = (
        (min(r[key] for r in cached), max(r[key] for r in cached))
        for key in ("load_cpu_ms", "cpu_ms", "least_ms", "open_cpu_ms", "llvmlite_cpu_ms")
    )
    return (
        f"From the object cache a kernel can be launched after {ready[0]:.1f} to {ready[1]:.1f} ms. That is the time "
        "until the launch, not its end: the first run, on memory and in code that nothing has touched yet, is over "
        f"after {ended[0]:.1f} to {ended[1]:.1f} ms of CPU time, which at best took {wall[0]:.1f} to {wall[1]:.1f} ms "
        f"by the clock on {_threads(rows)} threads. Opening the device is in none of these figures: once a process it "
        f"takes {opened[0]:.0f} to {opened[1]:.0f} ms, and importing llvmlite before it up to {llvmlite[1]:.0f} ms.\n"
    )


def _checking(rows: Sequence[Row]) -> Iterator[str]:
    named = {NAMES[r["case"]["kernel"]]: r for r in rows
             if (r["impl"], r["case"].get("what"), r["case"].get("threads")) == ("check", "run", 1)}  # fmt: skip
    named |= {f"{CHECKED[r['case']['kernel']]} (`{r['case']['kernel']}`)": r for r in rows
              if (r["impl"], r["case"].get("what")) == ("check", "check")}  # fmt: skip
    lines = []
    for name, row in named.items():
        fast = pick(rows, "fast", **row["case"])["cpu_ms"]
        lines.append((row["cpu_ms"] / fast, name, fast, row["cpu_ms"]))
    yield (
        f"Check mode takes {min(lines)[0]:.1f} to {max(lines)[0]:.1f} times as long as fast mode in these kernels: "
        "little more where a kernel computes, most where shared memory, barriers and asynchronous copies are all it "
        "does. The kernels in brackets are those of `tests/evidence/corpus`, whose launches are short: part of "
        "their time is what any launch takes.\n"
    )
    cells = [(name, f"{fast:.3g}", f"{check:.3g}", f"{ratio:.1f}") for ratio, name, fast, check in sorted(lines)]
    yield table(["kernel, one thread", "fast", "check mode", "check ÷ fast"], cells)


def section(rows: Sequence[Row]) -> str:
    """What stands between the marks."""
    return "\n".join(figures(rows))


def fuzz_rows() -> list[Row]:
    """Every row of `tests.evidence.fuzz`, oldest first."""
    return [row for rows in runs("fuzz").values() for row in rows]


def fuzzing(rows: Sequence[Row]) -> str:
    """A sentence for the last run of each device, and for earlier runs that differed."""
    last: dict[str, Row] = {}
    said = []
    for row in rows:
        case = row["case"]
        before = last.get(case["device"])
        if before is not None and before["differences"]:
            said.append(_fuzzed(before) + f" ({before['note']})")
        last[case["device"]] = row
    listed = "; ".join(_fuzzed(row) for row in last.values())
    earlier = f" Before: {'; '.join(said)}." if said else ""
    return f"Differences in the last run of each ([rows](../benchmarks/results/fuzz.jsonl)): {listed}.{earlier}\n"


def _fuzzed(row: Row) -> str:
    where = _WHERE.get(row["case"]["device"], row["case"]["device"])
    return f"{row['differences'] or 'none'} in {row['case']['programs']:,} programs {where}"


def write(path: Path, marks: tuple[str, str], text: str) -> None:
    """Replace what stands between the marks of a document."""
    head, first, rest = path.read_text(encoding="utf-8").partition(marks[0])
    _, last, tail = rest.partition(marks[1])
    if not first or not last:
        raise SystemExit(f"{path}: the marks {marks[0]} and {marks[1]} must be in it")
    path.write_text(f"{head}{first}\n\n{text}\n{last}{tail}", encoding="utf-8")
