"""Rows of elements in memory to f32 registers and back, for every cache type: 16-byte accesses where they fit."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.dtypes import DType
from ptxgen.errors import IsaError
from ptxgen.values import Addr, Not, Reg, RegArray, Shared

Base = Reg | Shared
Guard = Reg | Not | None


def words_of(dtype: DType, count: int) -> int:
    """32-bit words that `count` packed elements fill."""
    return count * dtype.bytes // 4


def load_words(b: Builder, words: Sequence[Reg], base: Base, offset: int = 0, *, space: str = "global",
               pred: Guard = None) -> None:
    """Load consecutive 32-bit words with the widest accesses (16 bytes at most); `space` may carry cache operators."""
    for first, vector in _vectors(len(words)):
        opcode = f"ld.{space}.v{vector}.b32" if vector > 1 else f"ld.{space}.b32"
        target = tuple(words[first : first + vector]) if vector > 1 else words[first]
        b.op(opcode, target, Addr(base, offset + 4 * first), pred=pred)


def store_words(b: Builder, base: Base, words: Sequence[Reg], offset: int = 0, *, space: str = "global",
                pred: Guard = None) -> None:
    """Store consecutive 32-bit words with the widest accesses."""
    for first, vector in _vectors(len(words)):
        opcode = f"st.{space}.v{vector}.b32" if vector > 1 else f"st.{space}.b32"
        source = tuple(words[first : first + vector]) if vector > 1 else words[first]
        b.op(opcode, Addr(base, offset + 4 * first), source, pred=pred)


def unpack(b: Builder, values: Sequence[Reg], words: Sequence[Reg], dtype: DType) -> None:
    """Widen packed elements to f32: `values` has one register an element, `words` are b32. No instruction for f32."""
    per_word = 4 // dtype.bytes
    for index, word in enumerate(words):
        _UNPACK[dtype.name](b, values[index * per_word : (index + 1) * per_word], word)


def pack(b: Builder, words: Sequence[Reg], values: Sequence[Reg], dtype: DType) -> None:
    """Round f32 registers to packed elements, to nearest even; e4m3 saturates to ±448. `values` stay as they are."""
    per_word = 4 // dtype.bytes
    for index, word in enumerate(words):
        _PACK[dtype.name](b, word, values[index * per_word : (index + 1) * per_word])


def _vectors(count: int) -> list[tuple[int, int]]:
    out, first = [], 0
    while first < count:
        vector = next(v for v in (4, 2, 1) if v <= count - first)
        out.append((first, vector))
        first += vector
    return out


def _halves(b: Builder, word: Reg) -> tuple[Reg, Reg]:
    """Two scratch b16 registers holding a word's halves."""
    low, high = scratch(b, "half_lo", "b16"), scratch(b, "half_hi", "b16")
    b.op("mov.b32", (low, high), word)
    return low, high


def scratch(b: Builder, name: str, type: str) -> Reg:
    """A register used and forgotten within an idiom; declared once a kernel."""
    found = b.registers.get(name)
    return found if found is not None else b.reg(name, type)


def _unpack_f32(b: Builder, values: Sequence[Reg], word: Reg) -> None:
    b.op("mov.b32", values[0], word)


def _unpack_f16(b: Builder, values: Sequence[Reg], word: Reg) -> None:
    for value, half in zip(values, _halves(b, word), strict=True):
        b.op("cvt.f32.f16", value, half)


def _unpack_bf16(b: Builder, values: Sequence[Reg], word: Reg) -> None:
    bits = scratch(b, "bf16_bits", "b32")
    b.op("shl.b32", bits, word, 16)
    b.op("mov.b32", values[0], bits)
    b.op("and.b32", bits, word, -65536)
    b.op("mov.b32", values[1], bits)


