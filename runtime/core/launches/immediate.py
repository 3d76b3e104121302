"""Order for a backend that runs work at once, in the calling thread: stream, event, launcher and graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ptxgen.errors import CudaError, SpecError
from ptxgen.runtime.core.launches.graph import Graph, Node
from ptxgen.runtime.core.param_block import ParamBlock
from ptxgen.runtime.core.stream import Event, Stream

if TYPE_CHECKING:
    from ptxgen.runtime.core.memory.buffer_device import BufferDevice

Job = Callable[[], None]


class ImmediateEvent(Event):
    """A point in time; work has run when it is submitted."""

    def __init__(self) -> None:
        self.seconds = time.perf_counter()

    def __repr__(self) -> str:
        return f"ImmediateEvent(at {self.seconds:.6f} s)"

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def done(self) -> bool:
        """True: nothing is ever pending."""
        return True

    def elapsed_us(self, earlier: Event) -> float:
        """Microseconds of wall time."""
        if not isinstance(earlier, ImmediateEvent):
            raise SpecError(f"Event.elapsed_us: must be an event of the same device (got {earlier!r})")
        return (self.seconds - earlier.seconds) * 1e6


class ImmediateStream(Stream):
    """Runs every job on submission, or hands it to the graph that captures from it.

    `latest`: the number of the launch that was its last work, 0 for anything else; a backend may use it.
    """

    latest: int = 0

    def submit(self, job: Job) -> None:
        """Run `job` now; while capturing, keep it for the graph."""
        if self.graph is None:
            job()
        else:
            assert isinstance(self.graph, ImmediateGraph)
            self.graph.jobs.append(job)

    def synchronize(self) -> None:
        """Nothing is ever pending."""
        self._refuse_events("synchronize")

    def record(self) -> Event:
        """The time now."""
        self._refuse_events("record")
        return ImmediateEvent()

    def wait(self, other: object) -> None:
        """Nothing is ever pending; what comes next follows more than the last launch."""
        self._refuse_events("wait", other)
        if not isinstance(other, ImmediateEvent):
            immediate(other)
        self.latest = 0


def immediate(stream: object) -> ImmediateStream:
    """A stream of such a backend; `SpecError` for any other."""
    if not isinstance(stream, ImmediateStream):
        raise SpecError(f"stream: must be a stream of this device (got {stream!r}); other libraries' do not exist here")
    return stream


class ImmediateLauncher:
    """A prepared launch: `run(block, stream)` does the work. `first_use(stream)` is told every stream before use,
    `stopped()` called where the work ends with an exception."""

    def __init__(
        self,
        default: Stream,
        run: Callable[[ParamBlock, ImmediateStream], None],
        block: ParamBlock,
        first_use: Callable[[Stream], None],
        stopped: Callable[[], None],
    ) -> None:
        self._default = default
        self._run = run
        self._stopped = stopped
        self._block = block
        self._first_use = first_use
        self._closed: str | None = None

    def launch(self, stream: object = None) -> None:
        """Run, or record with the arguments of this moment."""
        if self._closed is not None:
            raise CudaError(f"launch: {self._closed}")
        where = immediate(self._default if stream is None else stream)
        self._first_use(where)
        block = self._block.copy() if where.capturing else self._block
        where.submit(lambda: self._go(block, where))

    def _go(self, block: ParamBlock, where: ImmediateStream) -> None:
        try:
            self._run(block, where)
        except BaseException:
            self._stopped()
            raise

    def close(self, reason: str) -> None:
        """From now on `launch` raises."""
        self._closed = reason


class ImmediateGraph(Graph):
    """A list of jobs; explicit nodes run in the order in which they were added."""

    _origin: ImmediateStream | None = None

    def __init__(self, device: BufferDevice) -> None:
        super().__init__(device)
        self.jobs: list[Job] = []

    def _begin(self) -> Stream:
        self.jobs = []
        self._origin = ImmediateStream()
        return self._origin

    def _end(self, stream: Stream) -> None:
        if not self.jobs:
            raise CudaError("Graph: nothing was captured; launch and copy on graph.stream")

    def _abort(self, stream: Stream) -> None:
        """Nothing is pending."""

    def _clear(self) -> None:
        self.jobs = []

    def _add(self, node: Node, after: tuple[Node, ...], programmatic: bool) -> None:
        self.jobs.append(node.bound.launch)

    def _update(self, node: Node) -> None:
        """The node's own argument block has already changed."""

    def _used_on(self, stream: Stream) -> None:
        """Nothing is ever pending."""

    def _launch(self, stream: Stream) -> None:
        for one in (stream, self._origin):
            if isinstance(one, ImmediateStream):
                one.latest = 0
        for job in self.jobs:
            job()
