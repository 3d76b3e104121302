"""Cache elements in registers to mma fragments: pairs of f16 or bf16, with int8's scales applied. Bytes become f16.

Where bits are shifted into place, the two bytes of a pair lie two apart in their word: bytes 0 and 2, then 1 and 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg
from ptxgen.dtypes import DType
from ptxgen.idioms.convert import scratch
from ptxgen.targets import Target

LOW_HALVES, HIGH_HALVES = 0x5410, 0x7632  # prmt selectors: pair the halves of two words
LOW_BYTES, HIGH_BYTES = 0x5140, 0x7362  # interleave the low (high) two bytes of two words
APART = 0x4140  # bytes 0 and 1 of a word, zeros (of a second one) between
_AND_XOR, _AND_OR, _SELECT = 0x6A, 0xEA, 0xCA  # lop3: (a & b) ^ c, (a & b) | c, (a & b) | (~a & c)


def alternates(dtype: DType, target: Target) -> bool:
    """Whether a word's bytes become the pairs (0, 2), (1, 3), not (0, 1), (2, 3). K's pairs need the query's alike."""
    return dtype.name == "s8" or (dtype.name == "e4m3" and not target.includes_any(("sm_89",)))


def k_pairs(
    b: Builder, dtype: DType, words: Sequence[Reg], elements: int, scale: Reg | None, name: str
) -> Sequence[Reg]:
    """A lane's elements of one K row as packed pairs, in their order (or as `alternates` says)."""
    if dtype.bytes == 2:
        return words
    pairs = [scratch(b, f"{name}{i}", "b32") for i in range(max(elements // 2, 1))]
    both = None
    if scale is not None:
        both = scratch(b, "kv_scale_pair", "b32")
        b.op("prmt.b32", both, scale, scale, 0x1010)
    for first in range(0, len(pairs), 2):
        word, some = words[first // 2], pairs[first : first + 2]
        if len(some) == 1 and alternates(dtype, b.target):
            apart = scratch(b, "kv_mixed", "b32")
            b.op("prmt.b32", apart, word, 0, APART)
            word = apart
        _widen(b, dtype, some, word, both)
    return pairs


def v_fragments(
    b: Builder, dtype: DType, rows: Sequence[Sequence[Reg]], step: int, scales: Sequence[Reg] | None
) -> tuple[Reg, ...]:
    """The A fragment of output tile `step` of a V block: `rows` are the words of tokens 2q, 2q+1, 2q+8, 2q+9.

    Registers: dims (2·step, 2·step + 1) of the lane's elements for the first token pair, then for the second.
    """
    made = tuple(scratch(b, f"acc_a{i}", "b32") for i in range(4))
    for pair in range(2):
        first, second = rows[2 * pair], rows[2 * pair + 1]
        low, high = made[2 * pair], made[2 * pair + 1]
        if dtype.bytes == 2:
            b.op("prmt.b32", low, first[step], second[step], LOW_HALVES)
            b.op("prmt.b32", high, first[step], second[step], HIGH_HALVES)
            continue
        both = None
        if scales is not None:
            both = scratch(b, "kv_scale_pair", "b32")
            b.op("prmt.b32", both, scales[2 * pair], scales[2 * pair + 1], LOW_HALVES)
        mixed = scratch(b, "kv_mixed", "b32")
        low_half, high_half = (LOW_HALVES, HIGH_HALVES) if alternates(dtype, b.target) else (LOW_BYTES, HIGH_BYTES)
        b.op("prmt.b32", mixed, first[step // 2], second[step // 2], high_half if step % 2 else low_half)
        _widen(b, dtype, (low, high), mixed, both)
    return made


def _widen(b: Builder, dtype: DType, pairs: Sequence[Reg], word: Reg, scale: Reg | None) -> None:
    """The first pair of a word's bytes, or both pairs."""
    if dtype.name == "s8":
        _widen_s8(b, pairs, word, scale)
    elif alternates(dtype, b.target):
        _widen_e4m3_bits(b, pairs, word)
    else:
        low, high = scratch(b, "kv_half_lo", "b16"), scratch(b, "kv_half_hi", "b16")
        b.op("mov.b32", (low, high), word)
        for pair, half in zip(pairs, (low, high), strict=False):
            b.op("cvt.rn.f16x2.e4m3x2", pair, half)


def _widen_s8(b: Builder, pairs: Sequence[Reg], word: Reg, scale: Reg | None) -> None:
    # f16 0x6400 | u is 1024 + u: with the sign bit flipped, u = x + 128.
    for index, pair in enumerate(pairs):
        source = word
        if index:
            source = scratch(b, "kv_shifted", "b32")
            b.op("shr.u32", source, word, 8)
        b.op("lop3.b32", pair, source, 0x00FF00FF, 0x64806480, _AND_XOR)
        b.op("sub.rn.f16x2", pair, pair, scratch(b, "kv_1152", "b32"))
        if scale is not None:
            b.op("mul.rn.f16x2", pair, pair, scale)


def _widen_e4m3_bits(b: Builder, pairs: Sequence[Reg], word: Reg) -> None:
    # The 7 magnitude bits are the top of an f16 whose exponent is 8 too small, so f16(bits) · 2⁸ is exact, denormals
    # included. Adding 1 carries out of the one NaN pattern (all ones): into the top bit of the f16's exponent, a NaN.
    size, carry, sign = (scratch(b, f"kv_e4m3_{x}", "b32") for x in ("size", "carry", "sign"))
    b.op("and.b32", size, word, 0x7F7F7F7F)
    b.op("add.u32", carry, size, 0x01010101)
    b.op("lop3.b32", size, carry, -0x7F7F7F80, size, _AND_OR)
    b.op("and.b32", sign, word, -0x7F7F7F80)
    moved = scratch(b, "kv_shifted", "b32")
    for index, pair in enumerate(pairs):
        if index:
            b.op("shr.u32", moved, size, 1)
        else:
            b.op("shl.b32", moved, size, 7)
            b.op("shl.b32", carry, sign, 8)
        b.op("lop3.b32", pair, 0x7F807F80, moved, sign if index else carry, _SELECT)
        b.op("mul.rn.f16x2", pair, pair, scratch(b, "kv_256", "b32"))


def constants(b: Builder, dtype: DType) -> None:
    """Registers that the conversions read."""
    if dtype.name == "s8":
        b.op("mov.b32", scratch(b, "kv_1152", "b32"), 0x64806480, note="1152, 1152")
    elif dtype.name == "e4m3" and alternates(dtype, b.target):
        b.op("mov.b32", scratch(b, "kv_256", "b32"), 0x5C005C00, note="256, 256")
