"""One decoding step of attention through `Executor.incremental_attention` with host arrays, split into its parts.

python -m benchmarks.host_attention [--length 4096] [--report [--run ID]]      needs a GPU
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.sentence import in_a_sentence
from ptxgen.runtime import Device, Executor, open_device

SHAPE = {"n_heads": 32, "n_kv_heads": 4, "head_dim": 64}  # TinyLlama 1.1B
ROUNDS, NODES = 200, 200


def median_us(job: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Median wall time of a call."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e6


def kernel_us(device: Device, bound: object) -> float:
    """Device time of one launch, as one of many nodes of a graph."""
    graph = device.graph()
    for _ in range(NODES):
        graph.add(bound)
    stream = device.stream()
    graph.launch(stream)
    stream.synchronize()
    times = []
    for _ in range(7):
        start = stream.record()
        graph.launch(stream)
        end = stream.record()
        end.synchronize()
        times.append(end.elapsed_us(start) / NODES)
    found: float = min(times)
    return found


def measure(device: Device, run: Run, length: int, kv_dtype: str) -> None:
    """The whole call, and its parts."""
    ex = Executor(device, n_layers=1, max_len=length, kv_dtype=kv_dtype, **SHAPE)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((SHAPE[n], 64), np.float32) for n in ("n_heads", "n_kv_heads", "n_kv_heads"))
    out = np.empty_like(q)
    for buffer in ex.cache.buffers(0).values():
        buffer.fill(0.01)
    stream, cache = ex.stream, ex.cache

    def whole() -> None:
        cache.set_length(0, length - 1)
        ex.incremental_attention(0, q, k, v, out)

    def part(job: Callable[[], object]) -> Callable[[], None]:
        def run_it() -> None:
            job()
            stream.synchronize()

        return run_it

    whole()
    buffers = ex._buffers(q=q, k=k, v=v, out=out)
    attention = ex._kernels.step(0, buffers["q"], buffers["out"], length)
    cache.set_length(0, length - 1)
    append = cache._scatter(0, *(buffers[n].reshape(1, *buffers[n].shape) for n in "kv"), length - 1)
    rows_of = {n: buffers[n].reshape(1, *buffers[n].shape) for n in "kv"}

    def checks() -> None:
        found = ex._buffers(q=q, k=k, v=v, out=out)
        ex._kernels.step(0, found["q"], found["out"], length)
        cache._scatter(0, rows_of["k"], rows_of["v"], length - 1)

    case = {**SHAPE, "context": length, "kv_dtype": kv_dtype}
    rows = {
        "whole call": median_us(whole),
        "arguments checked and packed, host": median_us(checks),
        "upload and its wait": median_us(part(lambda: ex._arguments.upload({"q": q, "k": k, "v": v}, stream))),
        "download and its wait": median_us(part(lambda: ex._arguments.download("out", out, stream))),
        "two launches, host": median_us(lambda: (append.launch(stream), attention.launch(stream))),
        # last: they run on a stream of their own, which the calls above would have to be ordered with
        "append kernel": kernel_us(device, *append.launches),
        "attention kernel": kernel_us(device, *attention.launches),
    }
    for name, us in rows.items():
        row = run.add(case, name, us=us)
        print(f"{kv_dtype} {length:6d}  {name:36s} {row['us']:8.2f} µs", flush=True)


def main() -> None:
    length = ("--length", {"type": int, "default": 4096})
    command(
        "host_attention", __doc__, lambda run, given: measure_all(run, given.length), length, device=gpu, at_once=True
    )


def measure_all(run: Run, length: int) -> None:
    """With a cache of either type."""
    device = open_device("cuda")
    for kv_dtype in ("f32", "f16"):
        measure(device, run, length, kv_dtype)


if __name__ == "__main__":
    in_a_sentence(main)
