"""Tiles of PackedGemm beside each other and beside cuBLAS, to choose the table's: bf16 weights, 8 to 4096 tokens.

    python -m benchmarks.packed_tiles --seconds 300             measure on a GPU, print, append rows
    python -m benchmarks.packed_tiles --tokens 64,512           only these numbers of tokens
    python -m benchmarks.packed_tiles --report [--run ID]       the table of the last run, or of one

Of each case: what `PackedGemm.best` takes (`best`), the same with results in bf16, as cuBLAS has them (`best in bf16`),
and the likeliest of all legal tiles with such results, those that no table takes among them. Every call is a node of a
CUDA graph over weights that exceed the L2; a case's implementations are measured twice, each time in a random order,
and the better time counts. `error`: of 64 tokens, against float64. A tile's name is TOKENSxROWSxSPLITxSHARE; `-`: by
the table.
"""

from __future__ import annotations

import argparse
import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import Any

from benchmarks.packed_products import BYTES, FEW, MANY, NODES, ROWS, TARGET
from benchmarks.products import SHAPES, Case, Weights
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.schedule import as_there_is_time
from ptxgen.dtypes import bf16
from ptxgen.errors import SpecError
from ptxgen.generator import generate
from ptxgen.kernels import PackedGemm, PackTokens
from ptxgen.products.wgmma.cost_model.candidates import SPLITS
from ptxgen.products.wgmma.cost_model.cycles import cycles
from ptxgen.products.wgmma.cost_model.waves import shares_last
from ptxgen.products.wgmma.tiling.geometry import Geometry
from ptxgen.products.wgmma.tiling.shape import MOST_ROWS_FIRST
from ptxgen.products.wgmma.tokens.layout import TOKENS

LARGEST = 1 << 16  # outputs of a matrix whose tiles are tried
TILE_ROWS, SHARES, LAST_SPLITS = (64, 128, 192, 256), (1, 2, 4), (8, 6, 4, 3, 2)
LIKELIEST = 8  # of a case, beside the table's
# rows, split and share that are tried for a few tokens, where the model of cycles sees the weights' read alone
OF_FEW = ((64, 1, 2), (64, 1, 4), (128, 1, 1), (128, 1, 2), (192, 1, 1), (64, 2, 1))


def cases() -> Iterator[Case]:
    """bf16 in every shape and number of tokens."""
    for m, (n, k) in product((*FEW, *MANY), SHAPES):
        if n < LARGEST:
            yield {"m": m, "n": n, "k": k, "weights": "bf16"}


def choices(case: Case, likeliest: int = LIKELIEST) -> dict[str, PackedGemm]:
    """By name, what is measured of a case."""
    m, n, k = case["m"], case["n"], case["k"]
    best = PackedGemm.best(m, n=n, k=k, weights=case["weights"], precision="fast")
    found = {"best": best, "best in bf16": replace(best, out_dtype=bf16)}
    known = {Geometry.of(found["best in bf16"])}
    for spec in sorted(_all(replace(best, out_dtype=bf16), m), key=lambda spec: cycles(spec, m)):
        at = Geometry.of(spec)
        if len(found) < 2 + likeliest and at not in known:
            known.add(at)
            found[named(spec)] = spec
    return found


def _all(best: PackedGemm, m: int) -> Iterator[PackedGemm]:
    """Every legal tile for many tokens; for a few, those worth a try."""
    counts = [count for count in TOKENS if count >= MOST_ROWS_FIRST] if m > MOST_ROWS_FIRST else [best.tokens]
    shapes = product(TILE_ROWS, SPLITS, SHARES) if m > MOST_ROWS_FIRST else OF_FEW
    for tokens, (tile_rows, split, share) in product(counts, shapes):
        tile = {"tokens": tokens, "tile_rows": tile_rows, "split": split, "share": share}
        yield from _made(best, {**tile, "by_memory": False, "last_split": 0})
        yield from _made(best, {**tile, "by_memory": True, "last_split": 0})
        ways = (_made(best, {**tile, "by_memory": False, "last_split": last}) for last in LAST_SPLITS)
        yield from islice((spec for way in ways for spec in way if shares_last(Geometry.of(spec), m)), 1)


def _made(best: PackedGemm, tile: dict[str, Any]) -> Iterator[PackedGemm]:
    """The same product with another tile, if that is legal."""
    with contextlib.suppress(SpecError):
        yield replace(best, **tile)


