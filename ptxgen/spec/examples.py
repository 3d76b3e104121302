"""Arguments for a run of a kernel: random inputs, and everything the kernel writes filled with what must not remain.

Also what is legal in their place: ranges of sizes, and arrays that a caller brings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from ptxgen.dtypes import DType
from ptxgen.errors import SpecError, brief
from ptxgen.integers import as_index
from ptxgen.launch import Param, evaluate


class Sized(Protocol):
    """What is asked of a spec here: its sizes, and what is legal for them."""

    kernel_name: ClassVar[str]
    sizes: ClassVar[Mapping[str, int]]

    def params(self) -> tuple[Param, ...]:
        """The parameters in order."""

    def ranges(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """The least and the largest of every capacity, length and position."""


POISON_BYTE = 0x80  # of an integer output


def poison(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """An array of NaN, or of a value no result has where the type has no NaN."""
    if dtype.is_float:
        return np.full(shape, np.nan, np.float32).astype(dtype.numpy)
    return np.full(int(np.prod(shape)) * dtype.bytes, POISON_BYTE, np.uint8).view(dtype.numpy).reshape(shape)


def random_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, factor: float = 1.0) -> np.ndarray:
    """Standard-normal floats times `factor`, or integers over the whole range of the type."""
    if dtype.is_float:
        return (factor * rng.standard_normal(shape, np.float32)).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)


def scaled(param: Param, rng: np.random.Generator, sizes: Mapping[str, int], factor: float) -> np.ndarray:
    """A random floating-point argument, standard-normal numbers times `factor`."""
    return random_values(rng, _extents(param, sizes), param.dtype, factor)


def _extents(param: Param, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A parameter's shape, with these capacities."""
    return tuple(evaluate(extent, sizes) for extent in param.shape)


def arguments(
    params: Sequence[Param], rng: np.random.Generator, sizes: Mapping[str, int], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments by parameter name: `given` where it has them, else random (in, inout) or poison (out).

    Workspaces are left out: binding allocates them. `sizes` are the capacities that shapes name. A scalar or an
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
            raise TypeError(f"{param.name}: a scalar needs a value, from given()")
        shape = _extents(param, sizes)
        written = param.access == "out"
        out[param.name] = poison(shape, param.dtype) if written else random_values(rng, shape, param.dtype)
    return out


def ranges(spec: Sized, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """The least and the largest of every capacity, length and position, by the name of the size or of the argument.

    `sizes` override the spec's own.
    """
    return spec.ranges({**spec.sizes, **sizes})


def known_sizes(spec: Sized, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes as they are; `SpecError` for one that the spec does not have, or that is no integer."""
    if unknown := sizes.keys() - spec.sizes.keys():
        known = f"sizes are {', '.join(spec.sizes)}" if spec.sizes else "there are no sizes to give"
        raise SpecError(f"{type(spec).__name__}: {known} (got {', '.join(sorted(unknown))})")
    for name, value in sizes.items():
        if as_index(value) is None:
            raise SpecError(f"{type(spec).__name__}.{name}: must be an int (got {brief(value)})")
    return sizes


def check_sizes(spec: Sized, sizes: Mapping[str, int]) -> None:
    """`known_sizes`, and `SpecError` for one that is outside its range (see `ranges`)."""
    known_sizes(spec, sizes)
    _check_ranges(spec, sizes, sizes, [name for name in ranges(spec, sizes) if name in sizes])


def checked_inputs(
    spec: Sized, example: Mapping[str, Any], inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Arrays that replace arguments of `example`, as a launch takes them; zero-dimensional ones are scalars.

    Raises `SpecError` naming every array of another name, shape or dtype, and every length or position outside its
    range. What a parameter of pointers points to is one array, its members along the first axis. NumPy stores types
    that it does not have (bf16, e4m3) as bytes of their width, which is taken.
    """
    if unknown := sorted(inputs.keys() - example.keys()):
        raise SpecError(f"{spec.kernel_name} takes {', '.join(sorted(example))} (got {', '.join(unknown)})")
    fitted = {name: _fitted(value, example[name]) for name, value in inputs.items()}
    wrong = [f"{name}: must be {_described(example[name])} (got {_described(inputs[name])}"
             f"{_sizes_of(spec, name, inputs[name], sizes)})"
             for name, value in fitted.items() if value is None]  # fmt: skip
    if wrong:
        raise SpecError("\n".join(wrong))
    _check_ranges(spec, fitted, sizes, sorted(fitted))
    return fitted


def _sizes_of(spec: Sized, name: str, given: np.ndarray, sizes: Mapping[str, int]) -> str:
    """The end of an error about an array: the sizes with which it would fit, where capacities alone are others."""
    shape, at = given.shape, {**spec.sizes, **sizes}
    extents = next(param.shape for param in spec.params() if param.name == name)
    others = {e: n for e, n in zip(extents, shape, strict=False) if isinstance(e, str) and at.get(e, n) != n}
    others = {name: n for name, n in others.items() if name in at}
    fits = others and shape == tuple(evaluate(extent, {**at, **others}) for extent in extents)
    return f"; nearest: {' '.join(f'--size {name}={n}' for name, n in others.items())}" if fits else ""


def _check_ranges(spec: Sized, values: Mapping[str, Any], sizes: Mapping[str, int], names: Sequence[str]) -> None:
    limits = ranges(spec, sizes)
    for name in names:
        if name not in limits:
            continue
        least, most = limits[name]
        outside = [int(v) for v in np.ravel(values[name]) if not least <= v <= most]
        if outside:
            what = f"{type(spec).__name__}.{name}"
            raise SpecError(f"{what}: must be from {least} to {most} (got {', '.join(map(str, outside[:4]))})")


def _fitted(value: np.ndarray, like: Any) -> Any:
    """`value` in the form of an example's argument; None where shape or dtype do not fit."""
    if isinstance(like, np.ndarray):
        return _same_type(value, like.dtype) if value.shape == like.shape else None
    if isinstance(like, list):
        fits = value.shape == (len(like), *like[0].shape)
        whole = _same_type(value, like[0].dtype) if fits else None
        return None if whole is None else list(whole)
    kind = np.asarray(like).dtype
    if value.shape or value.dtype.kind not in ("iu" if kind.kind in "iu" else "iuf"):
        return None
    if kind.kind in "iu" and not np.iinfo(kind).min <= int(value) <= np.iinfo(kind).max:
        return None
    return kind.type(value)


def _same_type(value: np.ndarray, kind: np.dtype[Any]) -> np.ndarray | None:
    if value.dtype == kind:
        return value
    raw = value.dtype.kind == "V" and kind.isbuiltin != 1 and value.dtype.itemsize == kind.itemsize
    return np.ascontiguousarray(value).view(kind) if raw else None


def _described(value: Any) -> str:
    """`f32 [4, 64]`, `scalar s32`."""
    if isinstance(value, list):
        return f"{value[0].dtype} {[len(value), *value[0].shape]}"
    array = np.asarray(value)
    return f"{array.dtype} {list(array.shape)}" if array.shape else f"one {array.dtype}"
