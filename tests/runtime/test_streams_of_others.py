"""Wherever a stream is taken, it may be another library's, and the work goes there; what is no stream is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import SpecError
from ptxgen.kernels import KvCacheScatter
from ptxgen.runtime import BatchedKvCache, Device, Executor
from tests.support.attention.kv_caches import spoil
from tests.support.fake_cuda import Binding, fake_device, running_device

HANDLE = 0x52


class TorchLike:
    """What torch.cuda.Stream says of itself."""

    cuda_stream = HANDLE


class Protocol:
    """What cuda.core's streams and others say."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, HANDLE)


def rows(device: Device, *shape: int) -> Any:
    return device.array(np.ones(shape, np.float32))


def uses(device: Device) -> dict[str, Callable[[Any], object]]:
    """Every call that takes a stream, ready to be made."""
    ex = Executor(device, 1, 2, 1, 8, 16)
    spoil(ex.cache)
    q, k, v, out = rows(device, 2, 8), rows(device, 1, 8), rows(device, 1, 8), rows(device, 2, 8)
    chunk = [x.reshape(1, *x.shape) for x in (q, k, v, out)]
    host = [x.numpy() for x in (q, k, v, out)]
    ex.incremental_attention(0, *host)
    ex.flash_decoding(0, host[0], host[3])  # its scratch memory is cleared once, without a stream
    batched, pages = BatchedKvCache(ex.cache, 2), BatchedKvCache(ex.cache, 2, page_size=16)
    both = rows(device, 2, 1, 8)
    for cache in (batched, pages):
        cache.step()
    bound = device.load(KvCacheScatter(max_len=16, n_kv_heads=1, head_dim=8)).bind(
        k=chunk[1], v=chunk[2], position=0, **ex.cache.buffers(0)
    )
    graph = device.graph()
    graph.add(bound)
    return {
        "BoundKernel.launch": bound.launch,
        "Graph.launch": graph.launch,
        "Buffer.numpy": lambda s: q.numpy(stream=s),
        "Buffer.copy_from(host)": lambda s: q.copy_from(host[0], s),
        "Buffer.copy_from": lambda s: q.copy_from(out, s),
        "Buffer.fill": lambda s: out.fill(1.5, s),
        "Buffer.zero": lambda s: out.zero(s),
        "Device.zeros": lambda s: device.zeros(3, "f32", s),
        "Device.array": lambda s: device.array(host[0], stream=s),
        "KvCache.append": lambda s: ex.cache.append(0, k, v, s),
        "BatchedKvCache.step": lambda s: pages.step(stream=s),
        "BatchedKvCache.append": lambda s: batched.append(0, both, both, s),
        "BatchedKvCache.set_length": lambda s: batched.set_length(0, 0, s),
        "BatchedKvCache.rollback": lambda s: batched.rollback(1, 0, s),
        "BatchedKvCache.scatter_from": lambda s: batched.scatter_from(ex.cache, 0, 1, stream=s),
        "BatchedKvCache.scatter_from(pages)": lambda s: pages.scatter_from(ex.cache, 0, 1, stream=s),
        "BatchedKvCache.zero": lambda s: batched.zero(s),
        "Executor.incremental_attention": lambda s: ex.incremental_attention(0, q, k, v, out, s),
        "Executor.incremental_attention(host)": lambda s: ex.incremental_attention(0, *host, s),
        "Executor.flash_attention_cached": lambda s: ex.flash_attention_cached(0, *chunk, s),
        "Executor.flash_attention": lambda s: ex.flash_attention(*chunk, stream=s),
        "Executor.flash_decoding": lambda s: ex.flash_decoding(0, q, out, s),
        "Executor.rope": lambda s: ex.rope(q, k, stream=s),
        "Executor.step": ex.step,
        "KvCache.zero": lambda s: ex.cache.zero(s),
    }


NAMES = tuple(uses(running_device()))


@pytest.mark.parametrize("stream", [TorchLike(), Protocol(), HANDLE], ids=["torch", "protocol", "address"])
def test_work_goes_to_the_stream_of_another_library(stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    device = running_device()
    calls = uses(device)
    used: list[int] = []
    submit = Binding._submit
    monkeypatch.setattr(Binding, "_submit", lambda self, at, job: (used.append(int(at)), submit(self, at, job)))
    monkeypatch.setattr(Binding, "_cuGraphLaunch", lambda self, executable, at: used.append(int(at)))
    for name, call in calls.items():
        used.clear()
        call(stream)
        assert used, name
        assert set(used) == {HANDLE}, name


def test_a_stream_waits_for_one_of_another_library() -> None:
    device, binding = fake_device()
    stream = device.stream()
    stream.wait(TorchLike())
    assert binding.waits == [(stream.handle, HANDLE)]


def test_what_is_no_stream_cannot_be_waited_for(device: Device) -> None:
    with pytest.raises(SpecError, match=r"stream: must be .*\(got 'default'\)"):
        device.stream().wait("default")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_stream_is_refused(device: Device, name: str) -> None:
    with pytest.raises(SpecError, match=r"stream: must be .*\(got 'default'\)"):
        uses(device)[name]("default")
