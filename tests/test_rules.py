"""Reasons why a specialisation is not legal: the nearest legal value is the nearest."""

from __future__ import annotations

import pytest

from ptxgen import rules

DIVISORS = [
    (5, 12, "; nearest tile: 4"), (7, 12, "; nearest tile: 6"), (9, 8, "; nearest tile: 8"),
    (70_000, 4096, "; nearest tile: 4096"), (99_999_999, 8, "; nearest tile: 8"),
    (200_001, 1 << 31, "; nearest tile: 262144"), (1_000_000, 2 * 9_999_991, ""),
]  # fmt: skip


@pytest.mark.parametrize(("value", "whole", "nearest"), DIVISORS)
def test_the_nearest_divisor_is_named_or_none(value: int, whole: int, nearest: str) -> None:
    (reason,) = rules.divides("tile", value, "n", whole)
    assert reason == f"n: must be a multiple of tile (got n={whole}, tile={value}{nearest})"
