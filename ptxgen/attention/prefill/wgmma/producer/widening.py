"""Packed 8-bit values as packed f16 or bf16 ones, in as few instructions as there are."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType, e4m3, f16
from ptxgen.idioms.convert import pack, scratch, unpack, widen_e4m3

FLIP = -0x7F7F7F80  # four sign bits: byte ^ 128 is byte + 128
# 1024 + 128 in f16: with byte + 128 in the last bits of 1024, the difference is the byte.
HALF_BASE, HALF_MIDDLE = 0x64646464, 0x64806480
# In f32 the same with 2^15 and the byte eight bits up: so the base has few enough bits for its product with an f16 to
# be exact, and the sum of both products rounds nothing.
WIDE_BASE, WIDE_MIDDLE = 0x47000000, -(2.0**15 + 128)


def widen(b: Builder, packed: Sequence[Reg], words: Sequence[Reg], target: DType) -> None:
    """e4m3 values, exactly: two words for each of `words`."""
    if target == f16:
        widen_e4m3(b, packed, words)
        return
    values = [scratch(b, f"wide{i}", "f32") for i in range(4 * len(words))]
    unpack(b, values, words, e4m3)
    pack(b, packed, values, target)


def scaled(b: Builder, packed: Sequence[Reg], words: Sequence[Reg], scale: Reg, target: DType) -> None:
    """int8 values times `scale` (f16), rounded once: two words for each of `words`, which do not stay."""
    for word in words:
        b.op("xor.b32", word, word, FLIP)
    if target == f16:
        both = b.op("mov.b32", scratch(b, "both_scales", "b32"), (scale, scale))
        middle = b.op("mov.b32", scratch(b, "half_middle", "b32"), HALF_MIDDLE)
        for index, out in enumerate(packed):
            b.op("prmt.b32", out, words[index // 2], HALF_BASE, 0x4342 if index % 2 else 0x4140)
            b.op("sub.f16x2", out, out, middle)
            b.op("mul.f16x2", out, out, both)
        return
    wide = b.op("cvt.f32.f16", scratch(b, "wide_scale", "f32"), scale)
    middle = b.op("mul.f32", scratch(b, "wide_middle", "f32"), wide, WIDE_MIDDLE)
    values = [scratch(b, f"wide{i}", "f32") for i in range(4 * len(words))]
    bits = scratch(b, "wide_bits", "b32")
    for index, value in enumerate(values):
        b.op("prmt.b32", bits, words[index // 4], WIDE_BASE, 0x7404 | index % 4 << 4)
        b.op("mov.b32", value, bits)
        b.op("fma.rn.f32", value, value, wide, middle)
    pack(b, packed, values, target)


def sign_bits(b: Builder, scale: Reg) -> Reg:
    """The sign of an f32, as those of four bytes; part of an open fragment."""
    signs: Reg = b.op("mov.b32", scratch(b, "k_signs", "b32"), scale)
    b.op("and.b32", signs, signs, -0x80000000)
    upper = scratch(b, "k_sign", "b32")
    for distance in (16, 8):
        b.op("shr.u32", upper, signs, distance)
        b.op("or.b32", signs, signs, upper)
    return signs
