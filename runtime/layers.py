"""The memory of a KV cache: K and V of every layer, and the scales that int8 needs. Owns no lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxgen.dtypes import DType, f16, s8
from ptxgen.dtypes import dtype as to_dtype
from ptxgen.errors import CudaError, SpecError
from ptxgen.runtime.buffer import Buffer
from ptxgen.runtime.snapshot import SCALE_GROUP
from ptxgen.runtime.stream import Stream

if TYPE_CHECKING:
    from ptxgen.runtime.device import Device

KV_DTYPES = ("f32", "f16", "bf16", "e4m3", "s8")


def kv_dtype(label: str, value: object) -> DType:
    """A dtype that a cache can have; `SpecError` names them."""
    kind = to_dtype(value)
    if kind.name not in KV_DTYPES:
        raise SpecError(f"{label}.dtype: must be one of {', '.join(KV_DTYPES)} (got {kind})")
    return kind


def positive(label: str, **values: object) -> None:
    """Every value must be an int ≥ 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpecError(f"{label}.{name}: must be an int ≥ 1 (got {value!r})")


def scale_groups(head_dim: int) -> int:
    """Scales of one int8 row."""
    return -(-head_dim // SCALE_GROUP)


class KvLayers:
    """Per layer k_cache, v_cache `[*rows, head_dim]`, and for int8 k_scales, v_scales `[*rows, groups]` in f16."""

    def __init__(self, device: Device, n_layers: int, rows: tuple[int, ...], head_dim: int, dtype: DType) -> None:
        self.device = device
        shapes = [(name, (*rows, head_dim), dtype) for name in ("k_cache", "v_cache")]
        if dtype == s8:
            shapes += [(name, (*rows, scale_groups(head_dim)), f16) for name in ("k_scales", "v_scales")]
        self._layers: list[dict[str, Buffer]] = []
        try:
            for _ in range(n_layers):
                self._layers.append({})
                for name, shape, kind in shapes:
                    self._layers[-1][name] = device.empty(shape, kind)
        except CudaError:
            self.free()  # what was allocated before memory ran out
            raise

    def __bool__(self) -> bool:
        return bool(self._layers)

    @property
    def nbytes(self) -> int:
        """Device memory of all layers."""
        return sum(b.nbytes for layer in self._layers for b in layer.values())

    def buffers(self, layer: int) -> dict[str, Buffer]:
        """The buffers of a layer by parameter name."""
        if not self._layers:
            raise CudaError("KV cache: was freed; make a new one")
        if not 0 <= layer < len(self._layers):
            raise SpecError(f"KV cache: layer must be within 0 … {len(self._layers) - 1} (got {layer})")
        return self._layers[layer]

    def zero(self, stream: Stream | None = None) -> None:
        """Fill everything with zeros."""
        for layer in self._layers:
            for buffer in layer.values():
                buffer.zero(stream)

    def free(self) -> None:
        """Give the memory back; graphs and bound kernels that use it raise from then on."""
        layers, self._layers = self._layers, []
        for layer in layers:
            for buffer in layer.values():
                buffer.free()
