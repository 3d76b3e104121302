"""A decode step that is bound to a device, and the time of its graph or of a part of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxgen.models.program import Program
    from ptxgen.runtime.core.bound import BoundKernel
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.core.graph import Graph
    from ptxgen.runtime.core.step import Step

SETTLE_SECONDS = 0.04  # see benchmarks.gpu
LEAD_LAYERS = 2
STEPS, REPEATS = 6, 3  # of a graph of the first launches


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

    def ends(self) -> list[float]:
        """From the begin of the step to the end of each launch."""
        launches, layers = self.step.launches, [op.layer for op in self.program.ops]
        lead = launches[: layers.index(LEAD_LAYERS) if LEAD_LAYERS in layers else len(launches) - 1]
        before = self.us(lead)
        return [self.us([*lead, *launches[: n + 1]]) - before for n in range(len(launches))]


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
