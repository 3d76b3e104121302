"""Bind and launch, against a recording driver: what is packed, what is called, and what is not."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from ptxgen.errors import CudaError, SpecError
from ptxgen.kernels import PackedGemm
from ptxgen.runtime import open_device
from ptxgen.runtime.core.backend import Geometry
from ptxgen.runtime.core.launches.arguments import Capacities
from ptxgen.runtime.cuda.device import CudaDevice
from ptxgen.runtime.cuda.launch import Config, config
from tests.support.fake_cuda import TEXT, Binding, fake_device, real


@pytest.fixture
def fake() -> tuple[CudaDevice, Binding]:
    return fake_device()


def test_launch_calls_the_driver_once_and_does_nothing_else(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    bound = device.module(TEXT)["scale"].bind(4, 128, [device.zeros(12, "f32"), np.float32(2), np.uint32(12)])
    stream = device.stream()
    for where in (None, stream):
        binding.log.clear()
        bound.launch(where)
        assert binding.log == ["cuLaunchKernelEx"], "the first launch on a stream, too"
        bound.launch(where)
        assert binding.log == ["cuLaunchKernelEx"] * 2


def test_geometry_arguments_and_stream_reach_the_driver(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    x, stream = device.zeros(12, "f32"), device.stream()
    device.module(TEXT)["scale"].launch((4, 2), (64, 2), [x, np.float32(2.5), np.uint32(12)], 256, stream=stream)
    (launch,) = binding.launched
    assert (launch.name, launch.grid, launch.block, launch.shared) == ("scale", (4, 2, 1), (64, 2, 1), 256)
    assert launch.stream == stream.handle
    assert launch.arguments == (struct.pack("<Q", x.pointer), struct.pack("<f", 2.5), struct.pack("<I", 12))
    assert launch.attributes == {}


def test_cluster_and_programmatic_attributes(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    entry = device.module(TEXT)["nothing"]
    entry.launch(16, 32, cluster=(8, 1, 1), programmatic=True)
    assert binding.launched[-1].attributes == {4: (8, 1, 1), 6: (1, 0, 0)}
    binding.log.clear()
    entry.launch(16, 32, cluster=16)
    assert binding.log == ["cuFuncSetAttribute", "cuLaunchKernelEx"], "16 CTAs need the non-portable attribute"


def test_the_c_structures_are_the_drivers() -> None:
    theirs = real.CUlaunchConfig()
    theirs.gridDimX, theirs.gridDimY, theirs.gridDimZ = 8, 2, 3
    theirs.blockDimX, theirs.blockDimY, theirs.blockDimZ = 4, 5, 6
    theirs.sharedMemBytes, theirs.hStream = 7, real.CUstream(0x1234)
    cluster, early = real.CUlaunchAttribute(), real.CUlaunchAttribute()
    cluster.id = real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = 8, 1, 1
    early.id = real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    early.value.programmaticStreamSerializationAllowed = 1
    theirs.attrs, theirs.numAttrs = [cluster, early], 2
    ours = config(Geometry.of((8, 2, 3), (4, 5, 6), 7, (8, 1, 1), programmatic=True), 0x1234)
    for c in (ours, Config.from_address(theirs.getPtr())):
        assert (list(c.grid), list(c.block), c.shared, c.stream) == ([8, 2, 3], [4, 5, 6], 7, 0x1234)
        found = [(c.attributes[i].id, list(c.attributes[i].value)[:3]) for i in range(c.count)]
        assert found == [(4, [8, 1, 1]), (6, [1, 0, 0])]


def test_large_dynamic_shared_memory_sets_the_attribute_at_bind_only(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    entry = device.module(TEXT)["nothing"]
    binding.log.clear()
    bound = entry.bind(1, 32, shared=100_000)
    assert binding.log == ["cuFuncSetAttribute"]
    bound.launch()
    entry.bind(1, 32, shared=60_000)
    assert binding.log == ["cuFuncSetAttribute", "cuLaunchKernelEx"], "100,000 bytes allow 60,000"
    binding.fail["cuFuncSetAttribute"] = [1]
    with pytest.raises(SpecError, match=r"at most 232448 bytes.*\(got 232000 dynamic and 512 static bytes"):
        entry.bind(1, 32, shared=232_000)


@pytest.mark.parametrize(
    ("geometry", "says"),
    [
        ({"grid": 0, "block": 32}, r"Geometry.grid: .* \(got 0\)"),
        ({"grid": 1, "block": 2048}, "Geometry.block"),
        ({"grid": 1, "block": (32, 64)}, r"at most 1024 threads \(got \(32, 64, 1\): 2048\)"),
        ({"grid": 1, "block": 1024}, r"can have at most 512 threads .*\(got 1024\)"),
        ({"grid": (1, 70000), "block": 32}, "Geometry.grid"),
        ({"grid": 10, "block": 32, "cluster": 4}, "a multiple of the cluster"),
        ({"grid": 1, "block": 32, "shared": -1}, r"must be 0 … 232448 bytes \(227 KiB\) as an int \(got -1\)"),
        ({"grid": 1.5, "block": 32}, r"Geometry.grid: must be an int or up to three ints \(got 1.5\)"),
        ({"grid": "x", "block": 32}, r"\(got 'x'\)"),
    ],
)
def test_impossible_geometry_is_refused_at_bind(fake: tuple[CudaDevice, Binding], geometry: dict, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        fake[0].module(TEXT)["nothing"].bind(**geometry)


@pytest.mark.parametrize("spec", [PackedGemm(88, 256, tokens=64, precision="fast", tile_rows=64, stream=True)])
def test_ctas_that_wait_for_each_other_are_refused_where_some_would_not_run(
    fake: tuple[CudaDevice, Binding], spec: PackedGemm
) -> None:
    device, binding = fake
    kernel, rows = device.load(spec), 64
    arrays = {p.name: device.zeros(Capacities({"rows": rows}).shape(p), p.dtype) for p in kernel.params[:3]}
    device.multiprocessors = 114
    with pytest.raises(SpecError, match=r"packed_gemm wait for each other, .* at most 114 on .* \(got 132\)"):
        kernel.bind(**arrays, n_rows=rows, rows=rows)
    binding.held_by_each = 2
    kernel.bind(**arrays, n_rows=rows, rows=rows)
    alone = device.load(replace(spec, stream=False))
    device.multiprocessors = binding.held_by_each = 1
    alone.bind(**arrays, n_rows=rows, rows=rows)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], r"takes 3 arguments \(got 0\)"),
        ([1, np.float32(1)], r"takes 3 arguments \(got 2\)"),
        ([1, 2, np.uint32(3)], r"scale\(_1\): the entry takes 4 bytes \(got 8 bytes: 2\)"),
        ([1, np.float32(1), np.uint64(3)], r"takes 4 bytes \(got 8 bytes"),
        ([1, np.float32(1), True], "must be a Buffer, an int or a NumPy scalar|takes 4 bytes"),
        ([np.zeros(3), np.float32(1), np.uint32(3)], "must be memory of cuda:0 .*NumPy array"),
    ],
)
def test_wrong_arguments_are_refused_at_bind(fake: tuple[CudaDevice, Binding], args: list, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        fake[0].module(TEXT)["scale"].bind(1, 32, args)


def test_memory_of_another_device_is_refused_at_bind(fake: tuple[CudaDevice, Binding]) -> None:
    device, _ = fake
    other, _ = fake_device(Binding(devices=2), index=1)
    bound = device.module(TEXT)["scale"].bind(1, 32, [device.zeros(4, "f32"), np.float32(2), np.uint32(4)])
    rows = other.zeros((8, 16), "f32")
    for wrong in (open_device("cpu").zeros(4, "f32"), rows, other.tensor_map(rows, (8, 16))):
        with pytest.raises(SpecError, match=r"scale\(_0\): must be on cuda:0 \(got Buffer"):
            bound.update(_0=wrong)
    with pytest.raises(SpecError, match=r"Device.pointers: must be buffers on cuda:0 \(got Buffer"):
        device.pointers([rows])


def test_update_repacks_one_argument(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    bound = device.module(TEXT)["scale"].bind(1, 32, [device.zeros(4, "f32"), np.float32(2), np.uint32(4)])
    other = device.zeros(4, "f32")
    bound.update(_0=other, _2=np.uint32(9))
    bound.launch()
    expected = (struct.pack("<Q", other.pointer), struct.pack("<f", 2), struct.pack("<I", 9))
    assert binding.launched[-1].arguments == expected
    with pytest.raises(SpecError, match="takes 4 bytes"):
        bound.update(_0=device.zeros(4, "f32"), _1=1)
    bound.launch()
    assert binding.launched[-1].arguments[0] == struct.pack("<Q", other.pointer), "a refused update changes nothing"


def test_launch_after_free_raises_and_names_the_cause(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    x = device.zeros(4, "f32")
    bound = device.module(TEXT)["scale"].bind(1, 32, [x[1:], np.float32(2), np.uint32(3)])
    bound.launch()
    x.free()
    with pytest.raises(CudaError, match=r"scale: a buffer it uses .* was freed"):
        bound.launch()
    with pytest.raises(CudaError, match="was freed"):
        x.numpy()
    assert len(binding.launched) == 1


def test_bound_kernels_keep_their_buffers_alive(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    bound = device.module(TEXT)["scale"].bind(1, 32, [device.zeros(4, "f32"), np.float32(2), np.uint32(4)])
    assert len(binding.memory) == 1
    bound.launch()
    del bound
    assert binding.memory == {}


def test_memory_given_to_a_kernel_later_is_released_after_the_streams_that_launch_it(
    fake: tuple[CudaDevice, Binding],
) -> None:
    """The launcher tells of a stream once, at its first launch."""
    device, binding = fake
    stream, first, second = device.stream(), device.zeros(16, "f32"), device.zeros(16, "f32")
    bound = device.module(TEXT)["scale"].bind(1, 32, [first, np.float32(1), np.uint32(16)])
    bound.launch(stream)
    bound.update(_0=second)
    bound.launch(stream)
    binding.waits.clear()
    second.free()
    assert [earlier for _, earlier in binding.waits] == [stream.handle]


def test_foreign_streams_by_every_protocol(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, 0x51)

    class Torch:
        cuda_stream = 0x52

    class Cupy:
        ptr = 0x53

    bound = device.module(TEXT)["nothing"].bind(1, 32)
    for stream in (Protocol(), Torch(), Cupy(), 0x54, device.stream(0x55)):
        bound.launch(stream)
    assert [launch.stream for launch in binding.launched] == [0x51, 0x52, 0x53, 0x54, 0x55]
    assert "cuStreamDestroy" not in binding.log
    with pytest.raises(SpecError, match=r"must be a stream of this or another library.*\(got 'default'\)"):
        bound.launch("default")


def test_streams_of_other_devices_are_refused(fake: tuple[CudaDevice, Binding]) -> None:
    """Also those that torch and CuPy say so of, and those of the CPU executor, whose number is 0."""
    device, binding = fake

    def foreign(**says: int) -> object:
        return type("Stream", (), says)()

    bound = device.module(TEXT)["scale"].bind(1, 32, [device.zeros(4, "f32"), np.float32(2), np.uint32(4)])
    other, _ = fake_device(Binding(devices=2), index=1)
    torch = foreign(cuda_stream=0x52, device_index=1)
    cupy = foreign(ptr=0x53, device_id=1)
    for stream in (other.stream(), open_device("cpu").default_stream, torch, cupy):
        for use in (bound.launch, lambda s: device.zeros(4, "f32", s)):
            with pytest.raises(SpecError, match="stream: must be on cuda:0"):
                use(stream)
    assert binding.launched == []
    for stream in (foreign(cuda_stream=0x52, device_index=0), foreign(ptr=0x53, device_id=-1)):
        bound.launch(stream)
    assert [launch.stream for launch in binding.launched] == [0x52, 0x53]


def test_streams_are_remembered_only_up_to_a_limit(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    bound = device.module(TEXT)["nothing"].bind(1, 32)
    for handle in range(0x100, 0x100 + 200):
        bound.launch(handle)
    assert len(bound._launcher._calls) <= 64  # type: ignore[attr-defined]
    assert len(binding.launched) == 200


def test_no_launch_uses_stream_zero_by_itself(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    device.module(TEXT)["nothing"].launch(1, 32)
    assert binding.launched[-1].stream == device.default_stream.handle != 0
