"""Shapes of matrix instructions in words: `m64nNk16, N a multiple of 8 from 8 to 256`. Owns no rows."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_PROGRESSION = 4  # numbers that stand for themselves up to here


def is_shape(word: str) -> bool:
    """Whether a modifier is a shape such as `m16n8k16`."""
    return _SHAPE.fullmatch(word) is not None


def shapes_said(words: Iterable[str]) -> str:
    """Which shapes there are; those with one M and K are said together, by their N."""
    by_sides: dict[tuple[str, str], list[int]] = {}
    for word in words:
        if match := _SHAPE.fullmatch(word):
            by_sides.setdefault((match[1], match[3]), []).append(int(match[2]))
    return " or ".join(_one(m, k, sorted(numbers)) for (m, k), numbers in by_sides.items())


def _one(m: str, k: str, numbers: list[int]) -> str:
    if len(numbers) < _PROGRESSION:
        return " or ".join(f"m{m}n{n}k{k}" for n in numbers)
    step, start = numbers[-1] - numbers[-2], len(numbers) - 1
    while start and numbers[start] - numbers[start - 1] == step:
        start -= 1
    few = "".join(f"{n}, " for n in numbers[:start]).removesuffix(", ")
    tail = f"a multiple of {step} from {numbers[start]} to {numbers[-1]}"
    return f"m{m}nNk{k} with N {few + ' or ' if few else ''}{tail}"
