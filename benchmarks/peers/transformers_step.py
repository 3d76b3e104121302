"""Decode steps of whole models by transformers, compiled over a static cache, in bf16 with random weights.

    python -m benchmarks.peers.transformers_step MODEL BATCH DEPTH[,DEPTH…]

A process of its own, which ends with its memory; every line that it prints is {"depth", "us"} or {"depth", "why"}.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.cases.models import MODELS
from benchmarks.report.rows import RESULTS

STEPS = 24
ROOM = 64  # positions after the depth
OTHERS = ("torch_dtype", "rope_scaling", "rope_theta", "head_dim")  # no matter of time, or what follows from others


def measured(model: str, batch: int, depths: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    """The rows of a process of its own, each as soon as it is there; those that are had when the time is over."""
    command = [sys.executable, "-m", __name__, model, str(batch), ",".join(map(str, depths))]
    root = RESULTS.parent.parent
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", ""))))
    ends = time.monotonic() + seconds
    with subprocess.Popen(
        ["timeout", str(max(1, int(seconds))), *command], stdout=subprocess.PIPE, text=True, cwd=root,
        env=os.environ | {"PYTHONPATH": path},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode:
        left = "no time was left" if time.monotonic() >= ends - 1 else f"exit {process.returncode}"
        raise RuntimeError(f"transformers: {left}")


def main(model: str, batch: int, depths: Sequence[int]) -> None:
    """Measure and print."""
    import torch

    made = _model(model)
    for depth in depths:
        try:
            row: dict[str, Any] = {"depth": depth, "us": _us(made, batch, depth)}
        except Exception as wrong:
            row = {"depth": depth, "why": f"{type(wrong).__name__}: {wrong}"[:300]}
        print(json.dumps(row), flush=True)
        torch._dynamo.reset()


def _model(name: str) -> Any:
    import torch
    import transformers

    config = {key: value for key, value in MODELS[name].items() if key not in OTHERS}
    family = {"llama": "Llama", "qwen2": "Qwen2"}[config.pop("model_type")]
    torch.set_float32_matmul_precision("high")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        made = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**config))
    torch.set_default_dtype(torch.float32)
    return made.eval()


def _us(model: Any, batch: int, depth: int) -> float:
    """Microseconds of a step at a depth: the median of groups of steps."""
    import torch
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=depth + ROOM)
    compiled = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True, dynamic=False)
    ids = torch.zeros(batch, 1, dtype=torch.long, device="cuda")

    def step(index: int) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        position = torch.tensor([depth + index], device="cuda")
        out = compiled(ids, past_key_values=cache, cache_position=position, use_cache=True)
        return out.logits[:, -1].argmax(-1).view(batch, 1).clone()

    with torch.no_grad():
        prompt = torch.zeros(batch, depth, dtype=torch.long, device="cuda")
        model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
        for index in range(6):
            ids = step(index)
        times = []
        for group in range(3):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for index in range(STEPS // 3):
                ids = step(6 + group * (STEPS // 3) + index)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) / (STEPS // 3) * 1e6)
    return statistics.median(times)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(depth) for depth in sys.argv[3].split(",")])
