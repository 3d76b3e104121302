"""Products of 8 to 4096 tokens by PackTokens and PackedGemm beside cuBLAS (bf16) and the read of the weights.

    python -m benchmarks.packed_products --seconds 100            measure on a GPU, print, append rows of products
    python -m benchmarks.packed_products --impls programmatic     of ours only these
    python -m benchmarks.packed_products --report [--run ID]      the table of the last run, or of one

Every call is a node of a CUDA graph over weights that exceed the L2, the same values for all. Implementations of a case
are measured in rounds, each in a random order, and the median counts. `ptxgen`: `PackedGemm.best`,
precision "fast", results in bf16 as cuBLAS has them; `programmatic`: the same launched programmatically; `exact`: the
other precision, results in f32; `pack`: PackTokens. `error`: of 64 tokens, against float64.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.products import FLOORS, SHAPES, Case, Weights
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.timing.prepared import Made, prepared
from ptxgen.dtypes import bf16
from ptxgen.kernel import KernelType
from ptxgen.kernels import PackedGemm, PackTokens
from ptxgen.weights import weight_format

TARGET = "sm_90a"
FEW, MANY = (8, 32, 64), (128, 512, 2048, 4096)
QUANTISED = ("q4_k", "int4_g128", "q8_0", "q6_k", "e4m3_channel")
BYTES = 260e6  # of weights in turn: five times the L2
ROWS = 64  # whose error is taken
NODES = 16
ROUNDS = 5  # where the card's power decides, two measurements of a kernel differ by up to 10 %
REPLAYS = 5  # of a graph in a round
SETTLE = 0.02  # seconds before a measurement
MOST_US = 6000.0  # of a graph, where the weights allow it
TYPES = {"f32": "float32", "bf16": "bfloat16"}


def cases() -> Iterator[Case]:
    """bf16 in every shape and number of tokens; other formats with a few."""
    chosen = [(m, n, k, "bf16") for n, k in SHAPES for m in (*FEW, *MANY)]
    chosen += [(m, n, k, name) for name in QUANTISED for n, k in SHAPES[:2] for m in (32, 512)]
    for m, n, k, name in chosen:
        yield {"m": m, "n": n, "k": k, "weights": name}


def specs(case: Case, impls: str | None = None) -> dict[str, PackedGemm]:
    """By name, the products that are measured of a case: all, or those of `impls`, separated by commas."""
    m, fields = case["m"], {name: case[name] for name in ("n", "k", "weights")}
    found = {}
    for impl in ("ptxgen", "programmatic"):
        programmatic = impl == "programmatic"
        found[impl] = PackedGemm.best(m, precision="fast", out_dtype=bf16, programmatic=programmatic, **fields)
    if (case["n"], case["k"]) in SHAPES[:2]:
        found["exact"] = PackedGemm.best(m, precision="exact", **fields)
    return found if impls is None else {impl: spec for impl, spec in found.items() if impl in impls.split(",")}


def packing(spec: PackedGemm) -> PackTokens:
    """What packs the tokens of a product."""
    return PackTokens(spec.k, spec.tokens, precision=spec.precision)


def named(spec: PackedGemm) -> str:
    """`TOKENSxROWSxSPLITxSHARE`, and `by memory` where CTAs share k without being a cluster, `last N` where the last N
    tiles of rows are of one warpgroup; 0: by the table."""
    tile = "x".join(str(part) for part in (spec.tokens, spec.tile_rows, spec.split, spec.share))
    tile += f" last {spec.last_tiles}" if spec.last_tiles else ""
    tile += f" last turn by {spec.last_split}" if spec.last_split else ""
    return f"{tile} by memory" if spec.by_memory else tile


def measure(
    run: Run, case: Case, kernels: Callable[[KernelType], Made], impls: str | None = None, rounds: int = ROUNDS
) -> None:
    """Every implementation of a case, or of ours those of `impls` alone, in rounds."""
    import torch

    from benchmarks.timing.gpu import Chain, Loaded, sets_for

    m, n, k, name = case["m"], case["n"], case["k"], case["weights"]
    x = torch.randn(m, k, device="cuda")
    weights = Weights(name, n, k)
    nbytes = weights.packed.numel()
    count = min(24, sets_for(nbytes, BYTES))
    copies = [weights.packed, *(weights.packed.clone() for _ in range(count - 1))]
    some = torch.arange(0, m, max(1, m // ROWS), device="cuda")
    wanted = weights.product(x[some])
    calls: dict[str, Sequence[Callable[[], Any]]] = {}
    about: dict[str, dict[str, Any]] = {}
    loaded, tiles = [], {}
    for impl, spec in specs(case, impls).items():
        pack = packing(spec)
        if pack not in tiles:
            loaded.append(Loaded(*kernels(pack), rows=m))
            shape = next(p for p in loaded[-1].ptx.params if p.name == "out")
            tiles[pack] = torch.zeros(shape.elements({"rows": m}), dtype=torch.bfloat16, device="cuda")
            call = loaded[-1].bind(x=x, out=tiles[pack], n_rows=m)
            call()
            if impls is None or "pack" in impls.split(","):
                calls.setdefault("pack", [call] * NODES)
        kernel = Loaded(*kernels(spec), rows=m)
        loaded.append(kernel)
        out = torch.full((m, n), torch.nan, device="cuda", dtype=getattr(torch, TYPES[spec.out_dtype.name]))
        calls[impl] = [kernel.bind(x=tiles[pack], weight=copy, out=out, n_rows=m) for copy in copies]
        calls[impl][0]()
        error = float((out[some].double() - wanted).norm() / wanted.norm())
        about[impl] = {"error": error, "tile": named(spec), "out": spec.out_dtype.name}
    if name == "bf16":
        rows = weights.wide.bfloat16().repeat(-(-n // len(weights.wide)), 1)[:n].contiguous()
        half, result = x.bfloat16(), torch.empty((m, n), dtype=torch.bfloat16, device="cuda")
        calls["cublas"] = [partial(torch.mm, half, rows.clone().t(), out=result) for _ in range(count)]
    least = max(2 * m * n * k / 700e6, nbytes / 4.8e6, 4)  # µs of a product
    times = max(1, int(min(NODES / count, MOST_US / (count * least))))
    us: dict[str, list[float]] = {impl: [] for impl in calls}
    chains = {impl: Chain(each if impl == "pack" else list(each) * times) for impl, each in calls.items()}
    for _ in range(rounds):
        for impl in random.sample(sorted(chains), len(chains)):
            us[impl].append(chains[impl].us(REPLAYS, SETTLE))
    for impl, found in us.items():
        took = statistics.median(found)
        rates = {"bytes": nbytes, "tbs": nbytes / took / 1e6, "tflops": 2 * m * n * k / took / 1e6}
        run.add(case, impl, us=took, **({} if impl == "pack" else rates), **about.get(impl, {}))
    print(case, {impl: round(statistics.median(found), 2) for impl, found in us.items()}, flush=True)
    torch.cuda.synchronize()
    del chains
    for kernel in loaded:
        kernel.close()


def floors(run: Run, wanted: Sequence[Case]) -> None:
    """The read of each case's weights, between the sizes that are measured."""
    from benchmarks.peers.read_floor import Floor

    floor = Floor()
    times = [floor.us(size) for size in FLOORS]
    for case in wanted:
        nbytes = weight_format(case["weights"]).nbytes(case["n"], case["k"])
        run.add(case, "floor", us=float(np.interp(nbytes, FLOORS, times)), bytes=nbytes)


