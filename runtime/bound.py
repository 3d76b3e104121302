"""`BoundKernel`: a function, a geometry and packed arguments. Owns the path from `launch` to the backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ptxgen.errors import SpecError
from ptxgen.runtime.allocation import Allocation
from ptxgen.runtime.arguments import ParamBlock
from ptxgen.runtime.backend import Function, Geometry
from ptxgen.runtime.buffer import Buffer
from ptxgen.runtime.stream import Stream

if TYPE_CHECKING:
    from ptxgen.runtime.device import Device

Packed = tuple[int, bytes, tuple[Buffer, ...]]  # parameter index, its bytes, the buffers it points to
Packer = Callable[[str, object], Packed]


class BoundKernel:
    """A kernel with its geometry and arguments, packed.

    `launch(stream=None)` only launches: no allocation, no copy, no check, no synchronisation. Buffers are kept alive;
    after one of them is freed by hand, `launch` raises.
    """

    launch: Callable[..., None]
    _libraries: tuple[str, ...] = ()

    def __init__(self, device: Device, function: Function, geometry: Geometry, block: ParamBlock, pack: Packer) -> None:
        self.device = device
        self.function = function
        self.geometry = geometry
        self.block = block
        self._pack = pack
        self._keep: dict[int, tuple[Buffer, ...]] = {}
        self._streams: dict[int, Stream] = {}
        self._launcher = device._prepare(function, geometry, block, self._first_use)
        self.launch = self._launcher.launch

    @property
    def name(self) -> str:
        """Name of the entry."""
        return self.function.name

    def update(self, **values: object) -> BoundKernel:
        """Give arguments other values, checked as in `bind`; takes effect at the next launch."""
        packed = [self._pack(name, value) for name, value in values.items()]
        self._store(packed)
        return self

    def twin(self) -> BoundKernel:
        """The same launch with an argument block of its own."""
        made = BoundKernel(self.device, self.function, self.geometry, self.block.copy(), self._pack)
        made._keep = dict(self._keep)
        for allocation in made.allocations():
            allocation.users.add(made)
        return made

    def allocations(self) -> tuple[Allocation, ...]:
        """The memory that the arguments point to."""
        return tuple({id(b.allocation): b.allocation for kept in self._keep.values() for b in kept}.values())

    def invalidate(self, reason: str) -> None:
        """A buffer of the arguments is gone."""
        self._launcher.close(f"{self.name}: {reason}")

    def _store(self, packed: Sequence[Packed]) -> None:
        """Write checked values into the block and keep their buffers."""
        for index, data, buffers in packed:
            self.block.set(index, data)
            if buffers or index in self._keep:
                self._keep[index] = buffers
        libraries = set()
        for allocation in self.allocations():
            allocation.users.add(self)
            for stream in self._streams.values():
                allocation.used_on(stream)
            if allocation.library is not None:
                libraries.add(allocation.library)
        if libraries:
            self._libraries = tuple(sorted(libraries))
            self.launch = self._launch_current

    def _launch_current(self, stream: Stream | None = None) -> None:
        """Arguments of torch or CuPy: without a stream, launch on that library's current one."""
        if stream is None:
            if len(self._libraries) > 1:
                known = " and ".join(self._libraries)
                raise SpecError(f"launch: needs a stream, as arguments come from {known} (got none)")
            stream = self.device._current_stream_of(self._libraries[0])
        self._launcher.launch(stream)

    def _first_use(self, stream: Stream) -> None:
        """Told by the launcher before the first launch on a stream, and before every recorded one."""
        if stream.graph is not None:
            stream.graph.own(self.allocations(), self.function)
            return
        self._streams[stream.handle] = stream
        for allocation in self.allocations():
            allocation.used_on(stream)

    def __repr__(self) -> str:
        return f"BoundKernel({self.name}, grid={self.geometry.grid}, block={self.geometry.block}, {self.device.name})"
