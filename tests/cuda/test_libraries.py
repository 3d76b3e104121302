"""Arrays and streams of torch, CuPy and JAX on a real GPU, each where it is installed."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ptxgen.dtypes import dtype
from ptxgen.runtime import Executor
from ptxgen.runtime.core.launches.bound import BoundKernel
from ptxgen.runtime.cuda.device import CudaDevice
from tests.support.attention.kv_caches import spoil
from tests.support.buffers import SCALE

pytestmark = pytest.mark.gpu
TORCH_TYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2", "s8": "int8", "u8": "uint8", "s16": "int16", "s32": "int32", "s64": "int64",
}  # fmt: skip


def scale(device: CudaDevice, x: Any, n: int, by: float = 2) -> BoundKernel:
    return device.module(SCALE)["scale"].bind(-(-n // 128), 128, [x, np.float32(by), np.uint32(n)])


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.mark.parametrize("kind", TORCH_TYPES)
def test_torch_tensors_both_ways(gpu: CudaDevice, torch: Any, kind: str) -> None:
    tensor = torch.arange(6, device="cuda").reshape(2, 3).to(getattr(torch, TORCH_TYPES[kind]))
    got = gpu.wrap(tensor)
    assert (got.pointer, got.shape, got.dtype) == (tensor.data_ptr(), (2, 3), dtype(kind))
    assert got.numpy().astype(np.float64).tolist() == [[0, 1, 2], [3, 4, 5]]
    if kind in ("e4m3", "e5m2"):
        return  # whether torch takes fp8 capsules depends on its version; that we give them is tested elsewhere
    back = torch.from_dlpack(got)
    assert back.data_ptr() == tensor.data_ptr()
    assert back.dtype == tensor.dtype


def test_a_tensor_of_ours_may_outlive_our_modules(gpu: CudaDevice, torch: Any) -> None:
    code = """
import json, torch
from ptxgen.runtime import open_device
device = open_device("cuda")
json.kept = torch.from_dlpack(device.zeros(4, "f32"))
cycle = [torch.from_dlpack(device.zeros(4, "f32"))]
cycle.append(cycle)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_torch_launches_go_to_its_current_stream(gpu: CudaDevice, torch: Any) -> None:
    n = 1 << 22
    x = torch.ones(n, device="cuda")
    bound = scale(gpu, x, n)
    side = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), side):
        with torch.cuda.stream(stream):
            x.fill_(1)
            for _ in range(10):
                x.add_(1)
                bound.launch()
            total = x.clone()
        stream.synchronize()
        assert float(total[0]) == float(total[-1]) == 2**10 + sum(2**k for k in range(1, 11))
    bound.launch(side)
    side.synchronize()


def test_the_executor_works_in_the_order_of_torchs_current_stream(gpu: CudaDevice, torch: Any) -> None:
    """Without a stream: after what torch has submitted (here: late), and before what it submits next."""
    shape = {"n_layers": 1, "n_heads": 8, "n_kv_heads": 2, "head_dim": 64, "max_len": 64}
    ex, plain = Executor(gpu, **shape), Executor(gpu, **shape)
    spoil(ex.cache)
    spoil(plain.cache)
    rng = np.random.default_rng(0)
    q, k, v, out = (torch.zeros(n, 64, device="cuda") for n in (8, 2, 2, 8))
    side = torch.cuda.Stream()
    for _ in range(5):
        host = [rng.standard_normal((n, 64), np.float32) for n in (8, 2, 2)]
        staged = [torch.from_numpy(x).cuda() for x in host]
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)  # some ten milliseconds
            for tensor, values in zip((q, k, v), staged, strict=True):
                tensor.copy_(values)
            ex.incremental_attention(0, q, k, v, out)
            got = out.clone()
            out.fill_(float("nan"))
        side.synchronize()
        want = np.empty((8, 64), np.float32)
        plain.incremental_attention(0, *host, want)
        assert np.array_equal(got.cpu().numpy(), want)


