"""Arguments of a launch: the packed parameter block, and the checks that `bind` makes against a kernel's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.errors import SpecError
from ptxgen.integers import as_index
from ptxgen.launch import Extent, Param, evaluate
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.memory.tensor_map import TensorMap

if TYPE_CHECKING:
    from ptxgen.runtime.core.device_base import DeviceBase


def pack_raw(label: str, value: object, size: int, device: DeviceBase) -> tuple[bytes, Buffer | None]:
    """An argument of an entry that has no `Param`: a buffer, a tensor map, a NumPy scalar, or bytes of exactly `size`.

    A Python int stands for a pointer or a 64-bit integer, so it is taken for 8-byte parameters only: for others the
    width must be said (`np.uint32(7)`).
    """
    keep: Buffer | None = None
    memory = value.array if isinstance(value, TensorMap) else value
    if isinstance(memory, Buffer):
        memory.check_device(label, device)
        pointer, keep = memory.pointer.to_bytes(8, "little"), memory
        data = value.data if isinstance(value, TensorMap) else pointer
    elif isinstance(value, np.generic | bytes):
        data = bytes(value if isinstance(value, bytes) else value.tobytes())
    elif isinstance(value, int) and not isinstance(value, bool):
        data = (value & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little")
    else:
        raise SpecError(f"{label}: must be a Buffer, an int or a NumPy scalar (got {type(value).__name__} {value!r})")
    if len(data) != size:
        raise SpecError(f"{label}: the entry takes {size} bytes (got {len(data)} bytes: {value!r})")
    return data, keep


class Capacities:
    """Named capacities (`batch`), given or found from the shapes of the arguments; a contradiction is an error."""

    def __init__(self, given: Mapping[str, int]) -> None:
        self.values: dict[str, int] = {}
        self._from: dict[str, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}  # asked for when all capacities are known
        for name, value in given.items():
            if (number := as_index(value)) is None or number < 1:
                raise SpecError(f"bind({name}): a capacity must be an int ≥ 1 (got {value!r})")
            self._learn(name, number, f"{name}=")

    def _learn(self, name: str, value: int, source: str) -> None:
        known = self.values.setdefault(name, value)
        self._from.setdefault(name, source)
        if known != value:
            raise SpecError(f"bind: capacity {name} is {known} by {self._from[name]}, and {value} by {source}")

    def learn_from(self, param: Param, shape: tuple[int, ...]) -> None:
        """Learn every capacity that stands alone as an extent of `param`."""
        for extent, size in zip(param.shape, shape, strict=False):
            if isinstance(extent, str) and extent.isidentifier():
                self._learn(extent, size, f"the shape of {param.name}")

    def shape(self, param: Param) -> tuple[int, ...]:
        """The shape that `param` must have."""
        found = self._shapes.get(param.name)
        if found is None:
            found = self._shapes[param.name] = tuple(self.extent(param.name, e) for e in param.shape)
        return found

    def extent(self, label: str, extent: Extent) -> int:
        """The value of an extent; `SpecError` asks for the capacity that is missing."""
        try:
            return evaluate(extent, self.values)
        except SpecError as missing:
            raise SpecError(f"bind({label}): {missing}; give it as a keyword, or bind a buffer that has it") from None


def check_buffer(param: Param, buffer: Buffer, device: DeviceBase, capacities: Capacities) -> None:
    """Device, dtype, shape, alignment and writability of one buffer against its parameter."""
    label = f"bind({param.name})"
    buffer.check_device(label, device)
    want = "u64" if param.kind == "pointers" else param.dtype.name
    if buffer.dtype.name != want and not (param.kind == "pointers" and buffer.dtype.name == "s64"):
        raise SpecError(f"{label}: must be {want} (got {buffer.dtype}, shape {list(buffer.shape)})")
    shape = capacities.shape(param)
    if buffer.shape != shape:
        raise SpecError(f"{label}: must have shape {_symbolic(param, shape)} (got {list(buffer.shape)})")
    if param.access != "in" and buffer.readonly:
        raise SpecError(f"{label}: is written by the kernel, and this memory is read-only (got {buffer!r})")
    check_alignment(param, buffer.pointer)


def check_alignment(param: Param, pointer: int) -> None:
    """The alignment that the kernel's text assumes."""
    if not 0 <= pointer < 2**64:
        raise SpecError(f"bind({param.name}): an address must be within 64 bits (got {pointer})")
    if pointer % param.align:
        raise SpecError(f"bind({param.name}): must be aligned to {param.align} bytes (got address {pointer:#x})")


def check_overlaps(
    params: Sequence[Param], kept: Mapping[int, tuple[Buffer, ...]], may_alias: Mapping[str, str]
) -> None:
    """Nothing that a kernel writes may share bytes with another argument, which may be read or written at any time, but
    for outputs that take the whole place of an input (`may_alias`).

    What an array of pointers points to is left to the caller.
    """
    buffers = [(params[i], b) for i, found in sorted(kept.items()) for b in found[:1] if b.nbytes]
    places = [(param, b.pointer, b.pointer + b.nbytes) for param, b in buffers]
    for written, begin, end in places:
        if written.access == "in":
            continue
        for other, first, last in places:
            whole = (begin, end) == (first, last)
            if whole and may_alias.get(written.name) == other.name:
                continue
            if other is not written and first < end and begin < last:
                shared = min(end, last) - max(begin, first)
                raise SpecError(f"bind({written.name}): is written, and shares {shared} bytes with {other.name}")


def _symbolic(param: Param, shape: tuple[int, ...]) -> str:
    words = (f"{e}={n}" if isinstance(e, str) else str(n) for e, n in zip(param.shape, shape, strict=True))
    return f"[{', '.join(words)}]"