def is_chosen(case: Case, given: argparse.Namespace) -> bool:
    """Whether its weights and its tokens are asked for."""
    asked = ((given.weights, case["weights"]), (given.tokens, str(case["m"])))
    return all(not some or value in some.split(",") for some, value in asked)


def main(run: Run, given: argparse.Namespace) -> None:
    """As many cases as there is time for, those of bf16 first."""
    chosen = [case for case in cases() if is_chosen(case, given)]
    random.shuffle(chosen)
    chosen.sort(key=lambda case: case["weights"] != "bf16")
    wanted = [each for case in chosen for spec in specs(case, given.impls).values() for each in (packing(spec), spec)]
    how = partial(measure, impls=given.impls, rounds=given.rounds)
    as_time_allows(run, chosen, wanted, how, given.seconds)


def as_time_allows(
    run: Run,
    chosen: Sequence[Case],
    wanted: Sequence[KernelType],
    measure: Callable[[Run, Case, Callable[[KernelType], Made]], None],
    seconds: float,
) -> None:
    """Measure cases one after the other, their kernels (`wanted`, in the order of use) made ahead; then the floors."""
    ends = time.monotonic() + seconds
    done, coming = [], prepared(wanted, TARGET)
    found: dict[KernelType, Made] = {}

    def kernel(spec: KernelType) -> Made:
        while spec not in found:
            found.update([next(coming)])
        return found[spec]

    for case in chosen:
        if time.monotonic() > ends - 4:  # the floor takes a few seconds
            print("no time for", case, flush=True)
            continue
        measure(run, case, kernel)
        done.append(case)
    floors(run, done)


