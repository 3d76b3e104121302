"""Products of 8 to 4096 tokens in e4m3 by weights in e4m3 beside cuBLAS with scales of rows (`torch._scaled_mm`).

    python -m benchmarks.e4m3_products --seconds 100            measure on a GPU, print, append rows of products
    python -m benchmarks.e4m3_products --report [--run ID]      the table of the last run, or of one

Every call is a node of a CUDA graph over weights that exceed the L2; results are bf16, as cuBLAS has them; neither time
counts the rounding of x, which is `pack-e4m3`. Implementations of a case are measured one after the other, the cases in
a random order. `ptxgen`: `PackedGemm.best`, launched programmatically; `promoted`: f32 adds up the sums of
every 128 columns, as it always does those of blocks; `row-scales`: of blocks of weights, with a scale a row of x
instead of one for every 128 columns. `cublas`: scales of rows, `use_fast_accum` as it is by default,
False; `cublas-fast`: True; `cublas-block`: scales of 1 × 128 of x and 128 × 128 of the weights. `error`: of 64 tokens,
against float64 of x before it was rounded; `of_sums`: of x after.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.packed_products import BYTES, CHOICES, NODES, ROWS, SETTLE, as_time_allows, is_chosen
from benchmarks.products import SHAPES, Case, Weights
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.timing.prepared import Made
from ptxgen.dtypes import bf16, e4m3
from ptxgen.kernel import KernelType
from ptxgen.kernels import PackedGemm, PackTokens

FEW, MANY = (8, 32), (128, 512, 2048, 4096)
BLOCK_TOKENS = (32, 512, 2048, 4096)
BLOCK_SHAPES = SHAPES[:4]
LARGEST = 1 << 16  # outputs of a matrix that many tokens are multiplied with
SPREAD = 100.0  # of normal numbers that have no scale, so that their bytes are those of scaled ones
FEW_SETS = 4  # of weights where their read is hidden
PACK, BY_ROW = "pack-e4m3", "row-scales"
ROWWISE = {"cublas": False, "cublas-fast": True}  # whether it accumulates fast


def cases() -> Iterator[Case]:
    """A scale a channel in every shape, a scale for 128 × 128 weights in some."""
    for m in (*FEW, *MANY):
        for n, k in SHAPES:
            if m in FEW or n < LARGEST:
                yield {"m": m, "n": n, "k": k, "weights": "e4m3_channel"}
    for m in BLOCK_TOKENS:
        for n, k in BLOCK_SHAPES:
            yield {"m": m, "n": n, "k": k, "weights": "e4m3_block"}


def specs(case: Case) -> dict[str, PackedGemm]:
    """What is measured of ours, by implementation."""
    m, n, k, name = case["m"], case["n"], case["k"], case["weights"]
    fields = {"n": n, "k": k, "weights": name, "x_dtype": e4m3, "precision": "fast", "out_dtype": bf16}
    found = {"ptxgen": PackedGemm.best(m, **fields, programmatic=True)}
    if name == "e4m3_channel" and m in MANY:
        found["promoted"] = PackedGemm.best(m, **fields, programmatic=True, promoted=True)
    if name == "e4m3_block" and m in MANY:
        found[BY_ROW] = PackedGemm.best(m, **fields, programmatic=True, row_scales=True)
    return found


def packing(spec: PackedGemm) -> PackTokens:
    """What makes its tokens."""
    return PackTokens(spec.k, spec.tokens, dtype=e4m3, precision="fast", group=spec.x_group)


def measure(run: Run, case: Case, kernels: Callable[[KernelType], Made]) -> None:
    """Every implementation of a case."""
    import torch

    from benchmarks.timing.gpu import graph_us, sets_for

    m, n, k, name = case["m"], case["n"], case["k"], case["weights"]
    x, weights = torch.randn(m, k, device="cuda"), Weights(name, n, k)
    count = FEW_SETS if m in MANY[2:] else min(24, sets_for(weights.packed.numel(), BYTES))
    times = 1 if m in MANY[2:] else max(1, NODES // count)
    copies = [weights.packed, *(weights.packed.clone() for _ in range(count - 1))]
    for impl, spec in specs(case).items():
        _ours(run, case, impl, spec, kernels, weights, copies, x, times)
    nbytes = weights.packed.numel()
    del weights, copies
    matrices = [(torch.randn(n, k, device="cuda") * SPREAD).to(torch.float8_e4m3fn) for _ in range(count)]
    for impl, product in peers((x * SPREAD).to(torch.float8_e4m3fn), n, k, name).items():
        if impl == "cublas-fast" and m not in MANY[1:]:
            continue  # no products hide the read of the weights
        us = graph_us([partial(product, each) for each in matrices] * times, settle=SETTLE)
        run.add(case, impl, us=us, bytes=nbytes, tbs=nbytes / us / 1e6, tflops=2 * m * n * k / us / 1e6)
    shown = {row["impl"]: round(row["us"], 2) for row in run.rows if row["case"] == case}
    print(case, shown, flush=True)


def peers(x: Any, n: int, k: int, weights: str) -> Mapping[str, Callable[[Any], Any]]:
    """torch's products of x with a matrix `[n, k]`, by implementation; those of blocks where they are run."""
    import torch
    from torch.nn import functional

    of_x, of_rows = torch.ones(len(x), 1, device="cuda"), torch.ones(1, n, device="cuda")

    def rows(matrix: Any, fast: bool) -> Any:
        how = {"out_dtype": torch.bfloat16, "use_fast_accum": fast}
        return torch._scaled_mm(x, matrix.t(), scale_a=of_x, scale_b=of_rows, **how)

    found: dict[str, Callable[[Any], Any]] = {name: partial(rows, fast=fast) for name, fast in ROWWISE.items()}
    if weights == "e4m3_block":
        blocks = -(-k // 128)
        of_tokens = torch.ones(blocks, len(x), device="cuda").t()
        of_blocks = torch.ones(-(-n // 128), -(-blocks // 4) * 4, device="cuda").t()
        kinds = functional.ScalingType

        def by_block(matrix: Any) -> Any:
            scales = (of_tokens, kinds.BlockWise1x128, of_blocks, kinds.BlockWise128x128)
            return functional.scaled_mm(x, matrix.t(), *scales, output_dtype=torch.bfloat16)

        found["cublas-block"] = by_block
    return found


def _ours(
    run: Run, case: Case, impl: str, spec: PackedGemm, kernels: Callable[[KernelType], Made], weights: Weights,
    copies: Sequence[Any], x: Any, times: int,
) -> None:  # fmt: skip
    import torch

    from benchmarks.timing.gpu import Loaded, graph_us, shape_of

    m, n, k = case["m"], case["n"], case["k"]
    pack = Loaded(*kernels(packing(spec)), rows=m)
    sizes = {"rows": m}
    tiles = torch.zeros(shape_of(pack.ptx, "out", sizes), dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
    scales = torch.zeros(shape_of(pack.ptx, "scales", sizes), device="cuda")
    packs = pack.bind(x=x, out=tiles, scales=scales, n_rows=m)
    packs()
    loaded = Loaded(*kernels(spec), rows=m)
    out = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device="cuda")
    calls = [loaded.bind(x=tiles, x_scales=scales, weight=each, out=out, n_rows=m) for each in copies]
    calls[0]()
    some = torch.arange(0, m, max(1, m // ROWS), device="cuda")
    got, wanted = out[some].double(), [weights.product(each[some]) for each in (x, unpacked(tiles, scales, m, k))]
    error, of_sums = (float((got - each).norm() / each.norm()) for each in wanted)
    us, nbytes = graph_us(calls * times, settle=SETTLE), weights.packed.numel()
    tile = "x".join(str(part) for part in (spec.tokens, spec.tile_rows, spec.split, spec.share))
    rates = {"tbs": nbytes / us / 1e6, "tflops": 2 * m * n * k / us / 1e6}
    run.add(case, impl, us=us, bytes=nbytes, **rates, error=error, of_sums=of_sums, tile=tile)
    alike = ((row["case"]["m"], row["case"]["k"], row["case"]["weights"]) for row in run.rows if row["impl"] == PACK)
    if (m, k, case["weights"]) not in alike:
        run.add(case, PACK, us=graph_us([packs] * NODES, settle=SETTLE))
    loaded.close()
    pack.close()


def unpacked(tiles: Any, scales: Any, rows: int, cols: int) -> Any:
    """The rows that stand in packed tiles times their scales: piece p of token r is at p ^ (r mod 8)."""
    import torch

    count, blocks, _, tokens, _ = tiles.shape
    piece = torch.arange(8, device="cuda")
    turned = (piece ^ piece[:, None]).repeat(tokens // 8, 1)  # [token, piece]
    pieces = tiles.view(torch.uint8).reshape(count, blocks, tokens, 8, 16)
    plain = pieces.gather(3, turned[None, None, :, :, None].expand_as(pieces)).view(torch.float8_e4m3fn)
    whole = plain.reshape(count, blocks, tokens, -1).float() * scales.expand(count, blocks, tokens)[..., None]
    return whole.transpose(1, 2).reshape(count * tokens, -1)[:rows, :cols]


def main(run: Run, given: argparse.Namespace) -> None:
    """As many cases as there is time for."""
    chosen = [case for case in cases() if is_chosen(case, given)]
    random.shuffle(chosen)
    wanted = [each for case in chosen for spec in specs(case).values() for each in (packing(spec), spec)]
    as_time_allows(run, chosen, wanted, measure, given.seconds)


IMPLS = ("ptxgen", "promoted", BY_ROW, PACK, "cublas", "cublas-fast", "cublas-block", "floor")
RATIOS = (
    ("e4m3_channel", "ptxgen", "cublas"),
    ("e4m3_block", "ptxgen", "cublas"),
    ("e4m3_block", "ptxgen", "cublas-block"),
    ("e4m3_block", BY_ROW, "cublas"),
)
Found = dict[tuple[Any, ...], dict[str, dict[str, Any]]]


def by_case(rows: Sequence[Mapping[str, Any]]) -> Found:
    """Rows of each case, by implementation."""
    found: Found = {}
    for row in rows:
        found.setdefault(tuple(row["case"].values()), {})[row["impl"]] = dict(row)
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a case: µs of every implementation, cuBLAS ÷ ours, TFLOP/s, the errors."""
    head = (
        "tokens", "N × K", "weights", *(f"{impl}, µs" for impl in IMPLS), "cuBLAS ÷ ours", "TFLOP/s", "error",
        "of sums: ptxgen, promoted or row-scales",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for (m, n, k, name), each in sorted(by_case(rows).items(), key=lambda item: (item[0][3], item[0][1:3], item[0][0])):
        ours = each.get("ptxgen")
        if ours is None or "of_sums" not in ours:
            continue
        cells = [f"{each[impl]['us']:.2f}" if impl in each else "" for impl in IMPLS]
        ratio = f"{each['cublas']['us'] / ours['us']:.2f}" if "cublas" in each else ""
        of_sums = ", ".join(f"{each[impl]['of_sums']:.1e}" for impl in ("ptxgen", "promoted", BY_ROW) if impl in each)
        more = (f"{ours['tflops']:.0f}", f"{ours['error']:.1e}", of_sums)
        lines.append(f"| {m} | {n}×{k} | {name} | {' | '.join(cells)} | {ratio} | {' | '.join(more)} |")
    return "\n".join(lines)


def ratios(rows: Sequence[Mapping[str, Any]]) -> str:
    """For each format and numbers of tokens the geometric mean and the least of cuBLAS ÷ ours; of scales of blocks
    beside those of cuBLAS, too, and of ours with tokens' scales of rows."""
    said = []
    for name, impl, peer in RATIOS:
        for tokens in (FEW, MANY[:1], MANY[1:2], MANY[2:]):
            found = [
                each[peer]["us"] / each[impl]["us"]
                for (m, _, _, kind), each in by_case(rows).items()
                if kind == name and m in tokens and {peer, impl} <= each.keys()
            ]
            if found:
                span = f"{tokens[0]} to {tokens[-1]}" if len(tokens) > 1 else f"{tokens[0]}"
                mean = math.exp(sum(map(math.log, found)) / len(found))
                beside = "".join(f" ({named})" for named in (impl, peer) if named not in ("ptxgen", "cublas"))
                said.append(f"{name}{beside}, {span} tokens {mean:.2f} (least {min(found):.2f})")
    return "; ".join(said)


if __name__ == "__main__":
    command("products", __doc__, main, *CHOICES, device=gpu, table=table, at_once=True)
