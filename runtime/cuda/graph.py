"""CUDA graphs: capture, explicit kernel nodes with programmatic edges, update in place. Owns the graph handles."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ptxgen.errors import CudaError
from ptxgen.runtime.core.launches.graph import Graph, Node
from ptxgen.runtime.core.stream import Stream
from ptxgen.runtime.cuda.load import CudaFunction
from ptxgen.runtime.cuda.prepared import prepared
from ptxgen.runtime.cuda.stream import CudaStream

if TYPE_CHECKING:
    from ptxgen.runtime.cuda.gpu import Gpu

_PROGRAMMATIC_PORT = 1  # CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC: when every CTA has called griddepcontrol or exited


class CudaGraph(Graph):
    """A CUgraph and its executable form, made at the first launch and updated in place where CUDA can."""

    device: Gpu

    def __init__(self, device: Gpu) -> None:
        super().__init__(device)
        self._graph: Any = None
        self._executable: Any = None
        self._raw_nodes: list[Any] = []
        self._replays: dict[int, Callable[[], None]] = {}  # by stream

    # capture ------------------------------------------------------------------------------------------------------
    def _begin(self) -> Stream:
        """Capture is relaxed: other threads, and this one on other streams, may go on working."""
        stream = CudaStream(self.device)
        mode = self.device.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self.device.call("cuStreamBeginCapture", stream.handle, mode)
        return stream

    def _end(self, stream: Stream) -> None:
        graph = self.device.call("cuStreamEndCapture", stream.handle)
        _, count = self.device.call("cuGraphGetNodes", graph, 0)
        if count == 0:
            self.device.call("cuGraphDestroy", graph)
            raise CudaError("Graph: nothing was captured; launch and copy on graph.stream")
        self._drop_graph()
        self._graph = graph
        if self._executable is not None:
            self._replace()

    def _abort(self, stream: Stream) -> None:
        """End the capture whatever state it is in; a capture that broke is ended by the same call, with an error."""
        if self.device.dead is None:
            code, graph = self.device.ask("cuStreamEndCapture", stream.handle)
            if code == 0 and int(graph):
                self.device.call("cuGraphDestroy", graph)

    def _clear(self) -> None:
        self._drop_executable()
        self._drop_graph()

    # explicit nodes -----------------------------------------------------------------------------------------------
    def _add(self, node: Node, after: tuple[Node, ...], programmatic: bool) -> None:
        if self._graph is None:
            self._graph = self.device.call("cuGraphCreate", 0)
        params = self._params(node)
        before = [self._raw_nodes[n.index] for n in after]
        plain = [] if programmatic else before
        raw = self.device.call("cuGraphAddKernelNode", self._graph, plain, len(plain), params)
        self._raw_nodes.append(raw)
        self._set_cluster(raw, node)
        if programmatic and before:
            self._add_programmatic(before, raw)
        self._drop_executable()

    def _params(self, node: Node) -> Any:
        bound = node.bound
        function, geometry = bound.function, bound.geometry
        assert isinstance(function, CudaFunction)
        params = self.device.api.CUDA_KERNEL_NODE_PARAMS()
        params.func = function.raw
        params.gridDimX, params.gridDimY, params.gridDimZ = geometry.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = geometry.block
        params.sharedMemBytes = geometry.shared
        params.kernelParams = bound.block.pointers
        return params

    def _set_cluster(self, raw: Any, node: Node) -> None:
        x, y, z = node.bound.geometry.cluster
        if (x, y, z) == (1, 1, 1):
            return
        api = self.device.api
        value = api.CUkernelNodeAttrValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = x, y, z
        attribute = api.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        self.device.call("cuGraphKernelNodeSetAttribute", raw, attribute, value)

    def _add_programmatic(self, before: list[Any], raw: Any) -> None:
        """Edges on which the later kernel starts while the earlier one still runs."""
        api = self.device.api
        edges = []
        for _ in before:
            edge = api.CUgraphEdgeData()
            edge.from_port = _PROGRAMMATIC_PORT
            edge.type = api.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.value
            edges.append(edge)
        name = "cuGraphAddDependencies"  # takes edge data from CUDA 13 on; before, only its _v2 does
        if self.device.driver.has(f"{name}_v2"):
            name += "_v2"
        self.device.call(name, self._graph, before, [raw] * len(before), edges, len(before))

    def _update(self, node: Node) -> None:
        raw, params = self._raw_nodes[node.index], self._params(node)
        self.device.call("cuGraphKernelNodeSetParams", raw, params)
        if self._executable is not None:
            self.device.call("cuGraphExecKernelNodeSetParams", self._executable, raw, params)

    # replay -------------------------------------------------------------------------------------------------------
    def _launch(self, stream: Stream) -> None:
        replay = self._replays.get(stream.handle)
        if replay is None:
            if self._executable is None:
                self._executable = self.device.call("cuGraphInstantiate", self._graph, 0)
            replay = prepared(self.device, "cuGraphLaunch", int(self._executable), stream.handle)
            self._replays[stream.handle] = replay
        replay()

    def _used_on(self, stream: Stream) -> None:
        """The code of all kernels stays until the replays on `stream` are done."""
        for function in (*self._kept, *(node.bound.function for node in self.nodes)):
            if isinstance(function, CudaFunction):
                function.code.used_on(stream)

    def _replace(self) -> None:
        """Put a new capture into the executable in place; when its shape differs, make it again at the next launch."""
        code, _ = self.device.ask("cuGraphExecUpdate", self._executable, self._graph)
        if code:
            self._drop_executable()

    def _drop_graph(self) -> None:
        graph, self._graph = self._graph, None
        if graph is not None:
            self.device.quiet("cuGraphDestroy", graph)

    def _drop_executable(self) -> None:
        executable, self._executable, self._replays = self._executable, None, {}
        if executable is not None:
            self.device.quiet("cuGraphExecDestroy", executable)

    def close(self, reason: str) -> None:
        """Give the driver's graphs back; from now on every use raises."""
        self.invalidate(reason)
        self._clear()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # globals may be gone by then
        if not finalizing() and hasattr(self, "_executable"):
            self._clear()
