"""The module cache: one load per spec and device, from any thread; strict mode; warm-up; forks."""

from __future__ import annotations

import concurrent.futures
import itertools
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest

from ptxgen.errors import ModuleLoadError, SpecError, TargetError
from ptxgen.kernels import IncrementalAttention
from ptxgen.runtime.core.diskcache import DiskCache
from ptxgen.runtime.cuda.device import CudaDevice
from tests.support.fake_cuda import Binding, fake_device
from tests.support.fake_spec import Generator, Sample

ROOT = Path(__file__).parents[2]


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Generator:
    made = Generator()
    monkeypatch.setattr("ptxgen.generator.generate", made)
    return made


@pytest.fixture
def device() -> CudaDevice:
    return fake_device()[0]


def test_a_hit_renders_and_loads_nothing(generator: Generator, device: CudaDevice) -> None:
    kernel = device.load(Sample(dim=64))
    assert device.load(Sample(dim=64)) is kernel
    assert device.load(Sample(dim=32)) is not kernel
    assert len(generator.calls) == 2
    assert len(device.modules) == 2
    assert Sample(dim=64) in device.modules
    assert Sample(dim=96) not in device.modules


def attention() -> IncrementalAttention:
    return IncrementalAttention(max_len=4096, head_dim=128, n_heads=32, n_kv_heads=8, kv_dtype="f16")


ATTENTION = attention()


