"""Bits of packed weights as numbers on a device: codes as f32, as bf16 pairs, as bytes; f16 scales."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxgen.dtypes import f16
from ptxgen.idioms import convert

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg

APART = (0x4240, 0x4341)  # selectors of bytes 0 and 2, and 1 and 3, of a word, each below one of a second word
_TWO_23 = 8388608.0


def bytes_to_f32(b: Builder, out: Sequence[Reg], word: Reg, less: float | Reg = 0.0, first: int = 0) -> None:
    """Unsigned bytes of a word, from byte `first` on, as f32, exactly, minus a number (or minus 2²³ + a number).

    A byte in the low mantissa bits of 2²³ is 2²³ + byte: two full-rate operations, where a conversion runs at a
    quarter of the rate. `less` as a register holds 2²³ + n already.
    """
    bits = convert.scratch(b, "code_bits", "b32")
    for index, value in enumerate(out):
        b.op("prmt.b32", bits, word, 0x4B000000, 0x7440 + first + index)
        b.op("mov.b32", value, bits)
        b.op("sub.f32", value, value, less if not isinstance(less, (int, float)) else _TWO_23 + less)


def bytes_to_bf16(b: Builder, out: Sequence[Reg], word: Reg, less: Reg) -> None:
    """Bytes below 128 of a word as two registers of bf16 pairs, exactly, plus `less`, which holds −128 − n twice.

    0x43 above a byte is the bf16 128 + byte.
    """
    one = constant(b, "one_pair", pair_of_bf16(1))
    for register, selector in zip(out, (0x4140, 0x4342), strict=True):
        b.op("prmt.b32", register, word, 0x43434343, selector)
        b.op("fma.rn.bf16x2", register, register, one, less)


def signed_to_bf16(b: Builder, out: Sequence[Reg], word: Reg) -> None:
    """Signed bytes of a word as two registers of bf16 pairs, exactly: (128 + lower seven bits) − (128, or 256 where
    the sign is set)."""
    less, lower, upper = (convert.scratch(b, name, "b32") for name in ("a_less", "code_lower", "code_sign"))
    minus = constant(b, "minus_pair", pair_of_bf16(-1))
    b.op("and.b32", lower, word, 0x7F7F7F7F)
    b.op("and.b32", upper, word, 0x80808080)
    for register, selector in zip(out, (0x4140, 0x4342), strict=True):
        b.op("prmt.b32", register, lower, 0x43434343, selector)
        b.op("prmt.b32", less, upper, 0x43434343, selector)
        b.op("fma.rn.bf16x2", register, less, minus, register)


def pair_of_bf16(value: float) -> int:
    """The bits of a bf16 number, twice."""
    half = int(np.float32(value).view(np.uint32)) >> 16
    return half << 16 | half


def pair_of_f16(value: float, upper: float | None = None) -> int:
    """The bits of an f16 number, twice, or with another in the upper half."""
    low, high = (int(np.float16(each).view(np.uint16)) for each in (value, value if upper is None else upper))
    return high << 16 | low


def bytes_to_f16(b: Builder, out: Sequence[Reg], word: Reg, *, apart: bool = False) -> None:
    """Bytes of a word as two registers of f16 pairs, each 1024 more than the byte: 0x64 above it. The first has bytes
    0 and 1, or with `apart` 0 and 2."""
    for register, selector in zip(out, APART if apart else (0x4140, 0x4342), strict=True):
        b.op("prmt.b32", register, word, 0x64646464, selector)


def byte_to_f16(b: Builder, out: Reg, word: Reg, byte: int, less: int) -> None:
    """One byte of a word as a pair of f16, twice, less a number."""
    b.op("prmt.b32", out, word, 0x64646464, 0x4040 | byte << 8 | byte)
    b.op("add.rn.f16x2", out, out, constant(b, f"less_half_{less}", pair_of_f16(-1024 - less)))


def each_nibble(b: Builder, out: Sequence[Reg], word: Reg, shifted: Reg) -> Iterator[tuple[int, Reg]]:
    """A word's nibbles in registers of two, in their own bits, even columns before odd ones: 0 and those of the lower
    halves of bytes (row g), then 1 and those of the upper ones (row g + 8). `shifted`: a register for odd columns."""
    for odd in (0, 1):
        if odd:
            word = b.op("shr.u32", shifted, word, 8)
        for half, mask in enumerate((0x000F000F, 0x00F000F0)):
            yield half, b.op("and.b32", out[2 * odd + half], word, mask)


def nibbles_to_f16(b: Builder, out: Sequence[Reg], word: Reg, less: Sequence[Reg]) -> None:
    """A chunk's nibbles as an A fragment in f16, even columns of a lane before odd ones, exactly, plus `less`, which
    hold −1024 − n (row g) and −64 − n (row g + 8) twice.

    0x6400 with a nibble in its lower bits is 1024 + code, with one above these 1024 + 16 · code.
    """
    shifted, sixteenth = convert.scratch(b, "odd_nibbles", "b32"), constant(b, "sixteenth_pair", pair_of_f16(1 / 16))
    for half, register in each_nibble(b, out, word, shifted):
        b.op("or.b32", register, register, 0x64006400)
        if half:
            b.op("fma.rn.f16x2", register, register, sixteenth, less[half])
        else:
            b.op("add.rn.f16x2", register, register, less[half])


def signed_to_f16(b: Builder, out: Sequence[Reg], words: Sequence[Reg]) -> None:
    """Signed bytes of two words, of rows g and g + 8, as such a fragment, exactly: 0x6400 with a byte whose sign is
    turned is 1024 + 128 + code."""
    shifted, less = convert.scratch(b, "odd_bytes", "b32"), constant(b, "less_1152", pair_of_f16(-1152))
    for half, word in enumerate(words):
        for odd in (0, 1):
            register = out[2 * odd + half]
            b.op("and.b32", register, b.op("shr.u32", shifted, word, 8) if odd else word, 0x00FF00FF)
            b.op("xor.b32", register, register, 0x64806480)
            b.op("add.rn.f16x2", register, register, less)


def constant(b: Builder, name: str, bits: int) -> Reg:
    """A register that holds a constant from its first use on."""
    known = b.known(name)
    return known if known is not None else b.op("mov.b32", name, bits)


def fragment(b: Builder, name: str = "a") -> Sequence[Reg]:
    """The four registers of an A fragment; declared once a kernel."""
    return convert.scratch_array(b, name, "b32", 4).regs


def low_nibbles(b: Builder, word: Reg, half: int, name: str = "code_bytes") -> Reg:
    """The low (`half` 0) or the high nibble of each byte, as bytes."""
    out = convert.scratch(b, name, "b32")
    if half:
        b.op("shr.u32", out, word, 4)
        word = out
    b.op("and.b32", out, word, 0x0F0F0F0F)
    return out


def add_fifth(b: Builder, code: Reg, word: Reg, chunk: int, half: int, tile_k: int) -> None:
    """To bytes of four bits, their fifth, as `pack_fifth` leaves them."""
    bits = convert.scratch(b, "fifth_bits", "b32")
    at = chunk % 4 + 4 * half - 4 if tile_k > 32 else 4 * chunk + 8 * half
    if at:
        b.op("shl.b32" if at < 0 else "shr.u32", bits, word, abs(at))
    if tile_k == 32:  # bits 0 … 3 to bits 4, 12, 20, 28: no two terms of the product meet
        b.op("and.b32", bits, bits if at else word, 0xF)
        b.op("mul.lo.u32", bits, bits, 0x02040810)
    b.op("and.b32", bits, bits if at or tile_k == 32 else word, 0x10101010)
    b.op("or.b32", code, code, bits)


def halves_to_f32(b: Builder, low: Reg, high: Reg, word: Reg) -> None:
    """Two f16 of a word as f32."""
    convert.unpack(b, (low, high), (word,), f16)


def pair(b: Builder, name: str) -> tuple[Reg, Reg]:
    """Two f32 registers, for rows g and g + 8."""
    return convert.scratch(b, f"{name}_upper", "f32"), convert.scratch(b, f"{name}_lower", "f32")


# -- codes without a conversion ----------------------------------------------------------------------------------------

NIBBLE_UNITS = (1.0, 1 / 16)  # of rows g and g + 8 in `nibble_fragment`


def nibble_fragment(b: Builder, words: Sequence[Reg]) -> Sequence[Reg]:
    """Two words of nibbles as an A fragment of bytes; those of row g + 8 are 16 times as large."""
    out = fragment(b)
    for i, register in enumerate(out):
        b.op("and.b32", register, words[i // 2], 0xF0F0F0F0 if i % 2 else 0x0F0F0F0F)
    return out


def scaled_pair(b: Builder, name: str, word: Reg, units: Sequence[float]) -> Sequence[Reg]:
    """Two f16 of a word, of rows g and g + 8, as f32 times their unit."""
    out = pair(b, name)
    halves_to_f32(b, *out, word)
    for value, unit in zip(out, units, strict=True):
        if unit != 1:
            b.op("mul.f32", value, value, unit)
    return out
