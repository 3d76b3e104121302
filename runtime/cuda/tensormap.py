"""Tensor maps by the driver. Owns the order and the types of cuTensorMapEncodeTiled's arguments."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from ptxgen.errors import CudaError
from ptxgen.runtime.arrays.tensormap import DATA_TYPES, FILLS, INTERLEAVES, MAP_BYTES, PROMOTIONS, SWIZZLES, Tiling

if TYPE_CHECKING:
    from ptxgen.runtime.cuda.gpu import Gpu


def encode(device: Gpu, t: Tiling) -> bytes:
    """The driver's 128 bytes; raises `CudaError` where the GPU has no tensor copies, or the driver refuses."""
    if device.capability < (9, 0):
        have = ".".join(map(str, device.capability))
        raise CudaError(f"{device.name}: tensor maps need compute capability 9.0 or higher (got {have})")
    api = device.api
    wide, narrow = api.cuuint64_t, api.cuuint32_t
    made = device.call(
        "cuTensorMapEncodeTiled",
        api.CUtensorMapDataType(DATA_TYPES[t.dtype]),
        t.rank,
        t.address,
        [wide(n) for n in t.dims],
        [wide(n) for n in t.strides or (16,)],  # with one dimension it is not read, but an empty list is no array
        [narrow(n) for n in t.box],
        [narrow(n) for n in t.element_strides],
        api.CUtensorMapInterleave(INTERLEAVES[t.interleave]),
        api.CUtensorMapSwizzle(SWIZZLES[t.swizzle]),
        api.CUtensorMapL2promotion(PROMOTIONS[t.promotion]),
        api.CUtensorMapFloatOOBfill(FILLS[t.fill]),
    )
    return ctypes.string_at(int(made.getPtr()), MAP_BYTES)
