"""Arguments for a run of a kernel: random inputs, and everything the kernel writes filled with what must not remain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ptxgen.dtypes import DType
from ptxgen.launch import Param, evaluate

POISON_BYTE = 0x80  # of an integer output


def poison(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """An array of NaN, or of a value no result has where the type has no NaN."""
    if dtype.is_float:
        return np.full(shape, np.nan, np.float32).astype(dtype.numpy)
    return np.full(int(np.prod(shape)) * dtype.bytes, POISON_BYTE, np.uint8).view(dtype.numpy).reshape(shape)


def random_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Standard-normal floats, or integers over the whole range of the type."""
    if dtype.is_float:
        return rng.standard_normal(shape, np.float32).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def arguments(
    params: Sequence[Param], rng: np.random.Generator, sizes: Mapping[str, int], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments by parameter name: `given` where it has them, else random (in, inout) or poison (out).

    Workspaces are left out: whoever binds allocates them. `sizes` are the capacities that shapes name. A scalar or an
    integer buffer has no sensible random value and must be given.
    """
    out: dict[str, Any] = {}
    for param in params:
        if param.access == "workspace":
            continue
        if param.name in given:
            value = given[param.name]
            out[param.name] = param.dtype.numpy.type(value) if param.kind == "scalar" else value
            continue
        if param.kind == "scalar":
            raise TypeError(f"{param.name}: a scalar needs a value")
        shape = tuple(evaluate(extent, sizes) for extent in param.shape)
        written = param.access == "out"
        out[param.name] = poison(shape, param.dtype) if written else random_values(rng, shape, param.dtype)
    return out
