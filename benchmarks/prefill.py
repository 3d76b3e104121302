"""Causal prefill attention: MultiHeadAttention beside torch's SDPA (flash, cuDNN) and FlashInfer, where installed.

    python -m benchmarks.prefill                       measure on a GPU, print, append rows
    python -m benchmarks.prefill --tiles 4,2,64,0 …    only ours, with other tiles: warps,row tiles,keys,steps of q held
    python -m benchmarks.prefill --report [--run ID]   the table of the last run, or of one run

Every implementation is timed as nodes of a CUDA graph, and checked against float32 on rows spread over the sequence.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run, markdown
from benchmarks.report.sentence import in_a_sentence
from ptxgen.attention.prefill import tiles
from ptxgen.generator import clear_cache, generate
from ptxgen.kernels import MultiHeadAttention

SHAPES = ((32, 8, 128), (32, 4, 64))
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
SAMPLED_ROWS = 96
Case = dict[str, Any]


class Inputs:
    """q, k, v of one case as torch tensors `[1, heads, tokens, head_dim]`, and float32 results of some rows."""

    def __init__(self, case: Case) -> None:
        import torch

        self.case = case
        h, kv, d, n = (case[x] for x in ("n_heads", "n_kv_heads", "head_dim", "tokens"))
        kind = {"bf16": torch.bfloat16, "f16": torch.float16}[case["dtype"]]
        torch.manual_seed(0)
        self.q = torch.randn(1, h, n, d, device="cuda", dtype=kind)
        self.k, self.v = (torch.randn(1, kv, n, d, device="cuda", dtype=kind) for _ in range(2))
        self.rows = torch.linspace(0, n - 1, min(n, SAMPLED_ROWS), device="cuda").long().unique()
        self.wanted = self._reference()

    def _reference(self) -> Any:
        import torch

        group = self.case["n_heads"] // self.case["n_kv_heads"]
        keys = torch.arange(self.case["tokens"], device="cuda")
        out = []
        for head in range(self.case["n_heads"]):
            k, v = (x[0, head // group].float() for x in (self.k, self.v))
            scores = self.q[0, head, self.rows].float() @ k.T / math.sqrt(self.case["head_dim"])
            out.append(torch.softmax(scores.masked_fill(keys > self.rows[:, None], -math.inf), -1) @ v)
        return torch.stack(out)

    def error(self, out: Any) -> float:
        """‖out − wanted‖ / ‖wanted‖ over the sampled rows; `out` is `[heads, tokens, head_dim]`."""
        import torch

        got = out[:, self.rows].float()
        return float(torch.linalg.norm(got - self.wanted) / torch.linalg.norm(self.wanted))

    @property
    def flops(self) -> float:
        """Multiply-adds of both products under the diagonal, counted as two."""
        n = self.case["tokens"]
        found: float = 4 * self.case["n_heads"] * self.case["head_dim"] * n * (n + 1) / 2
        return found


def calls_for(inputs: Inputs) -> int:
    """Graph nodes that take a few milliseconds together."""
    return max(1, min(64, int(2e12 / inputs.flops)))


def peer(inputs: Inputs, call: Callable[[], Any]) -> tuple[float, Any]:
    """Time of a torch call within a graph, and its result."""
    from benchmarks.gpu import graph_us

    result = call()
    return graph_us([call] * calls_for(inputs)), result


def sdpa(backend: str) -> Callable[[Inputs], tuple[float, Any]]:
    """torch's scaled_dot_product_attention with one of its backends."""

    def measure(inputs: Inputs) -> tuple[float, Any]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def call() -> Any:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return torch.nn.functional.scaled_dot_product_attention(
                    inputs.q, inputs.k, inputs.v, is_causal=True, enable_gqa=True
                )

        us, out = peer(inputs, call)
        return us, out[0]

    return measure


def flashinfer(inputs: Inputs) -> tuple[float, Any]:
    """FlashInfer's single prefill; it picks its own template."""
    import flashinfer as peers

    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (inputs.q, inputs.k, inputs.v))
    us, out = peer(inputs, lambda: peers.single_prefill_with_kv_cache(q, k, v, causal=True))
    return us, out.transpose(0, 1)


