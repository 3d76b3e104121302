"""Activations on f32 registers, to a few units of the last place, and in NumPy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms import convert
from ptxgen.idioms.log2 import LOG2E

if TYPE_CHECKING:
    import numpy as np

KINDS = ("silu", "gelu_tanh", "gelu")
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715
# erfc(z) = P(t) · exp(−z²) with t = 1 / (1 + 0.3275911 z), z ≥ 0, to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
_ERF_P = 0.3275911
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def activate(b: Builder, value: Reg, kind: str) -> None:
    """`value` becomes silu, gelu_tanh or gelu of itself."""
    if kind == "gelu":
        _gelu(b, value)
        return
    inner = convert.scratch(b, "activation_inner", "f32")
    if kind == "silu":
        b.op("mul.f32", inner, value, -LOG2E)
    else:  # x · sigmoid(2u), u = sqrt(2/pi) · (x + 0.044715 x³)
        b.op("mul.f32", inner, value, value)
        b.op("fma.rn.f32", inner, inner, -2 * LOG2E * _TANH_SCALE * _TANH_CUBE, -2 * LOG2E * _TANH_SCALE)
        b.op("mul.f32", inner, inner, value)
    b.note("x / (1 + 2^inner); 2^inner may be infinite, and the quotient 0")
    b.op("ex2.approx.ftz.f32", inner, inner)
    b.op("add.f32", inner, inner, 1.0)
    b.op("div.rn.f32", value, value, inner)


def _gelu(b: Builder, value: Reg) -> None:
    """x/2 · erfc(−x/√2), from erfc of the magnitude: no cancellation where x is negative."""
    size, t = convert.scratch(b, "activation_inner", "f32"), convert.scratch(b, "activation_t", "f32")
    tail, is_positive = convert.scratch(b, "activation_tail", "f32"), convert.scratch(b, "activation_positive", "pred")
    b.op("abs.f32", size, value)
    b.op("mul.f32", size, size, math.sqrt(0.5))
    b.op("fma.rn.f32", t, size, _ERF_P, 1.0)
    b.op("rcp.rn.f32", t, t)
    b.op("mov.f32", tail, _ERF[0])
    for factor in _ERF[1:]:
        b.op("fma.rn.f32", tail, tail, t, factor)
    b.op("mul.f32", tail, tail, t)
    b.op("mul.f32", size, size, size)
    b.op("mul.f32", size, size, -LOG2E)
    b.op("ex2.approx.ftz.f32", size, size)
    b.op("mul.f32", tail, tail, size)
    b.op("sub.f32", size, 2.0, tail)
    b.op("setp.gt.f32", is_positive, value, 0.0)
    b.op("selp.f32", tail, size, tail, is_positive)
    b.op("mul.f32", tail, tail, 0.5)
    b.op("mul.f32", value, value, tail)


def activated(values: np.ndarray, kind: str) -> np.ndarray:
    """The same in NumPy, float64."""
    import numpy as np

    x = values.astype(np.float64)
    if kind == "silu":
        return x / (1 + np.exp(-x))
    if kind == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(_TANH_SCALE * (x + _TANH_CUBE * x**3)))
    return 0.5 * x * np.vectorize(math.erfc, otypes=[np.float64])(-x * math.sqrt(0.5))
