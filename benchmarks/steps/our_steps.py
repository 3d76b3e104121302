"""Decode steps of models with random weights on a device, and rows of their times: what several commands measure."""

from __future__ import annotations

import argparse
import functools
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.cases.models import MIXES, MODELS, cache_bytes, fill_cache, open_random, weight_bytes
from benchmarks.report.rows import Run
from benchmarks.steps.bound_step import Bound, graph_us, measure

if TYPE_CHECKING:
    from ptxgen.runtime import Model
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.core.launches.graph import Graph
    from ptxgen.runtime.model.batch import Batch

Case = dict[str, Any]
Quiet = Callable[[], AbstractContextManager[None]]  # a context in which nothing else runs
FIRST = (
    ("tinyllama-1.1b", "q4_k_m"), ("qwen2.5-1.5b", "q4_k_m"), ("llama-3-8b", "q4_k_m"), ("llama-3.2-1b", "bf16"),
    ("qwen2.5-1.5b", "bf16"), ("llama-3-8b", "bf16"),
)  # fmt: skip
MORE = (("llama-3-8b", "e4m3"), ("llama-3-8b", "int4-128"), ("llama-3-8b", "q8_0"))
IMPLS = ("ptxgen", "ptxgen-fast")
DEPTHS = {1: (0, 128, 4096), 2: (512,), 4: (512,), 8: (512, 4096), 32: (512, 4096)}  # of ours by batch
MAX_LEN = 4096 + 512
STEPS = 16  # launches back to back
REPEATS = 5
FLOORS = (500_000_000, 1_000_000_000, 2_000_000_000)


class Ours:
    """Models on a device, each opened once, and their rows. `quiet`: for what is timed.
    `floors`: the read of some sizes, once measured."""

    def __init__(
        self, run: Run, ops: Run, device: Device, models: Mapping[str, Mapping[str, Any]] = MODELS,
        max_len: int = MAX_LEN, steps: int = STEPS, quiet: Quiet = nullcontext,
    ) -> None:  # fmt: skip
        self.run, self.ops, self.device, self.models = run, ops, device, models
        self.max_len, self.steps, self.quiet = max_len, steps, quiet
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
            with self.quiet():
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
            with self.quiet():
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
        with self.quiet():
            return graph_us(self.device, graph, place, self.steps, REPEATS)

    def bound(self, name: str, weights: str, batch: int, depth: int, impl: str = "ptxgen") -> Bound:
        """A step whose ops are to be measured, by the implementation of that name."""
        exact = self.model(name, weights)
        if batch == 1:
            place = functools.partial(at_depth, exact, depth)
            return Bound(exact.steps.decode, place, depth, self.device)
        made = (exact if impl == "ptxgen" else self._fast(exact)).batch(batch)
        for layer in range(exact.shape.n_layers):
            fill_cache(made.cache.buffers(layer))
        place = functools.partial(batch_at, made, depth, stepped=True)
        return Bound(made._step, place, depth, self.device)

    def roles(self, name: str, weights: str, batch: int, depth: int, impl: str = "ptxgen") -> None:
        """Rows of the ops of a step."""
        bound = self.bound(name, weights, batch, depth, impl)
        with self.quiet():
            measure(bound, self.ops, case_of(name, weights, batch, depth), impl)

    def read(self) -> None:
        """Measure how long only reading takes, which later rows are compared with; a row of it beside those of ops."""
        self.floors = floor_times()
        largest = max(self.floors)
        self.ops.add({"op": "read"}, "floor", us=self.floors[largest], bytes=largest)
        print({size: round(us, 1) for size, us in self.floors.items()}, flush=True)


def case_of(model: str, weights: str, batch: int, depth: int) -> Case:
    """A row's case."""
    return {"model": model, "weights": weights, "batch": batch, "depth": depth}


def impls(batch: int) -> Sequence[str]:
    """Our implementations of a step of so many sequences: one sequence has no rounded rows."""
    return IMPLS[:1] if batch == 1 else IMPLS


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


def floor_times() -> dict[int, float]:
    """Microseconds of only reading so many bytes, by size."""
    from benchmarks.peers.read_floor import Floor

    floor = Floor()
    return {size: floor.us(size) for size in FLOORS}


def floor_us(times: Mapping[int, float], nbytes: int) -> float:
    """Microseconds to read so many bytes: between the sizes of `times`, and past them at the largest one's rate."""
    largest = max(times)
    if nbytes > largest:
        return times[largest] * nbytes / largest
    return float(np.interp(nbytes, [0, *times], [0.0, *times.values()]))


def chosen(pair: tuple[str, str], given: argparse.Namespace) -> bool:
    """Whether a model with these weights is wanted."""
    wanted = (given.models, MODELS), (given.weights, MIXES)
    return all(not names or one in names.split(",") for one, (names, _) in zip(pair, wanted, strict=True))
