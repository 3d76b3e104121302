"""The CUDA backend on a real GPU: memory, launches, graphs, failures, caches. Small hand-written kernels only."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ptxgen.errors import CudaError, ModuleLoadError, SpecError
from ptxgen.kernel import KernelType
from ptxgen.runtime import open_device
from ptxgen.runtime.core.backend import MOST_SHARED, Copy
from ptxgen.runtime.core.diskcache import DiskCache
from ptxgen.runtime.core.launches.modulecache import ModuleCache
from ptxgen.runtime.cuda.device import CudaDevice
from ptxgen.runtime.cuda.load import Loader
from tests.support.buffers import KINDS, SCALE

pytestmark = pytest.mark.gpu

# Writes its rank in the cluster; and, `last`, the last byte of its dynamic shared memory after a round trip.
CLUSTER = """.version 7.8
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .entry rank(.param .u64 out)
{
    .reg .b32 %rank, %cta, %last; .reg .b64 %out;
    ld.param.u64 %out, [out]; mov.u32 %cta, %ctaid.x; mov.u32 %rank, %cluster_ctarank;
    mad.wide.u32 %out, %cta, 4, %out; st.global.u32 [%out], %rank;
    ret;
}
.visible .entry last(.param .u64 out, .param .u32 size)
{
    .reg .b32 %size, %base; .reg .b64 %out;
    ld.param.u64 %out, [out]; ld.param.u32 %size, [size]; mov.u32 %base, dynamic;
    add.u32 %base, %base, %size; st.shared.u32 [%base+-4], %size; ld.shared.u32 %size, [%base+-4];
    st.global.u32 [%out], %size;
    ret;
}
.visible .entry after(.param .u64 x)
{
    .reg .b64 %x; .reg .f32 %value;
    griddepcontrol.launch_dependents; griddepcontrol.wait;
    ld.param.u64 %x, [x]; ld.global.f32 %value, [%x]; add.f32 %value, %value, 0f3F800000; st.global.f32 [%x], %value;
    ret;
}
"""


def scaled(device: CudaDevice, n: int, by: float) -> tuple:
    x = device.array(np.ones(n, np.float32))
    return x, device.module(SCALE)["scale"].bind(-(-n // 128), 128, [x, np.float32(by), np.uint32(n)])


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_every_type(gpu: CudaDevice, kind: str) -> None:
    source = gpu.empty((3, 5), kind)
    host = np.arange(15).reshape(3, 5).astype(source.dtype.numpy)
    source.copy_from(host)
    assert source.numpy().tobytes() == host.tobytes()
    twin = gpu.array(source)
    assert twin[1].numpy().tobytes() == host[1].tobytes()
    assert twin[2, 1:4].numpy().tobytes() == host[2, 1:4].tobytes()
    assert gpu.zeros(7, kind).numpy().tobytes() == bytes(7 * source.dtype.bytes)


@pytest.mark.parametrize(("kind", "value"), [("u8", 7), ("f16", 1.5), ("bf16", -2), ("f32", 3.25), ("s32", -9)])
def test_fills(gpu: CudaDevice, kind: str, value: float) -> None:
    assert set(gpu.empty(1000, kind).fill(value).numpy().astype(np.float64)) == {value}


def test_strided_copies_in_all_directions(gpu: CudaDevice) -> None:
    host = np.arange(6 * 32, dtype=np.float32).reshape(6, 32)
    x = gpu.array(host)
    out = np.zeros((6, 8), np.float32)
    gpu._copy(Copy("out", out.ctypes.data, x.pointer, 32, 6, 32, 128), None, ())
    assert np.array_equal(out, host[:, :8])
    y = gpu.zeros((6, 16), "f32")
    gpu._copy(Copy("on", y.pointer + 32, x.pointer, 32, 6, 64, 128), None, ())
    gpu._copy(Copy("in", y.pointer, out.ctypes.data, 32, 6, 64, 32), None, ())
    assert np.array_equal(y.numpy(), np.hstack([host[:, :8]] * 2))


def test_pinned_copies_are_asynchronous_and_ordered(gpu: CudaDevice) -> None:
    stream, n = gpu.stream(), 1 << 22
    host, back = gpu.pinned(n, "f32"), gpu.pinned(n, "f32")
    host[:] = 2
    x, bound = scaled(gpu, n, 3)
    x.copy_from(host, stream)
    bound.launch(stream)
    x.numpy(back, stream)
    stream.synchronize()
    assert np.all(back == 6)


def test_launch_on_own_foreign_and_default_streams(gpu: CudaDevice) -> None:
    x, bound = scaled(gpu, 1000, 2)
    stream = gpu.stream()
    bound.launch()
    gpu.synchronize()
    bound.launch(stream)
    stream.synchronize()
    bound.launch(gpu.stream(stream.handle))
    assert np.all(x.numpy() == 8)


def test_arrays_by_the_cuda_array_interface_are_of_this_gpu(gpu: CudaDevice) -> None:
    """The driver knows our pool's memory, and that host memory is not."""
    x, host = gpu.array(np.ones(4, np.float32)), np.ones(4, np.float32)
    kinds = [
        type("Array", (), {"__cuda_array_interface__": x.__cuda_array_interface__ | changes})()
        for changes in ({}, {"data": (host.ctypes.data, False)})
    ]
    assert gpu.wrap(kinds[0]).pointer == x.pointer
    with pytest.raises(SpecError, match=r"must be memory of cuda:0 \(got Array in memory that is no GPU's\)"):
        gpu.wrap(kinds[1])


