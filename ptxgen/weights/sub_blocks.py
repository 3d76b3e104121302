"""Sub-blocks of Q4_K and Q5_K on a device: what a lane makes of their scales, mins and codes.

The words are those of `ptxgen.weights.q4_k`'s pieces of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ptxgen.dtypes import f16
from ptxgen.idioms import convert
from ptxgen.weights.bits import (
    byte_to_f16,
    bytes_to_bf16,
    bytes_to_f16,
    bytes_to_f32,
    constant,
    halves_to_f32,
    pair,
    pair_of_bf16,
    pair_of_f16,
)
from ptxgen.weights.format import ByteCodes, ZeroPoints

if TYPE_CHECKING:
    from ptxgen.builder import Builder
    from ptxgen.builder.values import Reg

INTEGER_UNITS = (2.0**20, 2.0**16)  # of rows g and g + 8 in `nibble_integers`: 2^-24 times 16, and times 256
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


def sub_block_integers(
    b: Builder, kind: ByteCodes, words: Sequence[Reg], scales: Sequence[Reg], chunk: int, out: Sequence[Reg],
    zeros: Sequence[Reg] = (),
) -> None:  # fmt: skip
    """`codes_as_f16` by the words of all blocks' scales: 1024 + code, times the scale, less 1024 times that, exactly.
    Less `zeros`: 1024 + code less 1024 + zero, times the scale, as f16 does not hold 1024 + zero times any scale."""
    factors = convert.scratch_array(b, "integer_scale", "b32", 2).regs
    less = convert.scratch_array(b, "integer_less", "b32", 2).regs
    masked = convert.scratch_array(b, "scale_bytes", "b32", 4)
    if chunk == 0:
        for word, own in zip(scales, masked, strict=True):
            b.op("and.b32", own, word, 0x3F3F3F3F)
    if chunk % 2 == 0:
        upper, t = divmod(chunk // 2, 4)
        for half, (factor, offset) in enumerate(zip(factors, less, strict=True)):
            byte_to_f16(b, factor, masked[t], 2 * half + upper, 0)
            if zeros:
                b.op("prmt.b32", offset, zeros[t], 0xE4E4E4E4, _twice(2 * half + upper))
            else:
                b.op("mul.rn.f16x2", offset, factor, constant(b, "minus_1024", pair_of_f16(-1024)))
    for half, (factor, offset) in enumerate(zip(factors, less, strict=True)):
        bytes_to_f16(b, out[half::2], kind.code_bytes(b, words, chunk, half), apart=True)
        for register in out[half::2]:
            if zeros:
                b.op("add.rn.f16x2", register, register, offset)
                b.op("mul.rn.f16x2", register, register, factor)
            else:
                b.op("fma.rn.f16x2", register, register, factor, offset)


def _twice(byte: int) -> int:
    """The selector of a byte below one of the second word, twice."""
    return 0x4040 | byte << 8 | byte


def nibble_integers(
    b: Builder, word: Reg, scales: Sequence[Reg], chunk: int, out: Sequence[Reg], zeros: Sequence[Reg] = ()
) -> None:  # fmt: skip
    """`codes_as_f16` of nibbles, in `INTEGER_UNITS`, by the words of all blocks' scales. A nibble at the lower end
    of an f16 is so many times its smallest number; 16 times the scale is multiplied with that, exactly. So are
    `zeros`, whose sign is set."""
    masked = convert.scratch_array(b, "scale_bytes", "b32", 4)
    factors = convert.scratch_array(b, "integer_scale", "b32", 2).regs
    less = convert.scratch_array(b, "integer_less", "b32", 2).regs if zeros else ()
    if chunk == 0:
        for each, own in zip(scales, masked, strict=True):
            b.op("and.b32", own, each, 0x3F3F3F3F)
    if chunk % 2 == 0:
        upper, t = divmod(chunk // 2, 4)
        both = convert.scratch(b, "integer_scales", "b32")
        pair_of_rows = tuple(convert.scratch(b, f"integer_scale_{name}", "b16") for name in ("lower", "upper"))
        b.op("prmt.b32", both, masked[t], 0x74747474, 0x4240 | 0x0101 * upper)
        b.op("add.rn.f16x2", both, both, constant(b, "minus_16384", pair_of_f16(-16384)))
        b.op("mov.b32", pair_of_rows, both)
        for factor, scale in zip(factors, pair_of_rows, strict=True):
            b.op("mov.b32", factor, (scale, scale))
        for half, offset in enumerate(less):
            b.op("prmt.b32", offset, zeros[t], 0x80808080, _twice(2 * half + upper))
            b.op("mul.rn.f16x2", offset, offset, factors[half])
    shifted = convert.scratch(b, "odd_nibbles", "b32")
    for odd in (0, 1):
        if odd:
            word = b.op("shr.u32", shifted, word, 8)
        for half, (factor, mask) in enumerate(zip(factors, (0x000F000F, 0x00F000F0), strict=True)):
            register = out[2 * odd + half]
            b.op("and.b32", register, word, mask)
            if zeros:
                b.op("fma.rn.f16x2", register, register, factor, less[half])
            else:
                b.op("mul.rn.f16x2", register, register, factor)


def sub_block_mins(b: Builder, upper: Reg, lower: Reg) -> Sequence[Reg]:
    """`mins_as_f16` by the words of `OWN_MINS`."""
    mins = _own_min_bytes(b, upper, lower)
    out = convert.scratch_array(b, "min_half", "b32", 2).regs
    bytes_to_f16(b, out, mins)
    for register in out:
        b.op("add.rn.f16x2", register, register, constant(b, "minus_1024", pair_of_f16(-1024)))
    return (*out, *out)


def sub_block_zeros(
    b: Builder, blocks: Sequence[Reg], upper: Reg, lower: Reg, name: str, most: int, units_of_codes: Sequence[float]
) -> ZeroPoints:  # fmt: skip
    """`zero_points` by the words of d and dmin and those of `OWN_MINS`: min / scale, rounded to a code, 0 to `most`.

    Each lane finds those of its four sub-blocks, and the four lanes of the rows tell each other. Zeros of row g + 8
    stand where its codes do, four bits up where `units_of_codes` differ. Offsets are scale · zero − min in a power of
    two below the larger of d and dmin, of which `pack` leaves 0 where it is multiplied by zeros alone."""
    mins, own_scales = _own_min_bytes(b, upper, lower), convert.scratch(b, "own_scales", "b32")
    b.op("and.b32", own_scales, upper, 0x3F3F3F3F)
    factor, less, inverse = (convert.scratch(b, each, "f32") for each in ("block_factor", "block_less", "inverse_unit"))
    steps, values = (convert.scratch_array(b, f"zero_{each}", "f32", 2).regs for each in ("step", "min"))
    zeros = convert.scratch_array(b, "zero_point", "f32", 4).regs
    scales, units = pair(b, f"{name}_scale"), pair(b, f"{name}_unit")
    first, second = (convert.scratch_array(b, f"{name}_{each}_offset", "b32", 2).regs for each in ("first", "second"))
    for half, (word, scale, unit, of_codes) in enumerate(zip(blocks, scales, units, units_of_codes, strict=True)):
        b.note(f"row {'g + 8' if half else 'g'}: zero points of its sub-blocks, and what they leave, in a unit")
        _unit_of(b, word, unit, inverse)
        halves_to_f32(b, scale, less, word)
        b.op("mul.f32", factor, scale, inverse)
        b.op("mul.f32", less, less, inverse)
        if of_codes != 1:
            b.op("mul.f32", scale, scale, of_codes)
        bytes_to_f32(b, values, mins, first=2 * half)
        bytes_to_f32(b, steps, own_scales, first=2 * half)
        for step, value, zero in zip(steps, values, zeros[2 * half : 2 * half + 2], strict=True):
            _zero_of(b, step, value, zero, factor, less, most)
        convert.split_digits(b, values, [each[half : half + 1] for each in (first, second)], f16)
    words = _exchanged(b, zeros, 4 if units_of_codes[0] != units_of_codes[1] else 0)
    return ZeroPoints(words, [(*first, *first), (*second, *second)], scales, units)


def _zero_of(b: Builder, step: Reg, value: Reg, zero: Reg, factor: Reg, less: Reg, most: int) -> None:
    """The zero point, in the low byte of `zero`, from a scale and a min, which becomes the offset. Any would do: where
    there is no scale it is 0 or `most`."""
    b.op("mul.f32", step, step, factor)
    b.op("mul.f32", value, value, less)
    b.op("rcp.approx.f32", zero, step)
    b.op("mul.f32", zero, zero, value)
    b.op("max.f32", zero, zero, 0.0)
    b.op("min.f32", zero, zero, float(most))
    b.op("add.f32", zero, zero, convert.ROUNDS)
    rounded = b.op("sub.f32", convert.scratch(b, "zero_value", "f32"), zero, convert.ROUNDS)
    b.op("neg.f32", value, value)
    b.op("fma.rn.f32", value, step, rounded, value)


def _exchanged(b: Builder, zeros: Sequence[Reg], up: int) -> Sequence[Reg]:
    """The words of all four lanes; in the order of the words of scales. Those of row g + 8 are so many bits `up`."""
    low, high = (convert.scratch(b, f"{each}_zeros", "b32") for each in ("upper", "lower"))
    bits = [convert.scratch(b, f"zero_bits{i}", "b32") for i in (0, 1)]
    for both, word in ((zeros[:2], low), (zeros[2:], high)):
        for register, zero in zip(bits, both, strict=True):
            b.op("mov.b32", register, zero)
        b.op("prmt.b32", word, bits[0], bits[1], 0x4040)
    if up:
        b.op("shl.b32", high, high, up)
    b.op("prmt.b32", low, low, high, 0x5410)
    out = convert.scratch_array(b, "zeros", "b32", 4).regs
    for lane, register in enumerate(out):
        b.op("shfl.sync.idx.b32", register, low, lane, QUAD_CLAMP, 0xFFFFFFFF)
    return out


def _unit_of(b: Builder, word: Reg, unit: Reg, inverse: Reg) -> None:
    """2^-8 of the power of two below the larger of two f16 numbers (of numbers below 2^-14: of 2^-15), and its inverse.
    63 times either of the two is then below 2^15, and an f16 number, too, where it is much smaller than the other."""
    bits, other = convert.scratch(b, "unit_bits", "u32"), convert.scratch(b, "other_bits", "u32")
    b.op("and.b32", bits, word, 0x7C007C00)
    b.op("shr.u32", other, bits, 16)
    b.op("and.b32", bits, bits, 0x7C00)
    b.op("max.u32", bits, bits, other)
    b.op("mad.lo.u32", bits, bits, 1 << 13, 127 - 15 - 8 << 23)
    b.op("mov.b32", unit, bits)
    b.op("sub.u32", bits, 2 * 127 << 23, bits)
    b.op("mov.b32", inverse, bits)


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
