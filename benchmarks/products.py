"""Products of one to 64 tokens with packed weights: Gemv, Gemm and DigitGemm beside cuBLAS (bf16) and the read of the
weights.

    python -m benchmarks.products                       measure on a GPU, print, append rows
    python -m benchmarks.products --weights q4_k,bf16 --tokens 1,8 --shapes 4096x4096
    python -m benchmarks.products --report [--run ID]   the table of the last run, or of one

Every call is a node of a CUDA graph over weights that exceed the L2. `programmatic`: the same chain launched
programmatically. `fma`: Gemv as it is before sm_80. Several tokens go through DigitGemm where it takes the format, x
packed by PackDigits, whose own time is `pack_us`; else through Gemm. `floor`: only reading the bytes of the weights,
between sizes that were measured. `error` is ‖got − wanted‖ / ‖wanted‖ against float64, over all outputs: a matrix
repeats the packed records of its first 64 rows.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from ptxgen.generator import clear_cache, generate
from ptxgen.kernel import supports
from ptxgen.kernels import DigitGemm, Gemm, Gemv, PackDigits, digit_gemm, gemv
from ptxgen.products.digits_bf16 import geometry as bf16_geometry
from ptxgen.products.digits_s8 import layout
from ptxgen.targets import target as parse_target
from ptxgen.weights import weight_format, weight_formats

SHAPES = (
    (4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (128256, 4096), (2048, 2048), (3072, 2048), (16384, 2048),
    (2048, 8192), (17920, 1536), (1536, 8960),
)  # fmt: skip
FEW_SHAPES = ((4096, 4096), (28672, 4096), (4096, 14336), (2048, 2048))
ONE_TOKEN = ("bf16", "e4m3_block", "q8_0", "q4_k", "int4_g128")
MORE_TOKENS = ("bf16", "e4m3_channel", "q4_k", "q6_k", "int4_g128")
FLOORS = tuple(int(1e6 * 2**n) for n in range(11))
PATTERN = 64  # rows that are packed; the others repeat them
Case = dict[str, Any]


def cases() -> Iterator[Case]:
    """What is measured unless told: a few formats in every shape, every format in one shape, and more tokens."""
    chosen = [(1, n, k, name) for n, k in SHAPES for name in ONE_TOKEN]
    chosen += [(m, 4096, 4096, name) for name in weight_formats() for m in (1, 5)]
    chosen += [(m, n, k, name) for n, k in FEW_SHAPES for name in MORE_TOKENS for m in (8, 32)]
    for m, n, k, name in dict.fromkeys(chosen):
        yield {"m": m, "n": n, "k": k, "weights": name}


class Weights:
    """A packed matrix on the device whose rows repeat, and float64 of the rows that do."""

    def __init__(self, name: str, n: int, k: int) -> None:
        import torch

        self.kind, self.n = weight_format(name), n
        packed, values = _pattern(name, k)
        records = self.kind.records(n)
        pattern = torch.from_numpy(packed).cuda().reshape(PATTERN // 16, -1)
        self.packed = pattern.repeat(-(-records // (PATTERN // 16)), 1)[:records].contiguous()
        self.wide = torch.from_numpy(values).cuda().double()

    def product(self, x: Any) -> Any:
        """x · weightᵀ in float64."""
        few = x.double() @ self.wide.T
        return few.repeat(1, -(-self.n // PATTERN))[:, : self.n]


@cache
def _pattern(name: str, k: int) -> tuple[np.ndarray, np.ndarray]:
    """`PATTERN` packed rows and their float32 values."""
    kind = weight_format(name)
    values = np.random.default_rng(0).standard_normal((PATTERN, k), np.float32) * np.float32(k**-0.5)
    source = kind.quantise(values)
    return kind.pack(source, PATTERN, k), kind.dequantise(source, PATTERN, k)


def measure(run: Run, case: Case, target: str) -> None:
    """One case, plain; one token also programmatic, and in a few shapes with the loop without tensor cores."""
    import torch

    m, n, k = case["m"], case["n"], case["k"]
    weights = Weights(case["weights"], n, k)
    spec = product_of(m, n, k, case["weights"], target)
    x = torch.randn(m, k, device="cuda")
    wanted = weights.product(x)
    impls = ["ptxgen", *(["programmatic"] if m == 1 else []), *(["fma"] if m == 1 and (n, k) in FEW_SHAPES else [])]
    for impl in impls:
        chosen = dataclasses.replace(spec, programmatic=impl == "programmatic")
        with _without_tensor_cores() if impl == "fma" else nullcontext():
            if supports(chosen, target):
                run.add(case, impl, **_timed(chosen, weights, x, wanted, target))
    shown = {row["impl"]: (row["us"], row["error"]) for row in run.rows if row["case"] == case}
    print(case, shown, flush=True)


def product_of(m: int, n: int, k: int, weights: str, target: str) -> Gemv | Gemm | DigitGemm:
    """What a step multiplies so many exact rows with."""
    if m == 1:
        return Gemv(n, k, weights)
    takes = (
        weights in digit_gemm.FORMATS
        and k % layout.UNIT == 0
        and (m <= layout.TOKENS or weights not in bf16_geometry.FORMATS)
    )
    if takes and parse_target(target).includes_any(("sm_90",)):
        return DigitGemm.best(m, n=n, k=k, weights=weights)
    return Gemm(n, k, weights)


@contextmanager
def _without_tensor_cores() -> Iterator[None]:
    """Gemv with no format on tensor cores."""
    names = vars(gemv)
    before, names["ON_TENSOR_CORES"] = names["ON_TENSOR_CORES"], frozenset()
    clear_cache()
    try:
        yield
    finally:
        names["ON_TENSOR_CORES"] = before
        clear_cache()


def _timed(spec: Any, weights: Weights, x: Any, wanted: Any, target: str) -> dict[str, float]:
    import torch

    from benchmarks.timing.gpu import Loaded, graph_us, sets_for, shape_of

    m = x.shape[0]
    loaded = Loaded(generate(spec, target), rows=m)
    given = {} if isinstance(spec, Gemv) else {"n_rows": m}
    more = {}
    if isinstance(spec, DigitGemm):
        halves = spec.digits if spec.of_halves else 0
        pack_digits = PackDigits(spec.k, halves=halves, sums=spec.of_halves and spec.sums)
        packing = Loaded(generate(pack_digits, target), rows=m)
        dtype = torch.bfloat16 if halves else torch.uint8
        digits = torch.zeros(shape_of(packing.ptx, "out", {"rows": m}), dtype=dtype, device="cuda")
        pack = packing.bind(x=x, out=digits, n_rows=m)
        pack()
        x, more = digits, {"pack_us": graph_us([pack] * 20)}
    out = torch.full((m, spec.n), torch.nan, device="cuda")
    loaded.bind(x=x, weight=weights.packed, out=out, **given)()
    torch.cuda.synchronize()
    error = float((out.double() - wanted).norm() / wanted.norm())
    nbytes = weights.packed.numel()
    copies = [weights.packed, *(weights.packed.clone() for _ in range(min(40, sets_for(nbytes)) - 1))]
    calls = [loaded.bind(x=x, weight=copy, out=out, **given) for copy in copies]
    us = graph_us(calls * max(1, 20 // len(calls)))
    loaded.close()
    return {"us": us, "bytes": nbytes, "tbs": nbytes / us / 1e6, "error": error, **more}


def cublas(run: Run, m: int, n: int, k: int) -> None:
    """torch's product in bf16."""
    import torch

    from benchmarks.timing.gpu import graph_us, sets_for

    nbytes = 2 * n * k
    matrices = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(min(40, sets_for(nbytes)))]
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    calls: list[Callable[[], Any]] = [partial(torch.mm, x, w.t()) for w in matrices]
    us = graph_us(calls * max(1, 20 // len(calls)))
    run.add({"m": m, "n": n, "k": k, "weights": "bf16"}, "cublas", us=us, bytes=nbytes, tbs=nbytes / us / 1e6)


def floors(run: Run, wanted: list[Case]) -> None:
    """The read of each case's weights, between the sizes that are measured."""
    from benchmarks.peers.read_floor import Floor

    floor = Floor()
    times = [floor.us(size) for size in FLOORS]
    for case in wanted:
        nbytes = weight_format(case["weights"]).nbytes(case["n"], case["k"])
        us = float(np.interp(nbytes, FLOORS, times))
        run.add(case, "floor", us=us, bytes=nbytes, tbs=nbytes / us / 1e6)


def main(run: Run, given: argparse.Namespace) -> None:
    """All cases, or those chosen."""
    import torch

    from ptxgen.targets import target_of_capability

    target = target_of_capability(*torch.cuda.get_device_capability()).name
    chosen = [case for case in cases() if _wanted(case, given)]
    if given.shapes and given.weights and given.tokens:  # whatever they are
        every = product(_shapes(given.shapes), given.weights.split(","), map(int, given.tokens.split(",")))
        chosen = [{"m": m, "n": n, "k": k, "weights": name} for (n, k), name, m in every]
    for case in chosen:
        measure(run, case, target)
    for m, n, k in dict.fromkeys((case["m"], case["n"], case["k"]) for case in chosen):
        cublas(run, m, n, k)
    floors(run, chosen)


def _shapes(text: str) -> list[tuple[int, int]]:
    return [(int(n), int(k)) for n, _, k in (each.partition("x") for each in text.split(","))]


def _wanted(case: Case, given: argparse.Namespace) -> bool:
    return (
        (not given.weights or case["weights"] in given.weights.split(","))
        and (not given.tokens or str(case["m"]) in given.tokens.split(","))
        and (not given.shapes or (case["n"], case["k"]) in _shapes(given.shapes))
    )


def table(rows: Any) -> str:
    """A line a case: µs of every implementation, the share of the read, the error."""
    by_case: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        by_case.setdefault(tuple(row["case"].values()), {})[row["impl"]] = row
    impls = ("ptxgen", "programmatic", "fma", "cublas", "floor")
    head = ("tokens", "N × K", "weights", "MB", *impls, "floor ÷ ours", "error")
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for (m, n, k, name), found in sorted(by_case.items(), key=lambda item: (item[0][3], item[0])):
        ours = found.get("ptxgen")
        if ours is None:
            continue
        cells = [f"{found[impl]['us']:.2f}" if impl in found else "" for impl in impls]
        share = f"{found['floor']['us'] / ours['us']:.2f}" if "floor" in found else ""
        ours_mb = f"{ours['bytes'] / 1e6:.1f}"
        lines.append(f"| {m} | {n}×{k} | {name} | {ours_mb} | {' | '.join(cells)} | {share} | {ours['error']:.1e} |")
    return "\n".join(lines)


OPTIONS = (
    ("--weights", {"help": "only these formats, separated by commas"}),
    ("--tokens", {"help": "only these numbers of tokens"}),
    ("--shapes", {"help": "only these shapes, as 4096x4096"}),
)

if __name__ == "__main__":
    command("products", __doc__, main, *OPTIONS, device=gpu, table=table)
