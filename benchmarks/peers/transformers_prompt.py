"""Prompts of whole models by transformers in bf16, attention by cuDNN, to the likeliest token after them.

    python -m benchmarks.peers.transformers_prompt MODEL TOKENS[,TOKENS…]

A process of its own, which ends with its memory; every line that it prints is {"tokens", "impl", "us"} or {"tokens",
"impl", "why"}. "transformers-cudnn": as it is called, eagerly; "transformers-cudnn, graph": the same as a CUDA graph,
without the host's part.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.peers.transformers_step import random_model
from benchmarks.report.rows import RESULTS
from benchmarks.report.sentence import show_help

REPEATS, FEWER = 5, 2
LONG = 4096  # tokens: longer prompts are repeated less often


def measured(model: str, tokens: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    """The rows of a process of its own, each as soon as it is there; those that are had when the time is over."""
    command = [sys.executable, "-m", __name__, model, ",".join(map(str, tokens))]
    root = RESULTS.parent.parent
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", ""))))
    with subprocess.Popen(
        ["timeout", str(max(1, int(seconds))), *command], stdout=subprocess.PIPE, text=True, cwd=root,
        env=os.environ | {"PYTHONPATH": path},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield from (json.loads(line) for line in process.stdout if line.startswith("{"))
    if process.returncode:
        raise RuntimeError(f"transformers: exit {process.returncode} (124: no time was left)")


def main(model: str, lengths: Sequence[int]) -> None:
    """Measure and print."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    made = random_model(model)
    for tokens in lengths:
        ids = torch.randint(0, made.config.vocab_size, (1, tokens), device="cuda")

        def forward(ids: Any = ids) -> Any:
            return made(ids, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)

        for impl, prepare in (("transformers-cudnn", _eager), ("transformers-cudnn, graph", _graph)):
            row: dict[str, Any] = {"tokens": tokens, "impl": impl}
            try:
                with torch.no_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    row["us"] = _us(prepare(forward), REPEATS if tokens <= LONG else FEWER)
            except Exception as wrong:
                row["why"] = f"{type(wrong).__name__}: {wrong}"[:300]
            print(json.dumps(row), flush=True)


def _eager(forward: Callable[[], Any]) -> Callable[[], int]:
    return lambda: int(forward())


def _graph(forward: Callable[[], Any]) -> Callable[[], int]:
    import torch

    forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token = forward()

    def call() -> int:
        graph.replay()
        return int(token)

    return call


def _us(call: Callable[[], int], repeats: int) -> float:
    """Microseconds of a call, to the token on the host: the median."""
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times)


if __name__ == "__main__":
    show_help(__doc__)
    main(sys.argv[1], [int(tokens) for tokens in sys.argv[2].split(",")])
