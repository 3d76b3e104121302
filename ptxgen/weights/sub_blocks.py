"""Sub-blocks of Q4_K and Q5_K on a device: what a lane makes of their scales, mins and codes.

The words are those of `sub_block_format`'s pieces of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.dtypes import f16
from ptxgen.idioms import convert
from ptxgen.weights.bits import (
    APART,
    NIBBLE_UNITS,
    bytes_to_bf16,
    bytes_to_f16,
    bytes_to_f32,
    constant,
    each_nibble,
    halves_to_f32,
    pair,
    pair_of_bf16,
    pair_of_f16,
)
from ptxgen.weights.format import ByteCodes, ZeroPoints

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg

CODE_UNIT = 2.0**24  # codes times scales are counted in the smallest f16 number
SUBS = 8  # of a block
# of dmin and d in zero points: f16 has integers up to 2048, which 63 times this is, as a code times a scale
MOST_RATIO = 32
OFFSET_UNIT = 8  # offsets are in 2^-8 of the power of two below the larger of d and dmin
EXPONENT = 0x7F800000
# less the bits of a power of two: -2^24 over that, in the unit of offsets
INVERSE = (1 << 31) + (2 * 127 + 24 + OFFSET_UNIT << 23) & 0xFFFFFFFF
QUAD_CLAMP = 0x1C1F  # of `shfl`, for lanes of the same four
MIN_ORDER = (0, 2, 1, 3)  # of the mins' lower bits: where byte j's nibble stands


def sub_block_factors(b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
    """`span_factors` by the words of `SPAN_PIECES`."""
    scales = _scale_bytes(b, words, chunk)
    upper, t = divmod(chunk // 2, 4)
    out = convert.scratch_array(b, "scale_code", "b32", 2).regs
    for half, register in enumerate(out):
        b.op("prmt.b32", register, scales[t], 0, 0x4440 | 2 * half + upper)
    return out


def sub_block_floats(b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
    """`span_scales` by the words of `SPAN_PIECES`."""
    scales, out = _scale_bytes(b, words, chunk), pair(b, "span_scale")
    upper, t = divmod(chunk // 2, 4)
    for half, register in enumerate(out):
        bytes_to_f32(b, (register,), scales[t], first=2 * half + upper)
    return out


def _scale_bytes(b: Builder, words: Sequence[Reg], chunk: int) -> Sequence[Reg]:
    """All scales of a lane's rows, which are taken apart from the mins' bits at chunk 0."""
    scales = convert.scratch_array(b, "scale_bytes", "b32", 4)
    if chunk == 0:
        for word, own in zip(words, scales, strict=False):
            b.op("and.b32", own, word, 0x3F3F3F3F)
    return scales.regs


def block_factors(b: Builder, words: Sequence[Reg], units: Sequence[float]) -> tuple[Sequence[Reg], Sequence[Reg]]:
    """d in the units of codes, and dmin as it is subtracted, of rows g and g + 8."""
    scales, mins = pair(b, "block_scale"), pair(b, "block_min")
    for scale, less, word, unit in zip(scales, mins, words, units, strict=True):
        halves_to_f32(b, scale, less, word)
        b.op("neg.f32", less, less)
        if unit != 1:
            b.op("mul.f32", scale, scale, unit)
    return scales, mins


def min_fragment(b: Builder, words: Sequence[Reg]) -> Sequence[Reg]:
    """`offset_fragment` of the words of `SPAN_PIECES` after the scales."""
    out = convert.scratch_array(b, "min_pair", "b32", 4).regs
    for i, (upper, lower) in enumerate(zip(words[:2], words[2:], strict=True)):
        mins = _own_min_bytes(b, upper, lower)
        bytes_to_bf16(b, out[2 * i : 2 * i + 2], mins, constant(b, "less_128", pair_of_bf16(-128)))
    return out


def nibble_integers(
    b: Builder, word: Reg, scales: Sequence[Reg], chunk: int, out: Sequence[Reg], zeros: Sequence[Reg] = ()
) -> None:  # fmt: skip
    """`codes_as_f16` of nibbles, by the words of all blocks' scales. A nibble at the lower end of an f16 is so many
    times its smallest number, one in the upper half of a byte 16 times that; the scale is multiplied with it, exactly.
    `zeros`: the lane's own, as `sub_block_zeros` leaves them, which are subtracted."""
    factors, less = _factors(b, scales, chunk, NIBBLE_UNITS, zeros)
    for half, register in each_nibble(b, out, word, convert.scratch(b, "odd_nibbles", "b32")):
        _times(b, register, factors[half], less[half])