def test_results_are_read_after_the_launch_without_a_synchronisation_by_hand(gpu: CudaDevice) -> None:
    x, bound = scaled(gpu, 1 << 20, 2)
    streams = [gpu.stream() for _ in range(3)]
    for stream in streams:
        bound.launch(stream)
        stream.synchronize()
    bound.launch(streams[0])
    assert np.all(x.numpy() == 16)


def test_launch_from_a_thread_that_never_saw_cuda(gpu: CudaDevice) -> None:
    x, bound = scaled(gpu, 64, 2)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            bound.launch()
            gpu.default_stream.synchronize()
            bound.launch(0)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gpu.synchronize()
    assert failures == []
    assert np.all(x.numpy() == 4)


def test_clusters_large_shared_memory_and_resources(gpu: CudaDevice) -> None:
    if gpu.capability < (9, 0):
        pytest.skip(f"clusters need compute capability 9.0 (this is {gpu.capability})")
    module = gpu.module(CLUSTER)
    out = gpu.zeros(16, "u32")
    for cluster in (1, 4, 8, 16):
        module["rank"].launch(16, 32, [out], cluster=cluster)
        assert out.numpy().tolist() == [i % cluster for i in range(16)]
    for size in (1024, 60_000, gpu.shared_limit):
        module["last"].launch(1, 1, [out, np.uint32(size)], shared=size)
        assert out[0].numpy() == size
    more = MOST_SHARED + 16
    with pytest.raises(SpecError, match=rf"^Geometry\.shared: must be 0 … {MOST_SHARED} bytes .*\(got {more}\)"):
        module["last"].bind(1, 1, [out, np.uint32(4)], shared=more)
    assert 0 < module["last"].resources.registers < 64


def test_two_gpus_wait_for_each_other_in_one_thread(gpu: CudaDevice, caplog: pytest.LogCaptureFixture) -> None:
    if int(gpu.driver.call("cuDeviceGetCount")) < 2:
        pytest.skip("needs two GPUs")
    both = [gpu, open_device("cuda:1")]
    arrays, launches = zip(*(scaled(device, 1000, 2) for device in both), strict=True)
    for _ in range(3):
        for device, other, bound in zip(both, reversed(both), launches, strict=True):
            device.default_stream.wait(other.default_stream)
            bound.launch()
    assert [set(x.numpy()) for x in arrays] == [{8}, {8}]
    assert len([r for r in caplog.records if "another device's" in r.getMessage()]) <= 2, "once a device"


def test_a_kernel_is_loaded_before_its_first_launch(gpu: CudaDevice) -> None:
    if gpu.driver.version < 12040:
        pytest.skip(f"cuFuncIsLoaded needs a driver of CUDA 12.4 (this is {gpu.driver.version})")
    entry = gpu.module(SCALE.replace("scale", "lazy"))["lazy"]
    raw = entry.function.raw  # type: ignore[attr-defined]
    assert int(gpu.call("cuFuncIsLoaded", raw)) == 1


def test_graph_capture_explicit_nodes_update_and_recapture(gpu: CudaDevice) -> None:
    x, bound = scaled(gpu, 1000, 2)
    with gpu.graph() as captured:
        bound.launch(captured.stream)
        bound.launch(captured.stream)
    captured.launch()
    assert np.all(x.numpy() == 4)
    explicit = gpu.graph()
    first = explicit.add(bound)
    explicit.add(bound)
    explicit.launch()
    assert np.all(x.numpy() == 16)
    explicit.update(first, _1=np.float32(0.5))
    explicit.launch()
    assert np.all(x.numpy() == 16)
    with captured:
        bound.launch(captured.stream)
        bound.launch(captured.stream)
    captured.launch()
    assert np.all(x.numpy() == 64), "the same shape: updated in place"
    with captured:
        bound.launch(captured.stream)
    captured.launch()
    assert np.all(x.numpy() == 128), "another shape: built again"


