"""Prompts through models of real shapes with random weights: `Model.prefill` beside llama.cpp and transformers.

    python -m benchmarks.prompt --seconds 120 --llama SOURCE.tar.xz --work FOLDER   measure on a GPU, print, append rows
    python -m benchmarks.prompt --seconds 60 --first-token                          only longer prompts in bf16
    python -m benchmarks.prompt --report [--run ID]                                 the table of the last run, or of one

`us`: from the call to the token after the prompt, on the host's clock, the median. "ptxgen": as `Model`
is by default; "ptxgen-fast": with precision="fast"; "ptxgen-e4m3": of weights in e4m3, with that. `--work`: the folder
of a build that `benchmarks.decode_step` made.
`--first-token`: prompts of 512 to 32768 tokens in bf16, beside transformers with cuDNN's attention; of the first model
over caches of 8 bits, too.
"""

from __future__ import annotations

import argparse
import functools
import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.cases.models import MODELS, open_random
from benchmarks.decode_step import OPTIONS
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.report.schedule import Task, work_off
from benchmarks.steps.our_steps import FIRST, MORE, chosen, median_us

if TYPE_CHECKING:
    from benchmarks.peers.llama_cpp import LlamaCpp
    from ptxgen.runtime.core.device import Device

TOKENS = 512
DEPTHS = (0, 4096)
MAX_LEN = 4096 + TOKENS
PRECISIONS = {"ptxgen": "exact", "ptxgen-fast": "fast", "ptxgen-e4m3": "e4m3"}
REPEATS = 5
FIRST_TOKEN = ("llama-3.2-1b", "qwen2.5-1.5b", "llama-3-8b")
PROMPTS = (512, 4096, 32768)
CACHES = {"ptxgen-fast, e4m3 cache": "e4m3", "ptxgen-fast, int8 cache": "s8"}  # others are of bf16
CHUNK = 4096  # positions of a step of the first token's prompts
Case = dict[str, Any]


def case_of(model: str, weights: str, tokens: int, depth: int) -> Case:
    """A row's case."""
    return {"model": model, "weights": weights, "tokens": tokens, "depth": depth, "batch": 1}


def ours(
    run: Run, device: Device, name: str, weights: str, *, models: Mapping[str, Mapping[str, Any]] = MODELS,
    tokens: int = TOKENS, depths: Sequence[int] = DEPTHS, max_len: int = MAX_LEN,
) -> None:  # fmt: skip
    """Rows of a model with each of `PRECISIONS`; the weights are shared."""
    from ptxgen.runtime import Model

    first = open_random(models[name], weights, max_len, device)
    prompt = np.random.default_rng(0).integers(0, first.shape.vocab, tokens).tolist()
    for impl, precision in PRECISIONS.items():
        if precision == "e4m3" and not weights.startswith("e4m3"):
            continue
        model = first
        if precision != "exact":
            model = Model(first.source, device, weights=first.weights, precision=precision)
        for depth in depths:

            def whole(model: Model = model, depth: int = depth) -> None:
                model._length = depth
                model.prefill(prompt)

            us = median_us(whole, REPEATS)
            case = case_of(name, weights, tokens, depth)
            print(run.add(case, impl, us=us, tokens_s=tokens * 1e6 / us), flush=True)
    gc.collect()


def first_token(
    run: Run, device: Device, name: str, impl: str, *, models: Mapping[str, Mapping[str, Any]] = MODELS,
    prompts: Sequence[int] = PROMPTS, chunk: int = CHUNK,
) -> None:  # fmt: skip
    """Rows of a model in bf16, of prompts of several lengths, in chunks."""
    from ptxgen.runtime import Model

    options = {"precision": PRECISIONS[impl.partition(",")[0]], "chunk": chunk}
    room = max(prompts) + chunk
    model: Model = open_random(models[name], "bf16", room, device, CACHES.get(impl, "bf16"), **options)
    for tokens in prompts:
        prompt = np.random.default_rng(0).integers(0, model.shape.vocab, tokens).tolist()

        def whole(prompt: Sequence[int] = prompt) -> None:
            model._length = 0
            model.prefill(prompt)

        us = median_us(whole, REPEATS if tokens <= CHUNK else 1)
        print(run.add(case_of(name, "bf16", tokens, 0), impl, us=us, tokens_s=tokens * 1e6 / us), flush=True)
    gc.collect()


def transformers_prompts(run: Run, name: str, ends: float) -> None:
    """transformers' prompts."""
    from benchmarks.peers.transformers_prompt import measured

    for row in measured(name, PROMPTS, ends - time.monotonic()):
        tokens = row["tokens"]
        found = {"us": row["us"], "tokens_s": tokens * 1e6 / row["us"]} if "us" in row else {"why": row["why"]}
        print(run.add(case_of(name, "bf16", tokens, 0), row["impl"], **found), flush=True)


