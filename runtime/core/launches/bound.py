"""`BoundKernel`: a function, a geometry and packed arguments. Owns the path from `launch` to the backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

from ptxgen.errors import CudaError, SpecError
from ptxgen.runtime.core.backend import Function, Geometry, Launcher
from ptxgen.runtime.core.memory.allocation import Allocation
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.param_block import ParamBlock
from ptxgen.runtime.core.stream import Stream

if TYPE_CHECKING:
    from ptxgen.runtime.core.memory.buffer_device import BufferDevice

Packed = tuple[int, bytes, tuple[Buffer, ...]]  # parameter index, its bytes, the buffers it points to
Kept = Mapping[int, tuple[Buffer, ...]]  # the buffers of an argument, by its index
Packer = Callable[[str, object], Packed]


class Arguments:
    """The packed arguments of one launch, the memory they point to, and the streams that launch.

    The launcher holds this object, so that memory lives as long as someone can launch; nothing here holds the launcher,
    so that all of it goes with the last reference.
    """

    def __init__(
        self, function: Function, block: ParamBlock, keep: dict[int, tuple[Buffer, ...]], zeroed: tuple[int, ...]
    ) -> None:
        self.function = function
        self.block = block
        self.keep = dict(keep)
        self.zeroed = zeroed
        self.launcher: ReferenceType[Launcher] | None = None
        self.broken: str | None = None
        self._streams: dict[int, Stream] = {}
        self._known: dict[int, Allocation] = {}
        self._register()

    def allocations(self) -> tuple[Allocation, ...]:
        """The memory that the arguments point to."""
        return tuple(self._known.values())

    def stopped(self) -> None:
        """Told by the launcher when a launch has ended in its middle: what launches leave to the next one (counters,
        flags) is as it was before the first of them."""
        for index in self.zeroed:
            for buffer in self.keep.get(index, ()):
                if buffer.allocation.lost is None:
                    buffer.zero()

    def store(self, packed: Sequence[Packed]) -> bool:
        """Write checked values into the block and keep their buffers; whether a buffer was replaced."""
        changed = False
        for index, data, buffers in packed:
            self.block.set(index, data)
            if buffers != self.keep.get(index, ()):
                self.keep[index] = buffers
                changed = True
        if changed:
            self._register()
        return changed

    def first_use(self, stream: Stream) -> None:
        """Told by the launcher before the first launch on a stream, and before every recorded one."""
        if stream.graph is not None:
            stream.graph.own(self._known.values(), self.function)
            return
        self._streams[stream.handle] = stream
        for allocation in self._known.values():
            allocation.used_on(stream)

    def invalidate(self, reason: str) -> None:
        """A buffer of the arguments is gone."""
        self.broken = f"{self.function.name}: {reason}"
        launcher = self.launcher() if self.launcher is not None else None
        if launcher is not None:
            launcher.close(self.broken)

    def _register(self) -> None:
        """Be told of exactly what the arguments point to now."""
        direct = [b.allocation for kept in self.keep.values() for b in kept]
        current = {id(a): a for d in direct for a in (d, *d.targets)}
        before, self._known = self._known, current  # at once: other threads may launch on more streams meanwhile
        for key, allocation in before.items():
            if key not in current:
                allocation.forget(self)
        for key, allocation in current.items():
            if key in before:
                continue
            allocation.tell(self)
            for stream in tuple(self._streams.values()):
                allocation.used_on(stream)


class BoundKernel:
    """A kernel with its geometry and arguments, packed.

    `launch(stream=None)` only launches: no allocation, no copy, no check, no synchronisation. Buffers are kept alive;
    after one of them is freed by hand, `launch` raises. A kernel with a workspace must not run beside itself: bind once
    per stream that launches it.
    """

    launch: Callable[..., None]

    def __init__(
        self,
        device: BufferDevice,
        function: Function,
        geometry: Geometry,
        block: ParamBlock,
        pack: Packer,
        keep: dict[int, tuple[Buffer, ...]] | None = None,
        workspaces: tuple[int, ...] = (),
        check: Callable[[Kept], None] | None = None,
        zeroed: tuple[int, ...] = (),
    ) -> None:
        self.device = device
        self.function = function
        self.geometry = geometry
        self._pack = pack
        self._workspaces = workspaces
        self._check = check
        self._arguments = Arguments(function, block, keep or {}, zeroed)
        self._prepare()

    @property
    def name(self) -> str:
        """Name of the entry."""
        return self.function.name

    @property
    def block(self) -> ParamBlock:
        """The packed parameters."""
        return self._arguments.block

    def update(self, **values: object) -> BoundKernel:
        """Give arguments other values, checked as in `bind`; takes effect at the next launch. All or nothing."""
        packed = [self._pack(name, value) for name, value in values.items()]
        keep, changed = self._arguments.keep, {index: buffers for index, _, buffers in packed}
        others = any(buffers and buffers != keep.get(index) for index, buffers in changed.items())
        if others and self._check is not None:  # those that were bound before have been compared
            self._check({**keep, **changed})
        self.store(packed)
        return self

    def store(self, packed: Sequence[Packed]) -> None:
        """Take values that are checked and packed already."""
        if not self._arguments.store(packed):
            return
        if self._arguments.broken and not any(a.lost for a in self.allocations()):
            self._prepare()  # what was freed has been replaced
        else:
            self._follow_libraries()

    def twin(self) -> BoundKernel:
        """The same launch with an argument block of its own; `CudaError` if a buffer was freed."""
        if self._arguments.broken is not None:
            raise CudaError(self._arguments.broken)
        return BoundKernel(
            self.device, self.function, self.geometry, self.block.copy(), self._pack, self._arguments.keep,
            self._workspaces, self._check, self._arguments.zeroed,
        )  # fmt: skip

    def buffers(self) -> dict[int, Buffer]:
        """The buffers that were given, and the workspaces, by parameter index."""
        return {index: kept[0] for index, kept in self._arguments.keep.items() if kept}

    def workspaces(self) -> dict[int, Buffer]:
        """Scratch memory by parameter index; what was given as an address is unknown."""
        kept = self._arguments.keep
        return {index: kept[index][0] for index in self._workspaces if kept.get(index)}

    def own_workspaces(self) -> None:
        """Take scratch memory of its own, so as to run beside those that shared it."""
        made = ((i, self.device.zeros(b.shape, b.dtype)) for i, b in self.workspaces().items())
        self.store([(index, buffer.pointer.to_bytes(8, "little"), (buffer,)) for index, buffer in made])

    def allocations(self) -> tuple[Allocation, ...]:
        """The memory that the arguments point to."""
        return self._arguments.allocations()

    def _prepare(self) -> None:
        arguments = self._arguments
        how = (self.function, self.geometry, arguments.block, arguments.first_use, arguments.stopped)
        self._launcher = self.device._prepare(*how)
        arguments.launcher = ref(self._launcher)
        arguments.broken = None
        self.launch = self._launcher.launch
        self._follow_libraries()

    def _follow_libraries(self) -> None:
        """With arguments of torch or CuPy, a launch without a stream goes to that library's current one."""
        libraries = libraries_of(self.allocations())
        follower = _OnCurrentStream(self.device, self._launcher, libraries) if libraries else self._launcher
        self.launch = follower.launch

    def __repr__(self) -> str:
        return f"BoundKernel({self.name}, grid={self.geometry.grid}, block={self.geometry.block}, {self.device.name})"


class _OnCurrentStream:
    """Launches on the current stream of the library that the arguments come from."""

    def __init__(self, device: BufferDevice, launcher: Launcher, libraries: Sequence[str]) -> None:
        self._device = device
        self._launcher = launcher
        self._libraries = libraries

    def launch(self, stream: Stream | None = None) -> None:
        if stream is None:
            stream = stream_without_one("launch", self._device, self._libraries)
        self._launcher.launch(stream)


def libraries_of(allocations: Iterable[Allocation]) -> list[str]:
    """Libraries with a current stream that these come from."""
    return sorted({a.library for a in allocations if a.library is not None})


def stream_without_one(what: str, device: BufferDevice, libraries: Sequence[str]) -> Stream:
    """Where work without a stream of its own goes: the current stream of the library that its arguments come from, or
    the device's default stream. `SpecError` where there are two libraries."""
    if not libraries:
        return device.default_stream
    if len(libraries) > 1:
        raise SpecError(f"{what}: needs a stream, as arguments come from {' and '.join(libraries)} (got none)")
    return device._current_stream_of(libraries[0])
