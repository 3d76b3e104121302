"""Tokens per second of a transformers model with our attention beside torch's, of the shape of Llama 3.2 1B in bf16.

python -m benchmarks.transformers_attention [--seconds 120] [--kind prompt] [--depth 512] [--profile 512x8]  needs a GPU
python -m benchmarks.transformers_attention --report [--run ID]

Weights and cache are random. "graph": one step over a static cache, captured in a CUDA graph and replayed: the time is
the device's. "eager": a step over a cache that grows, as `generate` runs it without compilation; lengths come again, as
they do in a process that has served others. "new lengths": the same at lengths that no step before it had. "in place":
as "eager", over a `growing_cache` of ours, of all implementations, behind the step in which it moves. "prompt": a whole
prompt at once, up to 2^20 tokens. Of each case all implementations run in the same process, in turns; "ours / best" is
the median of the turns' own quotients, and the range from their first to their third quartile.

| impl | is |
| --- | --- |
| ptxgen | `attn_implementation="ptxgen"` |
| sdpa | `attn_implementation="sdpa"` |
| fa2 | torch's FlashAttention 2 without a mask, told by the host how many keys count |
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.schedule import Task, work_off
from benchmarks.timing.turns import LONG_ROUND, Ahead, ahead, alternated

DEPTHS, BATCHES = (512, 4096, 32768), (1, 8, 32)
IMPLS = ("ptxgen", "sdpa", "fa2")
STEPS = 8  # of a measurement, or as many as LONGEST seconds hold
LONGEST = 0.04
LONG = {"graph": 0.3, "eager": 1.0, "new lengths": 0.8, "in place": 1.0, "prompt": 1.0}  # seconds of a case, about
SHORT_ONLY = ("new lengths",)  # kinds that are measured at the least depth alone
MANY_TOKENS = 1 << 17  # a prompt of so many is warmed up with SHORT positions of it, a shorter one with all
SHORT = 512
RATE = 1e5  # tokens of a prompt a second, about, by which the time of a case is estimated
ROOM = 64  # positions behind the depth
DEVICE = "cuda"


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
    """A transformers model of random weights, on the GPU."""
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
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model


Ready = tuple[Callable[[], object], Callable[[], object]]  # a step, and what goes before a measurement of some


def graph(model: Any, impls: Sequence[str], depth: int, batch: int) -> Iterator[Ready]:
    """A step from a graph; all over one cache."""
    import torch
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=depth + ROOM)
    token = torch.full((batch, 1), 7, device=DEVICE)
    fa2.keys = depth + ROOM // 2  # type: ignore[attr-defined]

    def rewind() -> None:
        for layer in cache.layers:
            layer.cumulative_length.fill_(depth)

    def step() -> None:
        model(token, past_key_values=cache, logits_to_keep=1)

    for number, impl in enumerate(impls):
        model.set_attn_implementation(impl)
        step()
        for layer in cache.layers if number == 0 else ():
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
        yield captured.replay, rewind


def eager(
    model: Any, impls: Sequence[str], depth: int, batch: int, *, in_place: bool = False, anew: bool = True
) -> Iterator[Ready]:  # fmt: skip
    """A step over a cache that grows, by copying or in place; all over one, which begins anew before a measurement, or
    goes on behind where others ended. In place, that has moved behind a first step, which it does once in an eighth of
    the depth."""
    import torch
    from transformers import DynamicCache

    from ptxgen.transformers import growing_cache

    fa2.keys = 0  # type: ignore[attr-defined]
    config = model.config
    shape = (batch, config.num_key_value_heads, depth if anew else depth + ROOM, config.head_dim)
    token = torch.full((batch, 1), 7, device=DEVICE)
    cache = growing_cache(config) if in_place else DynamicCache(config=config)
    for layer in range(config.num_hidden_layers):
        cache.update(*(torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(2)), layer)
    first = [(layer.keys, layer.values) for layer in cache.layers]

    def rewind(impl: str) -> None:
        model.set_attn_implementation(impl)
        for layer, (keys, values) in zip(cache.layers, first, strict=True) if anew else ():
            layer.keys, layer.values = keys, values
        if in_place:
            step()

    step = partial(model, token, past_key_values=cache, logits_to_keep=1)
    for impl in impls:
        yield step, partial(rewind, impl)


def prompt(model: Any, impls: Sequence[str], depth: int, batch: int) -> Iterator[Ready]:
    """A whole prompt."""
    import torch

    fa2.keys = 0  # type: ignore[attr-defined]
    ids = torch.randint(2, 1000, (batch, depth), device=DEVICE)

    def begin(impl: str) -> None:
        model.set_attn_implementation(impl)
        if ids.numel() >= MANY_TOKENS:
            model(ids[:, :SHORT], use_cache=True, logits_to_keep=1)

    for impl in impls:
        yield partial(model, ids, use_cache=True, logits_to_keep=1), partial(begin, impl)


def timer(step: Callable[[], object], rewind: Callable[[], object], *, once: bool = False) -> Callable[[], float]:
    """What measures the seconds of a step, as the mean of up to `STEPS` of them, which has run; or `once`, of one."""
    import torch

    def measured(steps: int) -> float:
        rewind()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    if once:
        return partial(measured, 1)
    first = measured(1)
    each = first if first > 20 * LONGEST else measured(1)
    return partial(measured, max(1, min(STEPS, int(LONGEST / each))))


def profiled(model: Any, depth: int, batch: int) -> None:
    """Print the device time of a prompt by kernel, of ours and of sdpa."""
    import torch

    kinds = torch.profiler.ProfilerActivity
    for impl in IMPLS[:2]:
        ((step, rewind),) = prompt(model, [impl], depth, batch)
        rewind()
        step()
        with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
            step()
            torch.cuda.synchronize()
        print(f"{impl}: a prompt of {batch} x {depth}, all layers")
        print(profile.key_averages().table(sort_by="device_time_total", row_limit=20, max_name_column_width=90))


KINDS: dict[str, Callable[[Any, Sequence[str], int, int], Iterator[Ready]]] = {
    "graph": graph,
    "eager": eager,
    "new lengths": partial(eager, anew=False),
    "in place": partial(eager, in_place=True),
    "prompt": prompt,
}


def measure(run: Run, given: argparse.Namespace) -> None:
    """Rows of all cases that time is left for."""
    import torch

    ends = time.monotonic() + given.seconds
    model = build()
    gc.collect()
    gc.freeze()  # what lives by now is not looked through again, in the middle of somebody's measurement
    for size in given.profile:
        with torch.no_grad():
            profiled(model, *(int(part) for part in size.split("x")))
    sizes = sorted(((depth, batch) for depth in given.depth or DEPTHS for batch in BATCHES), key=math.prod)
    cases = [(kind, *size) for kind in given.kind or KINDS for size in sizes]
    cases = [case for case in cases if case[0] not in SHORT_ONLY or case[1] == min(given.depth or DEPTHS)]
    tasks = []
    for kind, depth, batch in cases:

        def work(kind: str = kind, depth: int = depth, batch: int = batch) -> None:
            case = {"kind": kind, "depth": depth, "batch": batch}
            tokens = batch * (depth if kind == "prompt" else 1)
            with torch.no_grad():
                ready = KINDS[kind](model, IMPLS, depth, batch)
                once = kind == "prompt" and tokens >= MANY_TOKENS
                timers = {impl: timer(*of, once=once) for impl, of in zip(IMPLS, ready, strict=True)}
                found = alternated(timers, LONG[kind])
            of = ahead(found, IMPLS[0], IMPLS[1:])
            for impl, seconds in found.items():
                middle = statistics.median(seconds)
                more = {} if impl != IMPLS[0] or of is None else scatter(of)
                row = run.add(case, impl, us=middle * 1e6, tokens_per_s=tokens / middle, **more)
                print(case, impl, row["us"], "us", row["tokens_per_s"], "tokens/s", flush=True)
            torch.cuda.empty_cache()

        passes = tokens_read(depth, batch) * len(IMPLS) / RATE if kind == "prompt" else 0.0
        tasks.append(Task({"kind": kind, "depth": depth, "batch": batch}, "all", work, seconds=2.0 + passes))
    work_off(run, tasks, ends)


def tokens_read(depth: int, batch: int) -> int:
    """Of a prompt in all, by one implementation."""
    tokens = depth * batch
    return tokens * (3 if tokens < MANY_TOKENS else 2 if tokens * len(IMPLS) / RATE < LONG_ROUND else 1)


def scatter(of: Ahead) -> dict[str, float]:
    """The measures of a row that say how far ahead it is."""
    return {"ahead": of.middle, "ahead_low": of.low, "ahead_high": of.high, "rounds": of.rounds}


def rates(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], dict[str, float]]:
    """Tokens per second of each by case: kind, depth, batch."""
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        if "tokens_per_s" in row:
            found.setdefault(tuple(row["case"].values()), {})[row["impl"]] = row["tokens_per_s"]
    return found


def spreads(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], tuple[float, float]]:
    """The quartiles of the turns' quotients by case, where there were turns."""
    return {
        tuple(row["case"].values()): (row["ahead_low"], row["ahead_high"]) for row in rows if row.get("rounds", 0) > 1
    }


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], float]:
    """Ours over the best of the others by case: the turns' own quotient, or of rows without one that of the rates."""
    found = {
        case: of[IMPLS[0]] / max(of[impl] for impl in IMPLS[1:] if impl in of)
        for case, of in rates(rows).items()
        if IMPLS[0] in of and len(of) > 1
    }
    return found | {tuple(row["case"].values()): row["ahead"] for row in rows if row.get("ahead")}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a case: tokens per second of each, and ours over the best of the others, with quartiles."""
    lines = [f"| kind | depth | batch | {' | '.join(IMPLS)} | ours / best |", "| --- " * (len(IMPLS) + 4) + "|"]
    middle, quartiles = ratios(rows), spreads(rows)
    for case, of in rates(rows).items():
        shown = [f"{of[impl]:,.0f}" if impl in of else "–" for impl in IMPLS]
        ratio = f"{middle[case]:.3f}" if case in middle else "–"
        if case in quartiles:
            ratio += " ({:.3f} to {:.3f})".format(*quartiles[case])
        lines.append(f"| {' | '.join(map(str, case))} | {' | '.join(shown)} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    seconds = {"type": float, "default": 120.0, "help": "begin nothing that would not end by then (default: 120)"}
    kinds = {"action": "append", "choices": list(KINDS), "help": "only these (default: all)"}
    depths = {"action": "append", "type": int, "choices": DEPTHS, "help": "only these (default: all)"}
    profile = {"action": "append", "default": [], "metavar": "DEPTHxBATCH", "help": "also print a prompt's kernels"}
    options = (("--seconds", seconds), ("--kind", kinds), ("--depth", depths), ("--profile", profile))
    command("transformers_attention", __doc__, measure, *options, device=gpu, table=table, at_once=True)
