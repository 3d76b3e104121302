"""FlashDecodingChunk and FlashDecodingReduce, two launches, beside IncrementalAttention, one launch.

    python -m benchmarks.flash_decoding                measure on a GPU, print, append rows
    python -m benchmarks.flash_decoding --report       the table of the last run

Both kernels of a pair stand in one graph, over enough KV caches to defeat the L2; results are checked against float32.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.rows import Run, load, markdown
from ptxgen.generator import generate
from ptxgen.kernels import FlashDecodingChunk, FlashDecodingReduce, IncrementalAttention

SHAPES = ((32, 8, 128), (32, 4, 64), (12, 2, 128), (32, 32, 128))
CASES = ((1, 512), (1, 4096), (1, 32768), (8, 4096), (32, 2048))
CHUNKS = (4, 8, 16, 32, 64)
Case = dict[str, Any]


class Inputs:
    """Queries, lengths, and some sets of caches, all f16, with the float32 result of the first set."""

    def __init__(self, case: Case) -> None:
        import torch

        from benchmarks.gpu import sets_for

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


def target() -> str:
    """The GPU's architecture."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def timed(inputs: Inputs, call_of: Callable[[Any], Callable[[], None]], out: Any) -> tuple[float, float]:
    """Microseconds of a call, rotating the caches, and the error on the first."""
    import torch

    from benchmarks.gpu import graph_us

    calls = [call_of(caches) for caches in inputs.sets]
    calls[0]()
    torch.cuda.synchronize()
    error = inputs.error(out)
    return graph_us(calls * max(1, 16 // len(calls))), error


def one_launch(inputs: Inputs) -> tuple[float, float]:
    """IncrementalAttention, batched, lengths from device memory."""
    import torch

    from benchmarks.gpu import Loaded

    c = inputs.case
    shape = {x: c[x] for x in ("head_dim", "n_heads", "n_kv_heads")}
    spec = IncrementalAttention(max_len=c["context"], **shape, q_dtype="f16", kv_dtype="f16", batched=True)
    loaded, out = Loaded(generate(spec, target()), batch=c["batch"]), torch.empty_like(inputs.q)

    def call_of(caches: Any) -> Callable[[], None]:
        return loaded.bind(q=inputs.q, k_cache=caches[0], v_cache=caches[1], out=out, seq_lens=inputs.lengths)

    return timed(inputs, call_of, out)


def two_launches(max_chunks: int) -> Callable[[Inputs], tuple[float, float]]:
    """FlashDecodingChunk, then FlashDecodingReduce."""

    def measure(inputs: Inputs) -> tuple[float, float]:
        import torch

        from benchmarks.gpu import Loaded

        c = inputs.case
        shape = {"head_dim": c["head_dim"], "n_heads": c["n_heads"], "max_chunks": max_chunks, "q_dtype": "f16"}
        cache = {"max_len": c["context"], "n_kv_heads": c["n_kv_heads"], "kv_dtype": "f16"}
        chunk = Loaded(generate(FlashDecodingChunk(**shape, **cache), target()), batch=c["batch"])
        reduction = Loaded(generate(FlashDecodingReduce(**shape), target()), batch=c["batch"])
        out = torch.empty_like(inputs.q)
        slots = (c["batch"], c["n_heads"], max_chunks)
        partials, stats = (torch.empty(*slots, width, device="cuda") for width in (c["head_dim"], 2))
        merge = reduction.bind(partials=partials, stats=stats, out=out)

        def call_of(caches: Any) -> Callable[[], None]:
            pointers = [torch.tensor([x.data_ptr() for x in side], device="cuda") for side in caches]
            given = {"q": inputs.q, "k_ptrs": pointers[0], "v_ptrs": pointers[1], "seq_lens": inputs.lengths}
            attend = chunk.bind(**given, partials=partials, stats=stats)

            def both() -> None:
                attend()
                merge()

            return both

        return timed(inputs, call_of, out)

    return measure


def measure_all(run: Run) -> None:
    """Every case: the one launch, and pairs with each number of chunks."""
    for h, kv, d in SHAPES:
        for batch, context in CASES:
            case = {"n_heads": h, "n_kv_heads": kv, "head_dim": d, "batch": batch, "context": context}
            inputs = Inputs(case)
            us, error = one_launch(inputs)
            run.add(case, "one launch", us=us, bytes=inputs.bytes, error=error)
            for count in CHUNKS:
                us, error = two_launches(count)(inputs)
                run.add(case, f"max_chunks={count}", us=us, bytes=inputs.bytes, error=error)
            print(case, {row["impl"]: row["us"] for row in run.rows if row["case"] == case}, flush=True)


def report(rows: list[dict[str, Any]]) -> str:
    """The rows as a table, and the best pair of each case over the one launch."""
    cases: dict[str, dict[str, float]] = {}
    for row in rows:
        cases.setdefault(str(row["case"]), {})[row["impl"]] = row["us"]
    lines, ratios = [markdown(rows), ""], []
    for case, us in cases.items():
        best = min((name for name in us if name != "one launch"), key=us.__getitem__)
        ratios.append(us[best] / us["one launch"])
        lines.append(f"{case}: {best}, {ratios[-1]:.2f} of one launch")
    lines.append(f"geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.3f}, largest {max(ratios):.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="print the table of the last run and measure nothing")
    arguments = parser.parse_args()
    if not arguments.report:
        import torch

        run = Run("flash_decoding", torch.cuda.get_device_name())
        measure_all(run)
        print(f"appended {len(run.rows)} rows to {run.save()}")
    print(report(load("flash_decoding")))


if __name__ == "__main__":
    main()
