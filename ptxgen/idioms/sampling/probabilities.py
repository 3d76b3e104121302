"""Probabilities as integers: 2^y for y ≤ 0 in units of 2⁻³¹, the same bits in PTX and in NumPy on any machine.

Every step is an f32 operation with one rounding (no fused multiply-add, no approximation instruction) or an integer
one. Their sums do not depend on their order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import ROUNDS, scratch

if TYPE_CHECKING:
    import numpy as np

ONE_BITS = 31  # 2³¹ is a probability of 1
LEAST = -64.0  # of exponents: far below what rounds to nothing
_ROUND_BITS = 0x4B400000
_TAYLOR = tuple(math.log(2) ** n / math.factorial(n) for n in reversed(range(7)))  # 2^f, |f| ≤ 1/2, within 2e-7


def emit(b: Builder, weight: Reg, exponent: Reg) -> None:
    """The u32 `weight` of an f32 exponent y ≤ 0, which is spent; NaN counts as 0 probability."""
    whole, rest = scratch(b, "weight_whole", "f32"), scratch(b, "weight_rest", "f32")
    power, bits = scratch(b, "weight_power", "f32"), scratch(b, "weight_bits", "b32")
    b.op("max.f32", exponent, exponent, LEAST)
    b.op("add.rn.f32", whole, exponent, ROUNDS)
    b.op("mov.b32", weight, whole)
    b.op("sub.rn.f32", whole, whole, ROUNDS)
    b.op("sub.rn.f32", rest, exponent, whole)
    b.op("mov.f32", power, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        b.op("mul.rn.f32", power, power, rest)
        b.op("add.rn.f32", power, power, coefficient)
    b.note("times 2^(whole + 31), by its exponent")
    b.op("sub.u32", weight, weight, _ROUND_BITS - ONE_BITS)
    b.op("shl.b32", weight, weight, 23)
    b.op("mov.b32", bits, power)
    b.op("add.u32", weight, weight, bits)
    b.op("mov.b32", power, weight)
    b.op("cvt.rni.u32.f32", weight, power)


def probabilities(exponents: np.ndarray) -> np.ndarray:
    """The same in NumPy: uint64 of f32 exponents."""
    import numpy as np

    one = np.float32
    y = np.where(np.isnan(exponents), one(LEAST), np.maximum(exponents, one(LEAST))).astype(one)
    whole = (y + one(ROUNDS)) - one(ROUNDS)
    rest, power = y - whole, np.full_like(y, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        power = power * rest + one(coefficient)  # two roundings: arrays of f32
    scaled = (power.view(np.int32) + ((whole.astype(np.int32) + ONE_BITS) << 23)).view(one)
    return np.asarray(np.rint(scaled.astype(np.float64)), np.uint64)