def test_a_graph_of_torch_tensors_runs_on_torchs_current_stream(gpu: CudaDevice, torch: Any) -> None:
    x = torch.ones(1 << 20, device="cuda")
    graph, side = gpu.graph(), torch.cuda.Stream()
    graph.add(scale(gpu, x, 1 << 20))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # some ten milliseconds
        x.fill_(3)
        graph.launch()
        got = x.clone()
    side.synchronize()
    assert set(got.tolist()) == {6.0}


def test_torch_graph_captures_our_launch(gpu: CudaDevice, torch: Any) -> None:
    x = torch.ones(1000, device="cuda")
    bound = scale(gpu, x, 1000)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound.launch()
        x.add_(1)
    x.fill_(1)
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert set(x.tolist()) == {7.0}


def test_what_goes_while_torch_captures_leaves_the_capture_whole(gpu: CudaDevice, torch: Any) -> None:
    """Modules, page-locked and device memory whose last reference goes meanwhile."""
    x = torch.ones(1000, device="cuda")
    bound = scale(gpu, x, 1000)
    ours = scale(gpu, gpu.array(np.ones(1000, np.float32)), 1000)
    old: list[Any] = [ours, gpu.pinned(100, "f32"), gpu.stream(), gpu.graph()]
    old[0].launch()
    old[0].launch(old[2])
    old[3].add(old[0])
    old[3].launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound.launch()
        del old
        gc.collect()
        x.add_(1)
    x.fill_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert set(x.tolist()) == {3.0}


def test_torch_device_is_left_alone(gpu: CudaDevice, torch: Any) -> None:
    before = torch.cuda.current_device()
    gpu.zeros(10, "f32").numpy()
    assert torch.cuda.current_device() == before
    assert float(torch.ones(3, device="cuda").sum()) == 3


def test_a_torch_tensor_that_requires_a_gradient_is_refused_with_torchs_words(gpu: CudaDevice, torch: Any) -> None:
    with pytest.raises(Exception, match=r"Tensor gives no memory.*grad"):
        gpu.wrap(torch.ones(3, device="cuda", requires_grad=True))


def test_host_tensors_are_copied(gpu: CudaDevice, torch: Any) -> None:
    for kind in ("float32", "bfloat16"):
        tensor = torch.arange(4).to(getattr(torch, kind))
        assert gpu.array(tensor).numpy().astype(np.float32).tolist() == [0, 1, 2, 3]


def test_cupy_arrays_both_ways_and_its_current_stream(gpu: CudaDevice, cupy: Any) -> None:
    x = cupy.ones((10, 100), dtype=cupy.float32)
    bound = scale(gpu, x, 1000)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        x += 1
        bound.launch()
        total = x.sum()
        stream.synchronize()
    assert float(total) == 4000
    back = cupy.asarray(gpu.array(np.arange(6, dtype=np.float16).reshape(2, 3)))
    assert back.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert cupy.from_dlpack(gpu.array(np.arange(3, dtype=np.int32))).tolist() == [0, 1, 2]
    with pytest.raises(Exception, match="C-contiguous"):
        gpu.wrap(x.T)


def test_jax_arrays(gpu: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU backend here")
    x = jax.numpy.arange(12, dtype=jax.numpy.float32).reshape(3, 4) + 1
    got = gpu.wrap(x)
    assert got.numpy().tolist() == np.asarray(x).tolist()
    late = jax.jit(lambda a: jax.lax.fori_loop(0, 300, lambda _, y: jax.numpy.sqrt(y), a) + 3)(jax.numpy.ones(1 << 20))
    assert set(gpu.wrap(late).numpy()) == {4}, "read after JAX has made it"
    bf16 = gpu.wrap(x.astype(jax.numpy.bfloat16))
    assert bf16.dtype == dtype("bf16")
    assert jax.numpy.from_dlpack(gpu.array(np.arange(3, dtype=np.float32))).tolist() == [0, 1, 2]
