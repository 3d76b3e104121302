"""Order between streams that share memory: which others to wait for. Owns no streams.

Memory knows the streams that were given work on it. Where there is only one, nothing is recorded and nothing waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from ptxgen.errors import CudaError
from ptxgen.runtime.core.memory.allocation import Allocation
from ptxgen.runtime.core.stream import Stream


def after_others(stream: Stream, allocations: Iterable[Allocation]) -> list[Stream]:
    """Order later work of `stream` after what other streams, other libraries' included, have been given on memory.

    Those others, which may have to wait for that work in turn. `CudaError`, with nothing ordered yet, while another
    library captures one of them.
    """
    found: dict[int, Stream] = {}
    for allocation in allocations:
        found.update(allocation.streams)
        if allocation.library is not None:
            current = allocation.device._current_stream_of(allocation.library)
            found[current.handle] = current
    found.pop(stream.handle, None)
    for other in found.values():
        if other.captured_by_others():
            raise CudaError(
                f"{other} works on this memory, and another library captures it: a graph of that library would repeat "
                f"neither the lengths nor the order of this call; launch bound kernels, or use ptxgen.torch"
            )
    for other in found.values():
        stream.wait(other)
    return list(found.values())