def llama_prompts(run: Run, llama: LlamaCpp, name: str, ends: float) -> None:
    """llama-bench's prompts."""
    for row in llama.bench(llama.file(name), ends - time.monotonic(), prompt=TOKENS, tokens=0, depths=DEPTHS):
        if row["n_prompt"]:
            tokens = float(row["avg_ts"])
            case = case_of(name, "q4_k_m", TOKENS, row["n_depth"])
            print(run.add(case, "llama.cpp", us=TOKENS * 1e6 / tokens, tokens_s=tokens), flush=True)


def first_tokens(run: Run, device: Device, given: argparse.Namespace, ends: float) -> Iterator[Task]:
    """Each model beside transformers; then the first over caches of 8 bits, and exact sums."""
    names = [name for name in FIRST_TOKEN if chosen((name, "bf16"), given)]

    def mine(name: str, impl: str, seconds: float) -> Task:
        work = functools.partial(first_token, run, device, name, impl)
        return Task(case_of(name, "bf16", max(PROMPTS), 0), impl, work, seconds)

    for name in names:
        yield mine(name, "ptxgen-fast", 8)
        if given.transformers:
            peer = functools.partial(transformers_prompts, run, name, ends)
            yield Task(case_of(name, "bf16", max(PROMPTS), 0), "transformers-cudnn", peer, 18)
    yield from (mine(FIRST_TOKEN[0], impl, 8) for impl in CACHES if FIRST_TOKEN[0] in names)
    yield from (mine(name, "ptxgen", 20) for name in names)


def tasks(run: Run, device: Device, llama: LlamaCpp | None, given: argparse.Namespace, ends: float) -> Iterator[Task]:
    """Everything, the most important first."""
    if given.first_token:
        yield from first_tokens(run, device, given, ends)
        return
    pairs = [pair for pair in (*FIRST, *MORE) if chosen(pair, given)]
    for name, weights in pairs:
        if weights == "q4_k_m":
            work = functools.partial(ours, run, device, name, weights)
            yield Task(case_of(name, weights, TOKENS, 0), "ptxgen", work, 15)
            if llama is not None:
                peer = functools.partial(llama_prompts, run, llama, name, ends)
                yield Task(
                    case_of(name, weights, TOKENS, 0), "llama.cpp", peer, 15, functools.partial(llama.ready, name)
                )
    for name, weights in pairs:
        if weights != "q4_k_m":
            work = functools.partial(ours, run, device, name, weights)
            yield Task(case_of(name, weights, TOKENS, 0), "ptxgen", work, 15)


def main(run: Run, given: argparse.Namespace) -> None:
    """All of it, in `given.seconds`."""
    from benchmarks.peers.llama_cpp import WEIGHTS, LlamaCpp
    from ptxgen.runtime import open_device

    ends = time.monotonic() + given.seconds
    llama = LlamaCpp(Path(given.llama), given.work and Path(given.work)) if given.llama else None
    try:
        if llama is not None:
            llama.write([pair[0] for pair in FIRST if pair[1] == WEIGHTS and chosen(pair, given)])
        work_off(run, list(tasks(run, open_device("cuda"), llama, given, ends)), ends)
    finally:
        if llama is not None:
            llama.stop()


IMPLS = (*PRECISIONS, *CACHES, "llama.cpp", "transformers-cudnn", "transformers-cudnn, graph")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a case: tokens a second of every implementation; then what has no row, and why."""
    cases: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        if "us" in row:
            cases.setdefault(tuple(row["case"].values()), {})[row["impl"]] = row["tokens_s"]
    shown = [impl for impl in IMPLS if any(impl in found for found in cases.values())]
    heads = ("model", "weights", "tokens", "depth", "batch", *(f"{impl}, tokens/s" for impl in shown))
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for case, found in sorted(cases.items()):
        cells = [f"{found[impl]:.0f}" if impl in found else "" for impl in shown]
        lines.append("| " + " | ".join([*map(str, case), *cells]) + " |")
    for row in rows:
        if "why" in row:
            lines.append(f"\n{row['impl']}, {', '.join(map(str, row['case'].values()))}: {row['why']}")
    return "\n".join(lines)


if __name__ == "__main__":
    only = ("--first-token", {"action": "store_true", "help": "only longer prompts in bf16, beside transformers"})
    command("prompt", __doc__, main, *OPTIONS, only, device=gpu, table=table, at_once=True)
