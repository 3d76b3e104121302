"""Cache elements in registers to mma fragments: pairs of f16 or bf16, with int8's scales applied. Bytes become f16."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ptxgen.builder import Builder
from ptxgen.idioms.convert import scratch
from ptxgen.values import Reg

LOW_HALVES, HIGH_HALVES = 0x5410, 0x7632  # prmt selectors: pair the halves of two words
LOW_BYTES, HIGH_BYTES = 0x5140, 0x7362  # interleave the low (high) two bytes of two words


def k_pairs(b: Builder, dtype: str, words: Sequence[Reg], elements: int, scale: Reg | None, name: str) -> Sequence[Reg]:
    """A lane's elements of one K row as packed pairs in their order."""
    if dtype in ("f16", "bf16"):
        return words
    pairs = [scratch(b, f"{name}{i}", "b32") for i in range(max(elements // 2, 1))]
    both = None
    if scale is not None:
        both = scratch(b, "kv_scale_pair", "b32")
        b.op("prmt.b32", both, scale, scale, 0x1010)
    for i, pair in enumerate(pairs):
        _WIDEN[dtype](b, pair, words[i // 2], i % 2, both)
    return pairs


def v_fragments(
    b: Builder, dtype: str, rows: Sequence[Sequence[Reg]], step: int, scales: Sequence[Reg] | None
) -> tuple[Reg, ...]:
    """The A fragment of output tile `step` of a V block: `rows` are the words of tokens 2q, 2q+1, 2q+8, 2q+9.

    Registers: dims (2·step, 2·step + 1) of the lane's elements for the first token pair, then for the second.
    """
    made = tuple(scratch(b, f"acc_a{i}", "b32") for i in range(4))
    for pair in range(2):
        first, second = rows[2 * pair], rows[2 * pair + 1]
        low, high = made[2 * pair], made[2 * pair + 1]
        if dtype in ("f16", "bf16"):
            b.op("prmt.b32", low, first[step], second[step], LOW_HALVES)
            b.op("prmt.b32", high, first[step], second[step], HIGH_HALVES)
            continue
        both = None
        if scales is not None:
            both = scratch(b, "kv_scale_pair", "b32")
            b.op("prmt.b32", both, scales[2 * pair], scales[2 * pair + 1], LOW_HALVES)
        mixed = scratch(b, "kv_mixed", "b32")
        b.op("prmt.b32", mixed, first[step // 2], second[step // 2], HIGH_BYTES if step % 2 else LOW_BYTES)
        _WIDEN[dtype](b, low, mixed, 0, both)
        _WIDEN[dtype](b, high, mixed, 1, both)
    return made


def _widen_e4m3(b: Builder, pair: Reg, word: Reg, half: int, scale: Reg | None) -> None:
    low, high = scratch(b, "kv_half_lo", "b16"), scratch(b, "kv_half_hi", "b16")
    b.op("mov.b32", (low, high), word)
    b.op("cvt.rn.f16x2.e4m3x2", pair, high if half else low)


def _widen_s8(b: Builder, pair: Reg, word: Reg, half: int, scale: Reg | None) -> None:
    # f16 0x6400 | u is 1024 + u: with the sign bit flipped, u = x + 128.
    flipped = scratch(b, "kv_flipped", "b32")
    b.op("xor.b32", flipped, word, -0x7F7F7F80)
    b.op("prmt.b32", pair, flipped, 0x64646464, 0x4342 if half else 0x4140)
    b.op("sub.rn.f16x2", pair, pair, scratch(b, "kv_1152", "b32"))
    if scale is not None:
        b.op("mul.rn.f16x2", pair, pair, scale)


def constants(b: Builder, dtype: str) -> None:
    """Registers that the conversions read."""
    if dtype == "s8":
        b.op("mov.b32", scratch(b, "kv_1152", "b32"), 0x64806480, note="1152, 1152")


_WIDEN: dict[str, Callable[[Builder, Reg, Reg, int, Reg | None], None]] = {"e4m3": _widen_e4m3, "s8": _widen_s8}
