"""`quantised`: an opened model with matrices in another weight format, quantised as they are read. Owns no format, only
which matrices have which, and that no values are lost without a word.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptxgen.errors import ConfigWarning, FileError, SpecError, brief, nearest
from ptxgen.models.files.modelfile import PLAIN, SCALED_ROWS, Held, ModelFile, Source, TensorInfo, is_vector, rows_of
from ptxgen.weights import weight_format, weight_formats

if TYPE_CHECKING:
    from ptxgen.weights import WeightFormat

HEAD = ("embed_tokens", "lm_head")
_WHOLE = "e4m3"  # whose rows share one scale
_AT_ONCE = 1 << 19  # values; in float32 they stay in a core's cache
_LOST = 0.5  # of the values' root mean square: formats that hold them are off by less, also in the worst case


def quantised(file: ModelFile, quantise: str | None = None, quantise_head: str | None = None) -> ModelFile:
    """The model of a file with matrices in other weight formats, by the names of `ptxgen.weights.weight_formats()`.

    `quantise` is for the matrices of the layers, `quantise_head` for `lm_head` and `embed_tokens`, which are one matrix
    where the head is tied. None: as they are. Vectors (norms, biases) stay f32. A matrix that the file has in the
    format already stays as it is; one in another quantised format keeps that one's error and gets a second one, of
    which a `ConfigWarning` tells. What this function quantised before is quantised anew from the file's values.

    Nothing is read yet. `read` quantises a matrix each time that it is asked for it, some rows at a time on all cores
    (in "e4m3", whose scale is the whole matrix', on one, which holds three times all of it in float32).

    Raises `SpecError` for unknown names, and for columns that a format cannot have: with the tensor and the formats
    that all of these matrices can have. `read` raises `FileError` for a matrix with NaN or infinities, and for values
    beyond the format's range: that the format would change by more than half of their root mean square.
    """
    held = dict(file.held)
    for option, name, of_head in (("quantise", quantise, False), ("quantise_head", quantise_head, True)):
        if name is None:
            continue
        _check_name(option, name)
        keys = [key for key in file.tensors if not is_vector(key) and (key in HEAD) == of_head]
        matrices = {key: file.held[key].origin or file.held[key] for key in keys}
        changed = {key: one for key, one in matrices.items() if one.info.format != name}
        _check_shapes(option, file, name, changed)
        _warn_of_second_errors(file, name, changed)
        held |= matrices | {key: _quantised(file, key, one, name) for key, one in changed.items()}
    return replace(file, held=held, tensors={key: held[key].info for key in file.tensors})


def _check_name(option: str, name: object) -> None:
    known = weight_formats()
    if not isinstance(name, str) or name not in known:
        raise SpecError(f"{option}: must be one of {', '.join(known)} (got {brief(name)}{nearest(name, known)})")


def _check_shapes(option: str, file: ModelFile, name: str, matrices: Mapping[str, Held]) -> None:
    """Refuse shapes before a weight is read."""
    shapes = {(one.info.rows, one.info.cols) for one in matrices.values()}
    for one in matrices.values():
        for reason in weight_format(name).rules(one.info.rows, one.info.cols):
            able = [each for each, format in weight_formats().items() if not any(any(format.rules(*s)) for s in shapes)]
            raise SpecError(f"{option}: {file.path}: {one.name} in {name}: {reason}; possible are {', '.join(able)}")


def _warn_of_second_errors(file: ModelFile, name: str, matrices: Mapping[str, Held]) -> None:
    again = [one.info.format for one in matrices.values() if one.info.format not in PLAIN]
    if again and name not in PLAIN:
        formats = ", ".join(dict.fromkeys(again))
        text = f"{len(again)} matrices are quantised already, in {formats}: {name} adds its error to theirs"
        warnings.warn(f"{file.path}: {text}", ConfigWarning, stacklevel=3)


def _quantised(file: ModelFile, key: str, held: Held, name: str) -> Held:
    """A matrix in a format."""
    shared = sum(each.name == held.name for each in file.held.values()) > 1
    where = f"{file.path}: {held.name}" + (f", of it {key}" if shared else "")
    return Held(replace(held.info, format=name), partial(_read, where, held, name), held.name, held)


class _Piece(NamedTuple):
    """Rows in a format; sums of squares, of their values and of what the format changed."""

    source: Source
    total: float
    error: float


def _read(where: str, held: Held, name: str) -> Source:
    """The arrays of a matrix in the format `name`. Raises `FileError` for values that it does not hold."""
    from concurrent.futures import ThreadPoolExecutor

    has, format, source = weight_format(held.info.format), weight_format(name), held.read()
    slices = [(0, held.info.rows)] if name == _WHOLE else list(_slices(held.info))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        pieces = list(pool.map(partial(_piece, where, held.info, has, format, source), slices))
    total, error = sum(piece.total for piece in pieces), sum(piece.error for piece in pieces)
    if not error <= _LOST**2 * total:  # also where it is NaN
        mean = (total / (held.info.rows * held.info.cols)) ** 0.5
        raise FileError(f"{where}: its values are beyond the range of {name} (their root mean square is {mean:.3g})")
    if len(pieces) == 1:
        return pieces[0].source
    return {key: np.concatenate([piece.source[key] for piece in pieces]) for key in pieces[0].source}


def _slices(info: TensorInfo) -> Iterator[tuple[int, int]]:
    """First row and the one behind the last: whole blocks of rows that share scales."""
    each = max(SCALED_ROWS, _AT_ONCE // info.cols // SCALED_ROWS * SCALED_ROWS)
    for start in range(0, info.rows, each):
        yield start, min(start + each, info.rows)


def _piece(
    where: str, info: TensorInfo, has: WeightFormat, format: WeightFormat, source: Source, between: tuple[int, int]
) -> _Piece:
    """Some rows of a matrix from one format to another."""
    start, stop = between
    taken = {key: rows_of(array, info.rows, start, stop) for key, array in source.items()}
    with np.errstate(all="ignore"):  # what is lost shows in the error
        values = has.dequantise(taken, stop - start, info.cols)
        if not np.isfinite(values).all():
            row, col = np.argwhere(~np.isfinite(values))[0]
            raise FileError(f"{where}: must be finite (got {values[row, col]} at [{start + row}, {col}])")
        made = format.quantise(values)
        change = format.dequantise(made, stop - start, info.cols) - values
    return _Piece(made, _squares(values), _squares(change))


def _squares(values: np.ndarray) -> float:
    """Sum of squares in float64, which f32 would overflow."""
    return float(np.einsum("ij,ij->", values, values, dtype=np.float64))
