"""A GPU as its memory, code, streams and graphs see it: the context, and what they ask of each other."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from ptxgen.runtime.core.memory.buffer_device import BufferDevice
from ptxgen.runtime.core.stream import Event, Stream
from ptxgen.runtime.cuda.context import CudaContext
from ptxgen.runtime.cuda.driver import Driver


class Part(Protocol):
    """What holds handles of a device, or prepared calls."""

    def close(self, reason: str) -> None:
        """Give the handles back; from now on every use raises."""


AnyPart = TypeVar("AnyPart", bound=Part)


class Gpu(CudaContext, BufferDevice):
    """See `CudaDevice`, which owns these parts.

    `multiprocessors`: how many it has; `shared_limit`: bytes of shared memory that a CTA may have; `native_launch`: the
    driver's cuLaunchKernelEx.
    """

    multiprocessors: int
    shared_limit: int
    native_launch: Any

    def __init__(self, index: int, driver: Driver) -> None:
        super().__init__(index, driver)
        self._parts: WeakValueDictionary[int, Part] = WeakValueDictionary()

    def part(self, made: AnyPart) -> AnyPart:
        """Remember what `close` has to close."""
        self._parts[id(made)] = made
        return made

    @abstractmethod
    def after(self, streams: tuple[Stream, ...]) -> Event | None:
        """An event after the work submitted to these streams so far; None while another library captures one."""

    @abstractmethod
    def retire(self, code: Any, streams: tuple[Stream, ...]) -> None:
        """Unload a CUmodule without an owner, after the work submitted to `streams` so far."""

    @abstractmethod
    def unload_retired(self) -> None:
        """Unload those whose launches are done."""

    @abstractmethod
    def let_go(self) -> None:
        """Release the context of a closed device as soon as no memory in it is held."""
