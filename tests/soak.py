"""Random appends, attentions, chunks, rollbacks, snapshots and graph replays against the float64 oracle.

python -m tests.soak --device cuda --steps 100000 [--seed 0] [--jobs 12] [--save]

A shape lives for some hundred steps.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ptxgen.examples import poison
from ptxgen.parity import LIMITS, compare
from ptxgen.runtime import BatchedKvCache, Device, Executor, KvCache, open_device
from tests.kv_oracle import Oracle

KINDS = ("f32", "f16", "bf16", "e4m3", "s8")
QUERY = "f32"


def spoil(cache: KvCache | BatchedKvCache) -> None:
    """Fill all of a cache with NaN, or what is as bad: what lies past a length must reach no result."""
    for layer in range(cache.n_layers):
        for name, buffer in cache.buffers(layer).items():
            if name != "page_table":
                buffer.copy_from(poison(buffer.shape, buffer.dtype))


class Life:
    """One executor of a random shape, its oracle, and a captured graph of its first layer."""

    def __init__(self, device: Device, rng: np.random.Generator) -> None:
        self.device, self.rng = device, rng
        kv_heads = int(rng.choice([1, 2, 3, 4, 8]))
        heads = kv_heads * int(rng.choice([1, 2, 3, 4, 7, 8]))
        dim = int(rng.choice([32, 64, 80, 128]))
        self.kind, self.layers = str(rng.choice(KINDS)), int(rng.integers(1, 4))
        self.max_len = int(rng.choice([17, 64, 250]))
        self.shape = (heads, dim)
        self.kv_shape = (kv_heads, dim)
        self.executor = Executor(device, self.layers, heads, kv_heads, dim, self.max_len, self.kind, QUERY)
        spoil(self.executor.cache)
        self.oracle = Oracle(self.layers, heads, kv_heads, dim, self.kind)
        self.worst = 0.0
        self.graph: Any = None

    def random(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape, np.float32)

    def check(self, got: np.ndarray, want: np.ndarray, what: str) -> None:
        verdict = compare(what, got, want, LIMITS[self.kind])
        if not verdict.ok:
            raise AssertionError(f"{what}: {verdict}; {self.executor.cache!r}")
        self.worst = max(self.worst, verdict.error / verdict.limit)

    def step(self) -> str:
        """One random operation; its name."""
        names = ["decode", "decode_on_device", "chunk", "rollback", "snapshot", "replay", "overflow", "peek"]
        name = str(self.rng.choice(names, p=[0.3, 0.2, 0.12, 0.1, 0.05, 0.15, 0.03, 0.05]))
        getattr(self, name)()
        assert [self.executor.cache.length(i) for i in range(self.layers)] == [
            self.oracle.length(i) for i in range(self.layers)
        ], name
        return name

    def layer(self) -> int:
        return int(self.rng.integers(self.layers))

    def make_room(self, rows: int, layers: range | None = None) -> None:
        if any(self.oracle.length(i) + rows > self.max_len for i in layers or range(self.layers)):
            self.roll(int(self.rng.integers(0, self.max_len - rows + 1)))

    def roll(self, position: int) -> None:
        self.executor.cache.rollback(position)
        self.oracle.rollback(position)

    def decode(self) -> None:
        self.make_room(1)
        layer, q = self.layer(), self.random(*self.shape)
        k, v, out = self.random(*self.kv_shape), self.random(*self.kv_shape), np.full(self.shape, np.nan, np.float32)
        self.oracle.append(layer, k, v)
        length = self.executor.incremental_attention(layer, q, k, v, out)
        assert length == self.oracle.length(layer)
        self.check(out, self.oracle.attend(layer, q), "decode")

    def decode_on_device(self) -> None:
        self.make_room(1)
        layer, host = self.layer(), [self.random(*s) for s in (self.shape, self.kv_shape, self.kv_shape)]
        q, k, v = (self.device.array(x) for x in host)
        out = self.device.empty(self.shape, QUERY).fill(np.nan)
        self.oracle.append(layer, *host[1:])
        self.executor.incremental_attention(layer, q, k, v, out)
        self.check(out.numpy(), self.oracle.attend(layer, host[0]), "decode_on_device")

    def chunk(self) -> None:
        rows = int(self.rng.integers(1, min(self.max_len, 40)))
        self.make_room(rows)
        layer = self.layer()
        q, k, v = self.random(rows, *self.shape), self.random(rows, *self.kv_shape), self.random(rows, *self.kv_shape)
        out = np.full(q.shape, np.nan, np.float32)
        self.oracle.append(layer, k, v)
        self.executor.flash_attention_cached(layer, q, k, v, out)
        self.check(out, self.oracle.attend_chunk(layer, q), "chunk")

    def rollback(self) -> None:
        self.roll(int(self.rng.integers(0, self.max_len + 1)))

    def snapshot(self) -> None:
        kept = self.executor.cache.snapshot()
        for layer, (k, v) in enumerate(kept):
            for got, want in zip((k, v), self.oracle.layers[layer], strict=True):
                self.check(got, want.swapaxes(0, 1), "snapshot")
        if self.rng.random() < 0.5:
            self.executor.cache.zero()
            self.executor.cache.restore(kept)

    def replay(self) -> None:
        self.make_room(1)
        if self.graph is None:
            self.capture()
        for array, buffer in zip(self.host, self.buffers, strict=False):
            array[...] = self.random(*array.shape)
            buffer.copy_from(array, self.executor.stream)
        self.executor.step()
        self.graph.launch(self.executor.stream)
        for layer in range(self.layers):
            self.oracle.append(layer, *self.host[1:])
            self.check(self.outs[layer].numpy(), self.oracle.attend(layer, self.host[0]), "replay")

    def capture(self) -> None:
        self.host = [np.zeros(s, np.float32) for s in (self.shape, self.kv_shape, self.kv_shape)]
        self.buffers = [self.device.array(x) for x in self.host]
        self.outs = [self.device.zeros(self.shape, QUERY) for _ in range(self.layers)]
        with self.device.graph() as self.graph:
            for layer in range(self.layers):
                self.executor.incremental_attention(layer, *self.buffers, self.outs[layer], self.graph.stream)

    def overflow(self) -> None:
        from ptxgen.errors import CapacityError

        rows = self.max_len + 1 - self.oracle.length(0)
        q, k = self.random(rows, *self.shape), self.random(rows, *self.kv_shape)
        try:
            self.executor.flash_attention_cached(0, q, k, k, np.zeros_like(q))
        except CapacityError:
            return
        raise AssertionError("overflow: no CapacityError")

    def peek(self) -> None:
        layer = self.layer()
        if self.oracle.length(layer):
            position, head = int(self.rng.integers(self.oracle.length(layer))), int(self.rng.integers(self.kv_shape[0]))
            got = self.executor.cache.peek(layer, "v", position, head)
            self.check(got, self.oracle.layers[layer][1][position, head], "peek")


def soak(device: Device, steps: int, seed: int, per_life: int = 300) -> dict[str, Any]:
    """Run; raises `AssertionError` at the first difference. What was done, the largest error, the memory in use."""
    rng = np.random.default_rng(seed)
    done: Counter[str] = Counter()
    worst, lives, started = 0.0, 0, time.perf_counter()
    used: list[int] = []
    while sum(done.values()) < steps:
        life = Life(device, rng)
        for _ in range(min(per_life, steps - sum(done.values()))):
            done[life.step()] += 1
        worst, lives = max(worst, life.worst), lives + 1
        del life
        gc.collect()
        device.synchronize()
        used.append(device.memory().used)
    return {
        "steps": dict(done), "shapes": lives, "largest error / limit": round(worst, 3),
        "memory used after the first and the last shape": (used[0], used[-1]),
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=None)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-life", type=int, default=300, help="steps with one shape")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side, with seeds of their own")
    parser.add_argument("--save", action="store_true", help="append a row to benchmarks/results/soak.jsonl")
    options = parser.parse_args()
    device = open_device(options.device)
    if options.jobs > 1:
        report = merged(list(side_by_side(options)))
    else:
        report = soak(device, options.steps, options.seed, options.per_life)
    print(json.dumps(report))
    if options.save:
        save(report, device, options.seed)


def side_by_side(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The reports of processes that share the steps; one that fails fails all."""
    command = [sys.executable, "-m", "tests.soak", "--steps", str(-(-options.steps // options.jobs))]
    command += ["--per-life", str(options.per_life)] + (["--device", options.device] if options.device else [])
    seeds = range(options.seed, options.seed + options.jobs)
    running = [subprocess.Popen([*command, "--seed", str(seed)], stdout=subprocess.PIPE, text=True) for seed in seeds]
    for seed, process in zip(seeds, running, strict=True):
        out, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"soak: the process with seed {seed} failed")
        yield json.loads(out.splitlines()[-1])


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """One report of several: counts summed, the worst of the rest."""
    done: Counter[str] = Counter()
    for report in reports:
        done.update(report["steps"])
    first, last = (sum(r["memory used after the first and the last shape"][i] for r in reports) for i in (0, 1))
    return {
        "steps": dict(done), "shapes": sum(r["shapes"] for r in reports),
        "largest error / limit": max(r["largest error / limit"] for r in reports),
        "memory used after the first and the last shape": (first, last),
        "seconds": max(r["seconds"] for r in reports),
    }  # fmt: skip


def save(report: dict[str, Any], device: Device, seed: int) -> None:
    """A row of this run."""
    from benchmarks.rows import Run

    run = Run("soak", getattr(device, "model", None))
    first, last = report["memory used after the first and the last shape"]
    run.add(
        {"seed": seed, "done": dict(report["steps"])}, "ptxgen", steps=sum(report["steps"].values()),
        shapes=report["shapes"], of_limit=report["largest error / limit"], used_first=first, used_last=last,
        seconds=float(report["seconds"]),
    )  # fmt: skip
    print(run.save())


if __name__ == "__main__":
    main()
