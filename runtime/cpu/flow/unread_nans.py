"""Registers whose NaNs may be the host's between blocks, as no instruction reads their bits. Emits nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.runtime.cpu.flow.blocks import Block, Op

# f32 instructions to which every NaN is the same, and instructions that hand a NaN on as it is
_ARITHMETIC = frozenset(
    {"add", "sub", "mul", "fma", "div", "min", "max", "abs", "neg", "sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos",
     "tanh", "setp"}
)  # fmt: skip
_COPIES = frozenset({"mov", "selp", "shfl"})


def only_arithmetic(blocks: Sequence[Block]) -> int:
    """The bit set of registers that f32 arithmetic and comparisons read, perhaps by way of copies, and nothing else."""
    used = seen = 0
    copies: list[tuple[int, int]] = []  # what copies read and write
    for block in blocks:
        for op in block.ops:
            read = sum({1 << reg.index for reg in op.reads})
            used |= read
            if op.words[0] in _COPIES:
                copies.append((read, sum({1 << reg.index for reg in op.writes})))
            elif not _is_arithmetic(op):
                seen |= read
    before = -1
    while seen != before:
        before = seen
        for read, written in copies:
            if written & seen:
                seen |= read
    return used & ~seen


def _is_arithmetic(op: Op) -> bool:
    return op.words[0] in _ARITHMETIC and op.words[-1] == "f32" and "xorsign" not in op.words
