"""What products have in common, whichever kernel type multiplies: what each says, and what follows from its weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ptxgen import rules
from ptxgen.idioms import activation as activations
from ptxgen.kernel import KernelType
from ptxgen.weights import weight_format
from ptxgen.weights.format import WeightFormat


class Multiplied(Protocol):
    """A product by itself: its size, its weights, and what follows from sums alone."""

    @property
    def n(self) -> int:
        """Rows of the matrix: outputs of a token."""

    @property
    def k(self) -> int:
        """Columns of the matrix: elements of a token."""

    @property
    def bias(self) -> bool:
        """Whether `bias` is added."""

    @property
    def activation(self) -> str:
        """Its name, "" for none."""

    @property
    def gated(self) -> bool:
        """Whether there are two matrices, the first of which is the gate's."""

    @property
    def kind(self) -> WeightFormat:
        """The format of the weights."""


class Surrounded(Multiplied, Protocol):
    """A product as an epilogue sees it: also what stands around it."""

    @property
    def norm(self) -> str:
        """The norm of x: "rms", or "" for none."""

    @property
    def eps(self) -> float:
        """What is added to the mean square."""

    @property
    def residual(self) -> bool:
        """Whether the result is added to what `out` holds."""

    @property
    def parts(self) -> int:
        """Matrices: gate and up, or one."""


def activation_rules(spec: Multiplied) -> Iterator[str]:
    """Reasons against an activation, a gate, and a bias beside it."""
    yield from rules.one_of("activation", spec.activation, ("", *activations.KINDS))
    if spec.gated and not spec.activation:
        yield "gated: needs an activation (got gated=True, activation=''; nearest: activation='silu')"
    if spec.gated and spec.bias:
        yield "bias: a gated product has none (got bias=True, gated=True; nearest: bias=False)"


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
