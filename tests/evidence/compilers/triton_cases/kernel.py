"""What the cases of Triton's texts share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.evidence.compilers.case import case
from tests.evidence.corpus.case import Close, Work

Maker = Callable[[np.random.Generator], Work]


def kernel(
    name: str, signature: str, grid: int | tuple[int, ...], *, suffix: str = "", least: str = "sm_75", warps: int = 4,
    stages: int = 3, **constants: Any,
) -> Callable[[Maker], Maker]:  # fmt: skip
    """A case of a kernel of `triton_kernels`; `signature` lists the arguments that are no constants."""
    how = dict(kernel=name, signature=signature, warps=warps, stages=stages, constants=constants)
    return case("triton", name + suffix, grid, least=least, **how)


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


class Brain(Close):
    """bf16 values that may differ by some units in the last place."""

    def __init__(self, values: np.ndarray, units: int) -> None:
        super().__init__(values.view(np.int16).astype(np.int16), 0, units)
