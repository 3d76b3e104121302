"""Decode steps of whole models by transformers, compiled over a static cache, in bf16 with random weights.

    python -m benchmarks.peers.transformers_step MODEL BATCHxDEPTH…

A process of its own, which compiles while others are measured. Before it fills a cache and before it is timed it asks,
by a line {"asks"}, and waits for a line; {"did"} says that the cache is full. {"us"} or {"why"} is a case's result.
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.cases.models import MODELS
from benchmarks.report.rows import RESULTS
from benchmarks.report.sentence import show_help

STEPS = 24
ROOM = 64  # positions after the depth
OTHERS = ("torch_dtype", "rope_scaling", "rope_theta", "head_dim")  # no matter of time, or what follows from others
COMPILERS = 4  # processes that compile for a model: several models at once leave room for what is timed
SLOW = 60.0  # seconds within which a cache is full and a case timed

Batch = tuple[int, int]  # sequences and their depth


class Transformers:
    """The steps of a model in a process of its own. `cases` come in their order; `ready` says when one has come.
    `process` leads a session."""

    def __init__(self, model: str, cases: Sequence[Batch]) -> None:
        command = [sys.executable, "-m", __name__, model, *(f"{batch}x{depth}" for batch, depth in cases)]
        root = RESULTS.parent.parent
        path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", ""))))
        more = {"PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": str(COMPILERS)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root, env=os.environ | more,
            start_new_session=True,
        )  # fmt: skip
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self._asks: Batch | None = None
        self._done: dict[Batch, dict[str, Any]] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._said.put(json.loads(line))
        self._said.put({"ended": self.process.wait()})

    def ready(self, case: Batch) -> bool:
        """Whether a case is compiled, or its result is known. Lets the process fill a cache, where it asks to."""
        while case not in self._done and self._asks != case:
            try:
                self._hear(self._said.get_nowait())
            except queue.Empty:
                return False
        return True

    def measure(self, case: Batch) -> dict[str, Any]:
        """{"us"} or {"why"} of a case that is ready."""
        if self._asks == case:
            self._answer()
        while case not in self._done:
            self._hear(self._said.get(timeout=SLOW))
        return self._done[case]

    def stop(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _hear(self, line: dict[str, Any]) -> None:
        if "ended" in line:
            self._said.put(line)
            raise RuntimeError(f"transformers: exit {line['ended']}")
        if line.get("asks") == "to fill":
            self._answer()
            while "did" not in line:
                line = self._said.get(timeout=SLOW)
                if "did" not in line:
                    self._hear(line)
                    return
        elif "asks" in line:
            self._asks = (line["batch"], line["depth"])
        elif "us" in line or "why" in line:
            self._done[line["batch"], line["depth"]] = line

    def _answer(self) -> None:
        self._asks = None
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()


def main(model: str, cases: Sequence[Batch]) -> None:
    """Measure and print."""
    import torch

    made = random_model(model)
    for batch, depth in cases:
        row: dict[str, Any] = {"batch": batch, "depth": depth}
        try:
            row["us"] = _us(made, batch, depth)
        except Exception as wrong:
            row["why"] = f"{type(wrong).__name__}: {wrong}"[:300]
        print(json.dumps(row), flush=True)
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def _ask(what: str, batch: int, depth: int) -> None:
    """Wait until this may be done."""
    print(json.dumps({"asks": what, "batch": batch, "depth": depth}), flush=True)
    if not sys.stdin.readline():
        raise SystemExit(0)


def random_model(name: str) -> Any:
    """A model in bf16 on the GPU, with random weights."""
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
        _ask("to fill", batch, depth)
        prompt = torch.zeros(batch, depth, dtype=torch.long, device="cuda")
        model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
        torch.cuda.synchronize()
        print(json.dumps({"did": "fill"}), flush=True)
        for index in range(6):
            ids = step(index)
        torch.cuda.synchronize()
        _ask("to be timed", batch, depth)
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
    show_help(__doc__)
    main(sys.argv[1], [(int(batch), int(depth)) for batch, depth in (each.split("x") for each in sys.argv[2:])])
