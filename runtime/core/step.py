"""`Step`: a Program bound to memory. Owns its launches, its graph, and the times of its ops. Nobody else turns ops into
launches."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.launch import evaluate
from ptxgen.models.arena import Arena, plan_arena
from ptxgen.models.program import Op, Program
from ptxgen.runtime.core.launches.bound import BoundKernel
from ptxgen.runtime.core.launches.graph import Graph
from ptxgen.runtime.core.memory.buffer import Buffer

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device
    from ptxgen.runtime.core.launches.kernel import Kernel
    from ptxgen.runtime.core.memory.allocation import Allocation
    from ptxgen.runtime.core.stream import Stream


class Step:
    """The launches of a Program, bound once.

    `given` by tensor name: weights, states, inputs and outputs, as buffers or as whatever else `Kernel.bind` takes; by
    scalar name, values in place of the Program's. Scratch memory lies in `arena`, which steps that never run at the
    same time may share: its size is `plan_arena(program).nbytes`. Without one, and for what is not given, the step has
    memory of its own.
    """

    def __init__(
        self, device: Device, program: Program, given: Mapping[str, object], arena: Buffer | None = None
    ) -> None:
        self.device, self.program = device, program
        self.arena: Arena = plan_arena(program)
        scratch: dict[str, Buffer] = {}
        if self.arena.nbytes:
            arena = device.empty(self.arena.nbytes, "u8") if arena is None else arena
            for name, offset in self.arena.offsets.items():
                scratch[name] = arena.view(program.tensors[name].shape, program.tensors[name].dtype, offset)
        self._given = {**own_buffers(device, program, given), **given, **scratch}
        kernels = {spec: device.load(spec) for spec in program.specs()}
        self.launches: tuple[BoundKernel, ...] = tuple(self._bind(kernels[op.spec], op) for op in program.ops)
        self._uses = tuple(zip(self.launches, map(_names, program.ops), strict=True))
        self._graph: Graph | None = None

    def _bind(self, kernel: Kernel, op: Op) -> BoundKernel:
        """Every tensor of an op in its parameter's shape, its scalars, its capacities."""
        found: dict[str, object] = {name: self._given.get(name, value) for name, value in op.scalars.items()}
        for param, ref in op.buffers():
            value = self._given[ref.tensor]
            if isinstance(value, Buffer):
                shape = tuple(evaluate(extent, op.sizes) for extent in param.shape)
                value = value.view(shape, value.dtype if param.kind == "pointers" else param.dtype, ref.offset or 0)
            found[param.name] = value
        return kernel.bind(**found, **{name: op.sizes[name] for name in kernel.capacity_names & op.sizes.keys()})

    def update(self, **values: object) -> Step:
        """Give tensors other memory, and scalars other values, wherever ops take them whole; checked as `bind` does."""
        for bound, names in self._uses:
            changed = {param: values[name] for name, param in names if name in values}
            if changed:
                bound.update(**changed)
        return self

    def write(self, name: str, values: np.ndarray, stream: Stream) -> None:
        """Fill an input from the host."""
        buffer = self._given[name]
        assert isinstance(buffer, Buffer)
        buffer.copy_from(values, stream)

    @property
    def graph(self) -> Graph:
        """All launches in one graph; they overlap where their kernels can."""
        if self._graph is None:
            made = self.device.graph()
            for bound in self.launches:
                made.add(bound, programmatic=bool(made.nodes) and bound.geometry.programmatic)
            self._graph = made
        return self._graph

    def launch(self, stream: Stream | int | None = None) -> None:
        """Launch one after the other, without the graph."""
        for bound in self.launches:
            bound.launch(stream)

    def allocations(self) -> tuple[Allocation, ...]:
        """The memory that the launches work on."""
        return tuple(allocation for bound in self.launches for allocation in bound.allocations())

    def times(self, stream: Stream) -> list[float]:
        """Run once; microseconds of each op, from the end of the one before it to its own."""
        events = [stream.record()]
        for bound in self.launches:
            bound.launch(stream)
            events.append(stream.record())
        stream.synchronize()
        return [after.elapsed_us(before) for before, after in pairwise(events)]


def _names(op: Op) -> tuple[tuple[str, str], ...]:
    """What an op takes whole, by tensor (a scalar: by its own name), and the parameters."""
    tensors = ((ref.tensor, param.name) for param, ref in op.buffers() if ref.offset is None)
    return (*tensors, *((name, name) for name in op.scalars))


def own_buffers(device: Device, program: Program, given: Mapping[str, object]) -> dict[str, Buffer]:
    """Memory for the states, inputs and outputs that are not given, zeroed where that is asked for."""
    tensors = [t for t in program.tensors.values() if t.kind in ("state", "input", "output") and t.name not in given]
    return {t.name: (device.zeros if t.zeroed else device.empty)(t.shape, t.dtype) for t in tensors}
