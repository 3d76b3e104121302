"""The Triton driver: jit kernels on arrays and host tensors, findings, the environment. Where triton is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install 'ptxgen[triton]'")

from ptxgen.errors import ExecutionError, SpecError
from ptxgen.testing import triton as on_cpu
from tests.evidence.compilers import triton_driver_kernels as kernels


@pytest.fixture(autouse=True)
def restored(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    yield
    on_cpu.uninstall()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("mode", "target"), [("fast", "sm_75"), ("random", "sm_80"), ("check", "sm_90")])
def test_a_kernel_runs_on_numpy_arrays_in_place(mode, target):
    driver = on_cpu.install(mode, target)
    x, y, out = np.arange(300, dtype=np.float32), np.ones(300, np.float32), np.zeros(300, np.float32)
    kernels.add[(3,)](x, y, out, 300, BLOCK=128)
    np.testing.assert_array_equal(out, x + y)
    assert driver.launches == 1


@pytest.mark.filterwarnings("ignore")
def test_a_race_is_an_error_with_the_line_of_python():
    on_cpu.install("check")
    with pytest.raises(ExecutionError, match=r"race in kernel racy\n.*triton_driver_kernels\.py:\d+\]"):
        kernels.racy[(1,)](np.zeros(128, np.float32), np.zeros(128, np.float32), N=128)


@pytest.mark.filterwarnings("ignore")
def test_a_kernel_that_ran_before_is_compiled_for_the_driver_of_now():
    x, y, out = np.zeros(128, np.float32), np.zeros(128, np.float32), np.zeros(128, np.float32)
    on_cpu.install("fast", "sm_75")
    kernels.racy[(1,)](x, out, N=128)
    kernels.add[(1,)](x, y, out, 128, BLOCK=128)
    driver = on_cpu.install("check", "sm_90")
    with pytest.raises(ExecutionError, match="race in kernel racy"):
        kernels.racy[(1,)](x, out, N=128)
    made = kernels.add[(1,)](x, y, out, 128, BLOCK=128)
    assert ".target sm_90" in made.asm["ptx"]
    assert driver.launches == 1


@pytest.mark.filterwarnings("ignore")
def test_an_access_past_an_array_is_an_error():
    on_cpu.install("fast")
    short, long = np.zeros(100, np.float32), np.zeros(300, np.float32)
    with pytest.raises(ExecutionError, match="out of bounds in kernel add"):
        kernels.add[(3,)](short, long, long.copy(), 300, BLOCK=128)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("mode", ["fast", "check"])
def test_atomics_of_bf16_at_the_end_of_an_array_of_odd_length(mode, target):
    """Below sm_90 they swap whole words, of which the last one's upper half lies behind the array."""
    bfloat16 = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    on_cpu.install(mode, target)
    x, sums = np.ones(256, bfloat16), np.zeros(7, bfloat16)
    kernels.counted[(2,)](x, sums, COUNT=7, N=128)
    np.testing.assert_array_equal(sums.astype(np.float32), [37, 37, 37, 37, 36, 36, 36])


class Tensor:
    """What the driver asks of torch's tensors."""

    class Storage:
        def __init__(self, array):
            self.array = array

        def data_ptr(self):
            return self.array.ctypes.data

        def nbytes(self):
            return self.array.nbytes

    def __init__(self, array, first=0):
        self.array, self.first, self.dtype = array, first, array.dtype

    def data_ptr(self):
        return self.array.ctypes.data + self.first * self.array.itemsize

    def untyped_storage(self):
        return self.Storage(self.array)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["fast", "check"])
def test_views_of_one_storage_and_scalars(mode):
    on_cpu.install(mode)
    data = np.arange(96, dtype=np.float32)
    kernels.scaled[(1,)](Tensor(data), Tensor(data, first=32), 2.5, N=32)
    np.testing.assert_array_equal(data[32:64], np.arange(32) * 2.5)
    np.testing.assert_array_equal(data[64:], np.arange(64, 96))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["fast", "check"])
def test_memory_behind_addresses_is_reached_when_it_is_given(mode):
    driver = on_cpu.install(mode)
    x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    pointers = np.array([x.ctypes.data], np.int64)
    with driver.seen(x):
        kernels.through[(1,)](pointers, out, N=32)
    np.testing.assert_array_equal(out, x)
    with pytest.raises(ExecutionError, match="out of bounds"):
        kernels.through[(1,)](pointers, out, N=32)


def test_a_mode_that_there_is_not_is_refused():
    with pytest.raises(SpecError, match=r"mode: must be one of fast, random, check \(got 'slow'\)"):
        on_cpu.install("slow")


def test_the_example_passes_where_the_environment_asks_for_the_driver(tmp_path):
    example = Path(__file__).parents[3] / "examples" / "triton_ci" / "test_add.py"
    installed = any(point.name == "ptxgen-triton" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "ptxgen.testing.triton_plugin"]
    command = [sys.executable, "-m", "pytest", "-rs", "-q", *plugin, "-p", "no:cacheprovider", str(example)]
    given = {**os.environ, "PTXGEN_TRITON": "check", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=given, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
