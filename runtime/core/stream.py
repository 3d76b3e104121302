"""Streams and events, as every backend offers them. Owns no backend code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ptxgen.errors import CudaError


class Recording(Protocol):
    """What records the work of a stream: a graph."""

    def own(self, allocations: Iterable[Any], keep: object = None) -> None:
        """Told which memory the recorded work uses, and an object to keep alive with it."""


class Event(ABC):
    """A point in a stream."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block until the work before the event is done."""

    @abstractmethod
    def done(self) -> bool:
        """Whether the work before the event is done; does not wait."""

    @abstractmethod
    def elapsed_us(self, earlier: Event) -> float:
        """Microseconds from `earlier` to this event; both must be done."""


class Stream(ABC):
    """A queue of device work, in order.

    `handle` is the driver's number for it (0 on the CPU). `graph` is set while work submitted here is recorded into
    that graph instead of run.
    """

    handle: int = 0
    graph: Recording | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.handle:#x}{', capturing' if self.capturing else ''})"

    @property
    def capturing(self) -> bool:
        """Whether work submitted now is recorded instead of run."""
        return self.graph is not None

    @abstractmethod
    def synchronize(self) -> None:
        """Block until all submitted work is done; `CudaError` while capturing."""

    def waiter(self) -> Callable[[], None]:
        """`synchronize` for who does it often and never while capturing."""
        return self.synchronize

    @abstractmethod
    def record(self) -> Event:
        """An event after the work submitted so far; `CudaError` while capturing."""

    @abstractmethod
    def wait(self, other: object) -> None:
        """Let later work of this stream wait for an event, or for what another stream (of this library or another)
        holds now; the host goes on.

        `CudaError` while either of them is captured by a graph of ours.
        """

    def _refuse_events(self, what: str, other: object = None) -> None:
        """A captured stream has no events: one would draw another stream into the capture, and the graph would not
        own what that stream does."""
        for stream in (self, other):
            if isinstance(stream, Stream) and stream.graph is not None:
                instead = "record on graph.stream alone (Graph.add makes branches)"
                raise CudaError(f"Stream.{what}: is not possible while capturing; {instead}")

    def captured_by_others(self) -> bool:
        """Whether another library records this stream into a graph now, so that nothing may wait for it."""
        return False
