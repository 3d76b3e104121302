"""DLPack and __cuda_array_interface__, in and out, against a recording driver; no other library is imported."""

from __future__ import annotations

import gc
import subprocess
import sys
import types
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ptxgen.dtypes import dtype
from ptxgen.errors import CudaError, SpecError
from ptxgen.runtime import open_device
from ptxgen.runtime.arrays import dlpack
from ptxgen.runtime.arrays.interop import contiguous, host_array
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.cuda.device import CudaDevice
from tests.support.buffers import KINDS
from tests.support.fake_cuda import TEXT, Binding, fake_device


@pytest.fixture
def fake() -> tuple[CudaDevice, Binding]:
    return fake_device()


class Producer:
    """A foreign array on a device, by DLPack; `plain` knows no versions."""

    def __init__(self, buffer: Buffer, device: Any = (2, 0), plain: bool = False, **changes: object) -> None:
        self.buffer, self.device, self.plain, self.changes = buffer, device, plain, changes
        self.streams: list[object] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: object = None, **versions: object) -> object:
        if self.plain and versions:
            raise TypeError("unexpected keyword")
        self.streams.append(stream)
        say = {"shape": self.buffer.shape, "dtype": self.buffer.dtype, "readonly": False} | self.changes
        pointer, versioned = self.buffer.pointer, not self.plain
        return dlpack.give(self, pointer, say["shape"], say["dtype"], self.device, say["readonly"], versioned)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("versioned", [True, False])
def test_a_round_trip_keeps_all(fake: tuple[CudaDevice, Binding], kind: str, versioned: bool) -> None:
    device, _ = fake
    made = device.zeros((2, 3), kind)
    got = device.wrap(Producer(made, plain=not versioned))
    assert (got.pointer, got.shape, got.dtype) == (made.pointer, (2, 3), dtype(kind))
    capsule = made.__dlpack__(max_version=(1, 0) if versioned else None)
    taken = dlpack.Taken(capsule)
    assert (taken.pointer, taken.shape) == (made.pointer, (2, 3))
    assert contiguous(taken.shape, taken.strides)
    assert (taken.dtype, taken.device, taken.readonly) == (dtype(kind), (2, 0), False)
    with pytest.raises(SpecError, match="must return an unused DLPack capsule"):
        dlpack.Taken(capsule)


def test_import_keeps_the_producer_alive_and_lets_it_go(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    producer = Producer(device.zeros(4, "f32"))
    got = device.wrap(producer)
    del producer
    gc.collect()
    assert len(binding.memory) == 1
    del got
    gc.collect()
    assert binding.memory == {}, "the producer was told"


def test_an_untaken_capsule_is_cleaned_up(fake: tuple[CudaDevice, Binding]) -> None:
    buffer = fake[0].zeros(4, "f32")
    capsule = buffer.__dlpack__()
    assert buffer.allocation.exports == 1
    del capsule
    buffer.free()


def test_a_consumer_that_refuses_the_type_leaves_no_export() -> None:
    """It drops the capsule with its exception set, which has to come out as it is."""
    buffer = open_device("cpu").zeros((2, 3), "bf16")
    with pytest.raises((RuntimeError, BufferError), match=r"dtype|type"):
        np.from_dlpack(buffer)
    buffer.free()


def test_an_export_may_outlive_our_modules() -> None:
    """In another module, and in a cycle: both are collected after the modules of this package are gone."""
    code = (
        "import json, numpy as np\n"
        "from ptxgen.runtime import open_device; from ptxgen.runtime.arrays import dlpack\n"
        "device = open_device('cpu')\n"
        "x = device.zeros(4, 'f32')\n"
        "cycle = [np.from_dlpack(x), dlpack.Taken(x.__dlpack__()), x.__dlpack__(max_version=(1, 0))]\n"
        "cycle.append(cycle)\n"
        "json.kept = [np.from_dlpack(x), dlpack.Taken(x.__dlpack__()), x.__dlpack__(), device.wrap(np.ones(3))]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("kind", "version"), [("f16", (1, 0)), ("e4m3", (1, 1)), ("e5m2", (1, 1))])
def test_an_export_says_the_version_that_has_its_type(
    fake: tuple[CudaDevice, Binding], kind: str, version: tuple[int, int]
) -> None:
    capsule = fake[0].zeros(4, kind).__dlpack__(max_version=(1, 1))
    managed = dlpack._managed(capsule, b"dltensor_versioned")
    assert isinstance(managed, dlpack.Versioned)
    assert (managed.major, managed.minor) == version


def test_shared_memory_cannot_be_freed_by_hand(fake: tuple[CudaDevice, Binding]) -> None:
    buffer = fake[0].zeros(4, "f32")
    taken = dlpack.Taken(buffer.__dlpack__())
    with pytest.raises(CudaError, match="must not be shared with another library"):
        buffer.free()
    del taken
    buffer.free()


def test_the_producer_is_told_our_stream(fake: tuple[CudaDevice, Binding]) -> None:
    device, _ = fake
    producer = Producer(device.zeros(4, "f32"))
    device.wrap(producer)
    assert producer.streams == [device.default_stream.handle]


def test_reading_what_a_producer_made_waits_for_the_producer(fake: tuple[CudaDevice, Binding]) -> None:
    """Our default stream waits for the producer; reads without a stream run elsewhere, and wait for that one."""
    device, binding = fake
    x = device.zeros(4, "f32")
    for source in (Producer(x), Interface(x, stream=1)):
        got = device.wrap(source)
        binding.log.clear()
        got.numpy()
        assert binding.log.index("cuStreamWaitEvent") < binding.log.index("cuMemcpyDtoHAsync")


def test_the_consumers_stream_waits_for_our_work(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    buffer = device.zeros(4, "f32")
    device.module(TEXT)["scale"].launch(1, 32, [buffer, np.float32(1), np.uint32(4)])
    binding.log.clear()
    buffer.__dlpack__(stream=-1)
    assert "cuStreamWaitEvent" not in binding.log
    buffer.__dlpack__(stream=0x77)
    assert binding.log.count("cuStreamWaitEvent") == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"device": (1, 0)}, "must be memory of cuda:0 .got Producer in host memory"),
        ({"device": (2, 1)}, "must be memory of cuda:0 .got Producer in cuda:1"),
        ({"device": (10, 0)}, "DLPack device 10:0"),
    ],
)
def test_memory_elsewhere_is_refused(fake: tuple[CudaDevice, Binding], changes: dict, says: str) -> None:
    device, _ = fake
    with pytest.raises(SpecError, match=says):
        device.wrap(Producer(device.zeros(4, "f32"), **changes))