def _unpack_e4m3(b: Builder, values: Sequence[Reg], word: Reg) -> None:
    if b.target.includes_any(("sm_89",)):
        pair = scratch(b, "f16_pair", "b32")
        for index, half in enumerate(_halves(b, word)):
            b.op("cvt.rn.f16x2.e4m3x2", pair, half)
            low, high = scratch(b, "wide_lo", "b16"), scratch(b, "wide_hi", "b16")
            b.op("mov.b32", (low, high), pair)
            b.op("cvt.f32.f16", values[2 * index], low)
            b.op("cvt.f32.f16", values[2 * index + 1], high)
        return
    # Without the instruction: the 7 magnitude bits are the top of an f16 whose exponent is 8 too small, so
    # f16(bits) · 2⁸ is exact, denormals included; the one NaN pattern (all ones) is set by hand.
    bits, magnitude = scratch(b, "e4m3_bits", "b32"), scratch(b, "e4m3_magnitude", "b32")
    half, is_nan = scratch(b, "half_lo", "b16"), scratch(b, "e4m3_nan", "pred")
    for index, value in enumerate(values):
        b.op("shr.u32", bits, word, 8 * index)
        b.op("and.b32", magnitude, bits, 127)
        b.op("setp.eq.u32", is_nan, magnitude, 127)
        b.op("shl.b32", magnitude, magnitude, 7)
        b.op("cvt.u16.u32", half, magnitude)
        b.op("cvt.f32.f16", value, half)
        b.op("mul.f32", value, value, 256.0)
        b.op("selp.f32", value, float("nan"), value, is_nan)
        b.op("and.b32", bits, bits, 128)
        b.op("shl.b32", bits, bits, 24)
        b.op("mov.b32", magnitude, value)
        b.op("or.b32", magnitude, magnitude, bits)
        b.op("mov.b32", value, magnitude)


def _unpack_s8(b: Builder, values: Sequence[Reg], word: Reg) -> None:
    byte = scratch(b, "s8_byte", "s32")
    for index, value in enumerate(values):
        b.op("bfe.s32", byte, word, 8 * index, 8)
        b.op("cvt.rn.f32.s32", value, byte)


def _pack_f32(b: Builder, word: Reg, values: Sequence[Reg]) -> None:
    b.op("mov.b32", word, values[0])


def _pack_f16(b: Builder, word: Reg, values: Sequence[Reg]) -> None:
    if b.target.includes_any(("sm_80",)):
        b.op("cvt.rn.f16x2.f32", word, values[1], values[0])
        return
    low, high = scratch(b, "half_lo", "b16"), scratch(b, "half_hi", "b16")
    b.op("cvt.rn.f16.f32", low, values[0])
    b.op("cvt.rn.f16.f32", high, values[1])
    b.op("mov.b32", word, (low, high))


def _pack_bf16(b: Builder, word: Reg, values: Sequence[Reg]) -> None:
    if b.target.includes_any(("sm_80",)):
        b.op("cvt.rn.bf16x2.f32", word, values[1], values[0])
        return
    # Round to nearest even on the bits: add 0x7fff plus the lowest kept bit; a NaN becomes the canonical one.
    bits, odd, is_nan = scratch(b, "bf16_bits", "b32"), scratch(b, "bf16_odd", "b32"), scratch(b, "bf16_nan", "pred")
    for index, value in enumerate(values):
        b.op("mov.b32", bits, value)
        b.op("bfe.u32", odd, bits, 16, 1)
        b.op("add.u32", bits, bits, odd)
        b.op("add.u32", bits, bits, 32767)
        b.op("setp.nan.f32", is_nan, value, value)
        b.op("selp.b32", bits, 0x7FFF0000, bits, is_nan)
        b.op("shr.u32", bits, bits, 16)
        if index == 0:
            b.op("mov.b32", word, bits)
        else:
            b.op("prmt.b32", word, word, bits, 0x5410)


def _pack_e4m3(b: Builder, word: Reg, values: Sequence[Reg]) -> None:
    if not b.target.includes_any(("sm_89",)):
        raise IsaError("conversion to e4m3 needs sm_89 or later")
    low, high = scratch(b, "half_lo", "b16"), scratch(b, "half_hi", "b16")
    b.op("cvt.rn.satfinite.e4m3x2.f32", low, values[1], values[0])
    b.op("cvt.rn.satfinite.e4m3x2.f32", high, values[3], values[2])
    b.op("mov.b32", word, (low, high))


def _pack_s8(b: Builder, word: Reg, values: Sequence[Reg]) -> None:
    byte = scratch(b, "s8_byte", "s32")
    for index, value in enumerate(values):
        b.op("cvt.rni.sat.s8.f32", byte, value)
        if index == 0:
            b.op("and.b32", word, byte, 255)
        else:
            b.op("bfi.b32", word, byte, word, 8 * index, 8)


_UNPACK = {"f32": _unpack_f32, "f16": _unpack_f16, "bf16": _unpack_bf16, "e4m3": _unpack_e4m3, "s8": _unpack_s8}
_PACK = {"f32": _pack_f32, "f16": _pack_f16, "bf16": _pack_bf16, "e4m3": _pack_e4m3, "s8": _pack_s8}

__all__ = ["RegArray", "load_words", "pack", "scratch", "store_words", "unpack", "words_of"]