# `stream` is in older rows alone: k of many tokens shared out evenly
IMPLS = ("ptxgen", "programmatic", "stream", "exact", "pack", "cublas", "floor")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line a case: µs of every implementation that has rows, the tile, cuBLAS ÷ ours as `programmatic`, TFLOP/s, the
    error."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        found.setdefault(tuple(row["case"].values()), {})[row["impl"]] = row
    shown = [impl for impl in IMPLS if any(impl in each for each in found.values())]
    head = (
        "tokens",
        "N × K",
        "weights",
        *(f"{impl}, µs" for impl in shown),
        "tile",
        "cuBLAS ÷ ours",
        "TFLOP/s",
        "error",
    )
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for (m, n, k, name), each in sorted(found.items(), key=lambda item: (item[0][3], item[0][1:3], item[0][0])):
        ours = each.get("programmatic", each.get("ptxgen"))
        if ours is None or "tile" not in ours:
            continue
        cells = [f"{each[impl]['us']:.2f}" if impl in each else "" for impl in shown]
        cells += [ours["tile"], f"{each['cublas']['us'] / ours['us']:.2f}" if "cublas" in each else ""]
        lines.append(f"| {m} | {n}×{k} | {name} | {' | '.join(cells)} | {ours['tflops']:.0f} | {ours['error']:.1e} |")
    return "\n".join(lines)


RANGES = ((8, 64), (128, 128), (512, 512), (2048, 4096))  # tokens from, to


def ratios(rows: Sequence[dict[str, Any]]) -> str:
    """Geometric means and least of cuBLAS ÷ ours for ranges of tokens, of ours as `programmatic` where it is."""
    us: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        us.setdefault(tuple(row["case"].values()), {})[row["impl"]] = row["us"]
    said = []
    for least, most in RANGES:
        found = [
            each["cublas"] / (each["programmatic"] if "programmatic" in each else each["ptxgen"])
            for case, each in us.items()
            if least <= case[0] <= most and "cublas" in each and {"programmatic", "ptxgen"} & each.keys()
        ]
        if found:
            tokens = f"{least} to {most}" if least < most else f"{least}"
            mean = math.exp(sum(map(math.log, found)) / len(found))
            said.append(f"{mean:.2f} for {tokens} tokens (least {min(found):.2f})")
    return ", ".join(said)


CHOICES = (
    ("--seconds", {"type": float, "default": 100.0, "help": "how long to measure"}),
    ("--weights", {"help": "only these formats, separated by commas"}),
    ("--tokens", {"help": "only these numbers of tokens, separated by commas"}),
)

HOW = (
    ("--impls", {"help": "of ours only these, separated by commas; pack: the packing of tokens"}),
    ("--rounds", {"type": int, "default": ROUNDS, "help": "how often each is measured"}),
)

if __name__ == "__main__":
    command("products", __doc__, main, *CHOICES, *HOW, device=gpu, table=table, at_once=True)
