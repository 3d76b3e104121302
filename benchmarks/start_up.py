"""What imports and first texts cost beside another checkout of this repository: CPU time of fresh processes, in turn.

python -m benchmarks.start_up --beside FOLDER [--rounds 32]     measure, print, append rows; FOLDER has the other commit
python -m benchmarks.start_up --beside FOLDER --instructions    count instructions in place of time; needs valgrind
python -m benchmarks.start_up --report [--run ID]               the table of the last run, or of one

Processes of both checkouts alternate, so that what else the machine does meets both. A ratio is the median of the
ratios of neighbours. Instructions are the same whatever else the machine does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from benchmarks.report.command import command
from benchmarks.report.rows import Run, commit
from benchmarks.report.sentence import in_a_sentence

ROOT = Path(__file__).resolve().parent.parent
_DECODE = "IncrementalAttention(max_len=4096, head_dim=128, n_heads=32, n_kv_heads=8, q_dtype='f16', kv_dtype='f16')"
_WARM = """
import time
from ptxgen.generator import clear_cache, generate
from ptxgen.kernels import ArgMax, FlashDecodingChunk, IncrementalAttention, KvCacheScatter, MultiHeadAttention
specs = [ArgMax(32000), KvCacheScatter(max_len=4096, head_dim=128, n_kv_heads=8)]
for dim, heads, kv in ((128, 32, 8), (64, 32, 4), (80, 32, 32)):
    shape = dict(head_dim=dim, n_heads=heads, n_kv_heads=kv, q_dtype="f16", kv_dtype="f16")
    specs += [IncrementalAttention(max_len=n, **shape) for n in (512, 4096, 32768)]
    specs += [IncrementalAttention(max_len=4096, batched=True, **shape), MultiHeadAttention(**shape)]
    specs += [FlashDecodingChunk(max_len=4096, max_chunks=16, **shape)]
for spec in specs:
    generate(spec, "sm_90")
clear_cache()
start = time.process_time()
for spec in specs:
    generate(spec, "sm_90")
print(time.process_time() - start)
"""
# What a process runs; one that prints a number has measured the seconds itself.
CASES = {
    "nothing": "pass",
    "import ptxgen": "import ptxgen",
    "from ptxgen.kernels import IncrementalAttention": "from ptxgen.kernels import IncrementalAttention",
    "the first text, of a copy": "import ptxgen\nfrom ptxgen.kernels import KvCacheScatter\n"
    "ptxgen.generate(KvCacheScatter(max_len=4096, head_dim=128, n_kv_heads=8), 'sm_90')",
    "the first text, of decode attention": "import ptxgen\nfrom ptxgen.kernels import IncrementalAttention\n"
    f"ptxgen.generate({_DECODE}, 'sm_90')",
    "20 texts once more": _WARM,
}


def cpu_seconds(code: str, checkout: Path, folder: str) -> float:
    """CPU time of a process that runs `code` with a checkout's package, or what it prints; `folder` has bytecode."""
    changed = {"PYTHONPATH": str(checkout), "PYTHONPYCACHEPREFIX": f"{folder}/{checkout.name}"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.Popen([sys.executable, "-c", code], env={**kept, **changed}, cwd=folder, stdout=subprocess.PIPE)
    assert child.stdout is not None
    said = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    child.stdout.close()
    if status:
        raise SystemExit(f"{checkout}: a process ended with exit status {child.returncode}")
    return float(said) if said.strip() else used.ru_utime + used.ru_stime


def instructions(code: str, checkout: Path, folder: str) -> int:
    """Instructions of a process that runs `code` with a checkout's package, by valgrind."""
    count = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    changed = {"PYTHONPATH": str(checkout), "PYTHONPYCACHEPREFIX": f"{folder}/{checkout.name}", "PYTHONHASHSEED": "0"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [*count, sys.executable, "-c", code], env={**kept, **changed}, cwd=folder, capture_output=True, text=True
    )
    found = re.search(r"I +refs: +([\d,]+)", done.stderr)
    if done.returncode or found is None:
        raise SystemExit(f"{checkout}: valgrind ended with exit status {done.returncode}")
    return int(found[1].replace(",", ""))


def measure(run: Run, given: argparse.Namespace) -> None:
    """Add a row of each case and checkout."""
    checkouts: Mapping[str, Path] = {"before": Path(given.beside).resolve(), "ptxgen": ROOT}
    commits = {name: commit(path) for name, path in checkouts.items()}
    with tempfile.TemporaryDirectory() as folder:
        for what, code in CASES.items():
            for path in checkouts.values():  # writes bytecode
                cpu_seconds(code, path, folder)
            if given.instructions:
                counts = {name: instructions(code, path, folder) for name, path in checkouts.items()}
                for name, count in counts.items():
                    run.add({"what": what}, name, instructions=count, of=commits[name])
                continue
            times: dict[str, list[float]] = {name: [] for name in checkouts}
            for turn in range(given.rounds):
                for name in sorted(checkouts, reverse=turn % 2 == 1):
                    times[name].append(cpu_seconds(code, checkouts[name], folder))
            ratio = median(ours / theirs for ours, theirs in zip(times["ptxgen"], times["before"], strict=True))
            for name, seconds in times.items():
                more = {"ratio": ratio} if name == "ptxgen" else {}
                run.add(
                    {"what": what, "rounds": given.rounds}, name, us=median(seconds) * 1e6, least_us=min(seconds) * 1e6,
                    of=commits[name], **more,
                )  # fmt: skip


def main() -> None:
    options = (
        ("--beside", {"metavar": "FOLDER", "help": "another checkout of this repository"}),
        ("--rounds", {"type": int, "default": 32, "help": "processes of each checkout a case (default: 32)"}),
        ("--instructions", {"action": "store_true", "help": "count instructions, by valgrind, in place of CPU time"}),
    )

    def measured(run: Run, given: argparse.Namespace) -> None:
        if not given.beside:
            raise SystemExit("--beside: names another checkout of this repository")
        measure(run, given)

    command("start_up", __doc__, measured, *options)


if __name__ == "__main__":
    in_a_sentence(main)
