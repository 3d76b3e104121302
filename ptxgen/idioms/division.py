"""Division of indices by constants, which assemblers do the long way."""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch


def divide(b: Builder, name: str, value: Reg, by: int) -> Reg:
    """value // by for a value of at least 0 and below 2³¹, into the register `name` (declared when first used).

    With 2ˢ ≥ by the factor 2³¹⁺ˢ / by, rounded up, is too large by less than 1, and the quotient by less than 1 / by.
    """
    out = scratch(b, name, "s32")
    shift = (by - 1).bit_length()
    if by == 1 << shift:
        b.op("shr.u32", out, value, shift)
    else:
        b.op("mul.hi.u32", out, value, -(-(1 << 31 + shift) // by))
        b.op("shr.u32", out, out, shift - 1)
    return out


def remainder(b: Builder, name: str, value: Reg, by: int) -> Reg:
    """value % by of the same, into the register `name`."""
    out = scratch(b, name, "u32")
    if by & (by - 1) == 0:
        b.op("and.b32", out, value, by - 1)
    else:
        b.op("rem.u32", out, value, by)
    return out
