"""`Step`: a Program bound to memory. Owns its launches, its graph, and the times of its ops."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.launch import evaluate
from ptxgen.models.arena import Arena, plan_arena
from ptxgen.models.program import Op, Program
from ptxgen.runtime.core.bound import BoundKernel
from ptxgen.runtime.core.buffer import Buffer
from ptxgen.runtime.core.graph import Graph

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.core.stream import Stream


class Step:
    """The launches of a Program, bound once.

    `buffers` by tensor name: weights, states, inputs and outputs. Scratch memory lies in `arena`, which steps that
    never run at the same time may share: its size is `plan_arena(program).nbytes`.
    """

    def __init__(self, device: Device, program: Program, buffers: Mapping[str, Buffer], arena: Buffer) -> None:
        self.device, self.program = device, program
        self.arena: Arena = plan_arena(program)
        scratch = {
            name: arena.view(program.tensors[name].shape, program.tensors[name].dtype, offset)
            for name, offset in self.arena.offsets.items()
        }
        self._buffers = {**buffers, **scratch}
        kernels = device.warmup(program.specs())
        self.launches: tuple[BoundKernel, ...] = tuple(
            kernels[op.spec].bind(**self._arguments(op), **op.scalars) for op in program.ops
        )
        self._graph: Graph | None = None

    def _arguments(self, op: Op) -> dict[str, Buffer]:
        """Every tensor of an op in its parameter's shape."""
        found = {}
        for param, ref in op.buffers():
            shape = tuple(evaluate(extent, op.sizes) for extent in param.shape)
            found[param.name] = self._buffers[ref.tensor].view(shape, param.dtype, ref.offset or 0)
        return found

    def write(self, name: str, values: np.ndarray, stream: Stream) -> None:
        """Fill an input from the host."""
        self._buffers[name].copy_from(values, stream)

    @property
    def graph(self) -> Graph:
        """All launches in one graph; they overlap where their kernels can."""
        if self._graph is None:
            made = self.device.graph()
            for bound in self.launches:
                made.add(bound, programmatic=bool(made.nodes) and bound.geometry.programmatic)
            self._graph = made
        return self._graph

    def run(self, stream: Stream) -> None:
        """Launch one after the other, without the graph."""
        for bound in self.launches:
            bound.launch(stream)

    def times(self, stream: Stream) -> list[float]:
        """Run once; microseconds of each op, from the end of the one before it to its own."""
        events = [stream.record()]
        for bound in self.launches:
            bound.launch(stream)
            events.append(stream.record())
        stream.synchronize()
        return [after.elapsed_us(before) for before, after in pairwise(events)]
