"""A Program's weights as the bytes that a device holds. Owns no format and no memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from ptxgen.models.program import Part, Tensor
from ptxgen.models.spec import ModelSpec
from ptxgen.weights import weight_format
from ptxgen.weights.format import interleave


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


def formats_of(source: WeightSource) -> dict[str, str]:
    """The format of every tensor of a file."""
    return {name: info.format for name, info in source.tensors.items()}


def packed(tensor: Tensor, source: WeightSource) -> Iterator[np.ndarray]:
    """The bytes of a weight in pieces, in order; f32 of a vector. Matrices below one another come one at a time."""
    if not tensor.format:
        yield np.concatenate([np.ravel(_read(source, part)["weight"]) for part in tensor.parts], dtype=np.float32)
        return
    format = weight_format(tensor.format)
    matrices = (format.pack(_read(source, part), part.rows, tensor.cols) for part in tensor.parts)
    if tensor.gated:
        yield interleave(next(matrices), next(matrices), format.records(tensor.parts[0].rows))
    else:
        yield from matrices


def _read(source: WeightSource, part: Part) -> Mapping[str, np.ndarray]:
    """A tensor's arrays, their rows in the part's order. What belongs to all rows, or to blocks of 128, stays."""
    arrays = source.read(part.name)
    if part.pairs is None:
        return arrays
    order = part.pairs.order(part.rows)
    return {name: np.asarray(a)[order] if np.shape(a)[:1] == (part.rows,) else a for name, a in arrays.items()}
