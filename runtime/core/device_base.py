"""What a backend (CUDA, CPU executor) supplies: the part of a device that its buffers, graphs and kernels ask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from ptxgen.errors import CudaError
from ptxgen.runtime.arrays.tensormap import Tiling
from ptxgen.runtime.core.backend import Code, Copy, FirstUse, Function, Geometry, Launcher, MemoryUse, Stopped
from ptxgen.runtime.core.param_block import ParamBlock
from ptxgen.runtime.core.stream import Stream
from ptxgen.targets import Target


class DeviceBase(ABC):
    """See `Device`, which is what users have."""

    kind: ClassVar[str]
    name: str
    index: int = 0
    target: Target
    default_stream: Stream
    strict: bool = False
    closed: bool = False

    @abstractmethod
    def synchronize(self) -> None:
        """Block until all work of this device is done; raises what it failed with."""

    @abstractmethod
    def memory(self) -> MemoryUse:
        """Bytes: `free` and `total` of the device, `used` and `reserved` by this process's pool, `available` to another
        allocation. Of the CPU executor the machine's memory; 0 where the system does not say."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; every later use raises. Does nothing the second time."""

    @abstractmethod
    def check(self) -> None:
        """Raise `CudaError` if the device cannot be used: closed, lost, or opened by the parent of a forked process."""

    @abstractmethod
    def wrap(self, source: object) -> object:
        """See `BufferDevice.wrap`."""

    # what a backend supplies --------------------------------------------------------------------------------------
    @abstractmethod
    def _allocate(self, nbytes: int, stream: Stream | None) -> int:
        """Address of `nbytes` ≥ 1 fresh bytes, aligned to 256; usable on any stream on return if `stream` is None.

        Raises `CudaError` that says how much was asked and how much is free.
        """

    @abstractmethod
    def _release(self, pointer: int, nbytes: int, streams: tuple[Stream, ...]) -> None:
        """Take back what `_allocate` gave, once the work submitted to `streams` is done. May run in any thread."""

    @abstractmethod
    def _adopt(self, pointer: int, nbytes: int, readonly: bool = False) -> None:
        """Memory that others own will be used by kernels (a bounds-checking device has to know it)."""

    @abstractmethod
    def _disown(self, pointer: int, nbytes: int, readonly: bool = False) -> None:
        """The opposite of `_adopt`."""

    @abstractmethod
    def _copy(self, copy: Copy, stream: Stream | None, after: tuple[Stream, ...]) -> None:
        """Copy in `stream`; without one: after the work in `after`, and complete on return."""

    def _prepared_copy(self, copy: Copy, stream: Stream) -> Callable[[], None]:
        """The same copy in a stream again and again; who asks keeps its ends alive."""
        return lambda: self._copy(copy, stream, ())

    @abstractmethod
    def _fill(self, pointer: int, pattern: bytes, count: int, stream: Stream | None, after: tuple[Stream, ...]) -> None:
        """Write `pattern` (1, 2 or 4 bytes) `count` times; ordered as `_copy`."""

    @abstractmethod
    def _pinned(self, nbytes: int) -> np.ndarray:
        """A one-dimensional uint8 array in page-locked memory (plain memory on the CPU), freed with its last view."""

    @abstractmethod
    def _is_pinned(self, array: np.ndarray) -> bool:
        """Whether copies to and from this array may still run when the call has returned."""

    @abstractmethod
    def _load(self, text: str, label: str) -> Code:
        """Machine code for PTX text; `label` names it in messages and logs. Raises `ModuleLoadError`.

        May run in several threads at once.
        """

    @abstractmethod
    def _encode(self, tiling: Tiling) -> bytes:
        """The 128 bytes of a tensor map whose rules have been checked."""

    def _at_hand(self, text: str) -> bool:
        """Whether `_load` of a text is likely to need no compiler."""
        return False

    def _load_foreign(self, text: str, label: str) -> Code:
        """`_load` of a text that has not been checked yet."""
        return self._load(text, label)

    @abstractmethod
    def _prepare(
        self, function: Function, geometry: Geometry, block: ParamBlock, first_use: FirstUse, stopped: Stopped
    ) -> Launcher:
        """Everything that can be done before a launch; the launcher calls `first_use` before a stream's first use, and
        `stopped` when a launch has ended in its middle, after which this device can still be used."""

    def _runs(self, target: Target) -> bool:
        """Whether code for `target` runs here."""
        return target.runs_on((self.target.major, self.target.minor))

    @abstractmethod
    def _new_stream(self) -> Stream: ...

    @abstractmethod
    def _foreign_stream(self, foreign: object) -> Stream:
        """A stream of this device as it is, a foreign one as ours; `SpecError` for one of another device."""

    def _given(self, stream: object) -> Stream | None:
        """A stream as callers give it."""
        return None if stream is None else self._foreign_stream(stream)

    def _uncaptured(self, stream: object, what: str, instead: str) -> Stream | None:
        """The same for `what`, which cannot be recorded: `CudaError` while a graph, ours or another library's, captures
        the stream; `instead` is what works."""
        given = self._given(stream)
        if given is not None and (given.capturing or given.captured_by_others()):
            raise CudaError(f"{what}: is not possible while capturing; {instead}")
        return given

    @abstractmethod
    def _check_memory(self, label: str, pointer: int) -> None:
        """Raise `SpecError` if an address that `label` gives is not memory of this device."""

    def _consumer_stream(self, consumer: object) -> Stream:
        """The stream of a DLPack consumer, which says its address."""
        return self._foreign_stream(consumer)

    def _current_stream_of(self, library: str) -> Stream:
        """The current stream of another library on this device (only asked where there are such libraries)."""
        raise CudaError(f"{self.name}: {library} has no stream here")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.target}>"
