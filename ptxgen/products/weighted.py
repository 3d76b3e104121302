"""What follows from the weights of a product, whichever kernel type multiplies by them."""

from __future__ import annotations

from ptxgen.kernel import KernelType
from ptxgen.weights import weight_format
from ptxgen.weights.format import WeightFormat


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
