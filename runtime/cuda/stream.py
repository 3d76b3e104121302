"""CUDA streams and events, our own and those of other libraries. Owns no work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ptxgen.errors import CudaError, SpecError
from ptxgen.runtime.core.stream import Event, Stream
from ptxgen.runtime.cuda.prepared import prepared

if TYPE_CHECKING:
    from ptxgen.runtime.cuda.gpu import Gpu


_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_CAPTURE_IMPLICIT = 906  # of the legacy stream, which all blocking streams wait for, while one of these is captured


class CudaEvent(Event):
    """An event with timing."""

    def __init__(self, device: Gpu, stream: int, timing: bool = True) -> None:
        self.device = device
        flags = device.api.CUevent_flags
        self.raw = device.call("cuEventCreate", 0 if timing else flags.CU_EVENT_DISABLE_TIMING.value)
        device.call("cuEventRecord", self.raw, stream)

    def __repr__(self) -> str:
        return f"CudaEvent({int(self.raw):#x} on {self.device.name})"

    def synchronize(self) -> None:
        """Block until the work before the event is done."""
        self.device.call("cuEventSynchronize", self.raw)

    def done(self) -> bool:
        """Whether the work before the event is done, failed or not; does not wait."""
        return self.device.ask("cuEventQuery", self.raw)[0] != _NOT_READY

    def elapsed_us(self, earlier: Event) -> float:
        """Microseconds from `earlier` to this event, as the device saw them."""
        if not isinstance(earlier, CudaEvent):
            raise SpecError(f"Event.elapsed_us: must be an event of the same device (got {earlier!r})")
        return float(self.device.call("cuEventElapsedTime", earlier.raw, self.raw)) * 1e3

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # globals may be gone by then
        if not finalizing() and hasattr(self, "raw"):
            self.device.quiet("cuEventDestroy", self.raw)


class CudaStream(Stream):
    """A CUstream; one that we made is destroyed with the last reference to it, a foreign one never.

    `owner` keeps a foreign stream's object alive. Streams never synchronise with the legacy default stream.
    """

    def __init__(self, device: Gpu, handle: int | None = None, owner: object = None) -> None:
        self.device = device
        self.owner = owner
        self._ours = handle is None
        if handle is None:
            flag = device.api.CUstream_flags.CU_STREAM_NON_BLOCKING.value
            handle = int(device.call("cuStreamCreate", flag))
            device.part(self)
        self.handle = handle

    def synchronize(self) -> None:
        """Block until all submitted work is done; raises what it failed with."""
        self._refuse_events("synchronize")
        self.device.call("cuStreamSynchronize", self.handle)

    def waiter(self) -> Callable[[], None]:
        """See `Stream.waiter`."""
        return prepared(self.device, "cuStreamSynchronize", self.handle)

    def record(self) -> Event:
        """An event after the work submitted so far."""
        self._refuse_events("record")
        return CudaEvent(self.device, self.handle)

    def wait(self, other: object) -> None:
        """Order later work of this stream after `other`, on the device."""
        self._refuse_events("wait", other)
        if not isinstance(other, CudaEvent):
            before = other if isinstance(other, CudaStream) else as_ours(self.device, other)
            if before is self or (before.handle == self.handle and before.device is self.device):
                return
            other = CudaEvent(before.device, before.handle, timing=False)  # in the context of the stream it is for
        self.device.call("cuStreamWaitEvent", self.handle, other.raw, 0)

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)

    def captured_by_others(self) -> bool:
        """Whether another library records this stream, or one that this would wait for or make wait, into a graph."""
        if self._ours:
            return False
        code, status = self.device.ask("cuStreamIsCapturing", self.handle)
        if code not in (0, _CAPTURE_IMPLICIT):
            raise self.device.failed("cuStreamIsCapturing", code)
        return code != 0 or int(status) != 0

    def __repr__(self) -> str:
        return f"CudaStream({self.handle:#x} on {self.device.name})"

    def close(self, reason: str) -> None:
        """Destroy a stream that we made."""
        if self._ours:
            self._ours = False
            self.device.quiet("cuStreamDestroy", self.handle)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # globals may be gone by then
        if not finalizing() and hasattr(self, "handle"):
            self.close("")


def as_ours(device: Gpu, source: object) -> CudaStream:
    """A stream of this device, ours or another library's; `SpecError` for one that is another device's."""
    if isinstance(source, CudaStream) and source.device is device:
        return source
    said = (getattr(source, name, None) for name in ("device_index", "device_id"))  # torch, CuPy (−1: does not say)
    if isinstance(source, Stream) or any(isinstance(i, int) and i >= 0 and i != device.index for i in said):
        raise SpecError(f"stream: must be on {device.name} (got {source!r})")
    return CudaStream(device, foreign_handle(source), source)


def foreign_handle(source: object) -> int:
    """The CUstream number of a foreign stream: `__cuda_stream__`, torch (`.cuda_stream`), CuPy (`.ptr`), an int."""
    protocol: Any = getattr(source, "__cuda_stream__", None)
    if protocol is not None:
        pair = protocol() if callable(protocol) else protocol
        if pair[0] != 0:
            raise SpecError(f"stream: __cuda_stream__ version must be 0 (got {pair[0]})")
        return int(pair[1])
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(source, name, None)
        if isinstance(value, int):
            return value
    if isinstance(source, int) and not isinstance(source, bool) and source >= 0:
        return source
    raise SpecError(f"stream: must be a stream of this or another library, or its address (got {source!r})")


def current_of(library: str, index: int) -> tuple[int, object]:
    """The current stream of a library that is already imported, on the device with that index, and what keeps it alive:
    torch's live as long as the process, CuPy's as long as their objects."""
    module: Any = sys.modules.get(library)
    if library == "torch":
        return int(module._C._cuda_getCurrentRawStream(index)), library
    if library == "cupy":
        with module.cuda.Device(index):
            stream = module.cuda.get_current_stream()
        return int(stream.ptr), stream
    raise CudaError(f"stream: {library} has no current stream")
