"""Rows of elements in memory to f32 registers and back, for every cache type: 16-byte accesses where they fit.

Packed elements travel in b32 *words*. Conversions that a target lacks are done on the bits, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.builder.values import Addr, Not, Reg, RegArray, Shared, Table
from ptxgen.dtypes import DType, bf16
from ptxgen.errors import SpecError

Base = Reg | Shared | Table
Guard = Reg | Not | None
ROUNDS = 12582912.0  # 2^23 + 2^22: a number below 2^22, added to it, is the nearest integer, in the low bits of the sum
RUN = 24  # lines of the same work, after which the next piece of it has a heading


def words_of(dtype: DType, count: int) -> int:
    """32-bit words that `count` packed elements fill."""
    return count * dtype.bytes // 4


def load_words(b: Builder, words: Sequence[Reg], base: Base, offset: int = 0, *, space: str = "global",
               pred: Guard = None) -> None:  # fmt: skip
    """Load consecutive 32-bit words with the widest accesses (16 bytes at most); `space` may carry cache operators."""
    type = words[0].type
    for first, vector in vectors(len(words)):
        target = tuple(words[first : first + vector]) if vector > 1 else words[first]
        b.op(f"ld.{space}{_suffix(vector)}.{type}", target, Addr(base, offset + 4 * first), pred=pred)


def store_words(b: Builder, base: Base, words: Sequence[Reg], offset: int = 0, *, space: str = "global",
                pred: Guard = None) -> None:  # fmt: skip
    """Store consecutive 32-bit words with the widest accesses."""
    type = words[0].type
    for first, vector in vectors(len(words)):
        source = tuple(words[first : first + vector]) if vector > 1 else words[first]
        b.op(f"st.{space}{_suffix(vector)}.{type}", Addr(base, offset + 4 * first), source, pred=pred)


def store_one(b: Builder, base: Reg, value: Reg, dtype: DType, *, pred: Guard = None) -> None:
    """Store one f32 as an element, rounded as `pack` does."""
    if dtype.name == "f32":
        b.op("st.global.f32", base[0], value, pred=pred)
        return
    word = scratch(b, "one_word", "b32")
    pack(b, (word,), (value,) * (4 // dtype.bytes), dtype)
    b.op(f"st.global.b{8 * dtype.bytes}", base[0], word, pred=pred)


def word_array(b: Builder, name: str, values: RegArray, dtype: DType) -> RegArray:
    """Registers for the packed form of `values`: an array of that name, or for f32 the values themselves."""
    return values if dtype.name == "f32" else b.array(name, "b32", words_of(dtype, len(values)))


def clear(b: Builder, words: Sequence[Reg]) -> None:
    """Zero registers that a guarded load may leave alone."""
    for word in words:
        b.op(f"mov.{word.type}", word, 0.0 if word.type == "f32" else 0)


def unpack(b: Builder, values: Sequence[Reg], words: Sequence[Reg], dtype: DType) -> None:
    """Widen packed elements to f32, exactly: `values` has one register an element. Nothing where both are the same."""
    if values[0] is words[0]:
        return
    _check(b, dtype)
    per_word = 4 // dtype.bytes
    for index, word in enumerate(words):
        b.note(f"{values[index * per_word].name} and those after it, as f32", after=RUN)
        _UNPACK[dtype.name](b, values[index * per_word : (index + 1) * per_word], word)


def _check(b: Builder, dtype: DType) -> None:
    """Whether there is arithmetic for a type."""
    if dtype.name not in _UNPACK:
        known = f"elements that become f32 must be {', '.join(_UNPACK)}"
        raise SpecError(f"{b.spec.kernel_name}: {known} (got {dtype}); rules() should refuse it, by rules.one_of")


def e4m3_to_f16(b: Builder, source: DType, target: DType) -> bool:
    """Whether the target GPU turns elements of one type into the other at once."""
    return source.name == "e4m3" and target.name == "f16" and b.target.includes_any(("sm_89",))


def widen_e4m3(b: Builder, wide: Sequence[Reg], words: Sequence[Reg]) -> None:
    """Packed e4m3 elements as packed f16, exactly: two words for each of `words`; where `e4m3_to_f16`."""
    for index, word in enumerate(words):
        for half, out in zip(_halves(b, word), wide[2 * index : 2 * index + 2], strict=True):
            b.op("cvt.rn.f16x2.e4m3x2", out, half)


def pack(b: Builder, words: Sequence[Reg], values: Sequence[Reg], dtype: DType) -> None:
    """Round f32 registers to packed elements, to nearest even; `values` stay as they are.

    e4m3 saturates to ±448, int8 to -128 … 127 with NaN as 0. Nothing where `values` and `words` are the same.
    """
    if values[0] is words[0]:
        return
    _check(b, dtype)
    per_word = 4 // dtype.bytes
    for index, word in enumerate(words):
        b.note(f"{values[index * per_word].name} and those after it, as {dtype}", after=RUN)
        _PACK[dtype.name](b, word, values[index * per_word : (index + 1) * per_word])


def split_digits(
    b: Builder, values: Sequence[Reg], digits: Sequence[Sequence[Reg]], dtype: DType = bf16
) -> None:  # fmt: skip
    """f32 into digits, packed: every digit is the nearest number of a type of what those before it leave."""
    back = [scratch(b, f"digit_back{i}", "f32") for i in range(len(values))]
    for index, digit in enumerate(digits):
        pack(b, digit, values, dtype)
        if index + 1 < len(digits):
            unpack(b, back, digit, dtype)
            for value, less in zip(values, back, strict=True):
                b.op("sub.f32", value, value, less)


def vectors(count: int) -> list[tuple[int, int]]:
    """`count` consecutive words as (first, length) of accesses of 4, 2 and 1 words."""
    out, first = [], 0
    while first < count:
        vector = next(v for v in (4, 2, 1) if v <= count - first)
        out.append((first, vector))
        first += vector
    return out


def scratch(b: Builder, name: str, type: str) -> Reg:
    """A register used and forgotten within an idiom; declared once a kernel."""
    found = b.known(name)
    return found if found is not None else b.reg(name, type)


def again(b: Builder, name: str) -> str | Reg:
    """A destination: the register of that name, or where none is declared yet the name, which declares it."""
    found = b.known(name)
    return name if found is None else found


def scratch_array(b: Builder, name: str, type: str, count: int) -> RegArray:
    """An array of registers that is declared once and used again."""
    found = b.known_array(name)
    return found if found is not None else b.array(name, type, count)


def _suffix(vector: int) -> str:
    return f".v{vector}" if vector > 1 else ""


def _halves(b: Builder, word: Reg) -> tuple[Reg, Reg]:
    """Two scratch b16 registers holding a word's halves."""
    low, high = scratch(b, "half_lo", "b16"), scratch(b, "half_hi", "b16")
    b.op("mov.b32", (low, high), word)
    return low, high


