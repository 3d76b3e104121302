"""A Program's weights as the bytes that a device holds. Owns no format and no memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from ptxgen.models.files.modelfile import SCALED_ROWS, rows_of
from ptxgen.models.program import Part, Tensor
from ptxgen.models.spec import ModelSpec
from ptxgen.weights import weight_format
from ptxgen.weights.format import TILE_ROWS, WeightFormat
from ptxgen.weights.order import interleave

SLICE = 16 << 20  # bytes of a packed matrix that are made at a time; the host needs up to seven times as many for it


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
    """The bytes of a weight in pieces, in order, none much larger than `SLICE`; f32 of a vector, which is one piece."""
    if not tensor.format:
        vectors = [_rows(source.read(part.name)["weight"], part, 0, part.rows) for part in tensor.parts]
        yield np.concatenate([np.ravel(vector) for vector in vectors], dtype=np.float32)
        return
    format = weight_format(tensor.format)
    matrices = [_slices(part, source, format, tensor.cols) for part in tensor.parts]
    if tensor.gated:
        for first, second in zip(*matrices, strict=True):
            yield interleave(first, second, len(first) // format.record_bytes(tensor.cols))
    else:
        for matrix in matrices:
            yield from matrix


def _slices(part: Part, source: WeightSource, format: WeightFormat, cols: int) -> Iterator[np.ndarray]:
    """A matrix, packed some of its rows at a time."""
    arrays = source.read(part.name)
    fits = SLICE // format.record_bytes(cols) * TILE_ROWS
    each = max(SCALED_ROWS, fits // SCALED_ROWS * SCALED_ROWS)
    for start in range(0, part.rows, each):
        stop = min(start + each, part.rows)
        taken = {name: _rows(array, part, start, stop) for name, array in arrays.items()}
        yield format.pack(taken, stop - start, cols)


def _rows(array: np.ndarray, part: Part, start: int, stop: int) -> np.ndarray:
    """What belongs to rows `start` to `stop` of a part, in its order; blocks of rows have the same scales in any."""
    if part.pairs is None or np.shape(array)[:1] != (part.rows,):
        return rows_of(np.asarray(array), part.rows, start, stop)
    rows: np.ndarray = array[part.pairs.order(part.rows)[start:stop]]
    return rows