def ours(inputs: Inputs) -> tuple[float, Any]:
    """MultiHeadAttention on the same tensors."""
    import torch

    from benchmarks.gpu import Loaded, graph_us

    case = inputs.case
    kind, n = case["dtype"], case["tokens"]
    shape = {x: case[x] for x in ("head_dim", "n_heads", "n_kv_heads")}
    spec = MultiHeadAttention(**shape, q_dtype=kind, kv_dtype=kind, layout="heads")
    major, minor = torch.cuda.get_device_capability()
    loaded, out = Loaded(generate(spec, f"sm_{major}{minor}"), n_tokens=n), torch.full_like(inputs.q[0], math.nan)
    lengths = dict.fromkeys(("q_len", "kv_len", "q_rows", "kv_rows"), n)
    call = loaded.bind(q=inputs.q, k=inputs.k, v=inputs.v, out=out, **lengths)
    us = graph_us([call] * calls_for(inputs))
    loaded.close()
    return us, out


IMPLEMENTATIONS = {
    "ptxgen": ours,
    "sdpa-flash": sdpa("FLASH_ATTENTION"),
    "sdpa-cudnn": sdpa("CUDNN_ATTENTION"),
    "flashinfer": flashinfer,
}


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Every shape at every length."""
    for h, kv, d in SHAPES:
        if arguments.head_dim in (None, d):
            for n in arguments.lengths:
                yield {"n_heads": h, "n_kv_heads": kv, "head_dim": d, "tokens": n, "dtype": arguments.dtype}


def add(run: Run, inputs: Inputs, impl: str, measure: Callable[[Inputs], tuple[float, Any]]) -> None:
    """One row, or a word on why there is none."""
    try:
        us, out = measure(inputs)
    except ImportError as missing:
        print(f"{impl}: {missing}, no row")
        return
    except Exception as refused:  # a peer that does not take the shape; ours must not fail
        if impl.startswith("ptxgen"):
            raise
        print(f"{impl} {inputs.case}: {str(refused)[:200]}, no row")
        return
    row = run.add(inputs.case, impl, us=us, tflops=inputs.flops / us / 1e6, error=inputs.error(out))
    print(inputs.case, impl, {x: row[x] for x in ("us", "tflops", "error")}, flush=True)


def measure_all(run: Run, arguments: argparse.Namespace) -> None:
    """Every implementation on every case."""
    for case in cases(arguments):
        inputs = Inputs(case)
        for impl, measure in IMPLEMENTATIONS.items():
            add(run, inputs, impl, measure)


def measure_tiles(run: Run, arguments: argparse.Namespace) -> None:
    """Ours with each of the given tiles in place of the table's."""
    original = tiles.tensor_tile
    for case in cases(arguments):
        inputs = Inputs(case)
        for text in arguments.tiles:
            warps, rows, keys, steps = map(int, text.split(","))
            tile = tiles.TensorTile(warps, rows, keys, q_steps=steps)
            tiles.tensor_tile = lambda *_, tile=tile, **__: tile  # type: ignore[assignment]
            clear_cache()
            add(run, inputs, f"ptxgen {text}", ours)
    tiles.tensor_tile = original
    clear_cache()


def report(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table, and ours over each peer by geometric mean."""
    by_case: dict[str, dict[str, float]] = {}
    for row in rows:
        by_case.setdefault(str(row["case"]), {})[row["impl"]] = row["us"]
    lines = [markdown(rows), ""]
    for impl in dict.fromkeys(row["impl"] for row in rows):
        ratios = [us[impl] / us["ptxgen"] for us in by_case.values() if impl in us and "ptxgen" in us]
        if ratios and impl != "ptxgen":
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            lines.append(f"{impl} / ptxgen: {mean:.3f} (geometric mean of {len(ratios)}), least {min(ratios):.3f}")
    return "\n".join(lines)


def main() -> None:
    options = (
        ("--tiles", {"nargs": "+", "help": "only ours, with these tiles"}),
        ("--head-dim", {"type": int, "choices": [d for *_, d in SHAPES]}),
        ("--lengths", {"type": int, "nargs": "+", "default": LENGTHS}),
        ("--dtype", {"choices": ("bf16", "f16"), "default": "bf16"}),
    )

    def measure(run: Run, given: argparse.Namespace) -> None:
        (measure_tiles if given.tiles else measure_all)(run, given)

    command("prefill", __doc__, measure, *options, device=gpu, table=report)


if __name__ == "__main__":
    in_a_sentence(main)