# -- widening --------------------------------------------------------------------------------------------------------


def _unpack_f32(b: Builder, values: Sequence[Reg], word: Reg) -> None:
    b.op("mov.b32", values[0], word)


def _unpack_f16(b: Builder, values: Sequence[Reg], word: Reg) -> None:
    for value, half in zip(values, _halves(b, word), strict=True):
        b.op("cvt.f32.f16", value, half)


def _unpack_bf16(b: Builder, values: Sequence[Reg], word: Reg) -> None:
    # A bf16 is the upper half of its f32.
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
    # The 7 magnitude bits are the top of an f16 whose exponent is 8 too small, so f16(bits) · 2⁸ is exact, denormals
    # included. The one NaN pattern (all ones) comes out as 480, which no finite e4m3 reaches.
    spread, sign = scratch(b, "e4m3_spread", "b32"), scratch(b, "e4m3_sign", "b32")
    is_nan, size = scratch(b, "e4m3_nan", "pred"), scratch(b, "e4m3_size", "f32")
    for index in range(2):
        b.op("prmt.b32", spread, word, 0, 0x1404 if index == 0 else 0x3424)
        b.op("and.b32", sign, spread, -0x7FFF8000)
        b.op("and.b32", spread, spread, 0x7F007F00)
        b.op("shr.u32", spread, spread, 1)
        b.op("or.b32", spread, spread, sign)
        for value, half in zip(values[2 * index : 2 * index + 2], _halves(b, spread), strict=True):
            b.op("cvt.f32.f16", value, half)
            b.op("mul.f32", value, value, 256.0)
            b.op("abs.f32", size, value)
            b.op("setp.eq.f32", is_nan, size, 480.0)
            b.op("selp.f32", value, float("nan"), value, is_nan)


