"""Activation functions of f32 registers, and the same in NumPy.

All are x · sigmoid-like factors of one ex2.approx and one rcp.approx; gelu's error function is Abramowitz and Stegun's
7.1.26, whose absolute error is below 1.5e-7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch
from ptxgen.idioms.log2 import LOG2E

if TYPE_CHECKING:
    import numpy as np

_TANH = math.sqrt(2 / math.pi)
_CUBE = 0.044715
_ERF = 0.3275911
_POLYNOMIAL = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def activate(b: Builder, kind: str, values: Sequence[Reg]) -> None:
    """Every value x becomes kind(x), a kind of `KINDS`; part of an open fragment."""
    for value in values:
        _EMIT[kind](b, value)


def _sigmoid_times(b: Builder, value: Reg, exponent: Reg) -> None:
    """value / (1 + 2^exponent). Where the power overflows the factor is 0."""
    b.op("ex2.approx.ftz.f32", exponent, exponent)
    b.op("add.f32", exponent, exponent, 1.0)
    b.op("rcp.approx.ftz.f32", exponent, exponent)
    b.op("mul.f32", value, value, exponent)


def _silu(b: Builder, value: Reg) -> None:
    exponent = scratch(b, "act_exponent", "f32")
    b.op("mul.f32", exponent, value, -LOG2E)
    _sigmoid_times(b, value, exponent)


def _gelu_tanh(b: Builder, value: Reg) -> None:
    """(1 + tanh(u)) / 2 is the sigmoid of 2u."""
    exponent = scratch(b, "act_exponent", "f32")
    b.op("mul.f32", exponent, value, value)
    b.op("fma.rn.f32", exponent, exponent, -2 * LOG2E * _TANH * _CUBE, -2 * LOG2E * _TANH)
    b.op("mul.f32", exponent, exponent, value)
    _sigmoid_times(b, value, exponent)


def _gelu(b: Builder, value: Reg) -> None:
    """x times the normal distribution up to x: half the complementary error function of |x|, or 1 less that."""
    t, power, tail = (scratch(b, f"act_{name}", "f32") for name in ("t", "power", "tail"))
    positive = scratch(b, "act_positive", "pred")
    b.op("abs.f32", t, value)
    b.op("fma.rn.f32", t, t, _ERF / math.sqrt(2), 1.0)
    b.op("rcp.approx.ftz.f32", t, t)
    b.op("mul.f32", power, value, value)
    b.op("mul.f32", power, power, -0.5 * LOG2E)
    b.op("ex2.approx.ftz.f32", power, power)
    first, *rest = (0.5 * coefficient for coefficient in _POLYNOMIAL)
    b.op("mov.f32", tail, first)
    for coefficient in rest:
        b.op("fma.rn.f32", tail, tail, t, coefficient)
    b.op("mul.f32", tail, tail, t)
    b.op("mul.f32", tail, tail, power)
    b.op("setp.gt.f32", positive, value, 0.0)
    b.op("sub.f32", power, 1.0, tail)
    b.op("selp.f32", tail, power, tail, positive)
    b.op("mul.f32", value, value, tail)


def _relu2(b: Builder, value: Reg) -> None:
    """Not by max.f32, which makes 0 of NaN."""
    negative = scratch(b, "act_negative", "pred")
    b.op("setp.lt.f32", negative, value, 0.0)
    b.op("selp.f32", value, 0.0, value, negative)
    b.op("mul.f32", value, value, value)


_EMIT: Mapping[str, Callable[[Builder, Reg], None]] = {
    "silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "relu2": _relu2,
}  # fmt: skip
KINDS = tuple(_EMIT)


def reference(kind: str, x: np.ndarray) -> np.ndarray:
    """kind(x) in float64."""
    import numpy as np

    x = x.astype(np.float64)
    if kind == "silu":
        with np.errstate(over="ignore"):  # to infinity, and the quotient to 0
            return np.asarray(x / (1 + np.exp(-x)))
    if kind == "gelu":
        return np.asarray(0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))))
    if kind == "gelu_tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(_TANH * (x + _CUBE * x**3))))
    return np.asarray(np.maximum(x, 0) ** 2)
