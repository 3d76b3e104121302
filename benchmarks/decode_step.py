"""Whole decode steps of real models' shapes with random weights: ours beside llama.cpp, transformers and the read.

    python -m benchmarks.decode_step --seconds 400 --llama SOURCE.tar.xz      measure on a GPU, print, append rows
    python -m benchmarks.decode_step --seconds 400 --models llama-3.2-1b --weights bf16
    python -m benchmarks.decode_step --report [--run ID]                      the table of the last run, or of one

`us` of ours: launches of a step's graph back to back; "ptxgen-fast": batches with precision="fast". `host_us`: what
`forward_to_token` (`Batch.step`) takes longer, token by token. `bytes`: weights, and keys and values at that depth.
transformers compiles in processes of its own while ours is measured; it is timed alone, and ours are medians.
`floor`: only reading so many bytes; from 2 GB on at the rate of 2 GB. Rows of a step's ops go to
`decode_step_ops.jsonl` (`benchmarks.step_ops`). Every row is kept as soon as it is there; what fails or finds no time
says why.
"""

from __future__ import annotations

import argparse
import functools
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.bound_step import Bound, graph_us
from benchmarks.cases.models import MIXES, MODELS, cache_bytes, fill_cache, open_random, weight_bytes
from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run
from benchmarks.schedule import Task, work_off
from benchmarks.step_ops import measure as measure_ops

if TYPE_CHECKING:
    from benchmarks.peers.llama_cpp import LlamaCpp
    from benchmarks.peers.transformers_step import Transformers
    from ptxgen.runtime import Model
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.core.graph import Graph
    from ptxgen.runtime.model.batch import Batch

Case = dict[str, Any]
FIRST = (
    ("tinyllama-1.1b", "q4_k_m"), ("qwen2.5-1.5b", "q4_k_m"), ("llama-3-8b", "q4_k_m"), ("llama-3.2-1b", "bf16"),
    ("qwen2.5-1.5b", "bf16"), ("llama-3-8b", "bf16"),
)  # fmt: skip
MORE = (("llama-3-8b", "e4m3"), ("llama-3-8b", "int4-128"), ("llama-3-8b", "q8_0"))
DEPTHS = {1: (0, 128, 4096), 8: (128, 512, 4096), 32: (512, 4096)}  # of ours by batch; llama.cpp: some
TRANSFORMERS = ((1, 128), (8, 512), (1, 4096), (8, 4096), (32, 512))  # batch and depth, in the order of compiling
ROLES_DEPTH = 4096
MAX_LEN = 4096 + 512
STEPS = 32  # launches back to back
REPEATS = 5
FLOORS = (500_000_000, 1_000_000_000, 2_000_000_000)


