"""Streams, events, captures and graphs of the fake CUDA driver: what runs at once, and what is recorded where."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

real = pytest.importorskip("cuda.bindings.driver", reason="the CUDA bindings are not installed")


@dataclass
class Launched:
    """One kernel launch as the driver saw it."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int
    attributes: dict[int, tuple[int, ...]]
    arguments: tuple[bytes, ...]


class Order:
    """The part of `tests.support.fake_cuda.Binding` that puts work in order; the rest of it runs and remembers it."""

    functions: dict[int, tuple[str, str]]
    _arguments: Callable[[int, int], tuple[bytes, ...]]
    _run: Callable[[str, Launched], None]
    _cuCtxGetCurrent: Callable[[], int]

    def __init__(self) -> None:
        self.capturing: dict[int, list[Callable[[], None]]] = {}
        self.broken: list[list[Callable[[], None]]] = []  # captures that a forbidden call has made invalid
        self.captured_elsewhere: set[int] = set()  # streams that another library captures, all of them blocking ones
        self.forked: dict[int, int] = {}  # streams that joined a capture and have not been joined back: the capture's
        self.events: dict[int, tuple[int, list[Any] | None]] = {}  # where each was recorded, and into which capture
        self.waits: list[tuple[int, int]] = []  # stream, the one it waits for
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.nodes: dict[int, Launched] = {}
        self.replays: list[int] = []  # streams of graph launches
        self.busy = False  # whether events are still to come
        self.made_in: dict[int, int] = {}  # context of every stream, event and address
        self._handles = itertools.count(0x1100, 0x100)

    def handle(self) -> int:
        made = next(self._handles)
        self.made_in[made] = self._cuCtxGetCurrent()
        return made

    def _submit(self, stream: Any, job: Callable[[], None]) -> None:
        recording = self.capturing.get(int(stream))
        if recording is None:
            job()
        else:
            recording.append(job)

    # streams and events -------------------------------------------------------------------------------------------
    def _cuStreamCreate(self, flags: int) -> int:
        return self.handle()

    def _cuStreamDestroy(self, stream: object) -> None: ...
    def _cuThreadExchangeStreamCaptureMode(self, mode: int) -> int:
        return mode

    def _cuEventCreate(self, flags: int) -> int:
        return self.handle()

    def _cuStreamSynchronize(self, stream: Any) -> Any:
        """Of a captured stream: an error now, and another where the capture ends."""
        if (recorded := self.capturing.get(int(stream))) is None:
            return None
        self.broken.append(recorded)
        return real.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

    def _cuStreamIsCapturing(self, stream: int) -> Any:
        if stream in (0, 1) and self.captured_elsewhere:  # the legacy stream, which blocking streams wait for
            return real.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        return int(stream in self.captured_elsewhere or stream in self.capturing)

    def _cuEventRecord(self, event: Any, stream: Any) -> Any:
        event, stream = int(event), int(stream)
        if self.made_in.get(stream, self.made_in[event]) != self.made_in[event]:
            return real.CUresult.CUDA_ERROR_INVALID_HANDLE
        self.events[event] = (stream, self.capturing.get(stream))
        return None

    def _cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> Any:
        """An event of a captured stream draws the one that waits for it into the capture."""
        stream, (earlier, capture) = int(stream), self.events[int(event)]
        mine = self.capturing.get(stream)
        if mine is not None and mine is not capture:
            return real.CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        if capture is not None:
            self.capturing[stream] = capture
            if mine is None:
                self.forked[stream] = id(capture)
            else:
                self.forked.pop(earlier, None)
        self.waits.append((stream, earlier))
        return None

    def _cuEventSynchronize(self, event: object) -> None: ...
    def _cuEventQuery(self, event: object) -> Any:
        return real.CUresult(600) if self.busy else None

    def _cuEventDestroy(self, event: object) -> None: ...
    def _cuEventElapsedTime(self, start: object, end: object) -> float:
        return 1.5

    # graphs -------------------------------------------------------------------------------------------------------
    def _cuStreamBeginCapture(self, stream: Any, mode: Any) -> None:
        self.capturing[int(stream)] = []

    def _cuStreamEndCapture(self, stream: Any) -> Any:
        recorded = self.capturing[int(stream)]
        self.capturing = {s: jobs for s, jobs in self.capturing.items() if jobs is not recorded}
        if id(recorded) in self.forked.values():
            self.forked = {s: capture for s, capture in self.forked.items() if capture != id(recorded)}
            return real.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        if any(recorded is capture for capture in self.broken):
            return real.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        graph = self.handle()
        self.graphs[graph] = recorded
        return graph

    def _cuGraphCreate(self, flags: int) -> int:
        graph = self.handle()
        self.graphs[graph] = []
        return graph

    def _cuGraphGetNodes(self, graph: int, count: int) -> tuple[list[Any], int]:
        return [], len(self.graphs[graph])

    def _cuGraphDestroy(self, graph: int) -> None:
        del self.graphs[graph]

    def _cuGraphExecDestroy(self, executable: int) -> None:
        del self.graphs[executable]

    def _launch_of(self, params: Any) -> Launched:
        function = int(params.func)
        return Launched(
            self.functions[function][1], (params.gridDimX, params.gridDimY, params.gridDimZ),
            (params.blockDimX, params.blockDimY, params.blockDimZ), params.sharedMemBytes, 0, {},
            self._arguments(function, int(params.kernelParams)),
        )  # fmt: skip

    def _cuGraphAddKernelNode(self, graph: int, before: list[Any], count: int, params: Any) -> int:
        assert len(before) == count
        node = self.handle()
        self.nodes[node] = self._launch_of(params)
        text = self.functions[int(params.func)][0]
        self.graphs[graph].append(lambda: self._run(text, self.nodes[node]))
        return node

    def _cuGraphKernelNodeSetParams(self, node: int, params: Any) -> None:
        kept = self.nodes[node].attributes
        self.nodes[node] = self._launch_of(params)
        self.nodes[node].attributes = kept

    def _cuGraphExecKernelNodeSetParams(self, executable: int, node: int, params: Any) -> None: ...
    def _cuGraphKernelNodeSetAttribute(self, node: int, attribute: Any, value: Any) -> None:
        self.nodes[node].attributes[int(attribute)] = (value.clusterDim.x, value.clusterDim.y, value.clusterDim.z)

    def _cuGraphAddDependencies(self, graph: int, before: Any, after: Any, edges: Any, count: int) -> None:
        self.edges = [(b, a, e.type, e.from_port) for b, a, e in zip(before, after, edges, strict=True)]

    def _cuGraphInstantiate(self, graph: int, flags: int) -> int:
        executable = self.handle()
        self.graphs[executable] = self.graphs[graph]
        return executable

    def _cuGraphExecUpdate(self, executable: int, graph: int) -> Any:
        self.graphs[executable] = self.graphs[graph]
        return 0

    def _cuGraphLaunch(self, executable: int, stream: Any) -> None:
        self.replays.append(int(stream))
        for job in self.graphs[executable]:
            job()
