"""Graphs as every backend offers them: explicit nodes or capture, replay, update, and ownership of what they use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import ref

from ptxgen.errors import CudaError, SpecError
from ptxgen.runtime.core.launches.bound import libraries_of, stream_without_one
from ptxgen.runtime.core.memory.allocation import Allocation
from ptxgen.runtime.core.memory.stream_order import after_others
from ptxgen.runtime.core.stream import Stream

if TYPE_CHECKING:
    from ptxgen.runtime.core.launches.bound import BoundKernel
    from ptxgen.runtime.core.memory.buffer_device import BufferDevice


class Node:
    """An explicit kernel node; holds the arguments that the graph launches it with, and which nodes run before it."""

    def __init__(self, graph: Graph, index: int, bound: BoundKernel, before: Iterable[Node]) -> None:
        self._graph = ref(graph)
        self.index = index
        self.bound = bound
        self._earlier: frozenset[int] = frozenset().union(*({n.index} | n._earlier for n in before))

    def of(self, graph: Graph) -> bool:
        """Whether this is a node of `graph`."""
        return self._graph() is graph

    def beside(self, nodes: Iterable[Node]) -> list[Node]:
        """Those that may run at the same time as this one, which was added after them."""
        return [n for n in nodes if n.index not in self._earlier]

    def __repr__(self) -> str:
        return f"Node({self.index}: {self.bound.name})"


class Graph(ABC):
    """Work that is submitted as a whole.

    Either `with graph:` records what is launched and copied on `graph.stream`, or `add` appends nodes one by one. A
    graph keeps its buffers alive; when one of them is freed by hand, the graph raises from then on. Entering it again
    replaces what it holds, in place where the shape of the work is the same; a capture that fails leaves it empty.
    """

    def __init__(self, device: BufferDevice) -> None:
        self.device = device
        self.nodes: list[Node] = []
        self._stream: Stream | None = None
        self._recorded = False  # whether a capture has succeeded
        self._captured: dict[int, Allocation] = {}  # what recorded work uses
        self._kept: list[object] = []  # code and host arrays of recorded work
        self._owned: dict[int, Allocation] = {}  # all of it, nodes included
        self._libraries: list[str] = []  # of other libraries' arrays among it
        self._marked: set[int] = set()  # streams that the owned memory knows of
        self._ready: dict[int, Stream] = {}  # streams of ours, by identity, on which it only has to be launched
        self._dead: str | None = None

    def __repr__(self) -> str:
        held = "capturing" if self._stream is not None else "captured" if self._recorded else f"{len(self.nodes)} nodes"
        return f"{type(self).__name__}({held if self._dead is None else self._dead}, {self.device.name})"

    # capture ------------------------------------------------------------------------------------------------------
    @property
    def stream(self) -> Stream:
        """The stream to launch on while capturing."""
        if self._stream is None:
            raise CudaError("Graph.stream: only exists while capturing (with device.graph() as graph: …)")
        return self._stream

    def __enter__(self) -> Graph:
        if self._stream is not None:
            raise CudaError("Graph: is already capturing")
        if self.nodes:
            raise CudaError("Graph: has explicit nodes; capture into a graph of its own")
        self._forget()
        self._stream = self._begin()
        self._stream.graph = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stream, self._stream = self.stream, None
        stream.graph = None
        try:
            if kind is not None:
                self._abort(stream)
                return
            self._end(stream)
            self._recorded = True
        finally:
            if not self._recorded:
                self._empty()

    # explicit nodes -----------------------------------------------------------------------------------------------
    def add(self, bound: BoundKernel, after: Sequence[Node] | None = None, programmatic: bool = False) -> Node:
        """Append a kernel node with the arguments that `bound` has now; later updates of `bound` do not reach it.

        `after`: nodes to wait for; None is the node added last, () none. `programmatic`: the edges allow this kernel
        to start early and wait in the kernel (griddepcontrol.wait), for kernels whose launch says so. A node that may
        run beside another one of the same workspace gets one of its own.
        """
        self.check()
        if self._recorded:
            raise CudaError("Graph.add: the graph was captured; add nodes to a graph of its own")
        if getattr(bound, "device", None) is not self.device:
            raise SpecError(f"Graph.add: must be a bound kernel on {self.device.name} (got {bound!r})")
        before = tuple(self.nodes[-1:]) if after is None else after
        if not isinstance(before, Sequence) or not all(self._has(n) for n in before):
            raise SpecError(f"Graph.add(after): must be nodes of this graph (got {before})")
        before = tuple(before)
        if programmatic and not bound.geometry.programmatic:
            raise SpecError(f"Graph.add(programmatic): {bound.name} does not use griddepcontrol")
        node = Node(self, len(self.nodes), bound.twin(), before)
        beside = {id(b.allocation) for n in node.beside(self.nodes) for b in n.bound.workspaces().values()}
        if any(id(b.allocation) in beside for b in node.bound.workspaces().values()):
            node.bound.own_workspaces()
        self._add(node, before, programmatic)
        self.nodes.append(node)
        self._refresh()
        return node

    def _has(self, node: object) -> bool:
        return isinstance(node, Node) and node.of(self)

    def update(self, node: Node, **values: object) -> None:
        """Give an explicit node other arguments, by name, without building the graph again."""
        self.check()
        if not self._has(node):
            raise SpecError(f"Graph.update: must be a node of this graph (got {node!r})")
        node.bound.update(**values)
        self._refresh()
        self._update(node)

    # replay -------------------------------------------------------------------------------------------------------
    def launch(self, stream: object = None) -> None:
        """Submit everything to `stream`, which may be another library's.

        None: the current stream of the library that arguments come from (torch or CuPy), else the device's default one.
        """
        ready = self._ready.get(id(stream))
        if ready is not None and ready.graph is None:
            self._launch(ready)
            return
        self.check()
        if not (self.nodes or self._recorded):
            raise CudaError("Graph: is empty; capture into it, or add nodes")
        target = self.device._given(stream) or stream_without_one("Graph.launch", self.device, self._libraries)
        if target.capturing:
            raise CudaError("Graph.launch: a graph inside a capture is not supported; launch its kernels instead")
        if target.handle not in self._marked:
            self._first_on(target)
        self._launch(target)
        if stream is target:
            self._ready[id(stream)] = target

    def _first_on(self, stream: Stream) -> None:
        """Before the first launch on a stream: it comes after what other streams do with the graph's memory; from then
        on they know of it."""
        after_others(stream, self._owned.values())
        for allocation in self._owned.values():
            allocation.used_on(stream)
        self._used_on(stream)
        self._marked.add(stream.handle)

    # ownership ----------------------------------------------------------------------------------------------------
    def own(self, allocations: Iterable[Allocation], keep: object = None) -> None:
        """Told while capturing: the memory that the recorded work uses, and an object to keep alive with it."""
        self._captured.update((id(a), a) for a in allocations)
        if keep is not None:
            self._kept.append(keep)
        self._refresh()

    def _refresh(self) -> None:
        """Hold exactly what captured work and nodes use now."""
        owned = dict(self._captured)
        for node in self.nodes:
            owned.update((id(a), a) for a in node.bound.allocations())
        for key, allocation in self._owned.items():
            if key not in owned:
                allocation.forget(self)
        for key, allocation in owned.items():
            if key not in self._owned:
                allocation.tell(self)
        self._owned = owned
        self._libraries = libraries_of(owned.values())
        self._marked, self._ready = set(), {}

    def invalidate(self, reason: str) -> None:
        """A buffer of the graph is gone."""
        self._dead, self._ready = reason, {}

    def check(self) -> None:
        """Raise if the graph cannot be used any more, or is being captured."""
        if self._dead is not None:
            raise CudaError(f"Graph: cannot be launched: {self._dead}")
        if self._stream is not None:
            raise CudaError("Graph: is being captured; leave the with block first")

    def _empty(self) -> None:
        """Hold nothing, an earlier capture's work included: its memory was let go when this capture began."""
        self._forget()
        self._clear()

    def _forget(self) -> None:
        self._recorded, self._captured, self._kept, self._dead = False, {}, [], None
        self._refresh()

    # what a backend supplies --------------------------------------------------------------------------------------
    @abstractmethod
    def _begin(self) -> Stream:
        """Start to capture from a stream of the graph's own."""

    @abstractmethod
    def _end(self, stream: Stream) -> None:
        """Keep what was captured; `CudaError` if that is nothing, or if the capture failed."""

    @abstractmethod
    def _abort(self, stream: Stream) -> None:
        """End the capture, and leave the device usable."""

    @abstractmethod
    def _clear(self) -> None:
        """Drop the work that the graph holds."""

    @abstractmethod
    def _add(self, node: Node, after: tuple[Node, ...], programmatic: bool) -> None: ...

    @abstractmethod
    def _update(self, node: Node) -> None: ...

    @abstractmethod
    def _launch(self, stream: Stream) -> None: ...

    @abstractmethod
    def _used_on(self, stream: Stream) -> None:
        """Told before the first launch on a stream."""
