"""The load order, its log line, its errors, and the cache of cubins, against a recording driver."""

from __future__ import annotations

import gc
import logging
import re
from pathlib import Path

import pytest

from ptxgen.errors import ModuleLoadError
from ptxgen.runtime.core.diskcache import DiskCache
from ptxgen.runtime.cuda.device import CudaDevice
from ptxgen.runtime.cuda.driver import Driver, build_of_driver
from ptxgen.runtime.cuda.load import excerpt
from tests.support.fake_cuda import TEXT, Binding, fake_device
from tests.support.stand_in_assemblers import LINKER, install

NEW = TEXT.replace(".version 7.0", ".version 9.1")


def opened(cubins: DiskCache, **changes: int) -> tuple[CudaDevice, Binding]:
    binding = Binding(**changes)
    return CudaDevice(0, Driver(binding), cubins), binding


def test_first_by_the_driver_then_from_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ptxgen.runtime"):
        for origin in ("driver", "cached cubin"):
            device, binding = opened(DiskCache(tmp_path))
            module = device.module(TEXT)
            assert module.origin == origin
            assert ("cuLinkComplete" in binding.log) == (origin == "driver")
    assert [r.getMessage().split(" in ")[0] for r in caplog.records] == [
        "module on cuda:0: driver",
        "module on cuda:0: cached cubin",
    ], "one line a load"


def test_a_text_that_sets_registers_is_loaded_as_it_is() -> None:
    """The driver's linker would leave setmaxnreg out."""
    device, binding = fake_device()
    text = TEXT.replace("ret;", "setmaxnreg.dec.sync.aligned.u32 72;\n    ret;", 1)
    assert text != TEXT
    assert device.module(text).origin == "driver"
    assert "cuModuleLoadData" in binding.log
    assert "cuLinkCreate" not in binding.log


def test_the_key_names_all_that_machine_code_depends_on() -> None:
    device, _ = fake_device()
    other_gpu, _ = fake_device(Binding(capability=(8, 0)))
    other_release, _ = fake_device(Binding(version=13010))
    other_build, _ = fake_device()
    other_build.driver.build = "libcuda.so.580.95.05 96000000"
    keys = {d._loader.key(t) for d in (device, other_gpu, other_release, other_build) for t in (TEXT, NEW)}
    assert len(keys) == 8


@pytest.mark.parametrize(
    ("mapped", "build"),
    [("{}/libcuda.so.580.65.06", "libcuda.so.580.65.06 5"), ("{}/libcuda.so.1 (deleted)", ""), ("[heap]", "")],
)
def test_the_build_of_the_driver_is_that_of_the_library_in_this_process(
    tmp_path: Path, mapped: str, build: str
) -> None:
    (tmp_path / "libcuda.so.580.65.06").write_text("12345")
    maps = tmp_path / "maps"
    line = "7f00-7f01 r-xp 00000000 08:01 1234   "
    maps.write_text(f"{line}/usr/lib/libcudart.so.13\n{line}{mapped.format(tmp_path)}\n{line}/usr/lib/libc.so.6\n")
    assert build_of_driver(maps) == build
    assert build_of_driver(tmp_path / "absent") == ""


@pytest.mark.gpu
def test_the_build_of_a_real_driver_ends_with_its_version() -> None:
    name, size = Driver().build.rsplit(maxsplit=1)
    assert re.fullmatch(r"libcuda\.so\.\d+\.[\d.]+", name)
    assert int(size) > 1 << 20


def test_refused_cached_cubin_is_compiled_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cubins = DiskCache(tmp_path)
    device, _ = opened(cubins)
    cubins.put(device._loader.key(TEXT), b"not machine code")
    with caplog.at_level(logging.WARNING, "ptxgen.runtime"):
        assert device.module(TEXT).origin == "driver"
    assert "the cached cubin was refused" in caplog.text
    assert opened(DiskCache(tmp_path))[0].module(TEXT).origin == "cached cubin", "and replaced"