@pytest.mark.parametrize("spec", [ATTENTION, attention()], ids=["the same spec", "an equal spec"])
def test_a_hit_is_a_look_up_in_a_dictionary(device: CudaDevice, spec: IncrementalAttention) -> None:
    """Its time is in benchmarks/generation.py; here, that it calls nothing that grows with the spec."""
    kernel = device.load(ATTENTION)
    assert device.load(spec) is kernel
    calls: list[str] = []
    sys.setprofile(lambda frame, event, argument: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        device.load(spec)
    finally:
        sys.setprofile(None)
    assert sorted({*calls} - {"__hash__", "__eq__"}) == ["in_force", "load"], calls
    assert len(calls) <= 5, calls


def test_a_spec_from_another_process_finds_the_kernel(device: CudaDevice) -> None:
    """Where strings hash differently."""
    code = "import pickle, sys; from tests.runtime.test_modulecache import attention; print(pickle.dumps(attention()))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert device.load(pickle.loads(literal_eval(done.stdout))) is device.load(attention())


def test_every_field_is_part_of_the_key(generator: Generator, device: CudaDevice) -> None:
    specs = [Sample(), Sample(dim=32), Sample(n=4), Sample(dtype="f32")]
    assert len({id(device.load(spec)) for spec in specs}) == 4


def test_targets_are_kept_apart_and_the_devices_own_is_the_default(generator: Generator, device: CudaDevice) -> None:
    own = device.load(Sample())
    assert device.load(Sample(), "sm_90a") is own
    assert device.load(Sample(), "sm_80") is not own
    assert [str(target) for _, target in generator.calls] == ["sm_90a", "sm_80"]
    with pytest.raises(TargetError, match=r"cuda:0 runs what sm_90a includes \(got sm_100\)"):
        device.load(Sample(), "sm_100")


def test_threads_that_ask_together_load_once(monkeypatch: pytest.MonkeyPatch, device: CudaDevice) -> None:
    generator = Generator(seconds=0.05)
    monkeypatch.setattr("ptxgen.generator.generate", generator)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(device.load(Sample()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert len(generator.calls) == 1


def test_a_failure_reaches_everyone_and_is_not_remembered(generator: Generator, device: CudaDevice) -> None:
    generator.fail.append(SpecError("Sample.dim: no"))
    with pytest.raises(SpecError, match="no"):
        device.load(Sample())
    assert device.load(Sample()) is device.load(Sample())


def test_warmup_loads_in_parallel_and_strict_guards_it(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    device, binding = fake_device()
    link, together = type(binding)._cuLinkComplete, threading.Barrier(8)

    def meet(self: Binding, state: object) -> object:
        together.wait(timeout=60)  # broken unless all eight compile at once
        return link(self, state)

    monkeypatch.setattr(Binding, "_cuLinkComplete", meet)
    specs = [Sample(dim=8 * i) for i in range(1, 9)]
    kernels = device.warmup(specs, workers=8)
    assert list(kernels) == specs
    device.strict = True
    assert device.load(specs[3]) is kernels[specs[3]]
    with pytest.raises(ModuleLoadError, match=r"cuda:0 is strict: Sample\(dim=4096.* warm it up first"):
        device.load(Sample(dim=4096))
    with pytest.raises(ModuleLoadError, match="strict"):
        device.module("")


def test_warmup_compiles_in_threads_and_loads_itself_what_is_cached(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    cubins, loads = DiskCache(None), []
    load = Binding._cuModuleLoadData

    def recorded(self: Binding, image: bytes) -> object:
        loads.append(threading.current_thread().name)
        return load(self, image)

    monkeypatch.setattr(Binding, "_cuModuleLoadData", recorded)
    specs = [Sample(dim=8 * i) for i in range(1, 5)]
    fake_device(cubins=cubins)[0].warmup(specs[:2])
    assert [name.partition("_")[0] for name in loads] == ["ptxgen-warmup"] * 2
    loads.clear()
    device = fake_device(cubins=cubins)[0]
    device.warmup(specs)
    assert sorted(name.partition("_")[0] for name in loads) == ["MainThread"] * 2 + ["ptxgen-warmup"] * 2
    assert [line.origin for line in device.modules.history].count("cached cubin") == 2


def test_an_interrupt_ends_a_warmup_and_is_not_remembered(generator: Generator, device: CudaDevice) -> None:
    generator.fail.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        device.warmup([Sample(dim=8), Sample(dim=16)])
    assert len(generator.calls) == 1
    assert len(device.warmup([Sample(dim=8), Sample(dim=16)])) == 2


def test_warmup_needs_a_worker(device: CudaDevice) -> None:
    with pytest.raises(SpecError, match=r"warmup\.workers: must be an int ≥ 1, or None \(got 0\)"):
        device.warmup([Sample()], workers=0)


def test_warmup_reports_every_failure(generator: Generator, device: CudaDevice) -> None:
    generator.fail += [SpecError("first"), SpecError("second")]
    with pytest.raises(ModuleLoadError, match=r"2 of 3 specs failed(.|\n)*first(.|\n)*second"):
        device.warmup([Sample(dim=8), Sample(dim=16), Sample(dim=24)], workers=1)
    assert len(device.modules) == 1


def test_history_and_log(generator: Generator, device: CudaDevice, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "ptxgen.runtime"):
        device.load(Sample())
    (line,) = device.modules.history
    assert (line.spec, str(line.target), line.origin) == (Sample(), "sm_90a", "driver")
    assert "Sample(dim=64" in caplog.text
    assert "driver" in caplog.text


def test_times_are_milliseconds(
    generator: Generator, device: CudaDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = itertools.count(0, 0.25)
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    with caplog.at_level(logging.DEBUG, "ptxgen.runtime"):
        device.load(Sample())
    (line,) = device.modules.history
    assert line.generate_ms == 250.0
    assert line.load_ms in (250.0, 500.0, 750.0, 1000.0), "loading may look at the clock itself"
    assert f"driver, {line.load_ms} ms" in caplog.text


def test_what_is_not_generated_is_logged(
    generator: Generator, device: CudaDevice, caplog: pytest.LogCaptureFixture
) -> None:
    generator.fail.append(SpecError("no"))
    with caplog.at_level(logging.DEBUG, "ptxgen.runtime"), pytest.raises(SpecError):
        device.load(Sample(dim=32))
    assert "Sample(dim=32" in caplog.text
    assert "for sm_90a on cuda:0: not generated" in caplog.text


def test_a_module_is_named_by_its_entry_and_twelve_digits(
    generator: Generator, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, load = [], device._load
    monkeypatch.setattr(device, "_load", lambda text, name: names.append(name) or load(text, name))
    kernel = device.load(Sample())
    assert names == [f"sample {kernel.ptx.digest[:12]}"]


def test_code_that_does_not_load_is_an_error_for_all_who_wait(
    generator: Generator, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: object) -> None:
        raise ModuleLoadError("no such image")

    monkeypatch.setattr(device, "_load", fail)
    with pytest.raises(ModuleLoadError, match="no such image"):
        device.modules._load(Sample(), device.target).result(timeout=30)
    monkeypatch.undo()
    assert device.modules._pending == {}


# line info ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("value", "asked"), [("", False), ("0", False), ("1", True)])
def test_the_environment_asks_for_line_info(
    generator: Generator, monkeypatch: pytest.MonkeyPatch, value: str, asked: bool
) -> None:
    monkeypatch.setenv("PTXGEN_LINE_INFO", value)
    device = fake_device()[0]
    device.load(Sample())
    assert generator.lines == [asked]
    monkeypatch.setenv("PTXGEN_LINE_INFO", "yes")
    with pytest.raises(SpecError, match=r"PTXGEN_LINE_INFO: must be 0 or 1 \(got 'yes'\)"):
        fake_device()


def test_kernels_with_line_info_are_others(generator: Generator, device: CudaDevice) -> None:
    plain = device.load(Sample())
    lines = device.load(Sample(), line_info=True)
    assert generator.lines == [False, True]
    assert lines is not plain
    assert device.load(Sample(), line_info=True) is lines
    assert device.load(Sample(), line_info=False) is device.load(Sample()) is plain
    device.load(Sample(), "sm_80", line_info=True)
    assert generator.lines == [False, True, True]
    assert [str(target) for _, target in generator.calls] == ["sm_90a", "sm_90a", "sm_80"]


def test_a_kernel_is_found_whichever_way_it_is_asked_for(
    generator: Generator, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, other = device.load(Sample()), device.load(Sample(), "sm_80")
    assert device.modules._load(Sample(), device.target).result(timeout=30) is kernel
    assert device.warmup([Sample()]) == {Sample(): kernel}
    assert len(generator.calls) == 2
    monkeypatch.setattr(device.modules, "_load", None)  # not needed for a hit
    assert device.load(Sample(), "sm_80") is other


@pytest.mark.parametrize(("processors", "given", "workers"), [(None, None, 1), (3, None, 3), (3, 2, 2)])
def test_a_warmup_has_a_thread_a_processor(
    generator: Generator, device: CudaDevice, monkeypatch: pytest.MonkeyPatch,
    processors: int | None, given: int | None, workers: int,
) -> None:  # fmt: skip
    made: list[int | None] = []

    class Pool(concurrent.futures.ThreadPoolExecutor):
        def __init__(self, max_workers: int | None = None, **named: Any) -> None:
            made.append(max_workers)
            super().__init__(max_workers, **named)

    monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    device.warmup([Sample()], workers=given)
    assert made == [workers]


def test_caches_belong_to_a_device(generator: Generator) -> None:
    one, two = fake_device()[0], fake_device(Binding(capability=(8, 0)))[0]
    assert one.load(Sample()) is not two.load(Sample())
    assert [str(target) for _, target in generator.calls] == ["sm_90a", "sm_80"]


def test_a_fork_during_a_load_leaves_the_childs_cache_unlocked(generator: Generator, device: CudaDevice) -> None:
    with device.modules._lock:
        child = os.fork()
        if child == 0:
            free = device.modules._lock.acquire(timeout=5)
            os._exit(0 if free else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
