"""Graphs, the same on the CPU executor and on a GPU: capture, explicit nodes, what they refuse, what they own."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from ptxgen.errors import CudaError, SpecError
from ptxgen.runtime import Device, open_device
from tests.runtime.test_device import scaled


def test_capture_replays_what_was_recorded(device: Device) -> None:
    x, bound = scaled(device)
    y = device.zeros(1000, "f32")
    with device.graph() as graph:
        bound.launch(graph.stream)
        y.copy_from(x, graph.stream)
        x.fill(1, graph.stream)
    assert set(x.numpy()) == {1}, "recorded, not run"
    bound.update(_1=np.float32(100))
    for _ in range(2):
        graph.launch()
        device.synchronize()
        assert set(y.numpy()) == {2}, "with the arguments of the recording"


def test_explicit_nodes_and_update(device: Device) -> None:
    x, bound = scaled(device)
    y = device.array(np.ones(1000, np.float32))
    graph = device.graph()
    first = graph.add(bound)
    graph.add(bound, after=[first])
    graph.launch()
    assert set(x.numpy()) == {4}
    graph.update(first, _0=y, _1=np.float32(3))
    graph.launch(device.stream())
    device.synchronize()
    assert (set(x.numpy()), set(y.numpy())) == ({8}, {3})
    with pytest.raises(SpecError, match="takes 4 bytes"):
        graph.update(first, _1=3)


def test_failed_captures_leave_a_usable_device(device: Device) -> None:
    x, bound = scaled(device)
    graph = device.graph()
    with pytest.raises(CudaError), graph:  # noqa: PT012
        bound.launch(graph.stream)
        graph.stream.synchronize()
    with pytest.raises(KeyError), graph:  # noqa: PT012
        bound.launch(graph.stream)
        raise KeyError
    with pytest.raises(CudaError, match="nothing was captured"), graph:
        bound.launch()
    with graph:
        bound.launch(graph.stream)
    graph.launch()
    assert set(x.numpy()) == {4}


@pytest.mark.parametrize("why", ["raised", "nothing"])
def test_a_capture_that_fails_over_an_earlier_one_leaves_an_empty_graph(device: Device, why: str) -> None:
    x, bound = scaled(device)
    graph = device.graph()
    with pytest.raises(CudaError, match="Graph: is empty"):
        graph.launch()
    with graph:
        bound.launch(graph.stream)
    graph.launch()
    with pytest.raises((KeyError, CudaError)), graph:  # noqa: PT012
        if why == "raised":
            raise KeyError
    with pytest.raises(CudaError, match="Graph: is empty; capture into it, or add nodes"):
        graph.launch()
    graph.add(bound)
    graph.launch()
    assert set(x.numpy()) == {4}


def test_a_captured_graph_takes_no_nodes(device: Device) -> None:
    _, bound = scaled(device)
    with device.graph() as graph:
        bound.launch(graph.stream)
    with pytest.raises(CudaError, match=r"Graph\.add: the graph was captured; add nodes to a graph of its own"):
        graph.add(bound)


def test_what_cannot_be_recorded_raises_before_the_capture_changes(device: Device) -> None:
    x, bound = scaled(device)
    side = device.stream()
    before, other = side.record(), open_device("cpu").zeros(1000, "f32")
    with device.graph() as graph:
        for call in (
            lambda: device.empty(4, "f32", graph.stream),
            lambda: device.zeros(4, "f32", graph.stream),
            lambda: device.array(np.ones(4, np.float32), stream=graph.stream),
            graph.stream.synchronize,
            graph.stream.record,
            lambda: side.wait(graph.stream),
            lambda: graph.stream.wait(side),
            lambda: graph.stream.wait(before),
            lambda: x.copy_from(other, graph.stream),
            lambda: x.copy_from(np.ones(2000, np.float32)[::2], graph.stream),
        ):
            with pytest.raises(CudaError, match="is not possible while capturing"):
                call()
        bound.launch(graph.stream)
    x.fill(3, side)
    side.synchronize()
    graph.launch()
    assert set(x.numpy()) == {6}, "the side stream ran at once, and the launch was recorded"


def test_a_node_of_a_kernel_whose_buffer_was_freed_is_refused(device: Device) -> None:
    x, bound = scaled(device)
    x.free()
    with pytest.raises(CudaError, match=r"scale: a buffer it uses \(4000 bytes at .*\) was freed"):
        device.graph().add(bound)


def test_nodes_side_by_side_have_workspaces_of_their_own(device: Device) -> None:
    from ptxgen.kernels import IncrementalAttention

    spec = IncrementalAttention(max_len=8192, n_heads=8, n_kv_heads=1, head_dim=64, kv_dtype="f16", q_dtype="f16")
    kernel = device.load(spec)
    assert any(p.access == "workspace" for p in kernel.params), "the case that this test is about"
    kv, q, out = (device.zeros(shape, "f16") for shape in ((1, 8192, 64), (8, 64), (8, 64)))
    bound = kernel.bind(q=q, out=out, k_cache=kv, v_cache=kv, seq_len=1)
    graph = device.graph()
    first = graph.add(bound)
    after = graph.add(bound)
    beside = graph.add(bound, after=[first])
    last = graph.add(bound, after=[after, beside])
    used = [{b.pointer for b in node.bound.workspaces().values()} for node in (first, after, beside, last)]
    assert used[1] == used[0], "one after the other they share"
    assert not used[2] & used[0]
    assert used[3] == used[0]
    assert all(not b.numpy().any() for b in beside.bound.workspaces().values())


def test_a_graph_inside_a_capture_is_an_error_that_leaves_both_usable(device: Device) -> None:
    x, bound = scaled(device)
    inner, outer = device.graph(), device.graph()
    with inner:
        bound.launch(inner.stream)
    with pytest.raises(CudaError, match="a graph inside a capture is not supported"), outer:
        inner.launch(outer.stream)
    inner.launch()
    with outer:
        bound.launch(outer.stream)
    outer.launch()
    assert set(x.numpy()) == {4}


def test_graphs_own_their_buffers(device: Device) -> None:
    x, bound = scaled(device)
    y = device.zeros(1000, "f32")
    with device.graph() as graph:
        bound.launch(graph.stream)
        y.copy_from(x, graph.stream)
    del x, bound
    gc.collect()
    graph.launch()
    assert set(y.numpy()) == {2}
    y.free()
    with pytest.raises(CudaError, match=r"Graph: cannot be launched: a buffer it uses .* was freed"):
        graph.launch()