def test_programmatic_launches_and_edges(gpu: CudaDevice) -> None:
    if gpu.capability < (9, 0):
        pytest.skip(f"griddepcontrol needs compute capability 9.0 (this is {gpu.capability})")
    x = gpu.zeros(1, "f32")
    bound = gpu.module(CLUSTER)["after"].bind(1, 1, [x], programmatic=True)
    for _ in range(100):
        bound.launch()
    assert x.numpy() == 100
    explicit = gpu.graph()
    explicit.add(bound)
    for _ in range(9):
        explicit.add(bound, programmatic=True)
    explicit.launch()
    with gpu.graph() as captured:
        for _ in range(10):
            bound.launch(captured.stream)
    captured.launch()
    gpu.synchronize()
    assert x.numpy() == 120


def test_copies_in_a_graph(gpu: CudaDevice) -> None:
    x, bound = scaled(gpu, 100, 2)
    host, back = gpu.pinned(100, "f32"), gpu.pinned(100, "f32")
    with gpu.graph() as graph:
        x.copy_from(host, graph.stream)
        bound.launch(graph.stream)
        x.numpy(back, graph.stream)
    for value in (1, 5):
        host[:] = value
        graph.launch()
        gpu.synchronize()
        assert np.all(back == 2 * value)


def captures_that_fail(device: CudaDevice) -> None:
    """What our checks refuse, what the driver refuses, and the caller's own errors; after each all still works."""
    x, bound = scaled(device, 100, 2)
    graph = device.graph()

    def fails(kind: type[Exception], match: str, work: Callable[[], object]) -> None:
        with pytest.raises(kind, match=match), graph:  # noqa: PT012
            bound.launch(graph.stream)
            work()
        with pytest.raises(CudaError, match="Graph: is empty"):
            graph.launch()
        x.fill(1)
        bound.launch()
        assert set(x.numpy()) == {2}, "launched once, and the capture's launch never ran"
        with device.graph() as other:
            bound.launch(other.stream)
        other.launch()
        assert set(x.numpy()) == {4}

    def raise_ours() -> None:
        raise ValueError("ours")

    fails(CudaError, r"^Stream\.synchronize: is not possible while capturing", lambda: graph.stream.synchronize())
    # The driver's own answer to the same, which breaks the capture: raised at once, or overlooked until the end.
    refused, broken = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
    name = "cuStreamSynchronize"
    fails(CudaError, rf"^{name}: {refused} \(900\)", lambda: device.call(name, graph.stream.handle))
    fails(CudaError, rf"^cuStreamEndCapture: {broken} \(901\)", lambda: device.ask(name, graph.stream.handle))
    fails(ValueError, "ours", raise_ours)
    with graph:
        bound.launch(graph.stream)
    graph.launch()
    assert set(x.numpy()) == {8}


def test_failed_capture_leaves_a_usable_device(gpu: CudaDevice) -> None:
    captures_that_fail(gpu)


def test_failed_launch_leaves_a_usable_device(gpu: CudaDevice) -> None:
    x, bound = scaled(gpu, 100, 2)
    function = gpu.module(SCALE)["scale"].function
    wrong = gpu.module(SCALE)["scale"].bind(1, 128, [x, np.float32(2), np.uint32(100)])
    object.__setattr__(wrong.geometry, "shared", 512 * 1024)  # more than any GPU has, past the check at bind
    with pytest.raises(CudaError, match=r"cuLaunchKernelEx\(scale\): CUDA_ERROR_INVALID_VALUE"):
        wrong.launch()
    assert function.resources.max_threads >= 128
    bound.launch()
    assert np.all(x.numpy() == 2)


def test_released_memory_waits_for_its_last_launch(gpu: CudaDevice) -> None:
    stream = gpu.stream()
    for _ in range(50):
        x, bound = scaled(gpu, 1 << 20, 2)
        for _ in range(20):
            bound.launch(stream)
        del x, bound
        y = gpu.zeros(1 << 20, "f32")
        assert not y.numpy().any()


