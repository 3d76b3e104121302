"""A Program's weights are packed some rows at a time: the same bytes, with little memory beside them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ptxgen.dtypes import f32, u8
from ptxgen.models import packing
from ptxgen.models.packing import packed
from ptxgen.models.program import Pairs, Part, Tensor
from ptxgen.weights import weight_format, weight_formats
from ptxgen.weights.order import interleave

ROWS, COLS = 400, 256  # three slices of 128 rows and 16 rows


@dataclass(frozen=True)
class Arrays:
    """As an opened file: the arrays of a format by name."""

    held: Mapping[str, Mapping[str, np.ndarray]]
    spec: Any = None
    tensors: Any = None

    def read(self, name: str) -> Mapping[str, np.ndarray]:
        return self.held[name]


def arrays_of(format: str, *names: str) -> Arrays:
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal((ROWS, COLS), np.float32) for name in names}
    return Arrays({name: weight_format(format).quantise(one) for name, one in values.items()})


def weight(format: str, *parts: Part, gated: bool = False) -> Tensor:
    nbytes = sum(weight_format(format).nbytes(part.rows, COLS) for part in parts)
    return Tensor("w", u8, (nbytes,), "weight", format, COLS, parts, gated)


@pytest.mark.parametrize("format", weight_formats())
def test_slices_are_the_bytes_of_the_whole(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a matrix, of two record by record, and of rows in another order."""
    source, kind = arrays_of(format, "a", "b"), weight_format(format)
    monkeypatch.setattr(packing, "SLICE", 1)
    whole = {name: kind.pack(source.read(name), ROWS, COLS) for name in "ab"}
    a, b = Part("a", ROWS), Part("b", ROWS)
    pieces = list(packed(weight(format, a), source))
    assert len(pieces) == 4
    assert np.array_equal(np.concatenate(pieces), whole["a"])
    both = np.concatenate(list(packed(weight(format, a, b), source)))
    assert np.array_equal(both, np.concatenate([whole["a"], whole["b"]]))
    mixed = np.concatenate(list(packed(weight(format, a, b, gated=True), source)))
    assert np.array_equal(mixed, interleave(whole["a"], whole["b"], kind.records(ROWS)))
    pairs = Pairs(16, 8)  # heads of 16 lie within the blocks of rows that share a scale
    moved = np.concatenate(list(packed(weight(format, Part("a", ROWS, pairs)), source)))
    values = kind.dequantise(source.read("a"), ROWS, COLS)[pairs.order(ROWS)]
    assert np.array_equal(kind.values(moved, ROWS, COLS), values)
    assert not np.array_equal(moved, whole["a"])


def test_vectors_are_one_piece() -> None:
    source = Arrays({name: {"weight": np.arange(32, dtype=np.float32) + n} for n, name in enumerate("ab")})
    (piece,) = packed(Tensor("w", f32, (64,), "weight", parts=(Part("a", 32, Pairs(16, 16)), Part("b", 32))), source)
    head = [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]
    assert piece.tolist() == [*head, *(16 + n for n in head), *range(1, 33)]


@pytest.mark.parametrize("format", weight_formats())
def test_packing_takes_a_few_slices_of_memory(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, kind = arrays_of(format, "a"), weight_format(format)
    monkeypatch.setattr(packing, "SLICE", 1)
    list(packed(weight(format, Part("a", ROWS)), source))  # what is made once
    tracemalloc.start()
    largest = max(piece.nbytes for piece in packed(weight(format, Part("a", ROWS)), source))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert largest == kind.nbytes(128, COLS)
    assert peak < 9 * largest + 20_000
