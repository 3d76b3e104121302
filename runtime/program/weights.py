"""A Program's weights from a file to the device: packed one by one, never twice in memory. Owns no format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ptxgen.models.program import Tensor
from ptxgen.models.spec import ModelSpec
from ptxgen.runtime.core.buffer import Buffer
from ptxgen.weights import weight_format

if TYPE_CHECKING:
    from ptxgen.runtime.core.device import Device


class Info(Protocol):
    """What a file says of a tensor: weight format, rows and columns (of a vector 1 and n)."""

    @property
    def format(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...


class WeightSource(Protocol):
    """An opened model, as `ptxgen.models.files` gives it."""

    @property
    def spec(self) -> ModelSpec: ...
    @property
    def tensors(self) -> Mapping[str, Info]: ...
    def read(self, name: str) -> Mapping[str, np.ndarray]:
        """The arrays of a tensor's format; a vector is {"weight": f32 [n]}."""
        ...


Progress = Callable[[int, int], None]
"""Told after every tensor: bytes that are on the device, and bytes of all."""


def formats_of(source: WeightSource) -> dict[str, str]:
    """The format of every tensor of a file."""
    return {name: info.format for name, info in source.tensors.items()}


def load_weights(
    device: Device, tensors: tuple[Tensor, ...], source: WeightSource, progress: Progress | None = None
) -> dict[str, Buffer]:
    """The weights among `tensors` on the device, by name."""
    weights = {tensor.name: tensor for tensor in tensors if tensor.kind == "weight"}
    total, done = sum(tensor.nbytes for tensor in weights.values()), 0
    found: dict[str, Buffer] = {}
    for name, tensor in weights.items():
        found[name] = device.empty(tensor.shape, tensor.dtype)
        offset = 0
        for packed in _packed(tensor, source):
            found[name].view(packed.shape, packed.dtype, offset).copy_from(packed)
            offset += packed.nbytes
        done += tensor.nbytes
        if progress is not None:
            progress(done, total)
    return found


def _packed(tensor: Tensor, source: WeightSource) -> list[np.ndarray] | map[np.ndarray]:
    """The bytes of a weight in order; matrices that stand below one another one at a time."""
    if not tensor.format:
        return [np.concatenate([np.ravel(source.read(part.name)["weight"]) for part in tensor.parts])]
    format = weight_format(tensor.format)

    def pack(index: int) -> np.ndarray:
        part = tensor.parts[index]
        return format.pack(source.read(part.name), part.rows, tensor.cols)

    if tensor.gated:
        from ptxgen.weights.format import interleave

        return [interleave(pack(0), pack(1), format.records(tensor.parts[0].rows))]
    return map(pack, range(len(tensor.parts)))
