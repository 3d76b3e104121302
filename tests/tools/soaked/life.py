"""A life of a random cache: random operations, each compared with the float64 oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from ptxgen.dtypes import dtype
from ptxgen.errors import CapacityError
from ptxgen.parity import LIMITS, compare
from ptxgen.runtime import BatchedKvCache, Device, KvCache
from tests.support.attention.kv_caches import KINDS

QUERIES = ("f32", "f16", "bf16")


class Life:
    """A random shape, and operations by name with their chances. `dice` decides the shape, `rng` all that happens."""

    CHANCES: ClassVar[dict[str, float]]

    def __init__(self, device: Device, dice: np.random.Generator, rng: np.random.Generator) -> None:
        self.device, self.rng = device, rng
        self.kv_heads = int(dice.choice([1, 2, 3, 4, 8]))
        self.heads = self.kv_heads * int(dice.choice([1, 2, 3, 4, 7, 8]))
        self.dim = int(dice.choice([32, 64, 80, 128]))
        self.kind, self.query = str(dice.choice(KINDS)), str(dice.choice(QUERIES))
        self.layers = int(dice.integers(1, 4))
        self.shape, self.kv_shape = (self.heads, self.dim), (self.kv_heads, self.dim)
        self.limit = max(LIMITS[self.kind], LIMITS[self.query])
        self.worst = 0.0

    def step(self) -> str:
        """One random operation; its name."""
        chances = np.array(list(self.CHANCES.values()))
        name = str(self.rng.choice(list(self.CHANCES), p=chances / chances.sum()))
        getattr(self, name)()
        self.agree(name)
        return name

    def agree(self, after: str) -> None:
        """Lengths are the oracle's."""
        raise NotImplementedError

    def contents(self) -> list[bytes]:
        """All bytes of all caches."""
        raise NotImplementedError

    def random(self, *shape: int) -> np.ndarray:
        """Normal values that the query type holds."""
        return self.rng.standard_normal(shape, np.float32).astype(dtype(self.query).numpy)

    def nan(self, *shape: int) -> np.ndarray:
        return np.full(shape, np.nan, np.float32).astype(dtype(self.query).numpy)

    def check(self, got: np.ndarray, want: np.ndarray, what: str) -> None:
        verdict = compare(what, got, want, self.limit)
        if not verdict.ok:
            raise AssertionError(f"{verdict}; {self!r}")
        self.worst = max(self.worst, verdict.error / verdict.limit)

    def refused(self, call: Callable[[], object]) -> None:
        """A call that a full cache refuses, and that has changed nothing."""
        before = self.contents()
        try:
            call()
        except CapacityError:
            assert self.contents() == before, f"a refused call wrote; {self!r}"
            return
        raise AssertionError(f"no CapacityError; {self!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.heads}/{self.kv_heads}/{self.dim} {self.query}, {self.kind})"


def floats(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32)


def bytes_of(cache: KvCache | BatchedKvCache) -> list[bytes]:
    return [b.numpy().tobytes() for layer in range(cache.n_layers) for b in cache.buffers(layer).values()]