class Ours:
    """Models on a device, each opened once, and their rows. `floors`: the read of some sizes, once measured."""

    def __init__(
        self, run: Run, ops: Run, device: Device, models: Mapping[str, Mapping[str, Any]] = MODELS,
        max_len: int = MAX_LEN, steps: int = STEPS,
    ) -> None:  # fmt: skip
        self.run, self.ops, self.device, self.models = run, ops, device, models
        self.max_len, self.steps = max_len, steps
        self.floors: dict[int, float] = {}
        self._open: dict[tuple[str, str], Model] = {}

    def model(self, name: str, weights: str) -> Model:
        """A model, opened."""
        if (name, weights) not in self._open:
            self._open[name, weights] = open_random(self.models[name], weights, self.max_len, self.device)
        return self._open[name, weights]

    def single(self, name: str, weights: str, depths: Sequence[int]) -> None:
        """Rows of one sequence."""
        self._single(self.model(name, weights), name, weights, depths, "ptxgen")

    def persistent(self, name: str, weights: str, depths: Sequence[int]) -> None:
        """Rows of one sequence whose step is one launch."""
        from ptxgen.runtime import Model

        graph = self.model(name, weights)
        model = Model(graph.source, self.device, weights=graph.weights, persistent=True)
        for layer in range(model.shape.n_layers):
            fill_cache(model.cache.buffers(layer))
        self._single(model, name, weights, depths, "ptxgen-persistent")

    def _single(self, model: Model, name: str, weights: str, depths: Sequence[int], impl: str) -> None:
        program = model.steps.decode.program
        for depth in depths:
            us = self._us(model.steps.decode.graph, functools.partial(at_depth, model, depth))
            at_depth(model, depth)
            host = tokens_us(model, self.steps) - us
            nbytes = weight_bytes(program) + cache_bytes(program, depth + 1)
            self._add(case_of(name, weights, 1, depth), us, host, nbytes, impl)

    def batch(self, name: str, weights: str, slots: int, depths: Sequence[int]) -> None:
        """Rows of several sequences, all as long."""
        exact = self.model(name, weights)
        self._batch("ptxgen", exact, case_of(name, weights, slots, 0), depths)
        gc.collect()  # their caches
        self._batch("ptxgen-fast", self._fast(exact), case_of(name, weights, slots, 0), depths)
        gc.collect()

    def _fast(self, exact: Model) -> Model:
        return type(exact)(exact.source, self.device, chunk=1, weights=exact.weights, precision="fast")

    def _batch(self, impl: str, model: Model, case: Case, depths: Sequence[int]) -> None:
        batch = model.batch(case["batch"])
        for layer in range(model.shape.n_layers):
            fill_cache(batch.cache.buffers(layer))
        program = batch._step.program
        for depth in depths:
            us = self._us(batch._step.graph, functools.partial(batch_at, batch, depth, stepped=True))
            batch_at(batch, depth)
            host = median_us(batch.step, self.steps) - us
            nbytes = weight_bytes(program) + cache_bytes(program, depth + 1)
            self._add(case | {"depth": depth}, us, host, nbytes, impl)

    def _add(self, case: Case, us: float, host: float, nbytes: int, impl: str = "ptxgen") -> None:
        more = {"host_us": host, "bytes": nbytes, "tbs": nbytes / us / 1e6, "tokens_s": case["batch"] * 1e6 / us}
        print(self.run.add(case, impl, us=us, **more), flush=True)
        if self.floors and impl == "ptxgen":
            least = floor_us(self.floors, nbytes)
            self.run.add(case, "floor", us=least, bytes=nbytes, tbs=nbytes / least / 1e6)

    def _us(self, graph: Graph, place: Callable[[], object]) -> float:
        """Microseconds of a graph, launched back to back from the same place on."""
        return graph_us(self.device, graph, place, self.steps, REPEATS)

    def bound(self, name: str, weights: str, batch: int, depth: int) -> tuple[Bound, str]:
        """A step whose ops are to be measured, and the name of the implementation."""
        exact = self.model(name, weights)
        if batch == 1:
            place = functools.partial(at_depth, exact, depth)
            return Bound(exact.steps.decode, place, depth, self.device), "ptxgen"
        made = self._fast(exact).batch(batch)
        for layer in range(exact.shape.n_layers):
            fill_cache(made.cache.buffers(layer))
        place = functools.partial(batch_at, made, depth, stepped=True)
        return Bound(made._step, place, depth, self.device), "ptxgen-fast"

    def roles(self, name: str, weights: str, batch: int, depth: int) -> None:
        """Rows of the ops of a step."""
        bound, impl = self.bound(name, weights, batch, depth)
        measure_ops(bound, self.ops, case_of(name, weights, batch, depth), impl)

    def read(self) -> None:
        """Measure the floors."""
        self.floors = floor_times()
        print({size: round(us, 1) for size, us in self.floors.items()}, flush=True)


def case_of(model: str, weights: str, batch: int, depth: int) -> Case:
    """A row's case."""
    return {"model": model, "weights": weights, "batch": batch, "depth": depth}


def at_depth(model: Model, depth: int) -> None:
    """Let a sequence be so long; what it holds are the random values of the cache."""
    model._length, model._known = depth, None
    model._place(0, depth)


def batch_at(batch: Batch, depth: int, stepped: bool = False) -> None:
    """Let every slot hold a sequence of that length; `stepped`: the device is told of one position more."""
    for slot in range(batch.slots):
        batch.cache.set_length(slot, depth)
        batch._next.setdefault(slot, 0)
    if stepped:
        batch.cache.step(batch.active, batch.model.stream)


def tokens_us(model: Model, steps: int) -> float:
    """Median time of `forward_to_token` on the host, which feeds every token back."""
    state = [model.forward_to_token(0)]

    def token() -> None:
        state[0] = model.forward_to_token(state[0])

    return median_us(token, steps)


