"""`compile_cuda` and numba-cuda's kernels, where NVRTC and numba-cuda are installed."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ptxgen.errors import AssembleError, ExecutionError, SpecError
from ptxgen.runtime import compile_cuda, open_device
from ptxgen.testing import triton
from ptxgen.testing.numba_kernel import NumbaKernel
from ptxgen.testing.raw_kernel import RawKernel, RawModule

SOURCE = """
extern "C" __global__ void k(const int* x, int* out, int n) {
    __shared__ int room[64];
    room[threadIdx.x] = x[threadIdx.x];
    %s
    out[threadIdx.x] = room[n - 1 - threadIdx.x];
}
"""


@pytest.fixture
def nvrtc():
    try:
        return compile_cuda('extern "C" __global__ void k() {}', "sm_80")
    except AssembleError:
        pytest.skip("NVRTC is not installed: pip install 'ptxgen[nvrtc]'")


DOUBLED = """.version 8.3
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 x, .param .u32 n)
{
    .reg .u64 %rd<3>;
    .reg .b32 %r<4>;
    .reg .pred %p;
    ld.param.u64 %rd1, [x];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p, %r2, %r1;
    @%p ret;
    mad.wide.u32 %rd2, %r2, 4, %rd1;
    ld.global.u32 %r3, [%rd2];
    shl.b32 %r3, %r3, 1;
    st.global.u32 [%rd2], %r3;
    ret;
}
"""


def test_raw_kernels_are_compiled_once_and_launched_on_arrays(monkeypatch):
    asked = []
    monkeypatch.setattr("ptxgen.runtime.compile_cuda", lambda *a, **k: asked.append((a, k)) or DOUBLED)
    x = np.arange(8, dtype=np.int32)
    module = RawModule("source", ("-DN=1",), target="sm_90")
    kernel = module.get_function("twice")
    kernel((1,), (32,), (x, np.int32(5)))
    kernel(1, 32, (x, np.uint32(2)))
    np.testing.assert_array_equal(x, [0, 4, 4, 6, 8, 5, 6, 7])
    assert asked == [(("source", "sm_90"), {"options": ("-DN=1",)})]
    RawKernel("source", "twice")((1, 1, 1), (8, 1, 1), (x, np.int32(8)))
    assert x[7] == 14
    with pytest.raises(ExecutionError, match="out of bounds in kernel twice"):
        kernel(1, 32, (x, np.int32(9)))
    with pytest.raises(
        SpecError, match=r"RawKernel.name: must be an extern \"C\" kernel of the source \(twice; got 'two'"
    ):
        module.get_function("two")(1, 1, ())


def test_a_raw_kernel_of_cuda_source(nvrtc):
    x, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    RawKernel(SOURCE % "__syncthreads();", "k")((1,), (64,), (x, out, np.int32(64)))
    np.testing.assert_array_equal(out, x[::-1])
    with pytest.raises(ExecutionError, match="race in kernel k"):
        RawKernel(SOURCE % "", "k")((1,), (64,), (x, out, np.int32(64)))


@pytest.mark.filterwarnings("ignore::ptxgen.errors.VersionWarning")
@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_cuda_is_compiled_and_runs(nvrtc, target):
    text = compile_cuda(SOURCE % "__syncthreads();", target, name="mine.cu")
    device = open_device("cpu", mode="check")
    out = device.zeros(64, "s32")
    device.module(text)["k"].launch(1, 64, [np.arange(64, dtype=np.int32), out, np.int32(64)])
    np.testing.assert_array_equal(out.numpy(), np.arange(64)[::-1])


@pytest.mark.filterwarnings("ignore::ptxgen.errors.VersionWarning")
def test_a_finding_has_the_line_of_the_source(nvrtc):
    device = open_device("cpu", mode="check")
    kernel = device.module(compile_cuda(SOURCE % "", "sm_80", name="mine.cu"))["k"]
    with pytest.raises(ExecutionError, match=r"race in kernel k\n.*mine\.cu:6\]"):
        kernel.launch(1, 64, [np.arange(64, dtype=np.int32), device.zeros(64, "s32"), np.int32(64)])


def test_what_is_wrong_is_said_in_nvrtcs_words(nvrtc):
    with pytest.raises(AssembleError, match=r"(?s)mine\.cu: NVRTC refused it for sm_80.*\"y\" is undefined"):
        compile_cuda("__global__ void k() { int x = y; }", "sm_80", name="mine.cu")


def test_where_nvrtc_is_missing_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(AssembleError, match=r"NVRTC cannot be used .*pip install 'ptxgen\[nvrtc\]'"):
        compile_cuda("", "sm_80")


def test_what_is_missing_is_one_line(monkeypatch):
    def missing():
        raise OSError("no lib\n  folder:")

    monkeypatch.setattr("cuda.bindings.nvrtc.nvrtcVersion", missing)
    with pytest.raises(AssembleError, match=r"^compile_cuda: NVRTC cannot be used \(no lib\); install it with"):
        compile_cuda("", "sm_80")


def test_where_numba_or_triton_is_missing_its_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] in ("numba", "triton")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match=r"numba_kernel: .*: pip install 'ptxgen\[numba\]'"):
        NumbaKernel(print)[1, 1](1)
    with pytest.raises(ImportError, match=r"triton.install: .*: pip install 'ptxgen\[triton\]'"):
        triton.install()


def test_a_seed_of_the_environment_is_a_number(monkeypatch):
    monkeypatch.setenv("PTXGEN_TRITON", "random")
    monkeypatch.setenv("PTXGEN_TRITON_SEED", "many")
    with pytest.raises(SpecError, match=r"PTXGEN_TRITON_SEED: must be an integer ≥ 0 \(got 'many'\)"):
        triton.install_from_environment()


@pytest.mark.filterwarnings("ignore::ptxgen.errors.VersionWarning")
def test_a_function_of_numba_launches_on_numpy_arrays():
    pytest.importorskip("numba", reason="numba-cuda is not installed: pip install 'ptxgen[numba]'")
    cuda = pytest.importorskip("numba.cuda")

    from ptxgen.testing.numba_kernel import NumbaKernel

    def add(x, y, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] + y[i]

    def late(x, out):
        i = cuda.grid(1)
        out[i] = x[i + 1]

    x, y, out = np.arange(100.0), np.ones(100), np.zeros(100)
    NumbaKernel(add, "sm_80")[2, 64](x, y, out)
    np.testing.assert_array_equal(out, x + y)
    with pytest.raises(ExecutionError, match="out of bounds"):
        NumbaKernel(late)[1, 64](np.zeros(64), np.zeros(64))
