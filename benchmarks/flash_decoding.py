"""FlashDecodingChunk and FlashDecodingReduce, two launches, beside IncrementalAttention, one launch.

    python -m benchmarks.flash_decoding                       measure on a GPU, print, append rows
    python -m benchmarks.flash_decoding --report [--run ID]   the table of the last run, or of one

Both kernels of a pair stand in one graph, over enough KV caches to defeat the L2; results are checked against float32.
The one launch takes a batch as the pair does; for one sequence also the kernel without batches, which is faster.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.peers.decode import this_machine
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run, markdown
from benchmarks.report.schedule import SECONDS, in_time
from benchmarks.report.sentence import in_a_sentence
from benchmarks.timing.prepared import ahead, kernel
from ptxgen.kernel import KernelType
from ptxgen.kernels import FlashDecodingChunk, FlashDecodingReduce, IncrementalAttention

SHAPES = ((32, 8, 128), (32, 4, 64), (12, 2, 128), (32, 32, 128))
CASES = ((1, 512), (1, 4096), (1, 32768), (1, 131072), (8, 4096), (32, 2048))
CHUNKS = (32, 64, 128)
DEFAULT = 64
Case = dict[str, Any]


class Inputs:
    """Queries, lengths, and some sets of caches, all f16, with the float32 result of the first set."""

    def __init__(self, case: Case) -> None:
        import torch

        from benchmarks.timing.gpu import sets_for

        self.case = case
        h, kv, d, n, length = (case[x] for x in ("n_heads", "n_kv_heads", "head_dim", "batch", "context"))
        self.bytes = 4 * n * kv * length * d
        half = {"device": "cuda", "dtype": torch.float16}
        torch.manual_seed(0)
        self.q = torch.randn(n, h, d, **half)
        self.sets = [torch.randn(2, n, kv, length, d, **half) for _ in range(sets_for(self.bytes))]
        self.lengths = torch.full((n,), length, device="cuda", dtype=torch.int32)
        k, v = (x.float() for x in self.sets[0])
        scores = self.q.float().view(n, kv, -1, d) @ k.transpose(2, 3) / math.sqrt(d)
        self.wanted = (torch.softmax(scores, -1) @ v).view(n, h, d)

    def error(self, out: Any) -> float:
        """‖out − wanted‖ / ‖wanted‖."""
        import torch

        return float(torch.linalg.norm(out.float() - self.wanted) / torch.linalg.norm(self.wanted))


def timed(inputs: Inputs, call_of: Callable[[Any], Callable[[], None]], out: Any) -> tuple[float, float]:
    """Microseconds of a call, rotating the caches, and the error on the first."""
    import torch

    from benchmarks.timing.gpu import graph_us

    calls = [call_of(caches) for caches in inputs.sets]
    calls[0]()
    torch.cuda.synchronize()
    error = inputs.error(out)
    return graph_us(calls * max(1, 16 // len(calls))), error


def one_spec(c: Case, *, batched: bool = True) -> IncrementalAttention:
    """The one launch of a case."""
    shape = {x: c[x] for x in ("head_dim", "n_heads", "n_kv_heads")}
    many = {"batched": True} if batched else {"indirect": True}
    return IncrementalAttention(max_len=c["context"], **shape, q_dtype="f16", kv_dtype="f16", **many)


def two_specs(
    c: Case, max_chunks: int, *, programmatic: bool = False, fitted: bool = False
) -> tuple[FlashDecodingChunk, FlashDecodingReduce]:
    """The pair of a case; `fitted`: with room for as many chunks as are launched."""
    shape = {"head_dim": c["head_dim"], "n_heads": c["n_heads"], "q_dtype": "f16", "programmatic": programmatic}
    cache = {"max_len": c["context"], "n_kv_heads": c["n_kv_heads"], "kv_dtype": "f16"}
    spec = FlashDecodingChunk(max_chunks=max_chunks, **shape, **cache)
    if fitted:
        spec = replace(spec, max_chunks=spec.chunks(c["batch"]))
    return spec, FlashDecodingReduce(max_chunks=spec.max_chunks, **shape)


def one_launch(inputs: Inputs, *, batched: bool = True) -> tuple[float, float]:
    """IncrementalAttention, lengths from device memory."""
    import torch

    from benchmarks.timing.gpu import Loaded

    c = inputs.case
    spec = one_spec(c, batched=batched)
    loaded, out = Loaded(*kernel(spec, this_machine()), batch=c["batch"]), torch.empty_like(inputs.q)
    length = {"seq_lens" if batched else "seq_len": inputs.lengths}

    def call_of(caches: Any) -> Callable[[], None]:
        return loaded.bind(q=inputs.q, k_cache=caches[0], v_cache=caches[1], out=out, **length)

    return timed(inputs, call_of, out)


def two_launches(max_chunks: int, **options: bool) -> Callable[[Inputs], tuple[float, float]]:
    """FlashDecodingChunk, then FlashDecodingReduce, with these options of `two_specs`."""

    def measure(inputs: Inputs) -> tuple[float, float]:
        import torch

        from benchmarks.timing.gpu import Loaded

        c = inputs.case
        spec, merge_spec = two_specs(c, max_chunks, **options)
        chunk = Loaded(*kernel(spec, this_machine()), batch=c["batch"])
        reduction = Loaded(*kernel(merge_spec, this_machine()), batch=c["batch"])
        out = torch.empty_like(inputs.q)
        slots = (c["batch"], c["n_heads"], spec.max_chunks)
        partials, stats = (torch.empty(*slots, width, device="cuda") for width in (c["head_dim"], 2))
        merge = reduction.bind(partials=partials, stats=stats, out=out)

        def call_of(caches: Any) -> Callable[[], None]:
            pointers = [torch.tensor([x.data_ptr() for x in side], device="cuda") for side in caches]
            given = {"q": inputs.q, "k_ptrs": pointers[0], "v_ptrs": pointers[1], "seq_lens": inputs.lengths}
            attend = chunk.bind(**given, partials=partials, stats=stats)

            def pair() -> None:
                attend()
                merge()

            return pair

        return timed(inputs, call_of, out)

    return measure


WAYS = {  # of two launches: chunks at most, options of `two_specs`
    **{f"max_chunks={n}": (n, {}) for n in CHUNKS},
    "fitted": (DEFAULT, {"fitted": True}),
    "programmatic": (DEFAULT, {"programmatic": True}),
}


def implementations(batch: int) -> dict[str, Callable[[Inputs], tuple[float, float]]]:
    """What is timed for a batch of that size."""
    single: dict[str, Callable[[Inputs], tuple[float, float]]] = {"one launch": one_launch}
    if batch == 1:
        single["one launch, no batch"] = partial(one_launch, batched=False)
    return {**single, **{name: two_launches(n, **options) for name, (n, options) in WAYS.items()}}


def kernels(cases: Sequence[Case]) -> Iterator[tuple[KernelType, str]]:
    """Spec and target of all that is launched for these cases."""
    for case in cases:
        specs = [one_spec(case), *([one_spec(case, batched=False)] if case["batch"] == 1 else [])]
        specs += [spec for n, options in WAYS.values() for spec in two_specs(case, n, **options)]
        yield from ((spec, this_machine()) for spec in specs)


def measure_all(run: Run, seconds: float) -> None:
    """Every case, as far as the time goes: the one launch, and pairs with each `max_chunks`."""
    ends = time.monotonic() + seconds
    names = ("n_heads", "n_kv_heads", "head_dim", "batch", "context")
    cases = [dict(zip(names, (*shape, *size), strict=True)) for shape in SHAPES for size in CASES]
    ahead(kernels(cases), this_machine())
    for case in in_time(cases, ends):
        inputs = Inputs(case)
        for name, measure in implementations(case["batch"]).items():
            us, error = measure(inputs)
            run.add(case, name, us=us, bytes=inputs.bytes, error=error)
        print(case, {row["impl"]: row["us"] for row in run.rows if row["case"] == case}, flush=True)


def report(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table, and the pairs over the one launch, by their number of chunks."""
    cases: dict[str, dict[str, float]] = {}
    for row in rows:
        cases.setdefault(str(row["case"]), {})[row["impl"]] = row["us"]
    lines = [markdown(rows), ""]
    for single in ("one launch", "one launch, no batch"):
        for name in dict.fromkeys(row["impl"] for row in rows if not row["impl"].startswith("one launch")):
            ratios = [us[name] / us[single] for us in cases.values() if name in us and single in us]
            if ratios:
                mean = math.exp(statistics.fmean(map(math.log, ratios)))
                lines.append(f"{name} / {single}: {mean:.3f} (mean of {len(ratios)}), largest {max(ratios):.2f}")
    return "\n".join(lines)


def main() -> None:
    def measure(run: Run, given: argparse.Namespace) -> None:
        measure_all(run, given.seconds)

    command("flash_decoding", __doc__, measure, SECONDS, device=gpu, table=report, at_once=True)


if __name__ == "__main__":
    in_a_sentence(main)
