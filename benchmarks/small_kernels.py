"""The kernels around attention in a decode step: RopeKvAppend, KvCacheScatter, Rope, ArgMax, as nodes of a graph.

    python -m benchmarks.small_kernels                       measure on a GPU, print, append rows
    python -m benchmarks.small_kernels --report [--run ID]   the table of the last run, or of one

`us` with all inputs in the L2 cache, where the kernel before leaves them; `cold_us` over so many inputs that they are
not (the KV cache stays the same). `programmatic`: the same chain launched programmatically. `empty`: a kernel that does
nothing. `torch`: the same by torch's own operators, in the same kind of graph. Results are checked against the NumPy
reference.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.schedule import SECONDS, in_time
from benchmarks.report.sentence import in_a_sentence
from benchmarks.timing.prepared import ahead, kernel
from ptxgen.kernel import KernelType
from ptxgen.kernels import ArgMax, KvCacheScatter, Rope, RopeKvAppend

NODES = 200
SHAPES = ((32, 8, 128), (32, 4, 64), (12, 2, 128), (32, 32, 128))
LLAMA3 = {"theta": 500000.0, "scaling": "llama3", "factor": 8.0}
EMPTY = """.version 7.8
.target sm_90
.address_size 64
.visible .entry empty() { ret; }
"""


def specs() -> Iterator[tuple[KernelType, int]]:
    """What is measured: kernels, and their rows."""
    for heads, kv_heads, dim in SHAPES:
        shape = {"max_len": 4096, "head_dim": dim, "n_kv_heads": kv_heads}
        for rows in (1, 32):
            where = {"indirect": True} if rows == 1 else {"batched": True}
            shape["max_len"] = 4096 if rows == 1 else 256
            for src, kv in (("f16", "f16"), ("f32", "f16"), ("f16", "s8"), ("f16", "e4m3")):
                yield RopeKvAppend(**shape, n_heads=heads, src_dtype=src, kv_dtype=kv, **where, **LLAMA3), rows
            yield KvCacheScatter(**shape, src_dtype="f16", kv_dtype="f16", **where), rows
            yield Rope(dim, heads, kv_heads, dtype="f16", **where, **LLAMA3), rows
    yield RopeKvAppend(4096, 128, 32, 8, src_dtype="f16", kv_dtype="f16", indirect=True, precise=True), 1
    yield RopeKvAppend(4096, 128, 32, 8, src_dtype="f16", kv_dtype="f16", indirect=True, style="norm"), 1
    yield KvCacheScatter(8192, 128, 8, src_dtype="f16", kv_dtype="f16"), 8192
    for n in (32000, 128256, 151936):
        for dtype in ("f32", "f16"):
            for rows in (1, 32):
                yield ArgMax(n, dtype), rows


def measure(run: Run, spec: KernelType, rows: int, target: str) -> None:
    """One kernel, plain and programmatic."""
    case = {"kernel": spec.slug and f"{spec.kernel_name} {spec.slug}", "rows": rows}
    sizes = {"rows": rows, **({"position": 0} if "position" in spec.sizes else {})}
    given = spec.example(np.random.default_rng(0), **sizes)
    want = spec.reference(**{name: np.array(value) for name, value in given.items()})
    for impl, chosen in both(spec).items():
        run.add(case, impl, **_timed(chosen, rows, target, given, want))
    print(case, {row["impl"]: row.get("us") for row in run.rows if row["case"] == case}, flush=True)


def both(spec: KernelType) -> dict[str, KernelType]:
    """A kernel, plain and programmatic."""
    return {"ptxgen": spec, "programmatic": dataclasses.replace(spec, programmatic=True)}  # type: ignore[type-var]


def _timed(
    spec: KernelType, rows: int, target: str, given: Mapping[str, Any], want: Mapping[str, Any]
) -> dict[str, float]:
    """Hot and cold microseconds, the bytes of all inputs and outputs, and the largest error of an output."""
    from benchmarks.timing.gpu import Loaded, download, graph_us, sets_for, upload

    loaded = Loaded(*kernel(spec, target), rows=rows)

    caches = {n: upload(v) for n, v in given.items() if n.endswith(("_cache", "_scales"))}

    def bind() -> tuple[Callable[[], None], dict[str, Any]]:
        inputs = {n: v for n, v in given.items() if n not in caches}
        held = {n: upload(v) if isinstance(v, np.ndarray) and v.ndim else v for n, v in inputs.items()} | caches
        return loaded.bind(**held), held

    call, held = bind()
    call()
    errors = [_error(download(held[n], np.asarray(v)), np.asarray(v)) for n, v in want.items()]
    hot = graph_us([call] * NODES)
    touched = sum(v.nbytes for n, v in given.items() if isinstance(v, np.ndarray) and n not in caches)
    sets = [bind() for _ in range(sets_for(touched))]
    cold = graph_us([c for c, _ in sets])
    loaded.close()
    return {"us": hot, "cold_us": cold, "bytes": touched, "error": max(errors)}


def _error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference, over the largest magnitude; int8 in steps of 127."""
    g, w = got.astype(np.float64), want.astype(np.float64)
    both = np.isfinite(g) & np.isfinite(w)
    return float(np.abs(g - w)[both].max() / max(1e-30, np.abs(w[both]).max()))


