"""Which device the torch operators ask whether it captures: with as much of torch as that takes, and a fake driver."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import ptxgen
from ptxgen.kernels import ArgMax
from ptxgen.runtime.core.diskcache import DiskCache
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.cuda.device import CudaDevice
from ptxgen.runtime.cuda.driver import Driver
from tests.support.fake_cuda import Binding, Tensor

CURRENT = 0x70  # torch's stream on every device


class Torch(types.ModuleType):
    """Two devices, of which the second one's stream is being captured; the first one is current."""

    Tensor = Tensor

    def __init__(self) -> None:
        super().__init__("torch")
        self.at = 0
        self._C = types.SimpleNamespace(
            _cuda_getCurrentRawStream=lambda index: CURRENT,
            _cuda_getDevice=lambda: self.at,
            _cuda_isCurrentStreamCapturing=lambda: self.at == 1,
        )
        self.cuda = types.SimpleNamespace(
            current_stream=lambda index: types.SimpleNamespace(cuda_stream=CURRENT),
            is_current_stream_capturing=lambda: self.at == 1,
            current_device=lambda: self.at,
            device=self.device,
        )
        self.library = types.SimpleNamespace(custom_op=self.custom_op)

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.at = self.at, index
        yield
        self.at = before

    @staticmethod
    def custom_op(*_: object, **__: object) -> Any:
        def decorate(function: Any) -> Any:
            function.register_fake = lambda fake: fake
            return function

        return decorate


class On(Tensor):
    """A tensor of the second device."""

    __module__ = "torch"
    is_contiguous = staticmethod(lambda: True)

    def __init__(self, buffer: Buffer) -> None:
        super().__init__(buffer)
        self.device = types.SimpleNamespace(type="cuda", index=1)
        self.dtype, self.shape, self.data_ptr = buffer.dtype, buffer.shape, lambda: buffer.pointer


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "torch", Torch())
    monkeypatch.delitem(sys.modules, "ptxgen.torch", raising=False)
    monkeypatch.delattr(ptxgen, "torch", raising=False)
    yield importlib.import_module("ptxgen.torch")
    del sys.modules["ptxgen.torch"], ptxgen.torch


def test_a_capture_on_a_device_that_is_not_current_keeps_what_it_recorded(
    ops: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = CudaDevice(1, Driver(Binding(devices=2)), DiskCache(None))
    monkeypatch.setattr(ops, "open_device", lambda name: {"cuda:1": device}[name])
    tensors = {"x": On(device.zeros((1, 64), "f32")), "out": On(device.zeros(1, "s32"))}
    ops._launch(ArgMax(n=64), tensors, {"rows": 1})
    assert [bound.name for bound in ops._captured] == [ArgMax.kernel_name]
    assert sys.modules["torch"].at == 0, "the current device is left alone"
