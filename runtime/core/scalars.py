"""One number as the bytes of an element type: of a kernel's parameter, or of a fill's pattern."""

from __future__ import annotations

import contextlib
import struct

import numpy as np

from ptxgen.dtypes import DType
from ptxgen.errors import SpecError, brief

_LAYOUTS = {
    name: struct.Struct(f"<{letter}")
    for name, letter in {
        "s8": "b", "u8": "B", "s16": "h", "u16": "H", "s32": "i", "u32": "I", "s64": "q", "u64": "Q",
        "f32": "f", "f64": "d",
    }.items()
}  # fmt: skip


def pack_scalar(label: str, value: object, dtype: DType) -> bytes:
    """One value as `dtype`, floats rounded; finite ones must fit, and integers be integers, which bool is not. Raises
    `SpecError`."""
    layout = _LAYOUTS.get(dtype.name)
    if layout is not None and type(value) is (float if dtype.is_float else int):
        with contextlib.suppress(struct.error, OverflowError):
            return layout.pack(value)
    kind = dtype.numpy
    number = value
    if dtype.is_float and type(value) is int:
        with contextlib.suppress(OverflowError):
            number = float(value)  # from 2^64 on NumPy makes no numbers of integers
    array = np.asarray(number)
    if array.ndim or array.dtype.kind not in "iufV":
        raise SpecError(f"{label}: must be one {dtype} value (got {brief(value)})")
    if not dtype.is_float:
        limits = np.iinfo(kind)
        if array.dtype.kind not in "iu" or not limits.min <= int(array) <= limits.max:
            raise SpecError(f"{label}: must be an integer within {limits.min} … {limits.max} (got {value!r})")
    with np.errstate(over="ignore"):
        found = array.astype(kind)
    if dtype.is_float and (np.isinf(array) != np.isinf(found) or np.isnan(array) != np.isnan(found)):
        raise SpecError(f"{label}: must be a number that {dtype} has, or {_beside(dtype)} (got {brief(value)})")
    return found.tobytes()


def _beside(dtype: DType) -> str:
    """What a float type has beside finite numbers."""
    return "inf or nan" if np.isinf(np.array(np.inf).astype(dtype.numpy)) else "nan"
