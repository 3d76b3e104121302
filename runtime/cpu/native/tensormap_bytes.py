"""A tensor map in the executor's form, as bytes."""

from __future__ import annotations

import struct

from ptxgen.errors import SpecError
from ptxgen.foreign.map_fields import FIELDS, MAGIC
from ptxgen.runtime.arrays.tensormap import DATA_TYPES, FILLS, MAP_BYTES, SWIZZLES, Tiling


def encode(t: Tiling) -> bytes:
    """The bytes that `support/tensor_boxes.py` reads; `SpecError` for layouts that the executor lacks."""
    if t.interleave:
        raise SpecError(f"TensorMap.interleave: is not supported by the CPU executor (got {t.interleave})")
    rest = 5 - t.rank
    values = {
        "magic": (MAGIC,), "address": (t.address,), "strides": (t.element_bytes, *t.strides, *(0,) * rest),
        "last": (*(n - 1 for n in t.dims), *(0,) * rest), "box": (*t.box, *(1,) * rest),
        "steps": (*t.element_strides, *(1,) * rest), "rank": (t.rank,), "element": (t.element_bytes,),
        "swizzle": (SWIZZLES[t.swizzle],), "nan": (FILLS[t.fill],), "dtype": (DATA_TYPES[t.dtype],),
    }  # fmt: skip
    data = bytearray(MAP_BYTES)
    for name, (offset, form) in FIELDS.items():
        struct.pack_into("<" + form, data, offset, *values[name])
    return bytes(data)
