"""Graphs against a recording driver: capture, explicit nodes, update, ownership, failure."""

from __future__ import annotations

import gc
import struct

import numpy as np
import pytest

from ptxgen.errors import CudaError, SpecError
from ptxgen.runtime.core.launches.bound import BoundKernel
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.cuda.device import CudaDevice
from tests.cuda.test_gpu import captures_that_fail
from tests.support.fake_cuda import TEXT, Binding, Tensor, fake_device, running_device, torch_on


@pytest.fixture
def fake() -> tuple[CudaDevice, Binding]:
    return fake_device()


def scale(device: CudaDevice, buffer: Buffer, by: float) -> BoundKernel:
    return device.module(TEXT)["scale"].bind(1, 32, [buffer, np.float32(by), np.uint32(buffer.size)])


def factors(binding: Binding) -> list[float]:
    return [struct.unpack("<f", launch.arguments[1])[0] for launch in binding.launched]


def test_capture_records_and_replays(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    x = device.zeros(4, "f32")
    one, two = scale(device, x, 1), scale(device, x, 2)
    with device.graph() as graph:
        one.launch(graph.stream)
        two.launch(graph.stream)
        x.fill(7, graph.stream)
    assert binding.launched == []
    assert x.numpy().tolist() == [0, 0, 0, 0]
    graph.launch()
    graph.launch(device.stream())
    assert factors(binding) == [1, 2, 1, 2]
    assert x.numpy().tolist() == [7, 7, 7, 7]


def test_capture_does_not_disturb_earlier_streams_of_the_same_kernel(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    bound = scale(device, device.zeros(4, "f32"), 1)
    bound.launch()
    with device.graph() as graph:
        bound.launch(graph.stream)
    bound.launch()
    assert len(binding.launched) == 2
    calls = bound._launcher._calls  # type: ignore[attr-defined]
    assert len(calls) == 1, "a capture's stream is not remembered"


def test_failed_capture_leaves_the_context_usable(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    bound = scale(device, device.zeros(4, "f32"), 1)
    graph = device.graph()
    with pytest.raises(ZeroDivisionError), graph:  # noqa: PT012
        bound.launch(graph.stream)
        _ = 1 / 0
    assert binding.capturing == {}
    assert binding.graphs == {}, "the half-made graph is destroyed"
    bound.launch()
    binding.fail["cuStreamEndCapture"] = [901]
    with pytest.raises(CudaError, match="the capture failed earlier"), graph:
        bound.launch(graph.stream)
    with graph:
        bound.launch(graph.stream)
    graph.launch()
    assert factors(binding) == [1, 1]


def test_captures_that_our_checks_or_the_driver_refuse_leave_a_usable_device() -> None:
    """The facts that a real GPU is asked for."""
    device = running_device()
    captures_that_fail(device)
    assert device.driver.api.capturing == {}
    gc.collect()
    assert device.driver.api.graphs == {}


def test_a_capture_that_fails_over_an_earlier_one_gives_that_back(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    x = device.zeros(4, "f32")
    graph = device.graph()
    with graph:
        scale(device, x, 1).launch(graph.stream)
    graph.launch()
    binding.fail["cuStreamEndCapture"] = [901]
    with pytest.raises(CudaError, match="the capture failed earlier"), graph:
        x.fill(1, graph.stream)
    assert (binding.graphs, binding.texts) == ({}, {})


def test_empty_capture_is_an_error(fake: tuple[CudaDevice, Binding]) -> None:
    device, _ = fake
    bound = scale(device, device.zeros(4, "f32"), 1)
    with pytest.raises(CudaError, match=r"nothing was captured; launch and copy on graph\.stream"), device.graph():
        bound.launch()


def test_recapture_replaces_the_work_in_place(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    x = device.zeros(4, "f32")
    graph = device.graph()
    for by in (1, 2):
        with graph:
            scale(device, x, by).launch(graph.stream)
        graph.launch()
    assert factors(binding) == [1, 2]
    assert binding.log.count("cuGraphInstantiate") == 1
    assert binding.log.count("cuGraphExecUpdate") == 1


def test_explicit_nodes_run_with_the_arguments_they_were_given(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    bound = scale(device, device.zeros(4, "f32"), 1)
    graph = device.graph()
    first = graph.add(bound)
    bound.update(_1=np.float32(5))
    graph.add(bound, after=[first])
    graph.launch()
    assert factors(binding) == [1, 5]
    graph.update(first, _1=np.float32(3))
    graph.launch()
    assert factors(binding)[2:] == [3, 5]
    assert binding.log.count("cuGraphInstantiate") == 1, "an update does not build the graph again"


def test_programmatic_edges(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    entry = device.module(TEXT)["nothing"]
    plain, early = entry.bind(1, 32), entry.bind(1, 32, programmatic=True)
    graph = device.graph()
    graph.add(plain)
    graph.add(early, programmatic=True)
    (edge,) = binding.edges
    assert edge[2:] == (1, 1), "type programmatic, from the programmatic port"
    with pytest.raises(SpecError, match="nothing does not use griddepcontrol"):
        graph.add(plain, programmatic=True)


def test_graph_owns_its_buffers_until_it_goes(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    with device.graph() as graph:
        scale(device, device.zeros(4, "f32"), 1).launch(graph.stream)
    gc.collect()
    assert len(binding.memory) == 1
    graph.launch()
    del graph
    gc.collect()
    assert binding.memory == {}
    assert binding.graphs == {}


def test_freed_buffer_makes_the_graph_an_error(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    x, y = device.zeros(4, "f32"), device.zeros(4, "f32")
    with device.graph() as captured:
        scale(device, x, 1).launch(captured.stream)
    explicit = device.graph()
    node = explicit.add(scale(device, x, 1))
    explicit.update(node, _0=y)
    x.free()
    with pytest.raises(CudaError, match=r"Graph: cannot be launched: a buffer it uses .* was freed"):
        captured.launch()
    explicit.launch()
    y.free()
    with pytest.raises(CudaError, match="was freed"):
        explicit.launch()
    assert len(binding.launched) == 1


def test_a_graph_with_arrays_of_a_library_goes_to_its_current_stream(
    fake: tuple[CudaDevice, Binding], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, binding = fake
    torch_on(monkeypatch, 0x70)
    bound = device.module(TEXT)["scale"].bind(1, 32, [Tensor(device.zeros(4, "f32")), np.float32(1), np.uint32(4)])
    captured, explicit = device.graph(), device.graph()
    with captured:
        bound.launch(captured.stream)
    explicit.add(bound)
    for graph in (captured, explicit):
        graph.launch()
    explicit.launch(device.default_stream)
    assert binding.replays == [0x70, 0x70, device.default_stream.handle]


def test_memory_freed_while_a_graph_is_captured_stays_out_of_it(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    x, side = device.zeros(4, "f32"), device.stream()
    with device.graph() as graph:
        x.fill(1, graph.stream)
        with pytest.raises(CudaError, match="is not possible while capturing"):
            side.wait(graph.stream)
        other = device.zeros(4, "f32").fill(1, side)
        pointer = other.pointer
        del other
        assert pointer not in binding.memory, "freed at once, not by the graph"
    assert len(binding.graphs) == 1


def test_released_memory_waits_for_replays(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    x, stream = device.zeros(4, "f32"), device.stream()
    with device.graph() as graph:
        scale(device, x, 1).launch(graph.stream)
    graph.launch(stream)
    binding.log.clear()
    x.free()
    assert binding.log.count("cuStreamWaitEvent") == 1


def test_wrong_use_is_named(fake: tuple[CudaDevice, Binding]) -> None:
    device, _ = fake
    graph, other = device.graph(), device.graph()
    bound = scale(device, device.zeros(4, "f32"), 1)
    with pytest.raises(CudaError, match="only exists while capturing"):
        _ = graph.stream
    with pytest.raises(CudaError, match="is empty"):
        graph.launch()
    node = other.add(bound)
    with pytest.raises(SpecError, match="must be nodes of this graph"):
        graph.add(bound, after=[node])
    with pytest.raises(CudaError, match="has explicit nodes"), other:
        pass
    with pytest.raises(CudaError, match="is being captured"), graph:  # noqa: PT012
        bound.launch(graph.stream)
        graph.launch()
