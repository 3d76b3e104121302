"""The whole CUDA path with results, without a GPU: a driver in host memory whose kernels run on the CPU executor."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.parity import LIMITS, compare
from ptxgen.runtime import Executor
from ptxgen.runtime.buffer import Buffer
from ptxgen.runtime.cuda.device import CudaDevice
from tests.fake_cuda import running_device
from tests.kv_oracle import Oracle
from tests.soak import soak


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    return running_device()


def rand(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, np.float32)


def test_eager_captured_and_explicit_decoding(device: CudaDevice) -> None:
    ex, oracle = Executor(device, 1, 4, 2, 64, 200, kv_dtype="f16"), Oracle(1, 4, 2, 64, "f16")
    q, k, v = rand(4, 64), rand(150, 2, 64), rand(150, 2, 64)
    ex.cache.append(0, device.array(k), device.array(v))
    oracle.append(0, k, v)
    on_device, out = device.array(q), device.zeros((4, 64), "f32")
    with device.graph() as captured:
        ex.flash_decoding(0, on_device, out, captured.stream)
    explicit = device.graph()
    ex.flash_decoding_nodes(explicit, 0, on_device, out)
    for length in (150, 129, 1):
        ex.cache.rollback(length)
        oracle.rollback(length)
        ex.lengths.fill(length)
        eager = np.empty((4, 64), np.float32)
        ex.flash_decoding(0, q, eager)
        verdict = compare("out", eager, oracle.attend(0, q), LIMITS["f16"])
        assert verdict.ok, str(verdict)
        for graph in (captured, explicit):
            out.fill(np.nan)
            graph.launch()
            assert out.numpy().tobytes() == eager.tobytes()


def test_clusters_reach_launches_and_nodes(device: CudaDevice) -> None:
    from ptxgen.kernels import IncrementalAttention

    spec = IncrementalAttention(max_len=4096, head_dim=64, n_heads=4, n_kv_heads=1, kv_dtype="f16", q_dtype="f16")
    kernel = device.load(spec)
    assert kernel.ptx.launch.cluster != (1, 1, 1), "the case that this test is about"
    rng = np.random.default_rng(1)
    given = {
        "q": rng.standard_normal((4, 64)).astype(np.float16),
        "k_cache": rng.standard_normal((1, 4096, 64)).astype(np.float16),
        "v_cache": rng.standard_normal((1, 4096, 64)).astype(np.float16),
    }
    want = spec.reference(**given, out=None, seq_len=700)["out"]
    outs = [device.zeros((4, 64), "f16") for _ in range(2)]
    buffers = {name: device.array(array) for name, array in given.items()}
    kernel.bind(**buffers, out=outs[0], seq_len=700).launch()
    graph = device.graph()
    graph.add(kernel.bind(**buffers, out=outs[1], seq_len=700))
    graph.launch()
    for out in outs:
        assert compare("out", out.numpy(), want, LIMITS["f16"]).ok


def test_a_short_soak(device: CudaDevice) -> None:
    report = soak(device, 40, 7, per_life=20)
    assert sum(report["steps"].values()) == 40
    first, last = report["memory used after the first and the last shape"]
    assert first == last


class Foreign:
    """A buffer as another library's array, which our default stream is made to wait for."""

    def __init__(self, buffer: Buffer) -> None:
        self.__dlpack__ = buffer.__dlpack__
        self.__dlpack_device__ = buffer.__dlpack_device__


def test_foreign_arrays_are_used_in_the_order_of_their_producer(device: CudaDevice) -> None:
    log = device.driver.api.log
    ex = Executor(device, 1, 4, 2, 64, 16)
    q, k, v, out = (device.zeros((n, 64), "f32") for n in (4, 2, 2, 4))

    def calls(*given: object) -> list[str]:
        log.clear()
        ex.incremental_attention(0, *given)
        return [name for name in log if name in ("cuStreamWaitEvent", "cuLaunchKernelEx")]

    calls(q, k, v, out)  # loads and prepares
    launches = ["cuLaunchKernelEx"] * 2
    assert calls(q, k, v, out) == launches, "our own memory needs no waits"
    assert log == launches, "with arrays on the device: no allocation, copy, or synchronisation either"
    calls(q, k, v, out)
    ex.cache.append(0, k, v)
    assert {launch.stream for launch in device.driver.api.launched[-3:]} == {ex.stream.handle}, "in one order"
    foreign = [Foreign(x) for x in (q, k, v)]
    ordered = calls(*foreign, out)
    first = ordered.index("cuLaunchKernelEx")
    assert set(ordered[:first]) == {"cuStreamWaitEvent"}
    assert ordered[-1] == "cuStreamWaitEvent"