def median_us(call: Callable[[], object], times: int) -> float:
    """Median time of a call on the host's clock; the first does not count."""
    call()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append((time.perf_counter() - began) * 1e6)
    return statistics.median(found)


# the others -----------------------------------------------------------------------------------------------------------
def floor_times() -> dict[int, float]:
    """The read of some sizes alone."""
    from benchmarks.peers.read_floor import Floor

    floor = Floor()
    return {size: floor.us(size) for size in FLOORS}


def floor_us(times: Mapping[int, float], nbytes: int) -> float:
    """Microseconds to read so many bytes: between the sizes of `times`, and past them at the largest one's rate."""
    largest = max(times)
    if nbytes > largest:
        return times[largest] * nbytes / largest
    return float(np.interp(nbytes, [0, *times], [0.0, *times.values()]))


def llama_single(run: Run, llama: LlamaCpp, name: str, depths: Sequence[int], ends: float) -> None:
    """llama-bench's tokens one by one."""
    for row in llama.bench(llama.file(name), ends - time.monotonic(), prompt=0, tokens=64, depths=depths):
        if row["n_gen"]:
            tokens = float(row["avg_ts"])
            run.add(case_of(name, "q4_k_m", 1, row["n_depth"]), "llama.cpp", us=1e6 / tokens, tokens_s=tokens)
            print(run.rows[-1], flush=True)


def llama_batches(
    run: Run, llama: LlamaCpp, name: str, batches: Sequence[int], depths: Sequence[int], ends: float
) -> None:
    """llama-batched-bench's steps."""
    for row in llama.batched(llama.file(name), ends - time.monotonic(), depths=depths, batches=batches, tokens=32):
        us = float(row["t_tg"]) / row["tg"] * 1e6
        case = case_of(name, "q4_k_m", row["pl"], row["pp"])
        print(run.add(case, "llama.cpp", us=us, tokens_s=row["pl"] * 1e6 / us), flush=True)


def transformers_step(run: Run, made: Transformers, name: str, batch: int, depth: int) -> None:
    """A step of transformers'."""
    row = made.measure((batch, depth))
    found = {"us": row["us"], "tokens_s": batch * 1e6 / row["us"]} if "us" in row else {"why": row["why"]}
    print(run.add(case_of(name, "bf16", batch, depth), "transformers-compiled", **found), flush=True)


# the run --------------------------------------------------------------------------------------------------------------
def tasks(
    run: Run, ours: Ours, llama: LlamaCpp | None, transformers: Mapping[str, Transformers], given: argparse.Namespace,
    ends: float,
) -> Iterator[Task]:  # fmt: skip
    """Everything, the most important first. `transformers`: the processes by model."""
    first = [pair for pair in FIRST if chosen(pair, given)]
    packed = [name for name, weights in first if weights == "q4_k_m"]
    plain = [name for name, weights in first if weights == "bf16"]

    def one(pair: tuple[str, str]) -> Task:
        case, work = case_of(*pair, 1, 0), functools.partial(ours.single, *pair, DEPTHS[1])
        return Task(case, "ptxgen", work, 6)

    def several(pair: tuple[str, str], slots: int) -> Task:
        case, work = case_of(*pair, slots, 512), functools.partial(ours.batch, *pair, slots, DEPTHS[slots])
        return Task(case, "ptxgen", work, 12)

    yield Task({}, "floor", ours.read, 5)
    yield from map(one, first)
    for name in plain:
        work = functools.partial(ours.persistent, name, "bf16", DEPTHS[1])
        yield Task(case_of(name, "bf16", 1, 0), "ptxgen-persistent", work, 6)
    for sizes in TRANSFORMERS:
        for name, made in transformers.items():
            work = functools.partial(transformers_step, run, made, name, *sizes)
            ready = functools.partial(made.ready, sizes)
            yield Task(case_of(name, "bf16", *sizes), "transformers-compiled", work, 3, ready)
    if llama is not None:
        for name in packed:
            work = functools.partial(llama_single, run, llama, name, (0, 4096), ends)
            yield Task(case_of(name, "q4_k_m", 1, 0), "llama.cpp", work, 12, functools.partial(llama.ready, name))
    yield from (several(pair, 8) for pair in first)
    if llama is not None:
        for name in packed:
            work = functools.partial(llama_batches, run, llama, name, (8, 32), (512, 4096), ends)
            yield Task(case_of(name, "q4_k_m", 8, 512), "llama.cpp", work, 25, functools.partial(llama.ready, name))
    yield from (several(pair, 32) for pair in first)
    yield from (one(pair) for pair in MORE if chosen(pair, given))
    for pair in first:
        work = functools.partial(ours.roles, *pair, 1, ROLES_DEPTH)
        yield Task(case_of(*pair, 1, ROLES_DEPTH), "ptxgen ops", work, 8)


