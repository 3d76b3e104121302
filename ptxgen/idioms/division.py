"""Division of indices by constants, by products and shifts: assemblers do it the long way, powers of two included."""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch


def split(b: Builder, quotient: str | Reg, remainder: str | Reg, value: Reg, divisor: int) -> tuple[Reg, Reg]:
    """`value // divisor` and `value % divisor` of a u32, in registers of those names; by `div` and `rem` where the
    divisor is no power of two."""
    if divisor & (divisor - 1) == 0:
        whole = b.op("shr.u32", quotient, value, divisor.bit_length() - 1)
        return whole, b.op("and.b32", remainder, value, divisor - 1)
    return b.op("div.u32", quotient, value, divisor), b.op("rem.u32", remainder, value, divisor)


def divide_bounded(b: Builder, out: Reg, value: Reg, divisor: int, most: int) -> Reg:
    """`out = value // divisor` of a u32 of at most `most`. Raises ValueError where 32 bits are too few for it."""
    factor = -(-(1 << 32) // divisor)
    if most * (factor * divisor - (1 << 32)) >= 1 << 32:
        raise ValueError(f"divide_bounded: {most} may be too large for a division by {divisor} in 32 bits")
    if divisor == 1:
        b.op("mov.u32", out, value)
    elif divisor & (divisor - 1) == 0:
        b.op("shr.u32", out, value, divisor.bit_length() - 1)
    else:
        b.op("mul.hi.u32", out, value, factor)
    return out


def divide_any(b: Builder, quotient: str | Reg, value: Reg, divisor: int) -> Reg:
    """`value // divisor` of a u32 below 2^31, in that register."""
    shift = divisor.bit_length() - 1
    if divisor & (divisor - 1) == 0:
        whole: Reg = b.op("shr.u32", quotient, value, shift)
        return whole
    # factor · divisor − 2^(32 + shift) < divisor, so that a value below 2^31 is off by less than one in its last place
    whole = b.op("mul.hi.u32", quotient, value, -(-(1 << 32 + shift) // divisor))
    return b.op("shr.u32", whole, whole, shift) if shift else whole


def divide(b: Builder, name: str, value: Reg, by: int) -> Reg:
    """`value // by` as `divide_any` has it, into the register `name` (s32, declared when first used)."""
    return divide_any(b, scratch(b, name, "s32"), value, by)


def remainder(b: Builder, name: str, value: Reg, by: int) -> Reg:
    """`value % by` of a u32, into the register `name` (declared when first used)."""
    out = scratch(b, name, "u32")
    if by & (by - 1) == 0:
        b.op("and.b32", out, value, by - 1)
    else:
        b.op("rem.u32", out, value, by)
    return out
