"""What generating a kernel costs: cold, repeated, as a process; beside the compilers of like kernels, where installed.

python -m benchmarks.generation                       measure, print, append rows
python -m benchmarks.generation --report [--run ID]   the table of the last run, or of one
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.report.command import command
from benchmarks.report.rows import Run
from benchmarks.report.sentence import in_a_sentence
from ptxgen.generator import clear_cache, generate
from ptxgen.golden import Goldens
from ptxgen.golden.case import Case
from ptxgen.kernel import KernelType
from ptxgen.kernels import KvCacheScatter
from ptxgen.runtime import open_device
from ptxgen.targets import target

ROOT = Path(__file__).resolve().parent.parent
SPEC = KvCacheScatter(max_len=4096, head_dim=128, n_kv_heads=8)
COMMAND = ["kv-cache-scatter", "--max-len", "4096", "--head-dim", "128", "--n-kv-heads", "8", "--target", "sm_90"]


def some_cases(count: int | None = None) -> list[Case]:
    """The golden cases; some of them, evenly spread, when there is a count."""
    cases = list(Goldens(ROOT / "golden_ptx").cases())
    return cases if count is None else cases[:: max(1, len(cases) // count)]


def cold_seconds(case: Case, clock: Callable[[], float] = time.perf_counter) -> float:
    """One generation that finds nothing in a cache (modules and templates are loaded)."""
    clear_cache()
    start = clock()
    case.generate()
    return clock() - start


def repeated_seconds(calls: int = 20000) -> float:
    """One `generate` of a spec that was generated before."""
    generate(SPEC, "sm_90")
    start = time.perf_counter()
    for _ in range(calls):
        generate(SPEC, "sm_90")
    return (time.perf_counter() - start) / calls


def hit_seconds(spec: KernelType, calls: int = 20000) -> float:
    """One `load` of a spec whose kernel is in the device's module cache."""
    device = open_device("cpu")
    device.load(SPEC, target="sm_90")
    start = time.perf_counter()
    for _ in range(calls):
        device.load(spec, target="sm_90")
    return (time.perf_counter() - start) / calls


def process_seconds(command: list[str]) -> float:
    """Wall time of a process, the best of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def triton_seconds() -> float:
    """Triton's compilation of a copy of 16 values a thread to PTX and cubin, without its cache."""
    import tempfile

    source = (
        "import os, time, triton, triton.language as tl\n"
        "from triton.backends.compiler import GPUTarget\n"
        "from triton.compiler import ASTSource, compile\n"
        "@triton.jit\n"
        "def copy(src, dst, position, N: tl.constexpr):\n"
        "    i = tl.arange(0, N); tl.store(dst + position * N + i, tl.load(src + i))\n"
        "one = dict(src='*fp32', dst='*fp32', position='i32')\n"
        "for n in (64, 128):  # the first warms up the compiler itself\n"
        "    start = time.perf_counter()\n"
        "    compile(ASTSource(copy, {**one, 'N': 'constexpr'}, {'N': n}), target=GPUTarget('cuda', 90, 32))\n"
        "    print(time.perf_counter() - start)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "compile.py"
        script.write_text(source)
        command = ["env", f"TRITON_CACHE_DIR={folder}/cache", sys.executable, str(script)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def numba_seconds() -> float:
    """numba-cuda's compilation of the same copy to PTX."""
    from numba import cuda, float32, int32

    def copy(src, dst, position):  # type: ignore[no-untyped-def]
        i = cuda.threadIdx.x
        dst[position * 128 + i] = src[i]

    signature = (float32[::1], float32[::1], int32)
    cuda.compile_ptx(copy, signature, cc=(8, 0))  # warms up the compiler itself
    start = time.perf_counter()
    cuda.compile_ptx(copy, signature, cc=(9, 0))
    return time.perf_counter() - start


def nvcc_seconds() -> float:
    """nvcc's compilation of the same copy to PTX, a process: the best of five."""
    import tempfile

    source = (
        'extern "C" __global__ void copy(const float* src, float* dst, int position) {\n'
        "    dst[position * 128 + threadIdx.x] = src[threadIdx.x];\n"
        "}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "copy.cu"
        file.write_text(source)
        return process_seconds(["nvcc", "-arch=sm_90", "-ptx", str(file), "-o", f"{folder}/copy.ptx"])


def ours_seconds() -> float:
    """This library's, of a kernel that copies a row of every head to the cache: the best of five."""
    return min(cold_seconds(Case(SPEC, target("sm_90"), "")) for _ in range(5))


def has_module(name: str) -> bool:
    """Whether a Python module is installed."""
    return importlib.util.find_spec(name) is not None


# Compilers of a copy kernel: whether it is installed, and what it takes.
COMPILERS: dict[str, tuple[bool, Callable[[], float]]] = {
    "ptxgen": (True, ours_seconds),
    "triton": (has_module("triton"), triton_seconds),
    "numba-cuda": (has_module("numba"), numba_seconds),
    "nvcc": (shutil.which("nvcc") is not None, nvcc_seconds),
}
# A generator in Rust that formats the text of its kernels, without a check of it: its authors' figure for one kernel.
TRUENO: dict[str, float | str] = {"us": 27.0, "why": "as its authors state it; not measured here"}


PROCESSES = (
    ("generate", "ptxgen", ["-m", "ptxgen", "generate", *COMMAND]),
    ("import ptxgen", "ptxgen", ["-c", "import ptxgen"]),
    ("nothing", "python", ["-c", "pass"]),
)


def measure(run: Run) -> None:
    """Add every row of one run."""
    cases = some_cases()
    for case in cases[:3]:  # imports, templates, patterns
        cold_seconds(case)
    # CPU time beside wall time: it says the same on a machine that is doing something else as well.
    wall = sorted(min(cold_seconds(case) for _ in range(3)) for case in cases)
    cpu = sorted(min(cold_seconds(case, time.process_time) for _ in range(3)) for case in cases)
    for which, at in (("median", len(cases) // 2), ("largest", -1)):
        what = {"what": f"cold, {which} of all goldens", "kernels": len(cases)}
        run.add(what, "ptxgen", us=wall[at] * 1e6, cpu_us=cpu[at] * 1e6)
    run.add({"what": "repeated spec"}, "ptxgen", us=min(repeated_seconds() for _ in range(5)) * 1e6)
    for which, spec in (("the same spec", SPEC), ("an equal spec", replace(SPEC))):
        run.add({"what": f"module cache, {which}"}, "ptxgen", us=min(hit_seconds(spec) for _ in range(5)) * 1e6)
    for what_runs, impl, arguments in PROCESSES:
        run.add({"what": f"process: {what_runs}"}, impl, us=process_seconds([sys.executable, *arguments]) * 1e6)
    compilers(run)


def compilers(run: Run) -> None:
    """Add the rows of a copy kernel: this library's, the compilers' that are installed, and a figure from elsewhere."""
    for name, (installed, seconds) in COMPILERS.items():
        what = {"what": "cold, a copy kernel"}
        if not installed:
            run.add(what, name, why="not installed")
            continue
        try:
            run.add(what, name, us=seconds() * 1e6)
        except Exception as refused:  # another library, in whatever version; its own words say what it lacks
            run.add(what, name, why=(str(refused).strip().splitlines() or [type(refused).__name__])[0])
    run.add({"what": "one kernel's text"}, "trueno-gpu (Rust)", **TRUENO)


def main() -> None:
    command("generation", __doc__, lambda run, _: measure(run))


if __name__ == "__main__":
    in_a_sentence(main)
