"""Arguments on their way to and from the device: checked, and staged through page-locked memory. Owns no kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ptxgen.dtypes import DType
from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import SpecError, brief
from ptxgen.runtime.core.backend import Copy
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.memory.wrap import argument
from ptxgen.runtime.core.stream import Stream
from ptxgen.runtime.kv.kvcache import as_rows

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device

_ALIGN = 256  # bytes; more than any kernel assumes


class Staging:
    """Named arrays of fixed shape and one dtype, side by side in one device buffer and one page-locked one.

    `upload` moves any of them to the device in a single copy; `download` brings one back.
    """

    def __init__(self, device: Device, dtype: DType, shapes: Mapping[str, tuple[int, ...]]) -> None:
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
        self._copies: dict[tuple[str, ...], Copy] = {}
        self._in_flight: Stream | None = None

    def _copy(self, direction: Literal["in", "out"], *names: str) -> Copy:
        """All bytes from the first of these arrays to the last, in one copy; made once."""
        key = (direction, *names)
        found = self._copies.get(key)
        if found is None:
            start = min(self._span[name][0] for name in names)
            end = max(sum(self._span[name]) for name in names)
            there, here = self._memory.pointer + start, self._host.ctypes.data + start
            ends = (there, here) if direction == "in" else (here, there)
            found = self._copies[key] = Copy(direction, *ends, end - start)
        return found

    def upload(self, arrays: Mapping[str, np.ndarray], stream: Stream) -> None:
        """Copy host arrays to their buffers, on `stream`."""
        if not arrays:
            return
        if self._in_flight is not None:  # the last upload must have left the page-locked memory
            self._in_flight.synchronize()
        for name, array in arrays.items():
            self._arrays[name][...] = array.reshape(self._arrays[name].shape)
        self._memory._copy(self._copy("in", *arrays), stream, keep=self._host)
        self._in_flight = stream

    def download(self, name: str, out: np.ndarray, stream: Stream) -> None:
        """Copy a buffer to a host array; complete on return."""
        self._memory._copy(self._copy("out", name), stream, keep=self._host)
        stream.synchronize()
        self._in_flight = None
        out[...] = self._arrays[name].reshape(out.shape)


class Arguments:
    """Host or device arrays of one dtype, whose shapes are known by name."""

    def __init__(self, device: Device, dtype: DType, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.device, self.dtype, self.shapes = device, dtype, shapes
        self._numpy = dtype.numpy
        self._staging: Staging | None = None

    @property
    def staging(self) -> Staging:
        """Made when the first host array comes."""
        if self._staging is None:
            self._staging = Staging(self.device, self.dtype, self.shapes)
        return self._staging

    def one(self, name: str, array: object) -> Buffer:
        """The device buffer of an argument, checked: its own, or the staging one of a host array."""
        if not isinstance(array, np.ndarray):
            return self._on_device(name, array, self.shapes[name])
        self._check_host(name, array, self.shapes[name], name == "out")
        return self.staging.buffers[name]

    def upload(self, given: Mapping[str, object], stream: Stream) -> None:
        """Send the host arrays among these to their staging buffers."""
        host = {n: a for n, a in given.items() if isinstance(a, np.ndarray)}
        if host:
            self.staging.upload(host, stream)

    def download(self, name: str, array: object, stream: Stream) -> None:
        """Fill a host array from its staging buffer; a device array has its result already."""
        if isinstance(array, np.ndarray):
            self.staging.download(name, array, stream)

    def rows(
        self, given: Mapping[str, Any], counts: Mapping[str, int], stream: Stream, read: str = "qkv",
        written: tuple[str, ...] = ("out",),
    ) -> dict[str, Buffer]:  # fmt: skip
        """Arguments of several rows, on the device: every one is checked before the first is copied.

        Host arrays get buffers for this call, filled where their name is in `read`; those in `written` are filled
        from them later. None of them is read any more when the call they are for has returned.
        """
        shapes = {name: (counts[name], *self.shapes[name]) for name in given}
        found: dict[str, Buffer] = {}
        for name, array in given.items():
            if isinstance(array, np.ndarray):
                self._check_host(name, array, shapes[name], name in written)
            else:
                found[name] = self._on_device(name, array, shapes[name])
        for name, array in given.items():
            if name not in found:
                found[name] = self.device.empty(shapes[name], self.dtype, stream)
                if name in read:
                    found[name].copy_from(array.reshape(shapes[name]), stream)
        host = {name for name, array in given.items() if isinstance(array, np.ndarray)}
        if host.intersection(read) and not host.intersection(written):  # what is brought back is waited for later
            stream.synchronize()
        return {name: found[name] for name in given}

    def _on_device(self, name: str, array: object, shape: tuple[int, ...]) -> Buffer:
        buffer = as_rows(name, argument(self.device, name, array), shape)
        if buffer.dtype != self.dtype:
            raise SpecError(f"{name}: must be {self.dtype} (got {buffer.dtype}, shape {list(buffer.shape)})")
        return buffer

    def _check_host(self, name: str, array: np.ndarray, shape: tuple[int, ...], written: bool) -> None:
        if written and not array.flags.writeable:
            raise SpecError(f"{name}: must be writable (got a read-only array)")
        if array.shape == shape and array.dtype == self._numpy and array.flags.c_contiguous:
            return  # nearly always: and the rest takes ten times as long
        if to_dtype(array.dtype) != self.dtype:
            raise SpecError(f"{name}: must be {self.dtype} (got {array.dtype}, shape {list(array.shape)})")
        flat = (int(np.prod(shape)),)
        if array.shape not in (shape, flat, shape[1:] if shape[0] == 1 else flat):
            raise SpecError(f"{name}: must have shape {list(shape)} (got {list(array.shape)})")
        if not array.flags.c_contiguous:
            raise SpecError(f"{name}: must be C-contiguous (got strides {array.strides})")


def row_count(name: str, array: object) -> int:
    """The rows of an argument `[rows, heads, head_dim]`."""
    shape = getattr(array, "shape", None)
    if not isinstance(shape, tuple) or len(shape) != 3 or shape[0] < 1:
        got = brief(array) if shape is None else f"shape {list(shape)}"
        raise SpecError(f"{name}: must have shape [rows ≥ 1, heads, head_dim] (got {got})")
    return int(shape[0])


def take_back(array: object, buffer: Buffer, stream: Stream) -> None:
    """Fill a host array from a device buffer; complete on return."""
    if isinstance(array, np.ndarray):
        array[...] = buffer.numpy(stream=stream).reshape(array.shape)