def test_assembler_for_an_old_driver(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from ptxgen import assembler

    asked: list[str] = []

    def assemble(text: str, target: str) -> object:
        asked.append(target)
        return assembler.Assembly(b"CUBIN" + text.encode(), None, {}, "nvJitLink 13.5", "")

    monkeypatch.setattr(assembler, "assemble", assemble)
    device, binding = fake_device(Binding(version=12000))
    binding.driver_compiles = False
    with caplog.at_level(logging.INFO, "ptxgen.runtime"):
        assert device.module(NEW).origin == "nvJitLink 13.5"
    assert asked == ["sm_90"]
    assert "nvJitLink 13.5 in" in caplog.text
    assert "after driver: cuLinkAddData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION" in caplog.text


@pytest.mark.parametrize(
    ("instruction", "fault"),
    [("wgmma.fence.sync.aligned;", "wgmma gives wrong results"),
     ("setmaxnreg.dec.sync.aligned.u32 72;", "leaves setmaxnreg out")],
)  # fmt: skip
def test_no_wrong_code_of_nvjitlink_is_loaded(
    instruction: str, fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, LINKER)
    monkeypatch.setenv("PTXGEN_DUMP_DIR", str(tmp_path))
    device, binding = fake_device(Binding(version=12000))
    binding.driver_compiles = False
    text = NEW.replace(".target sm_80", ".target sm_90a").replace("ret;", f"{instruction}\n    ret;", 1)
    with pytest.raises(ModuleLoadError, match=rf"assembler: PTX: needs a ptxas that knows sm_90a, .*{fault}"):
        device.module(text)


def test_a_failure_says_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ptxgen import assembler
    from ptxgen.errors import AssembleError

    def assemble(text: str, target: str) -> object:
        raise AssembleError("no assembler is installed")

    monkeypatch.setattr(assembler, "assemble", assemble)
    monkeypatch.setenv("PTXGEN_DUMP_DIR", str(tmp_path / "dump"))
    device, binding = fake_device(Binding(version=12000))
    binding.driver_compiles = False
    with pytest.raises(ModuleLoadError) as caught:
        device.module(NEW)
    said = str(caught.value)
    for piece in (
        "cuda:0 (Fake GPU, compute capability 9.0)",
        "driver 12.0",
        "does not load: PTX 9.1",
        ".version 9.1, .target sm_80",
        "cuLinkAddData: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222): the PTX is of a newer ISA version",
        "ptxas application ptx input, line 5; fatal : Unsupported .version",
        "no assembler is installed",
        ">     5  {",
    ):
        assert piece in said
    (dumped,) = (tmp_path / "dump").iterdir()
    assert str(dumped) in said
    assert dumped.read_text() == NEW
    assert device.dead is None, "a refused text leaves the device usable"


def test_failed_driver_compile_frees_its_linker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.assembler.available_assemblers", lambda: ())
    device, binding = fake_device()
    binding.fail["cuLinkComplete"] = [218]
    with pytest.raises(ModuleLoadError, match="the PTX could not be compiled"):
        device.module(TEXT)
    assert binding.log.count("cuLinkDestroy") == binding.log.count("cuLinkCreate") == 1


def test_modules_go_with_their_last_function() -> None:
    device, binding = fake_device()
    bound = device.module(TEXT)["nothing"].bind(1, 32)
    assert len(binding.texts) == 1
    bound.launch()
    del bound
    assert binding.texts == {}


def test_modules_wait_for_their_last_launch_and_replay() -> None:
    device, binding = fake_device()
    binding.busy = True
    device.module(TEXT)["nothing"].bind(1, 32).launch()
    with device.graph() as graph:
        device.module(TEXT)["nothing"].bind(1, 32).launch(graph.stream)
    graph.launch(device.stream())
    del graph
    gc.collect()
    device.synchronize()
    assert len(binding.texts) == 2, "the device is busy with both"
    binding.busy = False
    device.synchronize()
    assert binding.texts == {}
    assert device.module(TEXT)["nothing"], "never launched"
    binding.busy = True
    gc.collect()
    assert binding.texts == {}, "and gone at once"


@pytest.mark.parametrize("version", [12030, 12040])
def test_functions_are_loaded_before_a_launch_could_have_to(version: int) -> None:
    device, binding = fake_device(Binding(version=version))
    entry = device.module(TEXT)["scale"]
    assert binding.log.count("cuFuncLoad") == (version >= 12040)
    assert [slot.size for slot in entry.function.slots] == [8, 4, 4]


def test_excerpt_marks_the_line_that_a_log_names() -> None:
    assert excerpt("a\nb\nc\nd", "ptxas x, line 3; error") == "      1  a\n      2  b\n>     3  c\n      4  d\n"
    assert excerpt("a", "no number") == ""
