"""Host memory and streams: who waits for a copy, as the recording driver sees it."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.dtypes import f32
from ptxgen.runtime import KvCache
from ptxgen.runtime.attention.staging import Staging
from ptxgen.runtime.cuda.device import CudaDevice
from tests.support.fake_cuda import Binding, fake_device


@pytest.fixture
def fake() -> tuple[CudaDevice, Binding]:
    return fake_device()


def test_an_upload_waits_until_the_last_one_has_left_the_page_locked_memory(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    staging, stream = Staging(device, f32, {"q": (4,)}), device.stream()
    binding.log.clear()
    for value in (1, 2):
        staging.upload({"q": np.full(4, value, np.float32)}, stream)
    told = [name for name in binding.log if name in ("cuMemcpyHtoDAsync", "cuStreamSynchronize")]
    assert told == ["cuMemcpyHtoDAsync", "cuStreamSynchronize", "cuMemcpyHtoDAsync"]


def test_a_download_has_waited_for_the_upload(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    staging, stream = Staging(device, f32, {"q": (4,)}), device.stream()
    staging.upload({"q": np.ones(4, np.float32)}, stream)
    staging.download("q", np.zeros(4, np.float32), stream)
    binding.log.clear()
    staging.upload({"q": np.ones(4, np.float32)}, stream)
    assert "cuStreamSynchronize" not in binding.log


def test_an_array_that_is_not_page_locked_is_full_on_return(fake: tuple[CudaDevice, Binding]) -> None:
    device, binding = fake
    stream, buffer = device.stream(), device.array(np.ones(4, np.float32))
    for out, waits in ((np.empty(4, np.float32), 1), (device.pinned(4, "f32"), 0)):
        binding.log.clear()
        buffer.numpy(out, stream)
        assert binding.log.count("cuStreamSynchronize") == waits


def test_blocks_of_heads_in_memory_that_is_not_page_locked_are_there_on_return(
    fake: tuple[CudaDevice, Binding],
) -> None:
    device, binding = fake
    blocks = KvCache(device, 1, 2, 2, 8, 16).blocks(0, 3)["k_cache"]
    stream = device.stream()
    for out, waits in ((np.empty((2, 3, 8), np.float32), 1), (device.pinned((2, 3, 8), "f32"), 0)):
        binding.log.clear()
        blocks.read(out, stream)
        assert binding.log.count("cuStreamSynchronize") == waits
