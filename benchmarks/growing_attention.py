"""One layer's attention over a cache that a kernel ahead has copied, as transformers' grow, and over one as it is.

python -m benchmarks.growing_attention [--seconds 20]      needs a GPU, torch
python -m benchmarks.growing_attention --report [--run ID]

Microseconds of the kernel between two events; keys are copied before values, each by `torch.cat`. "alone": behind
itself. All in one process and in turns; "sdpa / ptxgen" is the median of the turns' own quotients, and the range from
their first to their third quartile.

| impl | is |
| --- | --- |
| ptxgen | `IncrementalAttention(strided=True)` by the tuning table in force |
| other rows | the same without the table's rows that are for caches which grow |
| sdpa | torch's, over KV heads that query heads share |
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.schedule import Task, work_off
from benchmarks.timing.turns import ahead, alternated

HEADS = (32, 8, 64)  # of queries, of keys and values, elements of each: Llama 3.2 1B's
SIZES = ((1, 32769), (8, 32769), (32, 32769), (40, 40001))  # sequences, positions
IMPLS = ("ptxgen", "other rows", "sdpa")
KINDS = ("behind a copy", "alone")
LAUNCHES = 3  # of a measurement, which is their median
EXACT = 5e-3  # a relative error above it ends the run
LONG = 1.0  # seconds of a case, about
SHORT = 1 << 16  # positions in all that an L2 may hold: such caches are not read alone


def kernel(batch: int, positions: int, table: Any) -> Any:
    """Ours, loaded, by this tuning table."""
    from benchmarks.timing.gpu import Loaded
    from ptxgen import generate, tuning
    from ptxgen.kernels import IncrementalAttention
    from ptxgen.runtime import open_device
    from ptxgen.transformers.launches import capacity

    heads, kv_heads, dim = HEADS
    spec = IncrementalAttention(
        max_len=capacity(positions), head_dim=dim, n_heads=heads, n_kv_heads=kv_heads, q_dtype="bf16", kv_dtype="bf16",
        batched=True, strided=True,
    )  # fmt: skip
    with tuning.using(table):
        return Loaded(generate(spec, open_device("cuda").target), batch=batch, n_keys=positions)


def tables() -> dict[str, Any]:
    """Of ours by name: the tuning table in force, and its other rows before all rows."""
    from ptxgen import tuning

    whole = tuning.in_force()
    others = tuple(row for row in whole.rows if "strided" not in dict(row.where))
    return dict(zip(IMPLS, (whole, tuning.Table(others, whole.models)), strict=False))


class Layer:
    """Tensors of a layer, and what attends over them."""

    def __init__(self, batch: int, positions: int) -> None:
        import torch

        heads, kv_heads, dim = HEADS
        normal = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        self.held = [normal(batch, kv_heads, positions - 1, dim) for _ in "kv"]
        self.new = [normal(batch, kv_heads, 1, dim) for _ in "kv"]
        self.q, self.out = (normal(batch, heads, 1, dim) for _ in range(2))
        self.both = [normal(batch, kv_heads, positions, dim) for _ in "kv"]
        self.copy()
        whole = partial(torch.full, (batch,), dtype=torch.int32, device="cuda")
        given = {"q": self.q, "k_cache": self.both[0], "v_cache": self.both[1], "out": self.out}
        given |= {"starts": whole(fill_value=0), "seq_lens": whole(fill_value=positions), "kv_rows": positions}
        self.calls: dict[str, Callable[[], object]] = {
            impl: kernel(batch, positions, table).bind(**given) for impl, table in tables().items()
        }
        self.calls[IMPLS[-1]] = self.sdpa

    def copy(self) -> None:
        """Keys, then values, each with the new position's behind those of before."""
        import torch

        for both, held, new in zip(self.both, self.held, self.new, strict=True):
            torch.cat([held, new], 2, out=both)

    def sdpa(self) -> Any:
        import torch

        return torch.nn.functional.scaled_dot_product_attention(self.q, *self.both, enable_gqa=True)

    def error(self, impl: str) -> float:
        """The 2-norm of the difference from sdpa in f32, by that of the result, of the last sequence."""
        import torch

        self.calls[impl]()
        q, k, v = (x[-1:].float() for x in (self.q, *self.both))
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        found: float = ((self.out[-1:].float() - wanted).norm() / wanted.norm()).item()
        return found

    def us(self, impl: str, kind: str) -> float:
        """Microseconds of a launch."""
        import torch

        call, events = self.calls[impl], []
        call()
        for _ in range(LAUNCHES):
            if kind == KINDS[0]:
                self.copy()
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            call()
            after.record()
            events.append((before, after))
        torch.cuda.synchronize()
        found: float = statistics.median(before.elapsed_time(after) * 1e3 for before, after in events)
        return found


def measure(run: Run, given: argparse.Namespace) -> None:
    """Rows of all cases that time is left for."""
    import torch

    def work(batch: int, positions: int) -> None:
        layer = Layer(batch, positions)
        for impl in IMPLS[:2]:
            if not (error := layer.error(impl)) < EXACT:
                raise RuntimeError(f"{impl}: an error of {error:.1e} of the result")
        for kind in KINDS if batch * positions > SHORT else KINDS[:1]:
            found = alternated({impl: partial(layer.us, impl, kind) for impl in IMPLS}, LONG)
            case = case_of(batch, positions, kind)
            for impl, us in found.items():
                of = ahead(found, impl, IMPLS[2:])
                more = {} if of is None or impl == IMPLS[2] else {"ahead": of.middle, "low": of.low, "high": of.high}
                run.add(case, impl, us=statistics.median(us), **more)
        del layer
        torch.cuda.empty_cache()

    ends = time.monotonic() + given.seconds
    work_off(run, [Task(case_of(*size), "all", partial(work, *size), seconds=2.0) for size in SIZES], ends)


def case_of(batch: int, positions: int, kind: str = "both") -> dict[str, Any]:
    """The case of a row."""
    return {"heads": "/".join(map(str, HEADS)), "batch": batch, "positions": positions, "kind": kind}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a case: microseconds of each, and sdpa's over ours."""
    cases: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if "us" in row:
            cases.setdefault(tuple(row["case"].values()), {})[row["impl"]] = row
    lines = [
        f"| heads | batch × positions | | {', '.join(IMPLS[:1])} | {' | '.join(IMPLS[1:])} | sdpa / ptxgen |",
        "| --- " * 7 + "|",
    ]
    for (heads, batch, positions, kind), of in cases.items():
        shown = " | ".join(f"{of[impl]['us']:.1f}" if impl in of else "–" for impl in IMPLS)
        ours = of.get(IMPLS[0], {})
        ratio = "{ahead:.3f} ({low:.3f} to {high:.3f})".format(**ours) if "ahead" in ours else "–"
        lines.append(f"| {heads} | {batch} × {positions} | {kind} | {shown} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    seconds = {"type": float, "default": 20.0, "help": "begin nothing that would not end by then (default: 20)"}
    command("growing_attention", __doc__, measure, ("--seconds", seconds), device=gpu, table=table, at_once=True)
