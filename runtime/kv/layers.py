"""The memory of a KV cache: K and V of every layer, and the scales that int8 needs. Owns no lengths."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.dtypes import DType, f16, s8
from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import CudaError, SpecError, brief
from ptxgen.integers import as_index
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.scales import dequantise, scale_groups

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device

KV_DTYPES = ("f32", "f16", "bf16", "e4m3", "s8")


def cache_dtype(label: str, value: object) -> DType:
    """A dtype that a cache can have; `SpecError` names them."""
    with contextlib.suppress(SpecError):
        if (kind := to_dtype(value)).name in KV_DTYPES:
            return kind
    raise SpecError(f"{label}: must be one of {', '.join(KV_DTYPES)} (got {brief(value)})")


def positive(label: str, **values: object) -> tuple[int, ...]:
    """The values, NumPy's integers too, as ints ≥ 1; anything else is a `SpecError`."""
    found = []
    for name, value in values.items():
        if (number := as_index(value)) is None or number < 1:
            raise SpecError(f"{label}.{name}: must be an int ≥ 1 (got {value!r})")
        found.append(number)
    return tuple(found)


def within(label: str, value: object, low: int, high: int) -> int:
    """`value` as an int of `low` … `high`; a `SpecError` for any other, and for what is no integer."""
    if type(value) is int and low <= value <= high:
        return value
    number = as_index(value)
    if number is None:
        raise SpecError(f"{label} must be an int within {low} … {high} (got {brief(value)})")
    if not low <= number <= high:
        raise SpecError(f"{label} must be within {low} … {high} (got {value!r})")
    return number


def from_zero(label: str, value: object) -> int:
    """`value` as an int ≥ 0; `SpecError` for anything else."""
    number = as_index(value)
    if number is None or number < 0:
        raise SpecError(f"{label} must be an int ≥ 0 (got {brief(value)})")
    return number


def flags(label: str, **values: object) -> None:
    """`SpecError` for one that is neither true nor false: a word like "no" would count as true."""
    for name, value in values.items():
        if not isinstance(value, bool | np.bool_):
            raise SpecError(f"{label}.{name}: must be a bool (got {brief(value)})")


def check_kind(label: str, kind: object) -> None:
    """Whether `kind` says keys or values."""
    if not isinstance(kind, str) or kind not in ("k", "v"):
        raise SpecError(f'{label}: kind must be "k" or "v" (got {brief(kind)})')


class KvLayers:
    """Per layer k_cache, v_cache `[*rows, head_dim]`, and for int8 k_scales, v_scales `[*rows, groups]` in f16; `rows`
    of every layer."""

    def __init__(self, device: Device, rows: Sequence[tuple[int, ...]], head_dim: int, dtype: DType) -> None:
        self.device, self.head_dim = device, head_dim
        widths = [(name, head_dim, dtype) for name in ("k_cache", "v_cache")]
        if dtype == s8:
            widths += [(name, scale_groups(head_dim), f16) for name in ("k_scales", "v_scales")]
        self._layers: list[dict[str, Buffer]] = []
        try:
            for shape in rows:
                self._layers.append({})
                for name, width, kind in widths:
                    self._layers[-1][name] = device.empty((*shape, width), kind)
        except CudaError:
            self.free()  # what was allocated before memory ran out
            raise

    def __bool__(self) -> bool:
        return bool(self._layers)

    @property
    def nbytes(self) -> int:
        """Device memory of all layers."""
        return sum(b.nbytes for layer in self._layers for b in layer.values())

    @property
    def held(self) -> list[dict[str, Buffer]]:
        """The buffers of all layers; `CudaError` after `free`."""
        if not self._layers:
            raise CudaError("KV cache: was freed; make a new one")
        return self._layers

    def buffers(self, layer: int) -> dict[str, Buffer]:
        """The buffers of a layer by parameter name."""
        return self.held[within("KV cache: layer", layer, 0, len(self._layers) - 1)]

    def values(
        self, label: str, layer: int, kind: str, at: tuple[int | slice, ...], n: int | None = None
    ) -> np.ndarray:
        """The first `n` values (None: all) of the "k" or "v" rows at an index, as float32; copies only these rows."""
        check_kind(label, kind)
        count = self.head_dim if n is None else within(f"{label}: n", n, 1, self.head_dim)
        held = self.buffers(layer)
        scales = held.get(f"{kind}_scales")
        rows = dequantise(held[f"{kind}_cache"][at].numpy(), None if scales is None else scales[at].numpy())
        return rows[..., :count]

    def zero(self, stream: object = None) -> None:
        """Fill everything with zeros."""
        for layer in self.held:
            for buffer in layer.values():
                buffer.zero(stream)

    def free(self) -> None:
        """Give the memory back; graphs and bound kernels that use it raise from then on."""
        layers, self._layers = self._layers, []
        for layer in layers:
            for buffer in layer.values():
                buffer.free()
