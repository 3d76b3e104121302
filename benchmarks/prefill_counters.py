"""What the hardware counts while prefill's attention runs, as ncu sees it: how busy its tensor cores are, and with what
its warps wait.

    python -m benchmarks.prefill_counters                       measure on a GPU with ncu, print, append rows
    python -m benchmarks.prefill_counters --head-dim 128 --tiles 4,2,32,0 …    on mma.sync, as benchmarks.prefill
    python -m benchmarks.prefill_counters --report [--run ID]   the table of the last run, or of one

ncu runs every kernel alone and several times over, so the clock is not that of a chain (`GHz` is its own). `tensor` and
`exponentials` are the share of cycles in which these units are busy, `stalls` what a warp waits for, of its cycles; the
producer's warps and those whose turn it is not count, too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.cases.prefill import SHAPES, Case
from benchmarks.counters import LAUNCH, REASONS, STALL, number, profile, stalls
from benchmarks.peers.prefill import Prepare
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.sentence import in_a_sentence

CASES: tuple[Case, ...] = tuple(
    {"n_heads": heads, "n_kv_heads": kv, "head_dim": dim, "tokens": 8192, "dtype": "bf16"} for heads, kv, dim in SHAPES
)
MEASURES = {  # of a row: ncu's metric, and the factor from its base unit
    "us": ("gpu__time_duration.sum", 1e-3),
    "GHz": ("sm__cycles_elapsed.avg.per_second", 1e-9),
    "tensor_percent": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 1),
    "exponentials_percent": ("sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed", 1),
    "MB_read": ("dram__bytes_read.sum", 1e-6),
    "MB_from_L2": ("lts__t_bytes.sum", 1e-6),
}
WAITS = (*REASONS, "gmma")  # the last: for products of a warpgroup


def main() -> None:
    if sys.argv[1:2] == [LAUNCH]:
        launch(int(sys.argv[2]), sys.argv[3:])
        return
    options = (
        ("--tiles", {"nargs": "+", "default": [], "help": "only ours on mma.sync, with these tiles"}),
        ("--head-dim", {"type": int, "default": 0, "choices": [d for *_, d in SHAPES]}),
    )
    command("prefill_counters", __doc__, lambda run, x: measure(run, x.head_dim, x.tiles), *options, device=gpu)


def cases(head_dim: int) -> list[Case]:
    """Those of one head_dim; 0: all."""
    return [case for case in CASES if head_dim in (0, case["head_dim"])]


def implementations(tiles: Sequence[str]) -> dict[str, Prepare]:
    """Ours as it is, or on mma.sync with each of the tiles."""
    from benchmarks.prefill import ours, tiled

    return {f"ptxgen-sm_80 {text}": tiled(text) for text in tiles} or {"ptxgen": ours()}


def launch(head_dim: int, tiles: Sequence[str]) -> None:
    """Run each case's kernels once between the profiler's start and stop; another set of inputs was run before."""
    import torch

    from benchmarks.cases.prefill import Inputs

    profiler = torch.cuda.cudart()
    for case in cases(head_dim):
        inputs = Inputs(case)
        for impl, prepare in implementations(tiles).items():
            ready = prepare(inputs)
            error = inputs.error(ready.result())
            if not error < 1e-2:
                raise SystemExit(f"{impl} {case}: wrong result, relative error {error:.2g}")
            torch.cuda.synchronize()
            profiler.cudaProfilerStart()
            ready.calls[-1]()
            torch.cuda.synchronize()
            profiler.cudaProfilerStop()
            ready.close()


def measure(run: Run, head_dim: int, tiles: Sequence[str]) -> None:
    """Rows of every case, from one run of ncu."""
    names = [*(name for name, _ in MEASURES.values()), *map(STALL.format, WAITS)]
    wanted = [(case, impl) for case in cases(head_dim) for impl in implementations(tiles)]
    found = profile("benchmarks.prefill_counters", names, str(head_dim), *tiles)
    for (case, impl), each in zip(wanted, found, strict=True):
        measures = {name: number(each[metric]) * factor for name, (metric, factor) in MEASURES.items()}
        waits = stalls({reason: number(each[STALL.format(reason)]) for reason in WAITS})
        run.add(case, impl, **measures, stalls=waits)


if __name__ == "__main__":
    in_a_sentence(main)