def byte_integers(
    b: Builder, kind: ByteCodes, words: Sequence[Reg], scales: Sequence[Reg], chunk: int, out: Sequence[Reg],
    zeros: Sequence[Reg] = (),
) -> None:  # fmt: skip
    """The same of codes that are bytes."""
    factors, less = _factors(b, scales, chunk, (1.0, 1.0), zeros)
    for half in (0, 1):
        codes = kind.code_bytes(b, words, chunk, half)
        for register, selector in zip(out[half::2], APART, strict=True):
            b.op("prmt.b32", register, codes, 0, selector)
            _times(b, register, factors[half], less[half])


def _times(b: Builder, register: Reg, factor: Reg, less: Reg | None) -> None:
    if less is None:
        b.op("mul.rn.f16x2", register, register, factor)
    else:
        b.op("fma.rn.f16x2", register, register, factor, less)


def _factors(
    b: Builder, scales: Sequence[Reg], chunk: int, units: Sequence[float], zeros: Sequence[Reg]
) -> tuple[Sequence[Reg], Sequence[Reg | None]]:
    """A chunk's scales in units of rows g and g + 8, each twice, and what is added to the products, if there are zero
    points. These come from another lane, and are asked for a sub-block ahead."""
    masked = convert.scratch_array(b, "scale_bytes", "b32", 4)
    factors = convert.scratch_array(b, "integer_scale", "b32", 2).regs
    less: Sequence[Reg | None] = (None, None)
    if chunk == 0:
        for each, own in zip(scales, masked, strict=True):
            b.op("and.b32", own, each, 0x3F3F3F3F)
    if chunk % 2 == 0:
        upper, t = divmod(chunk // 2, 4)
        both = convert.scratch(b, "integer_scales", "b32")
        b.op("prmt.b32", both, masked[t], 0x64646464, APART[upper])
        minus = constant(b, "minus_1024_units", pair_of_f16(*(-1024 * unit for unit in units)))
        if units == (1.0, 1.0):
            b.op("add.rn.f16x2", both, both, minus)
        else:
            b.op("fma.rn.f16x2", both, both, constant(b, "scale_units", pair_of_f16(*units)), minus)
        _broadcast_halves(b, both, factors)
    if zeros:
        less = _shuffled_zeros(b, zeros, chunk)
    return factors, less


def _shuffled_zeros(b: Builder, zeros: Sequence[Reg], chunk: int) -> Sequence[Reg]:
    """The zero points of a chunk in rows g and g + 8, each twice."""
    asked = convert.scratch_array(b, "zeros_of_columns", "b32", 2).regs
    out = convert.scratch_array(b, "integer_less", "b32", 2).regs
    if chunk % 2 == 0:
        sub = chunk // 2
        for each in range(0 if sub == 0 else sub + 1, min(sub + 2, SUBS)):
            b.op("shfl.sync.idx.b32", asked[each % 2], zeros[each // 4], each % 4, QUAD_CLAMP, 0xFFFFFFFF)
        _broadcast_halves(b, asked[sub % 2], out)
    return out


def _broadcast_halves(b: Builder, both: Reg, out: Sequence[Reg]) -> None:
    """The two halves of a word as pairs."""
    for register, half in zip(out, _halves(b, both), strict=True):
        b.op("mov.b32", register, (half, half))


def _halves(b: Builder, word: Reg) -> tuple[Reg, Reg]:
    """The two halves of a word."""
    low, high = (convert.scratch(b, f"half_of_pair_{name}", "b16") for name in ("lower", "upper"))
    b.op("mov.b32", (low, high), word)
    return low, high


def sub_block_mins(b: Builder, upper: Reg, lower: Reg) -> Sequence[Reg]:
    """`mins_as_f16` by the words of `OWN_MINS`."""
    mins = _own_min_bytes(b, upper, lower)
    out = convert.scratch_array(b, "min_half", "b32", 2).regs
    bytes_to_f16(b, out, mins)
    for register in out:
        b.op("add.rn.f16x2", register, register, constant(b, "minus_1024", pair_of_f16(-1024)))
    return (*out, *out)


def sub_block_zeros(b: Builder, blocks: Sequence[Reg], upper: Reg, lower: Reg, name: str) -> ZeroPoints:
    """`zero_points` by the words of d and dmin and those of `OWN_MINS`.

    Each lane finds those of its four sub-blocks. A min at the lower end of an f16, times the ratio of dmin and d, is
    rounded to a multiple of the smallest f16 number, which is the unit of codes times scales, too. Any would do: what
    it is off is in the offset. It is at most 32 times the min, as where d is 0, and 0 where the signs of d and dmin
    differ."""
    own, mins = _own_min_bytes(b, upper, lower), convert.scratch_array(b, f"{name}_min", "b32", 2).regs
    for register, selector in zip(mins, APART, strict=True):
        b.op("prmt.b32", register, own, 0, selector)
    steps, less, ratios = pair(b, f"{name}_step"), pair(b, f"{name}_less"), pair(b, "min_ratio")
    for word, step, value, each in zip(blocks, steps, less, ratios, strict=True):
        halves_to_f32(b, step, value, word)
        b.op("neg.f32", each, step)
        b.op("rcp.approx.ftz.f32", each, each)
        b.op("mul.f32", each, each, value)
    ratio = convert.scratch(b, "min_ratios", "b32")
    convert.pack(b, (ratio,), ratios, f16)
    b.op("max.f16x2", ratio, ratio, constant(b, "least_ratio", pair_of_f16(-MOST_RATIO)))
    b.op("min.f16x2", ratio, ratio, constant(b, "no_ratio", 0))
    zeros = convert.scratch_array(b, f"{name}_zero", "b32", 2).regs
    for zero, each in zip(zeros, mins, strict=True):
        b.op("mul.rn.f16x2", zero, each, ratio)
    return ZeroPoints(zeros, mins, steps, less, pair(b, f"{name}_unit"))


def sub_block_offsets(b: Builder, points: ZeroPoints, half: int) -> Sequence[Sequence[Reg]]:
    """`zero_offsets`: d · zero − dmin · min, rounded once to f32, in a unit of the larger of d and dmin: 63 times that
    is an f16 number, and the smaller one is, too, far below it."""
    values, zero = convert.scratch_array(b, "offset_value", "f32", 2).regs, convert.scratch(b, "zero_value", "f32")
    first, second = (convert.scratch_array(b, f"{each}_offset", "b32", 2).regs for each in ("first", "second"))
    step, less, unit = points.d[half], points.dmin[half], points.units[half]
    inverse, bits = convert.scratch(b, "inverse_unit", "f32"), convert.scratch(b, "unit_bits", "b32")
    b.op("abs.f32", unit, step)
    b.op("abs.f32", inverse, less)
    b.op("max.f32", unit, unit, inverse)
    b.op("mov.b32", bits, unit)
    b.op("and.b32", bits, bits, EXPONENT)
    b.op("mov.b32", unit, bits)
    b.op("sub.u32", bits, INVERSE, bits)
    b.op("mov.b32", inverse, bits)
    for value, zeros, mins in zip(values, points.zeros, points.mins, strict=True):
        b.op("cvt.f32.f16", value, _halves(b, mins)[half])
        b.op("cvt.f32.f16", zero, _halves(b, zeros)[half])
        b.op("mul.f32", value, value, less)
        b.op("fma.rn.f32", value, zero, step, value)
        b.op("mul.f32", value, value, inverse)
    convert.split_digits(b, values, [each[half : half + 1] for each in (first, second)], f16)
    return (*first, *first), (*second, *second)


def sub_block_units(b: Builder, points: ZeroPoints) -> tuple[Sequence[Reg], Sequence[Reg]]:
    """`zero_units`."""
    for step, unit in zip(points.d, points.units, strict=True):
        b.op("mul.f32", step, step, CODE_UNIT)
        b.op("mul.f32", unit, unit, 2.0**-OFFSET_UNIT)
    return points.d, points.units


def _own_min_bytes(b: Builder, upper: Reg, lower: Reg) -> Reg:
    """The mins of a lane: rows g, blocks t and 4 + t, and rows g + 8."""
    mins, bits = convert.scratch(b, "min_bytes", "b32"), convert.scratch(b, "min_bits", "b32")
    return _join_mins(b, mins, bits, upper, lower)


def _join_mins(b: Builder, mins: Reg, bits: Reg, upper: Reg, lower: Reg) -> Reg:
    """Mins of their upper two bits, of bytes with scales, and their lower four."""
    b.op("shr.u32", mins, upper, 2)
    b.op("and.b32", mins, mins, 0x30303030)
    b.op("and.b32", bits, lower, 0x0F0F)
    b.op("or.b32", mins, mins, bits)
    b.op("and.b32", bits, lower, 0xF0F0)
    b.op("shl.b32", bits, bits, 12)
    b.op("or.b32", mins, mins, bits)
    return mins


def sub_block_scales(b: Builder, words: Sequence[Reg], chunk: int) -> tuple[Sequence[Reg], Sequence[Reg]]:
    """Factors and negated offsets of a chunk, of the words after the codes: 4 of scales, 2 of mins, 2 of d, dmin."""
    factors, less = pair(b, "scale"), pair(b, "offset")
    block_scale, block_min = pair(b, "block_scale"), pair(b, "block_min")
    if chunk == 0:
        for half in (0, 1):
            halves_to_f32(b, block_scale[half], block_min[half], words[6 + half])
            b.op("neg.f32", block_min[half], block_min[half])
    sub = chunk // 2
    if chunk % 2 == 0:
        t, upper = sub % 4, sub // 4
        field_bits, high = convert.scratch(b, "scale_field", "b32"), convert.scratch(b, "min_field", "b32")
        for half in (0, 1):
            j = 2 * half + upper
            b.op("bfe.u32", field_bits, words[t], 8 * j, 6)
            _small_to_f32(b, factors[half], field_bits)
            b.op("mul.f32", factors[half], factors[half], block_scale[half])
            b.op("bfe.u32", high, words[t], 8 * j + 6, 2)
            b.op("bfe.u32", field_bits, words[4 + t // 2], 16 * (t % 2) + 4 * MIN_ORDER[j], 4)
            b.op("bfi.b32", field_bits, high, field_bits, 4, 2)
            _small_to_f32(b, less[half], field_bits)
            b.op("mul.f32", less[half], less[half], block_min[half])
    return factors, less


def add_sub_blocks(
    b: Builder, words: Sequence[Reg], sums: Sequence[Sequence[Reg]], x_sums: Sequence[Reg], totals: Sequence[Reg],
    is_odd: Reg | None, units: Sequence[float],
) -> None:  # fmt: skip
    """`add_blocks` by the words of `MINS_OF_A_LANE`: byte 2 half + i div 2 of the word for even or odd blocks i."""
    even, odd, low, *blocks = words
    scale_bytes, min_bytes, bits = (
        convert.scratch(b, name, "b32") for name in ("scale_bytes", "min_bytes", "min_bits")
    )
    assert is_odd is not None  # as its pieces are by "own"
    scales, mins = convert.scratch_array(b, "sub_scale", "f32", 8), convert.scratch_array(b, "sub_min", "f32", 4)
    for i, word in enumerate((even, odd)):
        b.op("and.b32", scale_bytes, word, 0x3F3F3F3F)
        bytes_to_f32(b, scales[4 * i : 4 * i + 4], scale_bytes)
    picks = convert.scratch(b, "picks_odd", "pred")
    b.op("setp.ne.u32", picks, is_odd, 0)
    b.op("selp.b32", min_bytes, odd, even, picks)
    bytes_to_f32(b, mins.regs, _join_mins(b, min_bytes, bits, min_bytes, low))
    for half, (block, unit, total) in enumerate(zip(blocks, units, totals, strict=True)):
        factor, less = (convert.scratch(b, name, "f32") for name in ("block_factor", "block_less"))
        halves_to_f32(b, factor, less, block)
        b.op("mul.f32", factor, factor, unit)
        value, offset = sums[0][half], mins[2 * half]
        b.op("mul.f32", value, value, scales[2 * half])
        for i in range(1, 4):
            b.op("fma.rn.f32", value, sums[i][half], scales[4 * (i % 2) + 2 * half + i // 2], value)
        b.op("mul.f32", offset, offset, x_sums[0])
        b.op("fma.rn.f32", offset, mins[2 * half + 1], x_sums[1], offset)
        b.op("fma.rn.f32", total, value, factor, total)
        b.op("fma.rn.f32", total, offset, less, total)


def _small_to_f32(b: Builder, out: Reg, word: Reg) -> None:
    """An unsigned integer below 2²³, exactly."""
    b.op("or.b32", word, word, 0x4B000000)
    b.op("mov.b32", out, word)
    b.op("sub.f32", out, out, 8388608.0)