def test_readonly_memory_is_not_written(fake: tuple[CudaDevice, Binding]) -> None:
    device, _ = fake
    got = device.wrap(Producer(device.zeros(4, "f32"), readonly=True))
    assert got.readonly
    with pytest.raises(SpecError, match="must be writable"):
        got.fill(1)
    with pytest.raises(SpecError, match="must be writable"):
        got[1:].copy_from(np.zeros(3, np.float32))
    with pytest.raises(BufferError, match="read-only memory needs"):
        got.__dlpack__()


class Interface:
    """A foreign array by `__cuda_array_interface__`."""

    def __init__(self, buffer: Buffer, **changes: object) -> None:
        self.keep = buffer
        self.__cuda_array_interface__ = dict(buffer.__cuda_array_interface__) | changes


def test_cuda_array_interface_both_ways(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    made = device.zeros((2, 3), "f16")
    said = made.__cuda_array_interface__
    assert (said["typestr"], said["shape"], said["data"], said["version"]) == ("<f2", (2, 3), (made.pointer, False), 3)
    binding.log.clear()
    got = device.wrap(Interface(made, stream=0x99))
    assert (got.pointer, got.shape, got.dtype) == (made.pointer, (2, 3), dtype("f16"))
    assert binding.log.count("cuStreamWaitEvent") == 1, "its stream is waited for"
    assert device.wrap(Interface(made, strides=(6, 2))).shape == (2, 3)
    with pytest.raises(SpecError, match=r"must be C-contiguous \(got shape \(2, 3\), strides \(2, 4\) bytes"):
        device.wrap(Interface(made, strides=(2, 4)))
    with pytest.raises(SpecError, match="must have no mask"):
        device.wrap(Interface(made, mask=object()))


def test_the_interface_of_another_devices_array_is_refused() -> None:
    """It does not say whose memory it is; the driver does."""
    binding = Binding(devices=2)
    (first, _), (second, _) = (fake_device(binding, index=i) for i in range(2))
    x = second.zeros(4, "f32")
    with pytest.raises(SpecError, match=r"must be memory of cuda:0 \(got Interface in cuda:1\)"):
        first.wrap(Interface(x, stream=None))
    assert second.wrap(Interface(x, stream=None)).pointer == x.pointer
    with pytest.raises(SpecError, match=r"must be memory of cuda:0 \(got Interface in memory that is no GPU's"):
        first.wrap(Interface(x, stream=None, data=(0x10, False)))


def test_the_interface_names_a_stream_that_waits_for_all_work(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    made, side = device.zeros(4, "f32"), device.stream()
    made.fill(1, side)
    binding.waits.clear()
    assert made.__cuda_array_interface__["stream"] == device.default_stream.handle
    assert binding.waits == [(device.default_stream.handle, side.handle)]


def test_types_that_the_interface_cannot_name_are_not_offered(fake: tuple[CudaDevice, Binding]) -> None:
    assert not hasattr(fake[0].zeros(4, "bf16"), "__cuda_array_interface__")
    assert hasattr(fake[0].zeros(4, "s32"), "__cuda_array_interface__")


def test_arguments_of_a_library_launch_on_its_current_stream(
    fake: tuple[CudaDevice, Binding], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, binding = fake
    current = {"torch": 0xA0, "cupy": 0xB0}

    class On:
        def __init__(self, index: int) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    torch = types.SimpleNamespace(_C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda index: current["torch"]))
    stream = types.SimpleNamespace
    cupy = types.SimpleNamespace(cuda=stream(Device=On, get_current_stream=lambda: stream(ptr=current["cupy"])))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    Tensor = type("Tensor", (Producer,), {"__module__": "torch"})
    Array = type("ndarray", (Producer,), {"__module__": "cupy._core"})
    tensor, array = Tensor(device.zeros(4, "f32")), Array(device.zeros(4, "f32"))
    bound = device.module(TEXT)["scale"].bind(1, 32, [tensor, np.float32(1), np.uint32(4)])
    assert tensor.streams == [-1], "no synchronisation is asked for"
    bound.launch()
    current["torch"] = 0xA1
    bound.launch()
    bound.launch(device.default_stream)
    assert [launch.stream for launch in binding.launched] == [0xA0, 0xA1, device.default_stream.handle]
    binding.log.clear()
    bound.launch()
    assert binding.log == ["cuLaunchKernelEx"], "a known stream is the fast path"
    device.module(TEXT)["scale"].launch(1, 32, [array, np.float32(1), np.uint32(4)])
    assert binding.launched[-1].stream == 0xB0


def test_a_cupy_stream_lives_as_long_as_memory_that_it_works_on(
    fake: tuple[CudaDevice, Binding], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CuPy destroys a stream with its last reference: its address must not be used any more then."""
    device, binding = fake

    class Stream:
        def __init__(self, ptr: int) -> None:
            self.ptr = ptr

    class On:
        def __init__(self, index: int) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    current = [Stream(0xB0)]
    cuda = types.SimpleNamespace(Device=On, get_current_stream=lambda: current[0])
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    Array = type("ndarray", (Producer,), {"__module__": "cupy._core"})
    ours, other = device.zeros(4, "f32"), device.zeros(4, "f32")
    array = Array(device.zeros(4, "f32"))
    alive = weakref.ref(current[0])
    device.module(TEXT)["scale"].launch(1, 32, [array, np.float32(1), np.uint32(4)])
    device.module(TEXT)["scale"].bind(1, 32, [ours, np.float32(1), np.uint32(4)]).launch(current[0])
    other.__dlpack__(stream=0xB0)
    current[0] = Stream(0)
    gc.collect()
    assert alive() is not None
    binding.log.clear()
    for buffer in (ours, other):
        buffer.numpy()
        buffer.free()
    del array, buffer, ours, other
    gc.collect()
    assert alive() is None, "the stream is CuPy's again"


def test_tensors_without_a_dlpack_code_are_taken_by_pointer(fake: tuple[CudaDevice, Binding]) -> None:
    device, _ = fake
    memory = device.zeros((2, 2), "e4m3")

    class Tensor:
        shape, dtype, requires_grad = (2, 2), "torch.float8_e4m3fn", False
        is_contiguous = staticmethod(lambda: True)
        data_ptr = staticmethod(lambda: memory.pointer)
        __dlpack_device__ = staticmethod(lambda: (2, 0))

        def __dlpack__(self, **_: object) -> object:
            raise BufferError("float8 types are not supported by dlpack")

    got = device.wrap(Tensor())
    assert (got.pointer, got.dtype, got.shape) == (memory.pointer, dtype("e4m3"), (2, 2))
    Tensor.requires_grad = True
    with pytest.raises(SpecError, match="gives no memory: float8 types are not supported"):
        device.wrap(Tensor())


def test_host_dlpack_arrays_are_copied_to_the_device(fake: tuple[CudaDevice, Binding]) -> None:
    device, _ = fake
    host = np.arange(6, dtype=np.float32).reshape(2, 3)

    class Tensor:
        __dlpack_device__ = host.__dlpack_device__
        __dlpack__ = host.__dlpack__

    assert device.array(Tensor()).numpy().tolist() == host.tolist()
    bf16 = np.arange(4).astype(ml_dtypes.bfloat16)
    owner = types.SimpleNamespace()
    capsule = dlpack.give(owner, bf16.ctypes.data, (4,), dtype("bf16"), (1, 0), False, True)
    source = types.SimpleNamespace(__dlpack_device__=lambda: (1, 0), __dlpack__=lambda **_: capsule)
    assert host_array(source).astype(np.float32).tolist() == [0, 1, 2, 3]


def test_contiguity() -> None:
    assert contiguous((2, 3), None)
    assert contiguous((2, 3), (3, 1))
    assert contiguous((2, 1, 3), (3, 99, 1)), "an extent of one has no stride"
    assert contiguous((0, 3), (5, 5))
    assert not contiguous((2, 3), (1, 2))
    assert not contiguous((2, 3), (4, 1))


def test_importing_the_runtime_imports_no_backend() -> None:
    code = (
        "import ptxgen.runtime.opening, ptxgen.runtime.arrays.interop, sys;"
        "print([m for m in ('torch', 'cupy', 'jax', 'llvmlite', 'cuda.bindings.driver') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
