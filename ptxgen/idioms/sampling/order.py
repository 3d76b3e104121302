"""Values as unsigned integers that order as they do, and the largest of a warp with something that decides ties."""

from __future__ import annotations

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.idioms.convert import scratch


def ordered_key(b: Builder, key: Reg, value: Reg) -> None:
    """Bits that order as unsigned integers as the values do; -0 as +0, every NaN above all."""
    sign, is_nan = scratch(b, "sign", "b32"), scratch(b, "is_nan", "pred")
    b.op("add.f32", value, value, 0.0)
    b.op("mov.b32", key, value)
    b.op("shr.s32", sign, key, 31)
    b.op("or.b32", sign, sign, 0x80000000)
    b.op("xor.b32", key, key, sign)
    b.op("setp.nan.f32", is_nan, value, value)
    b.op("selp.b32", key, 0xFFFFFFFF, key, is_nan)


def ordered_bits(b: Builder, name: str, key: Reg) -> Reg:
    """The bits of the value that an ordered key stands for, in a register of that name."""
    b.note("back from the ordered key to the bits of the value")
    mask = b.op("shr.s32", "sign_mask", key, 31)
    b.op("not.b32", mask, mask)
    b.op("or.b32", mask, mask, 0x80000000)
    bits: Reg = b.op("xor.b32", name, key, mask)
    return bits


def largest_of_warp(b: Builder, key: Reg, low: Reg) -> None:
    """The warp's largest (key, low), compared as one 64-bit number, in every lane."""
    if b.target.includes_any(("sm_80",)):
        top, holds = scratch(b, "top_key", "u32"), scratch(b, "holds_top", "pred")
        b.op("redux.sync.max.u32", top, key, 0xFFFFFFFF)
        b.op("setp.eq.u32", holds, key, top)
        b.op("selp.b32", low, low, 0, holds)
        b.op("redux.sync.max.u32", low, low, 0xFFFFFFFF)
        b.op("mov.u32", key, top)
        return
    mine, theirs = scratch(b, "mine", "b64"), scratch(b, "theirs", "b64")
    other_key, other_low = scratch(b, "other_key", "b32"), scratch(b, "other_low", "b32")
    for distance in (16, 8, 4, 2, 1):
        b.op("shfl.sync.bfly.b32", other_key, key, distance, 31, 0xFFFFFFFF)
        b.op("shfl.sync.bfly.b32", other_low, low, distance, 31, 0xFFFFFFFF)
        b.op("mov.b64", theirs, (other_low, other_key))
        b.op("mov.b64", mine, (low, key))
        b.op("max.u64", mine, mine, theirs)
        b.op("mov.b64", (low, key), mine)
