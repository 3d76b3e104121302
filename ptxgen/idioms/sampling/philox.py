"""Counter-based random numbers: Philox-4x32-10, the same bits in PTX and in NumPy.

J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the constants are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.builder import Builder
from ptxgen.builder.values import Reg

ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = (1 << 32) - 1


def emit(b: Builder, counter: Sequence[Reg], key: Sequence[Reg]) -> None:
    """Four u32 `counter` registers become four random words, under a key of two, which is spent; part of an open
    fragment."""
    high = [b.reg(f"philox_high{i}", "u32") for i in range(2)]
    for round in range(ROUNDS):
        b.note(f"round {round + 1} of {ROUNDS}", after=24)
        if round:
            for word, step in zip(key, _WEYL, strict=True):
                b.op("add.u32", word, word, step)
        for i, factor in enumerate(_MULTIPLIERS):
            b.op("mul.hi.u32", high[i], counter[2 * i], factor)
            b.op("mul.lo.u32", counter[2 * i], counter[2 * i], factor)
        b.op("xor.b32", high[1], high[1], counter[1])
        b.op("xor.b32", high[0], high[0], counter[3])
        b.op("mov.u32", counter[1], counter[2])
        b.op("mov.u32", counter[3], counter[0])
        b.op("xor.b32", counter[0], high[1], key[0])
        b.op("xor.b32", counter[2], high[0], key[1])


def words(counter: Sequence[int], key: Sequence[int]) -> tuple[int, ...]:
    """The four words of a counter of four and a key of two."""
    c, k = list(counter), list(key)
    for round in range(ROUNDS):
        if round:
            k = [(word + step) & _WORD for word, step in zip(k, _WEYL, strict=True)]
        low, high = c[0] * _MULTIPLIERS[0], c[2] * _MULTIPLIERS[1]
        c = [(high >> 32) ^ c[1] ^ k[0], high & _WORD, (low >> 32) ^ c[3] ^ k[1], low & _WORD]
    return tuple(c)
