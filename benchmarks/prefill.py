"""Causal prefill attention: MultiHeadAttention beside torch's SDPA (flash, cuDNN) and FlashInfer, where installed.

    python -m benchmarks.prefill                       measure on a GPU, print, append rows
    python -m benchmarks.prefill --tiles 4,2,64,0 …    ours on mma.sync by tile: warps,row tiles,keys,steps of q held
    python -m benchmarks.prefill --report [--run ID]   the table of the last run, or of one run

Every implementation is timed as nodes of a CUDA graph over several sets of inputs, in rounds of another order each, and
checked against float32 on rows spread over the sequence. `ptxgen-sm_80` is the text for sm_80, on mma.sync.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
SETS_BYTES = 200e6  # of all sets of inputs and outputs: beyond the L2 cache
ROUNDS = 6
SPAN = 0.03  # seconds of a reading
READING = 2e-3  # seconds of a graph, about
EXPECTED = 500e12  # multiply-adds counted as two, in a second
Case = dict[str, Any]


class Inputs:
    """Sets of q, k, v of one case as torch tensors `[1, heads, tokens, head_dim]`, together more than the L2 cache
    holds, and float32 results of some rows of the first."""

    def __init__(self, case: Case) -> None:
        import torch

        from benchmarks.gpu import sets_for

        self.case = case
        h, kv, d, n = (case[x] for x in ("n_heads", "n_kv_heads", "head_dim", "tokens"))
        kind = {"bf16": torch.bfloat16, "f16": torch.float16}[case["dtype"]]
        torch.manual_seed(0)
        sets = sets_for(4 * n * d * (h + kv), SETS_BYTES)
        self.sets = [
            [torch.randn(1, heads, n, d, device="cuda", dtype=kind) for heads in (h, kv, kv)] for _ in range(sets)
        ]
        self.q, self.k, self.v = self.sets[0]
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


@dataclass
class Ready:
    """An implementation on a case: a call for each set, and where the first leaves its result."""

    calls: Sequence[Callable[[], Any]]
    result: Callable[[], Any]
    close: Callable[[], None] = lambda: None


Prepare = Callable[[Inputs], Ready]


def sdpa(backend: str) -> Prepare:
    """torch's scaled_dot_product_attention with one of its backends."""

    def prepare(inputs: Inputs) -> Ready:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def call(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        calls = [partial(call, *each) for each in inputs.sets]
        return Ready(calls, lambda: calls[0]()[0])

    return prepare


def flashinfer(inputs: Inputs) -> Ready:
    """FlashInfer's single prefill; it picks its own template."""
    import flashinfer as peers

    sets = [[x[0].transpose(0, 1).contiguous() for x in each] for each in inputs.sets]
    calls = [partial(peers.single_prefill_with_kv_cache, *each, causal=True) for each in sets]
    return Ready(calls, lambda: calls[0]().transpose(0, 1))


def ours(name: str = "") -> Prepare:
    """MultiHeadAttention on the same tensors, for a target by name or for this GPU."""

    def prepare(inputs: Inputs) -> Ready:
        import torch

        from benchmarks.gpu import Loaded

        case = inputs.case
        kind, n = case["dtype"], case["tokens"]
        shape = {x: case[x] for x in ("head_dim", "n_heads", "n_kv_heads")}
        spec = MultiHeadAttention(**shape, q_dtype=kind, kv_dtype=kind, layout="heads")
        major, minor = torch.cuda.get_device_capability()
        target = name or f"sm_{major}{minor}{'a' if major >= 9 else ''}"
        loaded = Loaded(generate(spec, target), n_tokens=n)
        lengths = dict.fromkeys(("q_len", "kv_len", "q_rows", "kv_rows"), n)
        outs = [torch.full_like(q[0], math.nan) for q, _, _ in inputs.sets]
        calls = [
            loaded.bind(q=q, k=k, v=v, out=out, **lengths) for (q, k, v), out in zip(inputs.sets, outs, strict=True)
        ]

        def result() -> Any:
            calls[0]()
            return outs[0]

        return Ready(calls, result, loaded.close)

    return prepare


IMPLEMENTATIONS: dict[str, Prepare] = {
    "ptxgen": ours(),
    "ptxgen-sm_80": ours("sm_80"),
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


def captured(ready: Ready, inputs: Inputs) -> tuple[Any, int]:
    """A graph of calls over all sets in turn, about a millisecond of them, and how many there are."""
    import torch

    sets = len(ready.calls)
    count = sets * max(1, int(READING * EXPECTED / inputs.flops / sets))
    if inputs.flops > EXPECTED * READING:
        count = 1
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for n in range(count):
            ready.calls[n % sets]()
    return graph, count


def reading(graph: Any, count: int) -> float:
    """Microseconds of one call: the median over replays for some milliseconds."""
    import torch

    graph.replay()
    times: list[float] = []
    spent = 0.0
    while spent < SPAN * 1e3 or len(times) < 3:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
        spent += times[-1]
    found: float = statistics.median(times) * 1e3 / count
    return found


def measure_case(run: Run, case: Case, implementations: Mapping[str, Prepare]) -> None:
    """All implementations in another order in every round, as the clock remembers what ran before."""
    inputs = Inputs(case)
    ready: dict[str, Ready] = {}
    errors: dict[str, float] = {}
    for impl, prepare in implementations.items():
        try:
            ready[impl] = prepare(inputs)
            errors[impl] = inputs.error(ready[impl].result())
        except ImportError as missing:
            print(f"{impl}: {missing}, no row")
            ready.pop(impl, None)
        except Exception as refused:  # a peer that does not take the shape; ours must not fail
            if impl.startswith("ptxgen"):
                raise
            print(f"{impl} {case}: {str(refused)[:200]}, no row")
            ready.pop(impl, None)
    graphs = {impl: captured(each, inputs) for impl, each in ready.items()}
    times: dict[str, list[float]] = {impl: [] for impl in graphs}
    for number in range(ROUNDS):
        for impl in random.Random(number).sample(list(graphs), len(graphs)):
            times[impl].append(reading(*graphs[impl]))
    for impl, each in ready.items():
        us = statistics.median(times[impl])
        row = run.add(case, impl, us=us, tflops=inputs.flops / us / 1e6, error=errors[impl])
        print(case, impl, {x: row[x] for x in ("us", "tflops", "error")}, flush=True)
        each.close()


def measure_all(run: Run, arguments: argparse.Namespace) -> None:
    """Every implementation on every case."""
    for case in cases(arguments):
        measure_case(run, case, IMPLEMENTATIONS)


def measure_tiles(run: Run, arguments: argparse.Namespace) -> None:
    """Ours on mma.sync with each of the given tiles in place of the table's."""
    original = tiles.tensor_tile
    for case in cases(arguments):
        for text in arguments.tiles:
            warps, rows, keys, steps = map(int, text.split(","))
            tile = tiles.TensorTile(warps, rows, keys, q_steps=steps)
            tiles.tensor_tile = lambda *_, tile=tile, **__: tile  # type: ignore[assignment]
            clear_cache()
            measure_case(run, case, {f"ptxgen-sm_80 {text}": ours("sm_80")})
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
