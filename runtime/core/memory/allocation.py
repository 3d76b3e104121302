"""`Allocation`: a range of device memory, who holds addresses of it, and which streams work on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from ptxgen.errors import CudaError
from ptxgen.runtime.core.stream import Stream

if TYPE_CHECKING:
    from ptxgen.runtime.core.device_base import DeviceBase


class Dependent(Protocol):
    """What holds addresses of a buffer: a bound kernel, a graph."""

    def invalidate(self, reason: str) -> None:
        """The memory is gone; every later use must raise with this reason."""


class Allocation:
    """A range of device memory: released once, when freed or when the last buffer of it goes.

    `keep` is the producer of foreign memory, which is never released here. `streams` are those that were given work
    on this memory; a release waits for them on the device, a read without a stream waits for them on the host.
    """

    def __init__(
        self, device: DeviceBase, pointer: int, nbytes: int, keep: object = None, readonly: bool = False
    ) -> None:
        self.device = device
        self.pointer = pointer
        self.nbytes = nbytes
        self.keep = keep
        self.readonly = readonly
        self.freed = False
        self.lost: str | None = None  # why the address may not be used any more
        self.library: str | None = None  # the producer, if it works on a current stream of its own
        self.exports = 0
        self.targets: tuple[Allocation, ...] = ()  # what the addresses stored here point to
        self.streams: dict[int, Stream] = {}  # by handle; other threads may add some at any time
        self._users: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def used_on(self, stream: Stream) -> None:
        """Remember that `stream` was given work on this memory."""
        self.streams[stream.handle] = stream

    def tell(self, user: Dependent) -> None:
        """From now on `user` is told when the memory is gone."""
        self._users[id(user)] = user

    def forget(self, user: Dependent) -> None:
        """The opposite of `tell`."""
        self._users.pop(id(user), None)

    def point_to(self, targets: Iterable[Allocation]) -> None:
        """Addresses of `targets` are stored here: they live as long as this does, and it is of no use without them."""
        self.targets = tuple(targets)
        for target in self.targets:
            target.tell(self)

    def invalidate(self, reason: str) -> None:
        """What an address stored here pointed to is gone, and so is whatever uses this memory."""
        self.lost = self.lost or reason
        for user in self._users.valuerefs():  # a list: other threads may add some meanwhile
            if (found := user()) is not None:
                found.invalidate(reason)

    def free(self) -> None:
        """Release the memory now (in stream order); launches and graphs that hold its address raise from then on."""
        if self.freed:
            return
        if self.exports:
            raise CudaError("Buffer.free: must not be shared with another library (it was given out through DLPack)")
        self.freed = True
        self.invalidate(f"a buffer it uses ({self.nbytes} bytes at {self.pointer:#x}) was freed")
        if self.keep is None:
            self.device._release(self.pointer, self.nbytes, tuple(self.streams.values()))
        else:
            self.device._disown(self.pointer, self.nbytes, self.readonly)
            self.keep = None

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # globals may be gone by then
        if not finalizing() and not getattr(self, "freed", True):
            self.free()  # what held its address is gone as well
