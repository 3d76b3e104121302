"""The device protocol, the same on the CPU executor and on a GPU: buffers, modules, launches, streams."""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest

from ptxgen.errors import CudaError, ModuleLoadError, PtxgenError, SpecError
from ptxgen.kernels import KvCacheScatter
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.core.backend import Copy
from ptxgen.runtime.core.launches.bound import BoundKernel
from ptxgen.runtime.core.memory.buffer import Buffer
from tests.support.buffers import KINDS, SCALE


def scaled(device: Device, n: int = 1000, by: float = 2) -> tuple[Buffer, BoundKernel]:
    x = device.array(np.ones(n, np.float32))
    return x, device.module(SCALE)["scale"].bind(-(-n // 128), 128, [x, np.float32(by), np.uint32(n)])


# names ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["gpu", "cpu:1", "cuda:x", "cuda:", "cuda:-1", "cuda:²", "CUDA", "", 0, 1])
def test_unknown_device_names(name: object) -> None:
    with pytest.raises(SpecError, match=rf'name must be "cuda", "cuda:<index>", "cpu" or None \(got {name!r}\)'):
        open_device(name)


def test_a_gpu_takes_no_options() -> None:
    with pytest.raises(SpecError, match=r"takes no options \(got checked\)"):
        open_device("cuda", checked=True)


@pytest.mark.gpu
def test_one_device_object_per_gpu() -> None:
    assert open_device("cuda") is open_device("cuda:0") is open_device()


def test_a_closed_cpu_device_refuses_everything() -> None:
    device = open_device("cpu")
    x, bound = scaled(device)
    entry = device.module(SCALE)["scale"]
    device.close()
    device.close()
    assert device.closed
    for use in (
        bound.launch, x.numpy, device.stream, device.graph, device.memory, device.synchronize,
        lambda: device.empty(1, "f32"), lambda: device.wrap(np.ones(3)), lambda: device.module(SCALE),
        lambda: entry.bind(1, 32, [x, np.float32(1), np.uint32(1)]),
    ):  # fmt: skip
        with pytest.raises(CudaError, match="cpu was closed"):
            use()


def test_kernels_loaded_before_are_refused_by_a_closed_device() -> None:
    device, spec = open_device("cpu"), KvCacheScatter(max_len=16, n_kv_heads=2, head_dim=64)
    device.load(spec)
    device.close()
    with pytest.raises(CudaError, match="cpu was closed"):
        device.load(spec)


# buffers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_go_in_and_come_out(device: Device, kind: str) -> None:
    host = np.arange(24).reshape(2, 3, 4).astype(device.empty(0, kind).dtype.numpy)
    x = device.array(host)
    assert (x.shape, x.dtype.name, x.nbytes, x.size) == ((2, 3, 4), kind, host.nbytes, 24)
    assert x.pointer % 256 == 0
    assert x.numpy().tobytes() == host.tobytes()
    assert x[1, 2].numpy().tobytes() == host[1, 2].tobytes()
    assert x[-1, 1:3].numpy().tobytes() == host[-1, 1:3].tobytes()
    assert x[0:0].numpy().shape == (0, 3, 4)
    assert np.asarray(x).dtype == host.dtype


def test_conversions_and_nested_lists(device: Device) -> None:
    assert device.array([[1, 2], [3, 4]], "f16").numpy().tolist() == [[1, 2], [3, 4]]
    assert device.array(np.arange(6.0).reshape(2, 3).T).numpy().tolist() == [[0, 3], [1, 4], [2, 5]]
    x = device.array(np.ones(3, np.float32))
    assert device.array(x).pointer != x.pointer
    with pytest.raises(SpecError, match="keeps its dtype f32"):
        device.array(x, "f16")


def test_views_share_memory_within_bounds(device: Device) -> None:
    x = device.zeros((4, 8), "f32")
    x[2].fill(1)
    assert x.numpy().sum() == 8
    halves = x.view((4, 16), "u16")
    assert halves[2, 1].numpy() == 0x3F80
    assert x.reshape(8, 4)[4].numpy().tolist() == [1, 1, 1, 1]
    for wrong in (lambda: x.view(33), lambda: x.view(1, offset=-4), lambda: x.reshape(5), lambda: x[4], lambda: x[::2],
                  lambda: x[0, 0, 0], lambda: x[:1, 0]):  # fmt: skip
        with pytest.raises(SpecError):
            wrong()


def test_buffers_are_iterated_by_their_first_index(device: Device) -> None:
    x = device.array(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert [row.numpy().tolist() for row in x] == [[0, 1, 2], [3, 4, 5]]
    k, v = x
    assert (k.pointer, v.pointer) == (x[0].pointer, x[1].pointer)
    with pytest.raises(TypeError, match="has no length"):
        list(x[0, 0])


def test_copy_from_checks_what_it_is_given(device: Device) -> None:
    x = device.zeros((2, 3), "f32")
    x.copy_from(np.arange(6, dtype=np.float32).reshape(2, 3))
    x[1].copy_from(x[0])
    assert x.numpy().tolist() == [[0, 1, 2], [0, 1, 2]]
    with pytest.raises(SpecError, match=r"copy_from: must be \[2, 3\] f32 \(got \[3, 2\] f32\)"):
        x.copy_from(np.zeros((3, 2), np.float32))
    with pytest.raises(SpecError, match=r"must be \[2, 3\] f32 \(got \[2, 3\] f64\)"):
        x.copy_from(np.zeros((2, 3)))
    with pytest.raises(SpecError, match=r"numpy\(out\): must be \[2, 3\] f32"):
        x.numpy(np.zeros(6, np.float32))
    out = np.zeros((2, 3), np.float32)
    assert x.numpy(out) is out


@pytest.mark.parametrize(
    ("kind", "value"), [("u8", 7), ("f16", 1.5), ("bf16", -2), ("f32", 3.25), ("s32", -9), ("f64", 0)]
)
def test_fill(device: Device, kind: str, value: float) -> None:
    assert set(device.empty(999, kind).fill(value).numpy().astype(np.float64)) == {value}


def test_eight_byte_elements_are_filled_with_zero_only(device: Device) -> None:
    with pytest.raises(SpecError, match="8-byte elements"):
        device.empty(4, "f64").fill(1)


def test_strided_copies(device: Device) -> None:
    host = np.arange(6 * 32, dtype=np.float32).reshape(6, 32)
    x, out = device.array(host), np.zeros((6, 8), np.float32)
    device._copy(Copy("out", out.ctypes.data, x.pointer, 32, 6, 32, 128), None, ())
    assert np.array_equal(out, host[:, :8])
    y = device.zeros((6, 16), "f32")
    device._copy(Copy("on", y.pointer + 32, x.pointer, 32, 6, 64, 128), None, ())
    device._copy(Copy("in", y.pointer, out.ctypes.data, 32, 6, 64, 32), None, ())
    assert np.array_equal(y.numpy(), np.hstack([host[:, :8]] * 2))


def test_free_and_use_after_free(device: Device) -> None:
    x, bound = scaled(device)
    view = x[1:3]
    x.free()
    x.free()
    for use in (x.numpy, view.numpy, lambda: x.fill(1), bound.launch, lambda: device.array(np.ones(2)).copy_from(view)):
        with pytest.raises(PtxgenError, match=r"freed|must be"):
            use()


def test_a_replaced_buffer_revives_a_bound_kernel(device: Device) -> None:
    x, bound = scaled(device)
    x.free()
    with pytest.raises(CudaError, match="was freed"):
        bound.launch()
    y = device.array(np.ones(1000, np.float32))
    bound.update(_0=y).launch()
    device.synchronize()
    assert set(y.numpy()) == {2}


# modules and launches ---------------------------------------------------------------------------------------------
def test_launch_and_update(device: Device) -> None:
    x, bound = scaled(device)
    stream = device.stream()
    bound.launch()
    assert set(x.numpy()) == {2}
    bound.update(_1=np.float32(4))
    bound.launch(stream)
    stream.synchronize()
    assert set(x.numpy()) == {8}
    device.module(SCALE)["scale"].launch(grid=(1,), block=(64, 1), args=[x, np.float32(0), np.uint32(64)])
    assert x.numpy().tolist() == [0] * 64 + [8] * 936


def test_wrong_launches_are_named(device: Device) -> None:
    module = device.module(SCALE)
    x = device.zeros(4, "f32")
    with pytest.raises(ModuleLoadError, match=r"has no entry 'skale' \(it has scale"):
        module["skale"]
    with pytest.raises(SpecError, match=r"takes 3 arguments \(got 1\)"):
        module["scale"].launch(1, 32, [x])
    with pytest.raises(SpecError, match=r"_2.*takes 4 bytes \(got 8 bytes"):
        module["scale"].launch(1, 32, [x, np.float32(1), 4])
    with pytest.raises(SpecError, match=r"Geometry\.grid"):
        module["scale"].launch(0, 32, [x, np.float32(1), np.uint32(4)])


def test_text_that_is_not_ptx_does_not_load(device: Device) -> None:
    with pytest.raises(PtxgenError):
        device.module("not PTX at all")
    with pytest.raises(PtxgenError, match=r"mad\.wrong|line 8"):
        device.module(SCALE.replace("mad.lo.u32", "mad.wrong.u32"))["scale"]
    _, bound = scaled(device)
    bound.launch()


def test_events_and_waits(device: Device) -> None:
    one, two = device.stream(), device.stream()
    x, bound = scaled(device)
    start = one.record()
    bound.launch(one)
    two.wait(one)
    bound.launch(two)
    end = two.record()
    end.synchronize()
    assert end.elapsed_us(start) >= 0
    assert set(x.numpy()) == {4}


def test_memory_may_go_while_other_threads_begin_to_use_it(device: Device) -> None:
    class User:
        def invalidate(self, reason: str) -> None:
            """What a bound kernel does here takes no time."""

    x, users, done = device.zeros(4, "f32"), [User() for _ in range(20_000)], threading.Event()
    for user in users:
        x.allocation.tell(user)

    def use() -> None:
        while not done.is_set():
            users.append(User())
            x.allocation.tell(users[-1])

    thread = threading.Thread(target=use)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        x.free()
    finally:
        done.set()
        sys.setswitchinterval(interval)
        thread.join()


def test_an_array_of_pointers_goes_bad_with_what_it_points_to(device: Device) -> None:
    entry = device.module(SCALE)["scale"]
    x, kept = device.zeros(4, "f32"), device.zeros(4, "f32")
    pointers = device.pointers([x, kept])
    bound = entry.bind(1, 128, [pointers, np.float32(1), np.uint32(0)])
    x.free()
    for use in (bound.launch, lambda: entry.bind(1, 128, [pointers, np.float32(1), np.uint32(0)]), pointers.numpy):
        with pytest.raises(CudaError, match=r"a buffer it uses \(16 bytes at .*\) was freed"):
            use()
    assert "freed" not in repr(pointers), "the array itself is still there"


# interoperation ---------------------------------------------------------------------------------------------------
def test_buffers_are_dlpack_arrays(device: Device) -> None:
    x = device.array(np.arange(6, dtype=np.float32).reshape(2, 3))
    twin = device.wrap(_Only(x))
    assert (twin.pointer, twin.shape) == (x.pointer, x.shape)
    if device.kind == "cpu":
        array = np.from_dlpack(x)
        assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert array.ctypes.data == x.pointer


class _Only:
    """A buffer as another library's array: nothing but DLPack."""

    def __init__(self, buffer: Buffer) -> None:
        self.__dlpack__ = buffer.__dlpack__
        self.__dlpack_device__ = buffer.__dlpack_device__


def test_numpy_arrays_are_arguments_on_the_cpu_only() -> None:
    device = open_device("cpu")
    x = np.ones(1000, np.float32)
    device.module(SCALE)["scale"].launch(8, 128, [x, np.float32(3), np.uint32(1000)])
    assert set(x) == {3}
    x.flags.writeable = False
    assert device.wrap(x).readonly


def test_memory_wrapped_many_times_stays_usable_until_the_last(device: Device) -> None:
    x = device.array(np.ones(1000, np.float32))
    views = [device.wrap(_Only(x[:n])) for n in (1000, 10, 10)]
    first = device.wrap(_Only(x))
    del first
    gc.collect()
    entry = device.module(SCALE)["scale"]
    for view in views:
        entry.launch(8, 128, [view, np.float32(2), np.uint32(view.size)])
    views.clear()
    gc.collect()
    entry.launch(8, 128, [x, np.float32(2), np.uint32(1000)])
    assert x.numpy().tolist() == [16] * 10 + [4] * 990


def test_memory_is_reported(device: Device) -> None:
    before = device.memory()
    x = device.empty(1 << 20, "u8")
    after = device.memory()
    assert after.used - before.used >= 1 << 20
    assert 0 < after.free <= after.total
    x.free()
    device.synchronize()
    assert device.memory().used == before.used


def test_a_reader_copies_at_every_call_and_knows_when_the_memory_is_gone(device: Device) -> None:
    buffer, out = device.array(np.arange(4, dtype=np.int32)), device.pinned(4, "s32")
    read = buffer.reader(out, device.default_stream)
    for start in (0, 7):
        buffer.copy_from(np.arange(start, start + 4, dtype=np.int32))
        read()
        device.default_stream.synchronize()
        assert out.tolist() == list(range(start, start + 4))
    with pytest.raises(SpecError, match=r"Buffer.reader\(out\): must be \[4\] s32"):
        buffer.reader(np.zeros(3, np.int32), device.default_stream)
    buffer.free()
    with pytest.raises(CudaError, match="was freed"):
        read()
