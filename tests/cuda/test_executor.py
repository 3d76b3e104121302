"""The whole CUDA path with results, without a GPU: a driver in host memory whose kernels run on the CPU executor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ptxgen.errors import CudaError
from ptxgen.parity import LIMITS, compare
from ptxgen.runtime import Executor
from ptxgen.runtime.core.stream import Stream
from ptxgen.runtime.cuda.device import CudaDevice
from tests.support.attention.kv_oracle import Oracle
from tests.support.fake_cuda import Tensor, running_device, torch_on
from tests.tools.soak import soak
from tests.tools.soaked.sequence import Sequence


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
        ex.publish()
        eager = np.empty((4, 64), np.float32)
        ex.flash_decoding(0, q, eager)
        verdict = compare("out", eager, oracle.attend(0, q), LIMITS["f16"])
        assert verdict.ok, str(verdict)
        for graph in (captured, explicit):
            out.fill(np.nan)
            graph.launch()
            assert out.numpy().tobytes() == eager.tobytes()


def test_page_locked_rows_are_not_read_after_the_call(device: CudaDevice) -> None:
    """They may be filled again: copies from them are waited for where nothing else is."""
    ex = Executor(device, 1, 4, 2, 64, 32)
    q, k, v = (device.pinned((3, heads, 64), "f32") for heads in (4, 2, 2))
    out = device.empty((3, 4, 64), "f32")
    for array in (q, k, v):
        array[...] = rand(*array.shape)
    for call in (
        lambda: ex.flash_attention_cached(0, q, k, v, out),
        lambda: ex.flash_attention(q, k, v, out),
        lambda: ex.rope(q, k, position=3),
    ):
        device.api.log.clear()
        call()
        last = max(i for i, name in enumerate(device.api.log) if name.startswith("cuMemcpyHtoD"))
        assert "cuStreamSynchronize" in device.api.log[last:]


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


def test_a_soak_notices_device_memory_that_goes(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pool does not count (graphs, modules, events) shows in the driver's free memory, shapes coming round."""

    class Leaky(Sequence):
        def peek(self) -> None:
            device.api.free_bytes -= 33 << 20

    monkeypatch.setattr("tests.tools.soak.LIVES", (Leaky,))
    monkeypatch.setattr(Leaky, "CHANCES", {"peek": 1})
    soak(device, 6, 0, per_life=1)
    with pytest.raises(AssertionError, match=r"69,206,016 bytes of the device are gone since the first round"):
        soak(device, 6, 0, per_life=1, shapes=2)
    device.api.free_bytes = 1 << 30


class Steps:
    """Decode steps of an executor: the calls that put work into an order, and which streams wait for which."""

    def __init__(self, device: CudaDevice) -> None:
        self.binding = device.driver.api
        self.executor = Executor(device, 1, 4, 2, 64, 16)
        self.own = [device.zeros((n, 64), "f32") for n in (4, 2, 2, 4)]
        self.step(*self.own)  # loads and prepares

    def order(self, call: Callable[..., object], *args: object) -> tuple[str, list[tuple[int, int]]]:
        """Waits, launches and replays as letters, and the waits."""
        self.binding.log.clear()
        self.binding.waits.clear()
        call(*args)
        letters = {"cuStreamWaitEvent": "w", "cuLaunchKernelEx": "L", "cuGraphLaunch": "G"}
        return "".join(letters.get(name, "") for name in self.binding.log), list(self.binding.waits)

    def step(self, *given: object, stream: Stream | None = None) -> tuple[str, list[tuple[int, int]]]:
        return self.order(lambda: self.executor.incremental_attention(0, *given, stream=stream))


def test_memory_of_one_stream_needs_no_waits(device: CudaDevice) -> None:
    steps = Steps(device)
    assert steps.step(*steps.own) == ("LL", [])
    assert steps.binding.log == ["cuLaunchKernelEx"] * 2, "and no allocation, copy or synchronisation"
    assert {launch.stream for launch in steps.binding.launched[-2:]} == {device.default_stream.handle}


def test_arrays_of_a_library_are_used_between_its_earlier_and_its_later_work(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(device)
    torch_on(monkeypatch, 0x70)
    given, ours = [Tensor(x) for x in steps.own], steps.executor.stream.handle
    both = [(ours, 0x70), (0x70, ours)]
    assert steps.step(*given) == ("wLLw", both)
    k, v = (device.wrap(x) for x in given[1:3])
    assert steps.order(steps.executor.cache.append, 0, k, v) == ("wLw", both)


def test_a_library_that_captures_cannot_have_a_step_in_its_graph(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(device)
    torch_on(monkeypatch, 0x70)
    given = [Tensor(x) for x in steps.own]
    monkeypatch.setattr(steps.binding, "captured_elsewhere", {0x70})
    with pytest.raises(CudaError, match=r"CudaStream\(0x70 .* another library captures it"):
        steps.step(*given)
    with pytest.raises(CudaError, match="Executor: is not possible while capturing"):
        steps.step(*given, stream=device.stream(0x70))
    assert steps.executor.cache.length(0) == 1, "the first step's"


def test_own_memory_on_another_stream_is_ordered_as_a_librarys(device: CudaDevice) -> None:
    steps = Steps(device)
    side, ours = device.stream(), steps.executor.stream.handle
    steps.own[1].fill(1, side)
    assert steps.step(*steps.own) == ("wLLw", [(ours, side.handle), (side.handle, ours)])


def test_calls_of_an_executor_run_one_after_the_other_whatever_their_streams(device: CudaDevice) -> None:
    """They share the cache and scratch memory."""
    steps = Steps(device)
    one, two = device.stream(), device.stream()
    assert steps.step(*steps.own, stream=one) == ("wLL", [(one.handle, steps.executor.stream.handle)])
    assert steps.step(*steps.own, stream=two) == ("wLL", [(two.handle, one.handle)])
    assert steps.step(*steps.own, stream=two) == ("LL", [])


def test_a_step_and_the_replay_after_it_are_in_order(device: CudaDevice) -> None:
    steps = Steps(device)
    with device.graph() as graph:
        steps.executor.incremental_attention(0, *steps.own, graph.stream)
    ours, side = steps.executor.stream.handle, device.stream()
    assert steps.order(steps.executor.step) == ("", [])
    assert steps.order(graph.launch) == ("G", [])
    assert steps.binding.replays[-1] == ours
    assert steps.order(graph.launch, side) == ("wG", [(side.handle, ours)]), "the first on this stream"
    assert steps.order(steps.executor.step)[1] == [(ours, side.handle), (side.handle, ours)]
    assert steps.order(graph.launch, side) == ("G", [])
    fresh = [device.zeros(x.shape, "f32") for x in steps.own]
    both = [(ours, side.handle), (side.handle, ours)]
    assert steps.step(*fresh) == ("wLLw", both), "the layer that the replay works on"