def named(spec: PackedGemm) -> str:
    """`TOKENSxROWSxSPLITxSHARE`, and whether CTAs share k by memory, or that of the last turn."""
    tile = "x".join(str(part or "-") for part in (spec.tokens, spec.tile_rows, spec.split, spec.share))
    tile += f" last turn by {spec.last_split}" if spec.last_split else ""
    return f"{tile} by memory" if spec.by_memory else tile


def measure(run: Run, case: Case) -> None:
    """Every choice of a case, and cuBLAS."""
    import torch

    from benchmarks.timing.gpu import Loaded, graph_us, sets_for

    types = {"f32": torch.float32, "bf16": torch.bfloat16}
    m, n, k = case["m"], case["n"], case["k"]
    x, weights = torch.randn(m, k, device="cuda"), Weights(case["weights"], n, k)
    count = min(24, sets_for(weights.packed.numel(), BYTES))
    copies = [weights.packed, *(weights.packed.clone() for _ in range(count - 1))]
    matrices = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    half, times = x.bfloat16(), max(1, NODES // count)
    some = torch.arange(0, m, max(1, m // ROWS), device="cuda")
    wanted = weights.product(x[some])
    calls: dict[str, Sequence[Any]] = {"cublas": [partial(torch.mm, half, each.t()) for each in matrices]}
    about: dict[str, dict[str, Any]] = {"cublas": {}}
    loaded, packed = [], {}
    for name, spec in choices(case).items():
        if spec.tokens not in packed:
            loaded.append(Loaded(generate(PackTokens(k, spec.tokens, precision="fast"), TARGET), rows=m))
            shape = next(p for p in loaded[-1].ptx.params if p.name == "out")
            tiles = torch.zeros(shape.elements({"rows": m}), dtype=torch.bfloat16, device="cuda")
            loaded[-1].bind(x=x, out=tiles, n_rows=m)()
            packed[spec.tokens] = tiles
        kernel = Loaded(generate(spec, TARGET), rows=m)
        loaded.append(kernel)
        out = torch.full((m, n), torch.nan, device="cuda", dtype=types[spec.out_dtype.name])
        bound = [kernel.bind(x=packed[spec.tokens], weight=copy, out=out, n_rows=m) for copy in copies]
        bound[0]()
        error = float((out[some].double() - wanted).norm() / wanted.norm())
        calls[name], about[name] = bound, {"tile": named(spec), "out": spec.out_dtype.name, "error": error}
    us: dict[str, float] = {}
    for _ in range(2):
        for name in random.sample(sorted(calls), len(calls)):
            us[name] = min(us.get(name, float("inf")), graph_us(list(calls[name]) * times))
    for name, took in us.items():
        run.add(case, name, us=took, tflops=2 * m * n * k / took / 1e6, **about[name])
    torch.cuda.synchronize()
    for kernel in loaded:
        kernel.close()


def main(run: Run, given: argparse.Namespace) -> None:
    """As many cases as there is time for, in a random order."""
    chosen = [case for case in cases() if not given.tokens or str(case["m"]) in given.tokens.split(",")]
    random.shuffle(chosen)
    as_there_is_time(run, chosen, measure, given.seconds)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line a case: cuBLAS, the table's tile with results in f32 and in bf16, the fastest; cuBLAS ÷ each."""
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row["case"].values()), {})[row["impl"]] = row
    head = (
        "tokens", "N × K", "cuBLAS, µs", "best, µs", "in bf16, µs", "fastest, µs", "its tile", "cuBLAS ÷ each",
        "largest error",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for (m, n, k, _), each in sorted(found.items(), key=lambda item: (item[0][1:3], item[0][0])):
        ours = [row for impl, row in each.items() if impl != "cublas"]
        if not {"cublas", "best", "best in bf16"} <= each.keys():
            continue
        fastest = min(ours, key=lambda row: float(row["us"]))
        shown = (each["best"], each["best in bf16"], fastest)
        us = each["cublas"]["us"]
        cells = (
            m, f"{n}×{k}", f"{us:.1f}", *(f"{row['us']:.1f}" for row in shown), f"{fastest['tile']} {fastest['out']}",
            " / ".join(f"{us / row['us']:.2f}" for row in shown), f"{max(row['error'] for row in ours):.1e}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


OPTIONS = (
    ("--seconds", {"type": float, "default": 300.0, "help": "how long to measure"}),
    ("--tokens", {"help": "only these numbers of tokens, separated by commas"}),
)

if __name__ == "__main__":
    command("packed_tiles", __doc__, main, *OPTIONS, device=gpu, table=table, at_once=True)