def chosen(pair: tuple[str, str], given: argparse.Namespace) -> bool:
    """Whether a model with these weights is wanted."""
    wanted = (given.models, MODELS), (given.weights, MIXES)
    return all(not names or one in names.split(",") for one, (names, _) in zip(pair, wanted, strict=True))


def main(run: Run, given: argparse.Namespace) -> None:
    """All of it, in `given.seconds`."""
    from benchmarks.peers.llama_cpp import WEIGHTS, LlamaCpp
    from benchmarks.peers.transformers_step import Transformers
    from ptxgen.runtime import open_device

    ends = time.monotonic() + given.seconds
    wanted = [pair for pair in FIRST if chosen(pair, given)]
    llama = LlamaCpp(Path(given.llama), given.work and Path(given.work)) if given.llama else None
    plain = [name for name, weights in wanted if weights == "bf16" and given.transformers]
    transformers = {name: Transformers(name, TRANSFORMERS) for name in plain}
    try:
        if llama is not None:
            llama.write([name for name, weights in wanted if weights == WEIGHTS])
        with Run("decode_step_ops", gpu(), at_once=True) as ops:
            ours = Ours(run, ops, open_device("cuda"))
            work_off(run, list(tasks(run, ours, llama, transformers, given, ends)), ends)
    finally:
        for each in (*transformers.values(), *((llama,) if llama is not None else ())):
            each.stop()


OPTIONS = (
    ("--seconds", {"type": float, "default": 400.0, "help": "end after so many (default: 400)"}),
    (
        "--llama",
        {
            "metavar": "SOURCE",
            "help": "llama.cpp: an archive of its source, built while ours is measured, or an "
            "archive or a folder with its programs",
        },
    ),
    ("--work", {"metavar": "FOLDER", "help": "where llama.cpp and its files are, or will be (default: a new one)"}),
    ("--no-transformers", {"dest": "transformers", "action": "store_false", "help": "leave transformers out"}),
    ("--models", {"help": "only these models, separated by commas"}),
    ("--weights", {"help": "only these weights"}),
)
PEERS = ("llama.cpp", "transformers-compiled")
IMPLS = ("ptxgen", "ptxgen-fast", "ptxgen-persistent", *PEERS, "floor")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a case: µs of every implementation, the share of the read, how much faster than the best of the others;
    then what has no row, and why."""
    cases: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if "us" in row:
            cases.setdefault(tuple(row["case"].values()), {})[row["impl"]] = row
    heads = ("model", "weights", "batch", "depth", "MB", *IMPLS, "host", "of the read", "times a peer")
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for case in sorted(cases):
        found = cases[case]
        us = [f"{found[impl]['us']:.0f}" if impl in found else "" for impl in IMPLS]
        ours = found.get("ptxgen", {})
        peers = [found[impl]["us"] for impl in PEERS if impl in found]
        size = f"{ours['bytes'] / 1e6:.0f}" if ours else ""
        host = f"{ours['host_us']:.0f}" if ours else ""
        share = f"{found['floor']['us'] / ours['us']:.2f}" if ours and "floor" in found else ""
        times = f"{min(peers) / ours['us']:.2f}" if ours and peers else ""
        lines.append("| " + " | ".join([*map(str, case), size, *us, host, share, times]) + " |")
    for row in rows:
        if "why" in row:
            lines.append(f"\n{row['impl']}, {', '.join(map(str, row['case'].values()))}: {row['why']}")
    return "\n".join(lines)


if __name__ == "__main__":
    command("decode_step", __doc__, main, *OPTIONS, device=gpu, table=table, at_once=True)
