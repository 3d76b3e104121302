"""A decode step that is bound to a device, and the time of its graph or of a part of it."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.report.rows import Run
from ptxgen.runtime.model.profile import op_bytes

if TYPE_CHECKING:
    from ptxgen.models.program import Program
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.core.launches.bound import BoundKernel
    from ptxgen.runtime.core.launches.graph import Graph
    from ptxgen.runtime.core.step import Step

SETTLE_SECONDS = 0.04  # see benchmarks.timing.gpu
LEAD_LAYERS = 2
NODES = 16  # of a graph of one op
TIMELINE = "timeline"  # the op of the row of a whole step
STEPS, REPEATS = 6, 7  # of a graph of the first launches
SAMPLES = 6  # launches of a kernel, the first ones of the step, whose ends are measured; the others take as long


@dataclass(frozen=True)
class Bound:
    """A step on a device; `place` lets its sequences be as long as they shall be, `depth` positions."""

    step: Step
    place: Callable[[], object]
    depth: int
    device: Device

    @property
    def program(self) -> Program:
        return self.step.program

    def us(self, launches: Sequence[BoundKernel], steps: int = STEPS, repeats: int = REPEATS) -> float:
        """Microseconds of a graph of these launches."""
        return graph_us(self.device, self.graph(launches), self.place, steps, repeats, settle=0.0)

    def graph(self, launches: Sequence[BoundKernel]) -> Graph:
        """Launches in one graph, as a step's are."""
        made = self.device.graph()
        for bound in launches:
            made.add(bound, programmatic=bool(made.nodes) and bound.geometry.programmatic)
        return made

    def adds(self) -> list[float]:
        """What each launch adds to the step; of a kernel with many launches the mean of the first ones stands for the
        others, so that the graphs are few and short."""
        ops, behind = self.program.ops, functools.cache(self._behind_lead)
        found: dict[Any, list[float]] = {op.spec: [] for op in ops}
        taken: list[float | None] = []
        for index, op in enumerate(ops):
            samples = found[op.spec]
            taken.append(behind(index + 1) - behind(index) if len(samples) < SAMPLES else None)
            samples += [taken[-1]] if taken[-1] is not None else []
        means = (statistics.fmean(found[op.spec]) for op in ops)
        return [mean if one is None else one for one, mean in zip(taken, means, strict=True)]

    def _behind_lead(self, count: int) -> float:
        """Microseconds of a graph of the first launches, behind those of the first layers."""
        launches, layers = self.step.launches, [op.layer for op in self.program.ops]
        lead = launches[: layers.index(LEAD_LAYERS) if LEAD_LAYERS in layers else len(launches) - 1]
        return self.us([*lead, *launches[:count]])


def graph_us(
    device: Device, graph: Graph, place: Callable[[], object], steps: int, repeats: int, settle: float = SETTLE_SECONDS
) -> float:
    """Microseconds of a launch: the median over `repeats` of `steps` back to back, each from `place` on; those of the
    first `settle` seconds do not count."""
    stream = device.default_stream
    times: list[float] = []
    settled = time.perf_counter() + (settle if device.kind == "cuda" else 0)
    while len(times) < repeats:
        place()
        stream.synchronize()
        before = stream.record()
        for _ in range(steps):
            graph.launch(stream)
        after = stream.record()
        after.synchronize()
        if time.perf_counter() >= settled:
            times.append(after.elapsed_us(before) / steps)
    return statistics.median(times)


def measure(bound: Bound, run: Run, case: Mapping[str, Any], impl: str) -> None:
    """Add the rows of a step: the end of each launch, then a row for each role of its ops."""
    whole = bound.us(bound.step.launches, 16, 5)
    adds = bound.adds()
    ops = bound.program.ops
    names, ends = [op.name for op in ops], itertools.accumulate(adds)
    run.add({**case, "op": TIMELINE}, impl, us=whole, names=names, ends=[round(end, 2) for end in ends])
    for role in dict.fromkeys((op.role, op.spec.kernel_name) for op in ops):
        mine = [index for index, op in enumerate(ops) if (op.role, op.spec.kernel_name) == role]
        times = -(-NODES // len(mine))
        alone = bound.us([bound.step.launches[index] for index in mine] * times, 16, 5) / times
        nbytes = sum(op_bytes(bound.program, ops[index], bound.depth + 1) for index in mine)
        run.add(
            {**case, "op": role[0], "kernel": role[1]}, impl, us=sum(adds[index] for index in mine), alone_us=alone,
            count=len(mine), bytes=nbytes, step_us=whole,
        )  # fmt: skip
