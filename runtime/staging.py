"""Host arrays on their way to and from the device, through page-locked memory. Owns two fixed buffers, no kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.dtypes import DType
from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import SpecError
from ptxgen.runtime.buffer import Buffer
from ptxgen.runtime.stream import Stream

if TYPE_CHECKING:
    from ptxgen.runtime.device import Device

_ALIGN = 256  # bytes; more than any kernel assumes


class Staging:
    """Named arrays of fixed shape and one dtype, side by side in one device buffer and one page-locked one.

    `upload` moves any of them to the device in a single copy when they are neighbours; `download` brings one back.
    """

    def __init__(self, device: Device, dtype: DType, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self.dtype = dtype
        self._span: dict[str, tuple[int, int]] = {}
        end = 0
        for name, shape in shapes.items():
            nbytes = int(np.prod(shape)) * dtype.bytes
            self._span[name] = (end, nbytes)
            end += -(-nbytes // _ALIGN) * _ALIGN
        self._memory = device.empty(end, "u8")
        self._host = device.pinned(end, "u8")
        self.buffers: dict[str, Buffer] = {
            name: self._memory.view(shape, dtype, self._span[name][0]) for name, shape in shapes.items()
        }
        self._arrays = {
            name: self._host[start : start + size].view(dtype.numpy).reshape(shapes[name])
            for name, (start, size) in self._span.items()
        }
        self._in_flight: Stream | None = None

    def upload(self, arrays: Mapping[str, np.ndarray], stream: Stream) -> None:
        """Copy host arrays (shape and dtype are checked; flat ones are fine) to their buffers, on `stream`."""
        if not arrays:
            return
        self.settle()
        for name, array in arrays.items():
            self._arrays[name][...] = self._checked(name, array)
        start = min(self._span[name][0] for name in arrays)
        end = max(sum(self._span[name]) for name in arrays)
        self._memory[start:end].copy_from(self._host[start:end], stream)
        self._in_flight = stream

    def download(self, name: str, out: np.ndarray, stream: Stream) -> None:
        """Copy a buffer to a host array; complete on return."""
        target = self._checked(name, out)
        self.buffers[name].numpy(self._arrays[name], stream)
        stream.synchronize()
        self._in_flight = None
        target[...] = self._arrays[name]

    def buffer_for(self, name: str, array: np.ndarray) -> Buffer:
        """The device buffer of a host array that has been checked."""
        self._checked(name, array)
        return self.buffers[name]

    def settle(self) -> None:
        """Wait until the last upload has left the page-locked memory."""
        if self._in_flight is not None:
            self._in_flight.synchronize()
            self._in_flight = None

    def _checked(self, name: str, array: np.ndarray) -> np.ndarray:
        """The array in its shape, as a view."""
        shape = self.shapes[name]
        if to_dtype(array.dtype) != self.dtype:
            raise SpecError(f"{name}: must be {self.dtype} (got {array.dtype}, shape {list(array.shape)})")
        if array.shape != shape and array.shape != (int(np.prod(shape)),):
            raise SpecError(f"{name}: must have shape {list(shape)} (got {list(array.shape)})")
        if not array.flags.c_contiguous:
            raise SpecError(f"{name}: must be C-contiguous (got strides {array.strides})")
        return array.reshape(shape)
