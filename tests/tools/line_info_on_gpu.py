"""Line info on a GPU: Nsight Compute's source page and a report of compute-sanitizer with our lines, as text.

python -m tests.tools.line_info_on_gpu [--out DIR]    needs a GPU, ncu and compute-sanitizer; takes some 20 seconds

Exit 0 when both name lines of this repository. Everything that the tools say is kept in DIR, and shown in part.
"""

from __future__ import annotations

import argparse
import glob
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ptxgen.kernels import KvCacheScatter
from ptxgen.runtime import open_device

ROOT = Path(__file__).resolve().parents[2]
SPEC = KvCacheScatter(max_len=64, head_dim=64, n_kv_heads=2)
FILES = ("kv_cache_scatter", "kv_cache", "threads", "convert", "flow", "entry")  # that the kernel's lines come from
OURS = re.compile(rf"\b(?:[\w/.-]*/)?(?:{'|'.join(FILES)})\.(?:py|ptx\.j2)(?::\d+)?")
RECORDING = ["--section", "SourceCounters", "--import-source", "yes"]
PAGE = "cuda,sass"


def profiled() -> None:
    """Launch the kernel a few times with arguments as they should be."""
    device = open_device("cuda")
    kernel = device.load(SPEC, line_info=True)
    given = SPEC.example(np.random.default_rng(0))
    arguments = {name: device.array(v) if isinstance(v, np.ndarray) else v for name, v in given.items()}
    bound = kernel.bind(**arguments)
    for _ in range(3):
        bound.launch()
    device.synchronize()
    print("launched", kernel.ptx.entry, kernel.ptx.digest[:12], "registers:", kernel.resources.registers)


def faulty() -> None:
    """Launch the kernel with a cache of 256 bytes, so that it stores behind the end."""
    device: Any = open_device("cuda")  # the driver's calls, beside what every device has
    ptx = device.load(SPEC, line_info=True).ptx
    rows = device.zeros((2, SPEC.head_dim), "f32")
    addresses = [int(device.call("cuMemAlloc", 256)) for _ in range(2)]  # not from the pool: nothing lies behind them
    grid = tuple(1 if isinstance(extent, str) else extent for extent in ptx.launch.grid)
    entry = device.module(ptx.text)[ptx.entry]
    entry.launch(grid, ptx.launch.block, [rows, rows, *(np.uint64(a) for a in addresses), np.int32(60)])
    device.synchronize()


def tool(name: str) -> str | None:
    """A tool's path: on PATH, else in the newest toolkit."""
    found = [shutil.which(name), *sorted(glob.glob(f"/usr/local/cuda*/bin/{name}"), reverse=True)]
    found += sorted(glob.glob(f"/opt/nvidia/nsight-compute/*/{name}"), reverse=True)
    return next(filter(None, found), None)


def run(command: list[str], keep: Path, seconds: float) -> str:
    """What a command says, kept in a file; the first lines of it are shown."""
    print("$", " ".join(command), flush=True)
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, cwd=ROOT, check=False
        )
        said, end = done.stdout + done.stderr, f"exit {done.returncode}"
    except subprocess.TimeoutExpired as late:
        said, end = "".join(p.decode(errors="replace") for p in (late.stdout, late.stderr) if p), "timed out"
    keep.write_text(said, encoding="utf-8")
    lines = said.splitlines()
    print(f"  {end} after {time.perf_counter() - begun:.1f} s, {len(lines)} lines, in {keep.name}")
    return said


def show(lines: list[str], most: int) -> None:
    """Some lines, cut to a readable width."""
    for line in lines[:most]:
        print("   |", line[:260])
    if len(lines) > most:
        print(f"   | … {len(lines) - most} more")


def source_page(out: Path) -> bool:
    """Record the kernel and export the source page; whether our lines stand in it."""
    ncu = tool("ncu")
    if ncu is None:
        print("ncu: not installed")
        return False
    itself = [sys.executable, "-m", "tests.tools.line_info_on_gpu", "--launch", "profiled"]
    report = out / "kernel.ncu-rep"
    command = [ncu, *RECORDING, "--launch-count", "1", "-k", SPEC.kernel_name, "-f", "-o", str(report), *itself]
    said = run(command, out / "ncu_record.txt", 25)
    if not report.is_file():
        show(said.splitlines(), 40)
        return False
    show([line for line in said.splitlines() if line.startswith("==")], 12)
    command = [ncu, "--import", str(report), "--page", "source", "--csv", "--print-source", PAGE]
    lines = run(command, out / "ncu_source.csv", 10).splitlines()
    found = sorted(set(OURS.findall("\n".join(lines))))
    print(f"  files and lines of ours on this page: {len(found)}: {', '.join(found[:8])}")
    show([line for line in lines if OURS.search(line) or re.search(r"b\.(op|ld_param)\(|\{\{", line)], 25)
    return bool(found)


def sanitizer_report(out: Path) -> bool:
    """Run the faulty launch under memcheck; whether the report names a line of ours."""
    sanitizer = tool("compute-sanitizer")
    if sanitizer is None:
        print("compute-sanitizer: not installed")
        return False
    itself = [sys.executable, "-m", "tests.tools.line_info_on_gpu", "--launch", "faulty"]
    command = [sanitizer, "--tool", "memcheck", "--print-limit", "3", "--show-backtrace", "device", *itself]
    lines = run(command, out / "memcheck.txt", 20).splitlines()
    faults = [i for i, line in enumerate(lines) if "Invalid" in line]
    show(lines[faults[0] : faults[0] + 24] if faults else lines, 40)
    found = sorted({each for i in faults for each in OURS.findall("\n".join(lines[i : i + 4]))})
    print(f"  at: {', '.join(found) or 'no line of ours'}")
    return bool(found)


def main() -> int:
    """Both tools; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where reports are kept (default: a new temporary directory)")
    parser.add_argument("--launch", choices=("profiled", "faulty"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launch:
        (profiled if options.launch == "profiled" else faulty)()
        return 0
    out = options.out or Path(tempfile.mkdtemp(prefix="ptxgen-lines-"))
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    sanitizer, page = sanitizer_report(out), source_page(out)
    print(f"compute-sanitizer names our lines: {sanitizer}; the source page does: {page}; reports are in {out}")
    return int(not (sanitizer and page))


if __name__ == "__main__":
    sys.exit(main())