def _unpack_s8(b: Builder, values: Sequence[Reg], word: Reg) -> None:
    # byte + 128 in the low mantissa bits of 2²³ is the f32 2²³ + 128 + byte: two full-rate operations a value, where
    # an integer conversion runs at a quarter of the rate.
    biased, bits = scratch(b, "s8_biased", "b32"), scratch(b, "s8_bits", "b32")
    b.op("xor.b32", biased, word, -0x7F7F7F80)
    for index, value in enumerate(values):
        b.op("prmt.b32", bits, biased, 0x4B000000, 0x7440 + index)
        b.op("mov.b32", value, bits)
        b.op("sub.f32", value, value, 8388736.0)


# -- narrowing -------------------------------------------------------------------------------------------------------


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
        b.op("add.u32", bits, bits, 0x7FFF)
        b.op("setp.nan.f32", is_nan, value, value)
        b.op("selp.b32", bits, 0x7FFF0000, bits, is_nan)
        b.op("shr.u32", bits, bits, 16)
        if index == 0:
            b.op("mov.b32", word, bits)
        else:
            b.op("prmt.b32", word, word, bits, 0x5410)


def _pack_e4m3(b: Builder, word: Reg, values: Sequence[Reg]) -> None:
    if b.target.includes_any(("sm_89",)):
        low, high = scratch(b, "half_lo", "b16"), scratch(b, "half_hi", "b16")
        b.op("cvt.rn.satfinite.e4m3x2.f32", low, values[1], values[0])
        b.op("cvt.rn.satfinite.e4m3x2.f32", high, values[3], values[2])
        b.op("mov.b32", word, (low, high))
        return
    byte = scratch(b, "e4m3_byte", "b32")
    for index, value in enumerate(values):
        _encode_e4m3(b, byte, value)
        if index == 0:
            b.op("mov.b32", word, byte)
        else:
            b.op("bfi.b32", word, byte, word, 8 * index, 8)


def _encode_e4m3(b: Builder, byte: Reg, value: Reg) -> None:
    """One f32 to the bits of e4m3, as `cvt.rn.satfinite.e4m3x2.f32` does it."""
    size, small = scratch(b, "e4m3_size", "f32"), scratch(b, "e4m3_small", "f32")
    bits, odd = scratch(b, "e4m3_bits", "b32"), scratch(b, "e4m3_odd", "b32")
    is_small, is_nan = scratch(b, "e4m3_is_small", "pred"), scratch(b, "e4m3_nan", "pred")
    b.op("abs.f32", size, value)
    b.op("min.f32", size, size, 448.0)
    # Normal: round to nearest even at mantissa bit 20, then move the exponent's bias from 127 to 7.
    b.op("mov.b32", byte, size)
    b.op("bfe.u32", odd, byte, 20, 1)
    b.op("add.u32", byte, byte, odd)
    b.op("add.u32", byte, byte, 0x7FFFF - (120 << 23))
    b.op("shr.u32", byte, byte, 20)
    # Below 2⁻⁶: adding 2¹⁴ rounds to multiples of 2⁻⁹, the denormals' unit, and leaves their count in the low bits.
    b.op("add.f32", small, size, 16384.0)
    b.op("mov.b32", bits, small)
    b.op("and.b32", bits, bits, 15)
    b.op("setp.lt.f32", is_small, size, 0.015625)
    b.op("selp.b32", byte, bits, byte, is_small)
    b.op("mov.b32", bits, value)
    b.op("shr.u32", bits, bits, 31)
    b.op("bfi.b32", byte, bits, byte, 7, 1)
    b.op("setp.nan.f32", is_nan, value, value)
    b.op("selp.b32", byte, 127, byte, is_nan)


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
