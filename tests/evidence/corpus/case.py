"""A case: one launch of one corpus kernel, its inputs from a seed, what NumPy says, and how to run it on any device.

The cases themselves are in the `cases_*` modules, by topic.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
CASES: dict[str, Case] = {}


@dataclass(frozen=True)
class Unordered:
    """Expected elements whose order is free (who came first decides)."""

    values: np.ndarray


@dataclass(frozen=True)
class Close:
    """Expected values within `rtol` and `atol`; elsewhere results must be equal, NaN equal to NaN."""

    values: np.ndarray
    rtol: float = 1e-5
    atol: float = 0.0


@dataclass(frozen=True)
class MapOf:
    """An argument: a tensor map of the array at another position; `options` as `Device.tensor_map` has them."""

    position: int
    box: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """Arguments in order (arrays become buffers), and what the arrays at some positions must hold afterwards.

    `hidden` arrays come behind the arguments, for maps to lead to.
    """

    args: list[Any]
    expected: dict[int, np.ndarray | Unordered | Close] = field(default_factory=dict)
    hidden: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One launch. `make` draws the inputs from a generator that is seeded by the case's name."""

    name: str
    file: str
    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    make: Callable[[np.random.Generator], Work]
    shared: int = 0
    cluster: tuple[int, ...] = (1, 1, 1)

    @property
    def text(self) -> str:
        """The PTX of the case's file."""
        return (HERE / f"{self.file}.ptx").read_text()

    def work(self) -> Work:
        """Inputs and expectations, the same on every call."""
        return self.make(np.random.default_rng(zlib.crc32(self.name.encode())))

    def run(self, device: Any, module: Any = None) -> None:
        """Launches on `device` (`array`, `module(text)[entry].launch`) and raises `AssertionError` on a difference."""
        work = self.work()
        arrays = [*work.args, *work.hidden]
        args = [device.array(a) if isinstance(a, np.ndarray) else a for a in arrays]
        for n, a in enumerate(work.args):
            if isinstance(a, MapOf):
                args[n] = device.tensor_map(args[a.position], a.box, **a.options)
        kernel = (module or device.module(self.text))[self.entry]
        passed = args[: len(work.args)]
        kernel.launch(grid=self.grid, block=self.block, args=passed, shared=self.shared, cluster=self.cluster)
        for position, expected in work.expected.items():
            compare(f"{self.name}: argument {position}", args[position].numpy(), expected)


def compare(label: str, got: np.ndarray, expected: np.ndarray | Unordered | Close) -> None:
    """Asserts that `got` is what was expected."""
    if isinstance(expected, Unordered):
        np.testing.assert_array_equal(np.sort(got), np.sort(expected.values), label)
    elif isinstance(expected, Close):
        values = np.asarray(expected.values)
        np.testing.assert_allclose(got.view(values.dtype).reshape(values.shape), values, expected.rtol, expected.atol,
                                   err_msg=label)  # fmt: skip
    else:
        np.testing.assert_array_equal(got.view(expected.dtype).reshape(expected.shape), expected, label)


def case(
    file: str,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    *,
    entry: str = "",
    suffix: str = "",
    shared: int = 0,
    cluster: tuple[int, ...] = (1, 1, 1),
) -> Callable[[Callable[[np.random.Generator], Work]], Callable[[np.random.Generator], Work]]:
    """Registers the decorated maker as a case; the entry is the maker's name unless given."""

    def register(make: Callable[[np.random.Generator], Work]) -> Callable[[np.random.Generator], Work]:
        kernel = entry or make.__name__
        name = f"{kernel}{suffix}"
        assert name not in CASES, f"two cases are named {name}"
        dims = (grid if isinstance(grid, tuple) else (grid,), block if isinstance(block, tuple) else (block,))
        CASES[name] = Case(name, file, kernel, *dims, make, shared, cluster)
        return make

    return register


def ints(rng: np.random.Generator, shape: int | tuple[int, ...], low: int = -100, high: int = 100) -> np.ndarray:
    """Random int32 within [low, high)."""
    return rng.integers(low, high, shape, dtype=np.int32)


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal float32."""
    return rng.standard_normal(shape, dtype=np.float32)


def poison(count: int, dtype: str) -> np.ndarray:
    """A buffer that the kernel must overwrite: every byte 0xFF (NaN in every float type)."""
    return np.full(count * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype)
