"""Tokens per second of a transformers model with our attention beside torch's, of the shape of Llama 3.2 1B in bf16.

python -m benchmarks.transformers_attention [--seconds 90]     needs a GPU
python -m benchmarks.transformers_attention --report [--run ID]

Weights and cache are random. "graph": one step over a static cache, captured in a CUDA graph and replayed: the time is
the device's. "eager": a step over a cache that grows, as `generate` runs it without compilation. "prompt": a whole
prompt at once. Of each case all implementations run in the same process, one after the other.

| impl | is |
| --- | --- |
| ptxgen | `attn_implementation="ptxgen"` |
| sdpa | `attn_implementation="sdpa"` |
| fa2 | torch's FlashAttention 2 without a mask, told by the host how many keys count |
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.schedule import Task, work_off

DEPTHS, BATCHES = (512, 4096, 32768), (1, 8, 32)
IMPLS = ("ptxgen", "sdpa", "fa2")
STEPS = 8  # of a measurement, or as many as LONGEST seconds hold
LONGEST = 0.08
REPEATS = 5
ROOM = 64  # positions behind the depth


def fa2(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float = 0.0, **options: Any) -> Any:
    """Attention over the keys that count, which the host knows."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    end = fa2.keys or key.shape[2]  # type: ignore[attr-defined]
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key[:, :, :end], value[:, :, :end], is_causal=query.shape[2] > 1, scale=scaling, enable_gqa=True
        )
    return out.transpose(1, 2).contiguous(), None


fa2.keys = 0  # type: ignore[attr-defined]


def build() -> Any:
    """The model, on the GPU."""
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM

    from ptxgen.transformers import install

    install()
    AttentionInterface.register("fa2", fa2)
    AttentionMaskInterface.register("fa2", lambda *_, **__: None)
    config = LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=131072, tie_word_embeddings=True,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


def graph(model: Any, impl: str, depth: int, batch: int) -> float:
    """Seconds of a step from a graph."""
    import torch
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=depth + ROOM)
    token = torch.full((batch, 1), 7, device="cuda")
    fa2.keys = depth + ROOM // 2  # type: ignore[attr-defined]
    model.set_attn_implementation(impl)

    def rewind() -> None:
        for layer in cache.layers:
            layer.cumulative_length.fill_(depth)

    def step() -> None:
        model(token, past_key_values=cache, logits_to_keep=1)

    step()
    for layer in cache.layers:
        layer.keys.normal_()
        layer.values.normal_()
    rewind()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
        step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    return _timed(captured.replay, rewind)


def eager(model: Any, impl: str, depth: int, batch: int) -> float:
    """Seconds of a step over a cache that grows."""
    import torch
    from transformers import DynamicCache

    model.set_attn_implementation(impl)
    fa2.keys = 0  # type: ignore[attr-defined]
    config = model.config
    shape = (batch, config.num_key_value_heads, depth, config.head_dim)
    cache = DynamicCache(config=config)
    for layer in range(config.num_hidden_layers):
        rows = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        cache.update(rows, rows, layer)
    token = torch.full((batch, 1), 7, device="cuda")

    def step() -> None:
        model(token, past_key_values=cache, logits_to_keep=1)

    return _timed(step, lambda: None)


def prompt(model: Any, impl: str, depth: int, batch: int) -> float:
    """Seconds of a whole prompt."""
    import torch

    model.set_attn_implementation(impl)
    fa2.keys = 0  # type: ignore[attr-defined]
    ids = torch.randint(2, 1000, (batch, depth), device="cuda")
    return _timed(lambda: model(ids, use_cache=True, logits_to_keep=1), lambda: None)


def _timed(step: Callable[[], object], rewind: Callable[[], object]) -> float:
    """Median seconds of a step, of measurements of up to `STEPS` of them."""
    import torch

    def measured(steps: int) -> float:
        rewind()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    measured(1)
    steps = max(1, min(STEPS, int(LONGEST / measured(1))))
    return statistics.median(measured(steps) for _ in range(REPEATS))


KINDS: dict[str, Callable[[Any, str, int, int], float]] = {"graph": graph, "prompt": prompt, "eager": eager}


def measure(run: Run, given: argparse.Namespace) -> None:
    """Rows of all cases that time is left for."""
    import torch

    ends = time.monotonic() + given.seconds
    model = build()
    sizes = sorted(((depth, batch) for depth in DEPTHS for batch in BATCHES), key=math.prod)
    cases = [(kind, *size) for kind in KINDS for size in sizes if kind == "graph" or math.prod(size) <= 131072]
    tasks = []
    for kind, depth, batch in cases:
        for impl in IMPLS:

            def work(kind: str = kind, depth: int = depth, batch: int = batch, impl: str = impl) -> None:
                with torch.no_grad():
                    seconds = KINDS[kind](model, impl, depth, batch)
                torch.cuda.empty_cache()
                tokens = batch * (depth if kind == "prompt" else 1)
                case = {"kind": kind, "depth": depth, "batch": batch}
                row = run.add(case, impl, us=seconds * 1e6, tokens_per_s=tokens / seconds)
                print(case, impl, row["us"], "us", row["tokens_per_s"], "tokens/s", flush=True)

            tasks.append(Task({"kind": kind, "depth": depth, "batch": batch}, impl, work, seconds=2.0))
    work_off(run, tasks, ends)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a case: tokens per second of each, and ours over the best of the others."""
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        if "tokens_per_s" in row:
            found.setdefault(tuple(row["case"].values()), {})[row["impl"]] = row["tokens_per_s"]
    lines = [f"| kind | depth | batch | {' | '.join(IMPLS)} | ours / best |", "| --- " * (len(IMPLS) + 4) + "|"]
    for case, rates in found.items():
        shown = [f"{rates[impl]:,.0f}" if impl in rates else "–" for impl in IMPLS]
        others = [rates[impl] for impl in IMPLS[1:] if impl in rates]
        ratio = f"{rates['ptxgen'] / max(others):.2f}" if others and "ptxgen" in rates else "–"
        lines.append(f"| {' | '.join(map(str, case))} | {' | '.join(shown)} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    seconds = {"type": float, "default": 90.0, "help": "begin nothing that would not end by then (default: 90)"}
    command("transformers_attention", __doc__, measure, ("--seconds", seconds), device=gpu, table=table, at_once=True)
