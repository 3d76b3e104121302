"""The driver funnel and device health, against a recording driver."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import CudaError, ModuleLoadError, SpecError
from ptxgen.runtime import open_device
from ptxgen.runtime.arrays import dlpack
from ptxgen.runtime.core.diskcache import DiskCache
from ptxgen.runtime.cuda.device import CudaDevice
from ptxgen.runtime.cuda.driver import Driver, DriverError
from tests.support.fake_cuda import TEXT, Binding, fake_device, real


@pytest.fixture
def binding() -> Binding:
    return Binding()


@pytest.fixture
def device(binding: Binding) -> CudaDevice:
    return CudaDevice(0, Driver(binding), DiskCache(None))


def test_error_names_call_status_code_and_meaning(device: CudaDevice, binding: Binding) -> None:
    binding.fail["cuStreamSynchronize"] = [400]
    with pytest.raises(DriverError, match=r"cuStreamSynchronize: CUDA_ERROR_INVALID_HANDLE \(400\): a handle"):
        device.default_stream.synchronize()


def test_error_without_a_meaning_uses_the_drivers_words(device: CudaDevice, binding: Binding) -> None:
    binding.fail["cuCtxSynchronize"] = [304]
    with pytest.raises(DriverError, match=r"CUDA_ERROR_OPERATING_SYSTEM \(304\): said by the driver"):
        device.synchronize()


def test_sticky_error_makes_the_device_dead_and_names_the_first_cause(device: CudaDevice, binding: Binding) -> None:
    binding.fail["cuCtxSynchronize"] = [700]
    with pytest.raises(CudaError, match="an address outside of allocated memory"):
        device.synchronize()
    calls = len(binding.log)
    with pytest.raises(CudaError, match=r"cuda:0 .* cannot be used any more .*cuCtxSynchronize.*700"):
        device.empty(4, "f32")
    assert len(binding.log) == calls, "a dead device calls the driver no more"


def test_other_errors_leave_the_device_usable(device: CudaDevice, binding: Binding) -> None:
    binding.fail["cuCtxSynchronize"] = [1]
    with pytest.raises(DriverError):
        device.synchronize()
    assert device.dead is None
    device.synchronize()


def test_sticky_launch_failure_is_reported_with_the_kernel(device: CudaDevice, binding: Binding) -> None:
    bound = device.module(TEXT)["nothing"].bind(1, 32)
    binding.fail["cuLaunchKernelEx"] = [719]
    with pytest.raises(CudaError, match=r"cuLaunchKernelEx\(nothing\)"):
        bound.launch()
    assert device.dead is not None


def test_failed_launch_leaves_a_usable_device(device: CudaDevice, binding: Binding) -> None:
    bound = device.module(TEXT)["nothing"].bind(1, 32)
    binding.fail["cuLaunchKernelEx"] = [701]
    with pytest.raises(CudaError, match="too many registers or too much shared memory"):
        bound.launch()
    bound.launch()
    assert len(binding.launched) == 1


def test_launch_in_a_thread_without_the_context_makes_it_current(device: CudaDevice, binding: Binding) -> None:
    bound = device.module(TEXT)["nothing"].bind(1, 32)
    bound.launch()
    binding.contexts.clear()
    binding.fail["cuLaunchKernelEx"] = [201]
    bound.launch()
    assert binding.contexts == [0xC0]
    assert len(binding.launched) == 2


def test_launches_where_another_context_is_current_fail_first_only_once(
    device: CudaDevice, binding: Binding, caplog: pytest.LogCaptureFixture
) -> None:
    bound = device.module(TEXT)["nothing"].bind(1, 32)
    bound.launch()
    binding.contexts[:] = [0xDD]
    binding.fail["cuLaunchKernelEx"] = [400]
    binding.log.clear()
    for _ in range(3):
        bound.launch()
        assert binding.contexts == [0xDD], "another library's context stays the current one"
    assert len(binding.launched) == 4
    assert binding.log == ["cuLaunchKernelEx"] * 4, "the one that failed, and three"
    assert [r.levelname for r in caplog.records] == ["WARNING"], "slower launches are said, once"
    binding.contexts[:] = [0xC0]
    bound.launch()
    calls = bound._launcher._calls  # type: ignore[attr-defined]
    assert calls[None].func is device.native_launch, "with our context the fast path is back"
    binding.contexts[:] = [0xDD]
    binding.fail["cuLaunchKernelEx"] = [400, 400]
    with pytest.raises(DriverError, match="a handle"):
        bound.launch()


def test_calls_are_made_in_this_devices_context_and_restore_another_librarys(
    device: CudaDevice, binding: Binding, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, set[int]] = {}
    called = Binding._called

    def recorded(self: Binding, name: str, *rest: Any) -> tuple[Any, ...]:
        if self is binding:  # not the finalisers of earlier devices
            made.setdefault(name, set()).add(self.contexts[-1])
        return called(self, name, *rest)

    monkeypatch.setattr(Binding, "_called", recorded)
    binding.contexts[:] = [0xDD]
    buffer = device.zeros(4, "f32", device.stream())
    device.module(TEXT)["nothing"].launch(1, 32)
    buffer.numpy()
    buffer.free()
    device.synchronize()
    switches = {"cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"}
    assert {name for name, contexts in made.items() if contexts != {0xC0}} <= switches
    assert {"cuMemAllocAsync", "cuModuleLoadData", "cuStreamCreate", "cuMemFreeAsync"} <= made.keys()
    assert binding.contexts == [0xDD]


def test_what_a_first_load_needs_is_prepared_while_the_driver_starts() -> None:
    code = """
