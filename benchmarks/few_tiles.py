"""Tiles of PackedGemm for up to 64 tokens beside each other and cuBLAS: what `few_tokens.py` of the cost model knows.

    python -m benchmarks.few_tiles --seconds 60             measure on a GPU, print, append rows
    python -m benchmarks.few_tiles --how exact,scaled       only these ways to multiply
    python -m benchmarks.few_tiles --report [--run ID]      the table of the last run, or of one

Every legal tile of each case, launched programmatically, as nodes of a CUDA graph over weights that exceed the L2; the
graphs of a case are replayed in turns, each time in another order, and the median counts. cuBLAS multiplies tokens in
e4m3 by weights in e4m3 (scales of rows), others in bf16, whatever ours are packed in. A tile's name is
TOKENSxROWSxSPLITxSLICES.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

from benchmarks.packed_products import TARGET
from benchmarks.products import Case, Weights
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.schedule import as_there_is_time
from ptxgen.dtypes import bf16, e4m3
from ptxgen.generator import generate
from ptxgen.kernels import PackedGemm, PackTokens
from ptxgen.products.wgmma.cost_model.few_tokens import COSTS, candidates

SHAPES = (
    (2048, 2048), (3072, 2048), (16384, 2048), (2048, 8192), (4096, 4096), (6144, 4096), (4096, 14336), (28672, 4096),
    (1536, 8960), (17920, 1536), (2560, 2560), (1536, 1536), (3584, 3584), (5120, 5120), (7168, 5120), (8192, 8192),
    (10240, 8192), (12288, 4096), (24576, 3072), (3072, 8192), (5120, 13824), (27648, 5120), (3584, 18944),
    (4608, 3584), (3072, 3072), (8192, 3072), (2304, 768), (5120, 2560),
    (256, 2048), (512, 512), (512, 2048), (1024, 1024), (1024, 2048), (1536, 512),
)  # fmt: skip
TOKENS = {
    "fast": (8, 32, 64), "exact": (16, 32), "scaled": (16, 32), "e4m3": (8, 32, 64), "signed": (8, 32, 64),
    "nibbles": (8, 32, 64), "k_quants": (64,),
}  # fmt: skip
FIELDS: dict[str, dict[str, Any]] = {
    "fast": {"weights": "bf16", "precision": "fast"},
    "exact": {"weights": "bf16", "precision": "exact"},
    "scaled": {"weights": "e4m3_channel", "precision": "fast", "x_dtype": e4m3},
    "e4m3": {"weights": "e4m3_channel", "precision": "fast"},
    "signed": {"weights": "q8_0", "precision": "fast"},
    "nibbles": {"weights": "int4_g128", "precision": "fast"},
    "k_quants": {"weights": "q4_k", "precision": "fast"},
}
FEWEST, SMALL = 40, 1536  # CTAs of a tile that is measured; below so many outputs all tiles are
BYTES = 160e6  # of weights in turn: three times the L2
GRAPH_US, REPLAYS, SETTLING = 700.0, 14, 3  # of each graph; replays that count, and before them


def cases() -> Iterator[Case]:
    """Every shape, number of tokens and way to multiply."""
    for how, (n, k) in product(COSTS, SHAPES):
        for m in TOKENS[how]:
            yield {"m": m, "n": n, "k": k, "weights": FIELDS[how]["weights"], "how": how}


def choices(case: Case) -> dict[str, PackedGemm]:
    """By name, the tiles of a case: of those that share k, not too few."""
    costs = COSTS[case["how"]]
    fields = {"n": case["n"], "k": case["k"], "out_dtype": bf16, "programmatic": True, **FIELDS[case["how"]]}
    found = {}
    for spec in candidates(PackedGemm, fields | {"evict_first": not costs.converts}, case["m"], costs):
        thin = -(-spec.n // spec.tile_rows) * spec.split < FEWEST and spec.n >= SMALL
        if spec.slices > 1 or spec.split == 1 or not thin:
            found[named(spec)] = spec
    return found


def named(spec: PackedGemm) -> str:
    """`TOKENSxROWSxSPLITxSLICES`."""
    return f"{spec.tokens}x{spec.tile_rows}x{spec.split}x{spec.slices}"


def measure(run: Run, case: Case) -> None:
    """Every tile of a case, and cuBLAS."""
    import torch

    from benchmarks.timing.gpu import Chain, Loaded, sets_for, shape_of

    m, n, k = case["m"], case["n"], case["k"]
    x, weights = torch.randn(m, k, device="cuda"), Weights(case["weights"], n, k)
    count = max(2, min(24, sets_for(weights.packed.numel(), int(BYTES))))
    copies = [weights.packed, *(weights.packed.clone() for _ in range(count - 1))]
    wanted, sizes = weights.product(x), {"rows": m}
    calls: dict[str, Sequence[Any]] = {"cublas": _cublas(case, x, count)}
    errors: dict[str, float] = {}
    loaded = []
    for name, spec in choices(case).items():
        scaled = {"dtype": e4m3, "group": spec.x_group} if spec.scaled else {}
        pack = Loaded(generate(PackTokens(k, spec.tokens, precision=spec.precision, **scaled), TARGET), rows=m)
        kernel = Loaded(generate(spec, TARGET), rows=m)
        loaded += [pack, kernel]
        tiles = torch.zeros(shape_of(pack.ptx, "out", sizes), dtype=torch.bfloat16, device="cuda")
        scales = {"scales": torch.zeros(shape_of(pack.ptx, "scales", sizes), device="cuda")} if spec.scaled else {}
        pack.bind(x=x, out=tiles, n_rows=m, **scales)()
        out = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device="cuda")
        of_tokens = {"x_scales": scales["scales"]} if scales else {}
        calls[name] = [kernel.bind(x=tiles, weight=each, out=out, n_rows=m, **of_tokens) for each in copies]
        calls[name][0]()
        errors[name] = float((out.double() - wanted).norm() / wanted.norm())
    us = max(4.0, weights.packed.numel() / 4.5e6)
    chains = {name: Chain(list(each) * max(1, round(GRAPH_US / (len(each) * us)))) for name, each in calls.items()}
    marks: dict[str, list[Any]] = {name: [] for name in chains}
    for turn in range(SETTLING + REPLAYS):
        for name in random.sample(sorted(chains), len(chains)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            chains[name].graph.replay()
            end.record()
            marks[name] += [(begin, end)] if turn >= SETTLING else []
    torch.cuda.synchronize()
    for name, each in marks.items():
        took = statistics.median(begin.elapsed_time(end) * 1e3 / chains[name].count for begin, end in each)
        run.add(case, name, us=took, **({"error": errors[name]} if name in errors else {}))
    del chains
    for kernel in loaded:
        kernel.close()


def _cublas(case: Case, x: Any, count: int) -> list[Any]:
    """Calls of cuBLAS with as many matrices."""
    import torch

    m, n, k = case["m"], case["n"], case["k"]
    matrices = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    if case["how"] != "scaled":
        return [partial(torch.mm, x.bfloat16(), each.t()) for each in matrices]
    of_x, of_rows = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
    scales = {"scale_a": of_x, "scale_b": of_rows, "out_dtype": torch.bfloat16}
    tokens = x.to(torch.float8_e4m3fn)
    return [partial(torch._scaled_mm, tokens, each.to(torch.float8_e4m3fn).t(), **scales) for each in matrices]


def main(run: Run, given: argparse.Namespace) -> None:
    """As many cases as there is time for, in a random order."""
    chosen = [case for case in cases() if not given.how or case["how"] in given.how.split(",")]
    random.shuffle(chosen)
    as_there_is_time(run, chosen, measure, given.seconds)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line a case: cuBLAS, the tile that `best` takes, the fastest."""
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        found.setdefault(tuple(row["case"].values()), {})[row["impl"]] = row["us"]
    head = ("tokens", "N × K", "how", "cuBLAS, µs", "best, µs", "its tile", "fastest, µs", "its tile", "cuBLAS ÷ best")
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for (m, n, k, _, how), us in sorted(found.items(), key=lambda item: (item[0][4], *item[0][1:3], item[0][0])):
        best = named(PackedGemm.best(m, n=n, k=k, out_dtype=bf16, programmatic=True, **FIELDS[how]))
        ours = {name: each for name, each in us.items() if name != "cublas"}
        if best not in ours:
            continue
        fastest = min(ours, key=lambda name: ours[name])
        peer = us.get("cublas")
        cells = (
            m, f"{n}×{k}", how, f"{peer:.2f}" if peer else "", f"{ours[best]:.2f}", best, f"{ours[fastest]:.2f}",
            fastest, f"{peer / ours[best]:.2f}" if peer else "",
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


OPTIONS = (
    ("--seconds", {"type": float, "default": 60.0, "help": "how long to measure"}),
    ("--how", {"help": f"only these ways to multiply ({', '.join(COSTS)}), separated by commas"}),
)

if __name__ == "__main__":
    command("few_tiles", __doc__, main, *OPTIONS, device=gpu, table=table, at_once=True)
