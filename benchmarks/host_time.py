"""What the host adds to a token: `forward_to_token` from call to return beside the device's own time.

python -m benchmarks.host_time [--model FILE] [--tokens 1000]      needs a GPU; some seconds
python -m benchmarks.host_time --report [--run ID]

Medians over tokens of one sequence, each fed back, from its second call on. "call": from call to return. "device": the
step's graph and the copy of its token between two events, queued behind a step that is still running. "host": what a
call takes longer; launch latency and the wait's wake-up are in it. "issued": until graph and copy are submitted, on an
idle device. "driver": launch, copy and wait called as they are; "python": what a call takes longer than that.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report.command import command, gpu
from benchmarks.report.rows import Run

if TYPE_CHECKING:
    from ptxgen.runtime import Model

SHIPPED = Path(__file__).resolve().parents[1] / "examples" / "models" / "kjv-f16.gguf"
DEPTH = 16  # positions before the first token that counts


def measure(model: Model, tokens: int) -> dict[str, float]:
    """Microseconds of a token, by part; every part from the same depth on."""
    for layer in range(model.shape.n_layers):  # positions that were never written are numbers, too
        for buffer in model.cache.buffers(layer).values():
            buffer.zero()
    found = {
        "call": _median(model, tokens, _call(model)),
        "driver": _median(model, tokens, _driver(model)),
        "issued": _median(model, tokens, _issue(model), after=model.stream.synchronize),
        "device": _device(model, tokens),
    }
    return found | {"host": found["call"] - found["device"], "python": found["call"] - found["driver"]}


def _call(model: Model) -> Callable[[], object]:
    """A token as users ask for it."""
    token = [0]

    def call() -> None:
        token[0] = model.forward_to_token(token[0])

    return call


def _driver(model: Model) -> Callable[[], object]:
    """The same work, without the model's own."""
    graph, stream = model.steps.decode.graph, model.stream

    def call() -> None:
        graph._launch(stream)
        model._read_token()
        model._wait()

    return call


def _issue(model: Model) -> Callable[[], object]:
    graph, stream = model.steps.decode.graph, model.stream
    return lambda: (graph.launch(stream), model._read_token())


def _median(model: Model, tokens: int, call: Callable[[], object], after: Callable[[], object] | None = None) -> float:
    """Median time of a call over so many tokens."""
    times: list[float] = []
    while len(times) < tokens:
        _begin(model)
        for _ in range(min(tokens - len(times), model.shape.max_len - DEPTH - 1)):
            began = time.perf_counter()
            call()
            times.append((time.perf_counter() - began) * 1e6)
            if after is not None:
                after()
    return statistics.median(times)


def _device(model: Model, tokens: int) -> float:
    """Time of a step and of the copy of its token behind a step that runs, as the device sees it."""
    graph, stream = model.steps.decode.graph, model.stream
    times: list[float] = []
    for index in range(min(tokens, 200)):
        if index % ((model.shape.max_len - DEPTH) // 2) == 0:
            _begin(model)
        graph.launch(stream)
        before = stream.record()
        graph.launch(stream)
        model._read_token()
        after = stream.record()
        after.synchronize()
        times.append(after.elapsed_us(before))
    return statistics.median(times)


def _begin(model: Model) -> None:
    """A sequence of some positions, whatever they hold: what a launch by itself counts, the model does not know."""
    model._length, model._known = DEPTH, None
    model.forward_to_token(0)


def measure_all(run: Run, given: argparse.Namespace) -> None:
    """The rows of a model."""
    from ptxgen.runtime import Model

    model = Model.load(given.model, "cuda")
    measure(model, 50)  # clocks and caches settle
    found = measure(model, given.tokens)
    case = {"model": Path(given.model).stem, "launches": len(model.steps.decode.launches)}
    for name, us in found.items():
        run.add(case, name, us=us)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a part."""
    lines = ["| model | part | µs |", "| --- | --- | ---: |"]
    lines += [f"| {row['case']['model']} | {row['impl']} | {row['us']:.1f} |" for row in rows]
    return "\n".join(lines)


OPTIONS = (
    ("--model", {"default": str(SHIPPED), "help": "a model file (default: the shipped one)"}),
    ("--tokens", {"type": int, "default": 1000, "help": "tokens of a median (default: 1000)"}),
)


if __name__ == "__main__":
    command("host_time", __doc__, measure_all, *OPTIONS, device=gpu, table=table, at_once=True)
