"""Sums, products and dot products of registers."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg


def dot(b: Builder, total: Reg, left: Sequence[Reg], right: Sequence[Reg]) -> Reg:
    """`total` += Σ left[i] · right[i] in f32, one rounding a product, in the order of the registers."""
    for x, y in zip(left, right, strict=True):
        b.op("fma.rn.f32", total, x, y, total)
    return total


def add(b: Builder, into: Sequence[Reg], values: Sequence[Reg]) -> None:
    """`into[i]` += `values[i]` in f32."""
    for x, y in zip(into, values, strict=True):
        b.op("add.f32", x, x, y)


def multiply(b: Builder, into: Sequence[Reg], by: Reg | float | Sequence[Reg]) -> None:
    """`into[i]` *= `by`, or `by[i]` where that is a sequence, in f32."""
    factors = by if isinstance(by, Sequence) else [by] * len(into)
    for x, y in zip(into, factors, strict=True):
        b.op("mul.f32", x, x, y)