def test_memory_of_the_legacy_stream_goes_after_a_blocking_streams_capture(gpu: CudaDevice) -> None:
    """CuPy's streams are blocking ones: while such a one is captured, nothing may wait for the legacy stream."""
    x, bound = scaled(gpu, 1 << 20, 2)
    kept = gpu.zeros(4, "f32")
    gpu.synchronize()
    before = gpu.memory().used
    bound.launch(gpu.stream(1))
    blocking = int(gpu.call("cuStreamCreate", 0))
    gpu.call("cuStreamBeginCapture", blocking, gpu.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    x.free()
    gpu.call("cuMemsetD32Async", kept.pointer, 0x3F800000, 4, blocking)
    graph = gpu.call("cuStreamEndCapture", blocking)
    assert gpu.call("cuGraphGetNodes", graph, 0)[1] == 1, "the capture is whole, and has nothing of ours"
    gpu.call("cuGraphDestroy", graph)
    gpu.call("cuStreamDestroy", blocking)
    gpu.synchronize()
    gpu.synchronize()  # the first one gave the memory back, in the order of a stream
    assert gpu.memory().used <= before - (4 << 20)


def test_memory_is_flat(gpu: CudaDevice) -> None:
    def churn() -> None:
        for _ in range(20):
            _, bound = scaled(gpu, 1 << 18, 2)
            with gpu.graph() as graph:
                bound.launch(graph.stream)
            graph.launch()

    churn()
    gpu.synchronize()
    gc.collect()
    before = gpu.memory().used
    churn()
    gpu.synchronize()
    assert gpu.memory().used == before


def test_out_of_memory_names_the_figures(gpu: CudaDevice) -> None:
    free = gpu.memory().free
    with pytest.raises(CudaError, match=rf"asked for {2 * free:,} bytes, [\d,]+ of [\d,]+ are free"):
        gpu.empty(2 * free, "u8")
    assert gpu.zeros(4, "f32").numpy().tolist() == [0, 0, 0, 0]


def test_load_failures_say_why(gpu: CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_DUMP_DIR", str(tmp_path))
    with pytest.raises(ModuleLoadError, match=r"does not load(.|\n)*needs driver|newer"):
        gpu.module(SCALE.replace(".version 7.0", ".version 99.0"))
    with pytest.raises(ModuleLoadError, match=r"line 8(.|\n)*>     8  .*mad\.wrong"):
        gpu.module(SCALE.replace("mad.lo.u32", "mad.wrong.u32"))
    with pytest.raises(ModuleLoadError):
        gpu.module("not PTX at all")
    assert len(list(tmp_path.iterdir())) == 3


def test_machine_code_is_cached_on_disk(gpu: CudaDevice, tmp_path: Path) -> None:
    text = SCALE.replace(".visible", f"// {time.time_ns()}\n.visible")
    origins = []
    for _ in range(2):
        loader = Loader(gpu, DiskCache(tmp_path, suffix=".cubin"))
        origins.append(loader.load(text, "test").origin)
    assert origins == ["driver", "cached cubin"]
    (entry,) = tmp_path.iterdir()
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(data)
    loader = Loader(gpu, DiskCache(tmp_path, suffix=".cubin"))
    assert loader.load(text, "test").origin == "driver", "a flipped byte is a miss"


def test_warmup_in_parallel_loads_what_one_by_one_does(gpu: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxgen.generator import generate
    from ptxgen.kernels import KvCacheScatter, MultiHeadAttention, Rope

    specs: list[KernelType] = [MultiHeadAttention(head_dim=d, n_heads=8, n_kv_heads=2) for d in (32, 64, 96, 128)]
    specs += [KvCacheScatter(max_len=64, head_dim=d, n_kv_heads=2, kv_dtype="s8") for d in (64, 128)]
    specs += [Rope(head_dim=d, n_heads=4, n_kv_heads=2) for d in (64, 128)]
    for spec in specs:
        generate(spec, gpu.target)  # text is made by one thread at a time anyway: what is timed is the compiler
    seconds = {}
    for workers in (1, 8):
        monkeypatch.setattr(gpu, "_loader", Loader(gpu, DiskCache(None)))
        start = time.perf_counter()
        kernels = ModuleCache(gpu).warmup(specs, workers=workers)
        seconds[workers] = time.perf_counter() - start
        assert list(kernels) == specs
    monkeypatch.setattr(ThreadPoolExecutor, "submit", None)
    cached = ModuleCache(gpu)
    assert list(cached.warmup(specs)) == specs, "what is cached needs no thread"
    assert {line.origin for line in cached.history} == {"cached cubin"}
    print(f"warm-up of {len(specs)} kernels: {seconds}")