import sys, threading
from ptxgen.runtime import open_device
from ptxgen.runtime.cuda import driver
from tests.support.fake_cuda import Binding
before = "ptxgen.generator" in sys.modules
driver.import_binding = Binding
open_device("cuda")
loaded = [name in sys.modules for name in ("ptxgen.generator", "ptxgen.runtime.core.launches.kernel")]
print(before, *loaded, threading.active_count())
environment = sys.modules["ptxgen.render"].environment()
print(*sorted(name for _, name in environment.cache), "when" in vars(environment.flow.module))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout == "False True True 1\nentry.ptx.j2 module.ptx.j2 True\n", done.stderr


@pytest.mark.parametrize("name", ["ptxgen.render.environment", "ptxgen.runtime.opening.import_module"])
def test_a_preparation_that_fails_is_left_to_whoever_needs_it(
    binding: Binding, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def broken(*_: Any) -> None:
        raise ImportError("broken")

    ended: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    monkeypatch.setattr(name, broken)
    monkeypatch.setattr("ptxgen.runtime.cuda.driver.import_binding", lambda: binding)
    monkeypatch.setattr("ptxgen.runtime.opening._open", {})
    binding.fail["cuInit"] = [100]
    with pytest.raises(CudaError, match="no GPU is visible"):
        open_device("cuda")
    assert isinstance(open_device("cuda"), CudaDevice)
    assert not ended


def test_no_driver_and_no_bindings_are_clear(binding: Binding) -> None:
    binding.fail["cuInit"] = [100]
    with pytest.raises(CudaError, match="no GPU is visible"):
        Driver(binding)
    with pytest.raises(CudaError, match=r"index must be below the number of GPUs, 1 \(got 3\)"):
        CudaDevice(3, Driver(Binding()), DiskCache(None))


def test_out_of_memory_says_what_was_asked_and_what_fits(device: CudaDevice, binding: Binding) -> None:
    binding.free_bytes = 1000
    with pytest.raises(CudaError, match=r"asked for 4,096 bytes, 1,000 of .* are free.*up to about 1,000 would fit"):
        device.empty(1024, "f32")
    assert device.dead is None


def test_forked_child_gets_a_clear_error(device: CudaDevice) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            device.synchronize()
            text = "no error"
        except CudaError as error:
            text = str(error)
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert "does not survive a fork" in os.read(read, 4096).decode()
    device.synchronize()


def test_memory_is_released_after_the_streams_that_used_it(device: CudaDevice, binding: Binding) -> None:
    stream = device.stream()
    buffer = device.zeros(16, "f32")
    device.module(TEXT)["scale"].launch(1, 32, [buffer, np.float32(1), np.uint32(16)], stream=stream)
    binding.log.clear()
    buffer.free()
    assert binding.log == ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy", "cuMemFreeAsync"]


def test_memory_that_an_update_brings_waits_for_the_streams_of_the_launch(device: CudaDevice, binding: Binding) -> None:
    first, second, stream = device.zeros(16, "f32"), device.zeros(16, "f32"), device.stream()
    bound = device.module(TEXT)["scale"].bind(1, 32, [first, np.float32(1), np.uint32(16)])
    bound.launch(stream)
    bound.update(_0=second).launch(stream)
    binding.waits.clear()
    second.free()
    assert [earlier for _, earlier in binding.waits] == [stream.handle]


@pytest.mark.parametrize("then", ["allocation", "synchronisation"])
@pytest.mark.parametrize("used", [0x80, 1])
def test_memory_released_while_another_library_captures_is_freed_after_its_capture(
    device: CudaDevice, binding: Binding, used: int, then: str
) -> None:
    """To wait for a captured stream would draw us into the capture, and for the legacy one (1) would break it."""
    buffer = device.zeros(16, "f32")
    bound = device.module(TEXT)["scale"].bind(1, 32, [buffer, np.float32(1), np.uint32(16)])
    for handle in (0x70, used):
        bound.launch(device.stream(handle))
    pointer, binding.captured_elsewhere = buffer.pointer, {0x80}
    binding.waits.clear()
    buffer.free()
    kept = [device.empty(1, "f32")]
    assert (binding.waits, pointer in binding.memory) == ([], True)
    binding.captured_elsewhere = set()
    if then == "allocation":
        kept.append(device.empty(1, "f32"))
    else:
        device.synchronize()
    assert [earlier for _, earlier in binding.waits] == [0x70, used]
    assert pointer not in binding.memory


def test_code_released_while_another_library_captures_is_unloaded_after_its_capture(
    device: CudaDevice, binding: Binding
) -> None:
    bound = device.module(TEXT)["nothing"].bind(1, 32)
    bound.launch(device.stream(0x80))
    binding.captured_elsewhere = {0x80}
    del bound
    device.synchronize()
    assert len(binding.texts) == 1
    binding.captured_elsewhere = set()
    device.synchronize()
    assert binding.texts == {}


def test_a_capture_of_another_library_holds_its_own_work_alone(device: CudaDevice, binding: Binding) -> None:
    """What goes, comes and is waited for meanwhile draws no stream of ours into it."""
    buffer = device.zeros(16, "f32")
    bound = device.module(TEXT)["scale"].bind(1, 32, [buffer, np.float32(1), np.uint32(16)])
    bound.launch(device.stream(0x80))
    binding.cuStreamBeginCapture(0x80, 0)
    buffer.free()
    del bound
    device.zeros(16, "f32").numpy()
    device.synchronize()
    assert set(binding.capturing) == {0x80}
    code, graph = binding.cuStreamEndCapture(0x80)
    assert (code, binding.graphs[graph]) == (0, [])


def test_a_copy_without_a_stream_stays_out_of_another_librarys_capture(device: CudaDevice, binding: Binding) -> None:
    buffer = device.zeros(16, "f32")
    device.module(TEXT)["scale"].launch(1, 32, [buffer, np.float32(1), np.uint32(16)], stream=device.stream(0x80))
    binding.captured_elsewhere = {0x80}
    with pytest.raises(CudaError, match=r"a copy needs a stream: CudaStream\(0x80 .* another library captures it"):
        buffer.numpy()
    assert buffer.numpy(stream=device.stream()).tolist() == [0] * 16


def test_collected_buffers_give_their_memory_back(device: CudaDevice, binding: Binding) -> None:
    view = device.zeros((4, 4), "f32")[2]
    gc.collect()
    assert len(binding.memory) == 1, "a view keeps the memory"
    del view
    gc.collect()
    assert binding.memory == {}


def test_reads_without_a_stream_wait_for_all_streams_that_used_the_buffer(device: CudaDevice, binding: Binding) -> None:
    buffer = device.zeros(16, "f32")
    bound = device.module(TEXT)["scale"].bind(1, 32, [buffer, np.float32(1), np.uint32(16)])
    for _ in range(2):
        bound.launch(device.stream())
    binding.log.clear()
    buffer.numpy()
    assert binding.log.count("cuStreamWaitEvent") == 2
    assert binding.log[-1] == "cuStreamSynchronize"


def test_a_closed_device_refuses_work_that_was_prepared(device: CudaDevice, binding: Binding) -> None:
    x = device.zeros(4, "f32")
    entry = device.module(TEXT)["scale"]
    bound = entry.bind(1, 32, [x, np.float32(1), np.uint32(4)])
    with device.graph() as graph:
        bound.launch(graph.stream)
    bound.launch()
    graph.launch()
    device.close()
    launched = len(binding.launched)
    for use in (bound.launch, graph.launch, x.numpy, lambda: bound.update(_0=x).launch(),
                lambda: entry.bind(1, 32, [x, np.float32(1), np.uint32(4)])):  # fmt: skip
        with pytest.raises(CudaError, match="cuda:0 was closed"):
            use()
    assert len(binding.launched) == launched


def test_close_gives_back_what_is_still_held(device: CudaDevice, binding: Binding) -> None:
    """Other libraries may keep the context for ever."""
    x = device.zeros(4, "f32")
    bound = device.module(TEXT)["scale"].bind(1, 32, [x, np.float32(1), np.uint32(4)])
    graph, stream = device.graph(), device.stream()
    graph.add(bound)
    graph.launch(stream)
    binding.log.clear()
    device.close()
    assert (binding.memory, binding.texts, binding.graphs) == ({}, {}, {})
    assert binding.log.count("cuStreamDestroy") == 5, "memory's three, the default one and this one"
    assert binding.log[-1] == "cuDevicePrimaryCtxRelease"
    binding.log.clear()
    x.free()
    del x, bound, graph, stream
    gc.collect()
    device.close()
    assert binding.log == [], "and nothing twice"


def test_the_context_stays_while_others_hold_memory_of_a_closed_device(device: CudaDevice, binding: Binding) -> None:
    x, host = device.zeros(4, "f32"), device.pinned(4, "f32")
    taken = dlpack.Taken(x.__dlpack__())
    del x
    device.close()
    assert len(binding.memory) == 1
    binding.log.clear()
    del taken
    gc.collect()
    assert (binding.log, binding.memory) == (["cuMemFree"], {})
    binding.log.clear()
    del host
    gc.collect()
    assert binding.log == ["cuMemFreeHost", "cuDevicePrimaryCtxRelease"]


def test_a_lost_device_can_be_closed(device: CudaDevice, binding: Binding) -> None:
    binding.fail["cuCtxSynchronize"] = [700]
    with pytest.raises(CudaError):
        device.synchronize()
    device.close()
    assert device.closed, "open_device makes a new one"
    assert binding.log[-1] == "cuDevicePrimaryCtxRelease"
    with pytest.raises(CudaError, match="cannot be used any more"):
        device.empty(1, "f32")


def test_two_devices_have_caches_and_memory_of_their_own() -> None:
    binding = Binding(devices=2)
    first, second = (CudaDevice(i, Driver(binding), DiskCache(None)) for i in range(2))
    assert first.modules is not second.modules
    buffer = second.zeros(4, "f32")
    with pytest.raises(SpecError, match=r"must be on cuda:0 \(got Buffer.*cuda:1"):
        first.wrap(buffer)


def test_a_stream_waits_for_one_of_another_device() -> None:
    """The event belongs to the device whose stream it is recorded on."""
    binding = Binding(devices=2)
    (first, _), (second, _) = (fake_device(binding, index=i) for i in range(2))
    binding.log.clear()
    first.default_stream.wait(second.stream())
    first.default_stream.wait(second.stream().record())
    assert binding.log.count("cuStreamWaitEvent") == 2
    binding.log.clear()
    first.stream(1).wait(second.stream(1))
    assert "cuStreamWaitEvent" in binding.log, "the legacy streams of two devices have one number"


def test_threads_share_a_device(device: CudaDevice, binding: Binding) -> None:
    bound = device.module(TEXT)["nothing"].bind(1, 32)
    threads = [threading.Thread(target=lambda: bound.launch(device.stream())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({launch.stream for launch in binding.launched}) == 8


def test_unknown_entry_lists_the_entries(device: CudaDevice) -> None:
    with pytest.raises(ModuleLoadError, match=r"has no entry 'scala' \(it has scale, nothing"):
        device.module(TEXT)["scala"]


def test_codes_in_the_table_are_the_drivers() -> None:
    from ptxgen.runtime.cuda.driver import _MEANING, STICKY

    known = {int(code) for code in real.CUresult}
    assert set(_MEANING) <= known
    assert {700, 719} <= STICKY
