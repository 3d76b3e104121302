"""What the hardware counts while decode attention runs, beside the read of the same bytes alone, as ncu sees it.

    python -m benchmarks.counters                       measure on a GPU with ncu, print, append rows
    python -m benchmarks.counters --report [--run ID]   the table of the last run, or of one

ncu runs every kernel alone, on a cold L2 and several times over (a few counters a pass), so its times are not those of
a chain; `benchmarks.decode_attention` has these. `stalls` is what a warp waits for while it is resident, of its cycles.
"""

from __future__ import annotations

import csv
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.cases.decode import LLAMA, Case
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.sentence import in_a_sentence

CASES = (
    *(Case(*LLAMA, *size) for size in ((1, 512), (1, 4096), (1, 32768), (1, 131072), (32, 2048))),
    *(Case(*heads, 1, 4096) for heads in ((12, 2, 128), (32, 32, 128), (32, 32, 80))),
    *(Case(*LLAMA, 1, 131072, kind) for kind in ("e4m3", "s8", "f32")),
)
IMPLEMENTATIONS = ("ptxgen", "floor")  # in the order in which `launch` runs them
MEASURES = {  # of a row: ncu's metric, and the factor from its base unit
    "us": ("gpu__time_duration.sum", 1e-3),
    "MB_read": ("dram__bytes_read.sum", 1e-6),
    "dram_percent_of_peak": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "occupancy_percent": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1),
    "registers": ("launch__registers_per_thread", 1),
}
STALL = "smsp__average_warp_latency_issue_stalled_{}.ratio"
REASONS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "selected",
    "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip
LAUNCH = "--launch"  # what ncu runs: every kernel once
SHOWN = 0.04  # reasons of less than this are left out


def main() -> None:
    if sys.argv[1:] == [LAUNCH]:
        launch()
        return
    command("counters", __doc__, lambda run, _: measure(run), device=gpu)


def launch() -> None:
    """Run each case's kernels once, in the order of `IMPLEMENTATIONS`, between the profiler's start and stop."""
    import torch

    from benchmarks.cases.decode import Inputs
    from benchmarks.peers.decode import bound
    from benchmarks.peers.read_floor import Floor

    floor, profiler = Floor(), torch.cuda.cudart()
    for case in CASES:
        floor.us(case.bytes)  # finds the fastest way
        inputs = Inputs(case)
        out = torch.full_like(inputs.q, math.nan)
        with bound(inputs, out) as call_of:
            calls = (call_of(inputs.caches[0]), floor.call(case.bytes))
            torch.cuda.synchronize()
            profiler.cudaProfilerStart()
            for call in calls:
                call()
            torch.cuda.synchronize()
            profiler.cudaProfilerStop()
        if not inputs.error(out) < 1e-2:
            raise SystemExit(f"{case}: wrong result, relative error {inputs.error(out):.2g}")
        print(case.fields(), flush=True)


def measure(run: Run) -> None:
    """Rows of every case, from one run of ncu."""
    add(run, profile("benchmarks.counters", [*(name for name, _ in MEASURES.values()), *map(STALL.format, REASONS)]))


def profile(module: str, names: Sequence[str], *arguments: str) -> list[dict[str, str]]:
    """What ncu says, with these metrics, of the kernels that `module` launches with `LAUNCH` and the arguments."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise SystemExit("ncu: not found; it comes with Nsight Compute and the CUDA toolkit, and must be on PATH")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "counters.csv"
        options = ["--csv", "--page=raw", "--print-units=base", "--clock-control=none", "--profile-from-start=off"]
        child = [sys.executable, "-m", module, LAUNCH, *arguments]
        done = subprocess.run([ncu, *options, f"--metrics={','.join(names)}", f"--log-file={log}", *child])
        text = log.read_text() if log.is_file() else ""
    if done.returncode:
        raise SystemExit(f"ncu: exit status {done.returncode}\n{text[-2000:]}")
    return list(kernels(text))


def kernels(text: str) -> Iterator[dict[str, str]]:
    """The kernels of ncu's raw page, in the order of their launches, by column; base units."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    _units, *found = csv.DictReader(lines)
    yield from found


def add(run: Run, found: Sequence[Mapping[str, str]]) -> None:
    """Rows of the cases' kernels; other kernels than were launched are refused."""
    wanted = [(case, impl) for case in CASES for impl in IMPLEMENTATIONS]
    names = [each["Kernel Name"] for each in found]
    if len(found) != len(wanted):
        raise SystemExit(f"ncu: {len(wanted)} kernels were launched, {len(found)} are in its report: {names}")
    for (case, impl), name in zip(wanted, names, strict=True):
        if ("incremental_attention" in name) != (impl == "ptxgen"):
            raise SystemExit(f"ncu: {case}, {impl}: another kernel stands in its report, {name}")
    for (case, impl), each in zip(wanted, found, strict=True):
        measures = {name: number(each[metric]) * factor for name, (metric, factor) in MEASURES.items()}
        run.add(case.fields(), impl, **measures, stalls=stalls({r: number(each[STALL.format(r)]) for r in REASONS}))


def stalls(cycles: Mapping[str, float]) -> str:
    """A warp's cycles by what it waited for, largest first: "long scoreboard 71 %, barrier 12 %"."""
    total = sum(cycles.values())
    shares = {reason: value / total for reason, value in cycles.items() if value > SHOWN * total}
    largest = sorted(shares, key=shares.__getitem__, reverse=True)
    return ", ".join(f"{reason.replace('_', ' ')} {100 * shares[reason]:.0f} %" for reason in largest)


def number(text: str) -> float:
    """ncu writes 1,234.5."""
    return float(text.replace(",", ""))


if __name__ == "__main__":
    in_a_sentence(main)