def peers(run: Run) -> None:
    """An empty kernel, and torch's own operators."""
    import torch
    from cuda.bindings import driver

    from benchmarks.timing.gpu import check, graph_us

    torch.zeros(1, device="cuda")
    module = check(driver.cuModuleLoadData(EMPTY.encode() + b"\0"))
    function = check(driver.cuModuleGetFunction(module, b"empty"))

    def empty() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        check(driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))

    run.add({"kernel": "empty", "rows": 1}, "empty", us=graph_us([empty] * NODES))
    for n in (32000, 128256, 151936):
        for name, dtype in (("f32", torch.float32), ("f16", torch.float16)):
            for rows in (1, 32):
                x = torch.randn(rows, n, device="cuda").to(dtype)
                case = {"kernel": f"arg_max {ArgMax(n, name).slug}", "rows": rows}
                run.add(case, "torch", us=graph_us([partial(torch.argmax, x, 1)] * NODES))
    for heads, kv_heads, dim in SHAPES:
        spec = RopeKvAppend(4096, dim, heads, kv_heads, src_dtype="f16", kv_dtype="f16", indirect=True, **LLAMA3)
        case = {"kernel": f"rope_kv_append {spec.slug}", "rows": 1}
        run.add(case, "torch", us=graph_us([_torch_step(heads, kv_heads, dim)] * NODES))


def _torch_step(heads: int, kv_heads: int, dim: int) -> Callable[[], None]:
    """Rotation of q and k by tables of cosines, and index_copy into the cache."""
    import torch

    half = {"device": "cuda", "dtype": torch.float16}
    q, k, v = (torch.randn(n, dim, **half) for n in (heads, kv_heads, kv_heads))
    cos, sin = (torch.randn(4096, dim, **half) for _ in range(2))
    k_cache, v_cache = (torch.zeros(kv_heads, 4096, dim, **half) for _ in range(2))
    position = torch.tensor([7], device="cuda")

    def rotated(x: Any, c: Any, s: Any) -> Any:
        low, high = x.chunk(2, -1)
        return x * c + torch.cat((-high, low), -1) * s

    def step() -> None:
        c, s = cos[position], sin[position]
        q.copy_(rotated(q, c, s))
        k_cache.index_copy_(1, position, rotated(k, c, s)[:, None])
        v_cache.index_copy_(1, position, v[:, None])

    return step


def main() -> None:
    target = ("--target", {"default": "", "help": "default: the device's own"})

    def measure_some(run: Run, given: argparse.Namespace) -> None:
        measure_all(run, given.target, given.seconds)

    command("small_kernels", __doc__, measure_some, target, SECONDS, device=gpu, at_once=True)


def measure_all(run: Run, target: str, seconds: float) -> None:
    """Add rows of every spec, and of the peers of each, as far as the time goes."""
    import torch

    from ptxgen.targets import target_of_capability

    target = target or target_of_capability(*torch.cuda.get_device_capability()).name
    ends, wanted = time.monotonic() + seconds, list(specs())
    ahead(((each, target) for spec, _ in wanted for each in both(spec).values()), target)
    peers(run)
    for spec, rows in in_time(wanted, ends):
        measure(run, spec, rows, target)


if __name__ == "__main__":
    in_a_sentence(main)
