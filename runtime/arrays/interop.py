"""Arrays of other libraries as memory, without importing any of them; knows no buffers."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from ptxgen.dtypes import DType
from ptxgen.errors import SpecError
from ptxgen.runtime.arrays import dlpack

REFUSALS = (BufferError, RuntimeError, TypeError, ValueError)  # of `__dlpack__`, whatever the library


def host_array(source: Any) -> np.ndarray | None:
    """A DLPack array that lies in host memory as a NumPy array (bf16 and fp8 included); None if it does not."""
    if not hasattr(source, "__dlpack_device__") or source.__dlpack_device__()[0] not in (dlpack.CPU, dlpack.CUDA_HOST):
        return None
    try:
        taken = take(source, None)
    except REFUSALS as refused:
        raise SpecError(f"array: {type(source).__name__} gives no memory: {refused}") from refused
    dtype, _ = checked("array", source, taken)
    nbytes = math.prod(taken.shape) * dtype.bytes
    memory = (ctypes.c_uint8 * max(nbytes, 1)).from_address(taken.pointer)
    memory.keep = taken
    return np.frombuffer(memoryview(memory).cast("B"), np.uint8)[:nbytes].view(dtype.numpy).reshape(taken.shape)


def take(source: Any, stream: int | None) -> dlpack.Taken:
    """Ask for a versioned capsule, then, from producers that know no versions, for a plain one."""
    keywords: dict[str, object] = {} if stream is None else {"stream": stream}
    try:
        return dlpack.Taken(source.__dlpack__(max_version=(1, 1), **keywords))
    except TypeError:
        return dlpack.Taken(source.__dlpack__(**keywords))


def checked(verb: str, source: object, taken: dlpack.Taken) -> tuple[DType, tuple[int, ...]]:
    """Element type and shape, if the memory is contiguous."""
    if taken.dtype is None:
        raise SpecError(f"{verb}: element type must be known (got DLPack {taken.type_words})")
    if not contiguous(taken.shape, taken.strides):
        raise SpecError(f"{verb}: must be C-contiguous (got shape {taken.shape}, strides {taken.strides} elements)")
    return taken.dtype, taken.shape


def library(source: object) -> str:
    """The library whose type an array has."""
    return type(source).__module__.partition(".")[0]


def contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Whether strides (in elements; None: compact) describe C-contiguous memory."""
    if strides is None or 0 in shape:
        return True
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True
