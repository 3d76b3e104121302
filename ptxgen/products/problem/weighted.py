"""What follows from the weights of a product, whichever kernel type multiplies by them."""

from __future__ import annotations

from typing import Protocol

from ptxgen.kernel import KernelType
from ptxgen.weights import weight_format
from ptxgen.weights.format import WeightFormat


class Surrounded(Protocol):
    """A product as an epilogue sees it: its size, and what stands around it."""

    @property
    def norm(self) -> str: ...
    @property
    def eps(self) -> float: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def bias(self) -> bool: ...
    @property
    def activation(self) -> str: ...
    @property
    def gated(self) -> bool: ...
    @property
    def residual(self) -> bool: ...
    @property
    def parts(self) -> int: ...
    @property
    def kind(self) -> WeightFormat: ...


class Weighted(KernelType):
    """A kernel type with the fields `k`, `weights` and `gated`."""

    k: int
    weights: str
    gated: bool

    @property
    def kind(self) -> WeightFormat:
        """The format of the weights."""
        return weight_format(self.weights).fitted(self.k)

    @property
    def parts(self) -> int:
        """Matrices: gate and up, or one."""
        return 2 if self.gated else 1
