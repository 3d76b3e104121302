"""`TensorMap`: a tensor map of a buffer. What a map may say is `arrays/tensormap.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxgen.dtypes import dtype as to_dtype
from ptxgen.runtime.arrays.tensormap import Tiling, require, tiling
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.core.memory.wrap import import_buffer

if TYPE_CHECKING:
    from ptxgen.runtime.core.device_base import DeviceBase


@dataclass(frozen=True, slots=True)
class TensorMap:
    """128 bytes to pass by value (`const __grid_constant__ CUtensorMap`), or to keep in a buffer.

    `Device.tensor_map` makes them; they keep their array alive.
    """

    array: Buffer
    tiling: Tiling
    data: bytes

    @property
    def box_bytes(self) -> int:
        """Bytes of a box in shared memory: what `mbarrier.arrive.expect_tx` has to expect."""
        return self.tiling.box_bytes

    def __bytes__(self) -> bytes:
        return self.data


def tensor_map(
    device: DeviceBase,
    array: object,
    box: Sequence[int],
    *,
    shape: Sequence[int] | None = None,
    dtype: object = None,
    **options: Any,
) -> TensorMap:
    """A tensor map of an array of this device; see `Device.tensor_map`."""
    buffer = array if isinstance(array, Buffer) else import_buffer(device, array)
    kind = to_dtype(buffer.dtype if dtype is None else dtype)
    made = tiling(buffer.pointer, buffer.shape if shape is None else shape, kind, box, **options)
    _within(buffer, made)
    return TensorMap(buffer, made, device._encode(made))


def _within(buffer: Buffer, t: Tiling) -> None:
    """The map may not reach beyond the buffer: a GPU would not notice."""
    end = t.element_bytes * t.dims[0] + sum((n - 1) * s for n, s in zip(t.dims[1:], t.strides, strict=True))
    require(t.interleave != 0 or end <= buffer.nbytes, "shape",
             f"must end within the array's {buffer.nbytes} bytes", f"{end} bytes")  # fmt: skip
