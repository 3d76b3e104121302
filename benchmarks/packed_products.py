"""Products of 8 to 4096 tokens by PackTokens and PackedGemm beside cuBLAS (bf16) and the read of the weights.

    python -m benchmarks.packed_products --seconds 100            measure on a GPU, print, append rows of products
    python -m benchmarks.packed_products --report [--run ID]      the table of the last run, or of one

Every call is a node of a CUDA graph over weights that exceed the L2. Implementations of a case are measured one after
the other, the cases in a random order. `ptxgen`: `PackedGemm.best`, precision "fast"; `programmatic`: the same launched
programmatically; `exact`: the other precision; `pack`: PackTokens. `error`: of 64 tokens, against float64.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.products import FLOORS, SHAPES, Case, Weights
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from ptxgen.generator import generate
from ptxgen.kernels import PackedGemm, PackTokens
from ptxgen.weights import weight_format

TARGET = "sm_90a"
FEW, MANY = (8, 32, 64), (128, 512, 2048, 4096)
QUANTISED = ("q4_k", "int4_g128", "q8_0", "q6_k", "e4m3_channel")
BYTES = 260e6  # of weights in turn: five times the L2
LARGEST = 1 << 16  # outputs of a matrix that many tokens are multiplied with
ROWS = 64  # whose error is taken
NODES = 16


def cases() -> Iterator[Case]:
    """bf16 in every shape and number of tokens; other formats with a few."""
    chosen = [(m, n, k, "bf16") for n, k in SHAPES for m in (*FEW, *MANY) if m <= FEW[-1] or n < LARGEST]
    chosen += [(m, n, k, name) for name in QUANTISED for n, k in SHAPES[:2] for m in (32, 512)]
    for m, n, k, name in chosen:
        yield {"m": m, "n": n, "k": k, "weights": name}


def measure(run: Run, case: Case) -> None:
    """Every implementation of a case, cuBLAS between them."""
    import torch

    from benchmarks.gpu import graph_us, sets_for

    m, n, k, name = case["m"], case["n"], case["k"], case["weights"]
    x = torch.randn(m, k, device="cuda")
    weights = Weights(name, n, k)
    nbytes = weights.packed.numel()
    count = min(24, sets_for(nbytes, BYTES))
    copies = [weights.packed, *(weights.packed.clone() for _ in range(count - 1))]
    ours = ["ptxgen", *(["programmatic"] if m <= FEW[-1] else []), *(["exact"] if (n, k) in SHAPES[:2] else [])]
    for impl in ours:
        _ours(run, case, impl, weights, copies, x)
    del weights, copies
    if name == "bf16":
        matrices = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
        half = x.bfloat16()
        calls = [partial(torch.mm, half, each.t()) for each in matrices]
        us = graph_us(calls * max(1, NODES // count))
        run.add(case, "cublas", us=us, bytes=nbytes, tbs=nbytes / us / 1e6, tflops=2 * m * n * k / us / 1e6)
    shown = {row["impl"]: round(row["us"], 2) for row in run.rows if row["case"] == case}
    print(case, shown, flush=True)


def _ours(run: Run, case: Case, impl: str, weights: Weights, copies: Sequence[Any], x: Any) -> None:
    import torch

    from benchmarks.gpu import Loaded, graph_us

    m, n, k = case["m"], case["n"], case["k"]
    fields = {"precision": "exact" if impl == "exact" else "fast", "programmatic": impl == "programmatic"}
    spec = PackedGemm.best(m, n=n, k=k, weights=case["weights"], **fields)
    pack = Loaded(generate(PackTokens(k, spec.tokens, precision=spec.precision), TARGET), rows=m)
    shape = next(p for p in pack.ptx.params if p.name == "out")
    packed = torch.zeros(shape.elements({"rows": m}), dtype=torch.bfloat16, device="cuda")
    packing = pack.bind(x=x, out=packed, n_rows=m)
    packing()
    loaded = Loaded(generate(spec, TARGET), rows=m)
    out = torch.full((m, n), torch.nan, device="cuda")
    loaded.bind(x=packed, weight=weights.packed, out=out, n_rows=m)()
    some = torch.arange(0, m, max(1, m // ROWS), device="cuda")
    wanted = weights.product(x[some])
    error = float((out[some].double() - wanted).norm() / wanted.norm())
    calls = [loaded.bind(x=packed, weight=copy, out=out, n_rows=m) for copy in copies]
    us = graph_us(calls * max(1, NODES // len(calls)))
    nbytes = weights.packed.numel()
    tile = f"{spec.tokens}x{spec.tile_rows}x{spec.split}"
    run.add(
        case, impl, us=us, bytes=nbytes, tbs=nbytes / us / 1e6, tflops=2 * m * n * k / us / 1e6, error=error, tile=tile
    )
    if impl == "ptxgen":
        run.add(case, "pack", us=graph_us([packing] * NODES))
    loaded.close()
    pack.close()


def floors(run: Run, wanted: Sequence[Case]) -> None:
    """The read of each case's weights, between the sizes that are measured."""
    from benchmarks.peers.read_floor import Floor

    floor = Floor()
    times = [floor.us(size) for size in FLOORS]
    for case in wanted:
        nbytes = weight_format(case["weights"]).nbytes(case["n"], case["k"])
        run.add(case, "floor", us=float(np.interp(nbytes, FLOORS, times)), bytes=nbytes)


def main(run: Run, given: argparse.Namespace) -> None:
    """As many cases as there is time for."""
    ends = time.monotonic() + given.seconds
    chosen = [case for case in cases() if not given.weights or case["weights"] in given.weights.split(",")]
    random.shuffle(chosen)
    done = []
    for case in chosen:
        if time.monotonic() > ends - 8:  # the floor takes a few seconds
            print("no time for", case, flush=True)
            continue
        measure(run, case)
        done.append(case)
    floors(run, done)


IMPLS = ("ptxgen", "programmatic", "exact", "pack", "cublas", "floor")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line a case: µs of every implementation, cuBLAS ÷ ours, TFLOP/s, the error."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        found.setdefault(tuple(row["case"].values()), {})[row["impl"]] = row
    head = ("tokens", "N × K", "weights", *(f"{impl}, µs" for impl in IMPLS), "cuBLAS ÷ ours", "TFLOP/s", "error")
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for (m, n, k, name), each in sorted(found.items(), key=lambda item: (item[0][3], item[0][1:3], item[0][0])):
        ours = each.get("ptxgen")
        if ours is None or "tile" not in ours:
            continue
        cells = [f"{each[impl]['us']:.2f}" if impl in each else "" for impl in IMPLS]
        ratio = f"{each['cublas']['us'] / ours['us']:.2f}" if "cublas" in each else ""
        lines.append(
            f"| {m} | {n}×{k} | {name} | {' | '.join(cells)} | {ratio} | {ours['tflops']:.0f} | {ours['error']:.1e} |"
        )
    return "\n".join(lines)


OPTIONS = (
    ("--seconds", {"type": float, "default": 100.0, "help": "how long to measure"}),
    ("--weights", {"help": "only these formats, separated by commas"}),
)

if __name__ == "__main__":
    command("products", __doc__, main, *OPTIONS, device=gpu, table=table, at_once=True)
