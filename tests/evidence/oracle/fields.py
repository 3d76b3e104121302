"""Bit fields, counts, permutations and dot products of the oracle, one value at a time (PTX ISA 9.7.1, 9.7.8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.evidence.oracle.integer import wrap
from tests.evidence.oracle.machine import Machine, handles
from tests.evidence.oracle.program import WIDTH, Op


@handles("popc", "clz", "brev", "bfind", "fns", "bmsk", "szext", "sad", "dp4a", "dp2a", "bfe", "bfi", "shf", "prmt")
def bit_field(m: Machine, op: Op) -> None:
    """Instructions that are easiest to state for one value at a time."""
    function, types, result = _SCALAR[op.name](op)
    columns = [m.get(o, t).tolist() for o, t in zip(op.args[1:], types, strict=True)]
    m.set(op.args[0], result, wrap([function(*row) for row in zip(*columns, strict=True)], result))


def _within(n: int, width: int) -> int:
    """A position or length: 8 bits of it in the 32-bit forms; the 64-bit forms, which a GPU emulates, take all."""
    return n & 0xFF if width == 32 else n


def _bfe(a: int, position: int, length: int, kind: str) -> int:
    width = WIDTH[kind]
    position, length = _within(position, width), _within(length, width)
    raw = a % (1 << width)
    sign = 0
    if kind[0] == "s" and length:
        sign = raw >> min(position + length - 1, width - 1) & 1
    out = 0
    for i in range(width):
        inside = i < length and position + i < width
        out |= (raw >> (position + i) & 1 if inside else sign) << i
    return out


def _bfi(a: int, b: int, position: int, length: int, kind: str) -> int:
    width = WIDTH[kind]
    position, length = _within(position, width), _within(length, width)
    for i in range(min(length, width)):
        if position + i < width:
            b = b & ~(1 << position + i) | (a >> i & 1) << position + i
    return b


def _prmt(a: int, b: int, c: int, mode: str) -> int:
    data = (b << 32 | a).to_bytes(8, "little")
    n = c & 3
    orders = {"f4e": [n, n + 1, n + 2, n + 3], "b4e": [n, (n - 1) & 7, (n - 2) & 7, (n - 3) & 7], "rc8": [n] * 4,
              "ecl": [max(i, n) for i in range(4)], "ecr": [min(i, n) for i in range(4)],
              "rc16": [(n & 1) * 2, (n & 1) * 2 + 1] * 2}  # fmt: skip
    out = 0
    for i in range(4):
        selector = orders[mode][i] if mode else c >> 4 * i & 15
        byte = data[selector & 7]
        if not mode and selector & 8:
            byte = 0xFF if byte & 0x80 else 0
        out |= byte << 8 * i
    return out


def _shf(op: Op, a: int, b: int, c: int) -> int:
    n = min(c, 32) if "clamp" in op else c & 31
    pair = b << 32 | a
    return (pair << n >> 32 if "l" in op else pair >> n) & 0xFFFFFFFF


def _bfind(v: int, kind: str, shift: bool) -> int:
    if kind[0] == "s" and v < 0:
        v = ~v
    top = v.bit_length() - 1
    return top if top < 0 or not shift else WIDTH[kind] - 1 - top


def _fns(mask: int, start: int, offset: int) -> int:
    if offset == 0:
        return start if mask >> start & 1 else 0xFFFFFFFF
    step, at, left = (1, start, offset) if offset > 0 else (-1, start, -offset)
    while 0 <= at < 32:
        left -= mask >> at & 1
        if left == 0:
            return at
        at += step
    return 0xFFFFFFFF


def _dots(op: Op, a: int, b: int, c: int) -> int:
    def field(v: int, n: int, width: int, kind: str) -> int:
        v = v >> n * width & (1 << width) - 1
        return v - (1 << width) if kind == "s32" and v >> width - 1 else v

    a_kind, b_kind = [x for x in op.mods if x in ("s32", "u32")]
    if op.name == "dp4a":
        return c + sum(field(a, n, 8, a_kind) * field(b, n, 8, b_kind) for n in range(4))
    return c + sum(field(a, n, 16, a_kind) * field(b, n + 2 * ("hi" in op), 8, b_kind) for n in range(2))


def _szext(v: int, n: int, op: Op) -> int:
    n = n & 31 if "wrap" in op else min(n, 32)
    if n == 0:
        return 0
    v &= (1 << n) - 1
    return v - (1 << n) if op.type == "s32" and v >> n - 1 else v


def _bmsk(start: int, length: int, op: Op) -> int:
    start, length = (start & 31, length & 31) if "wrap" in op else (min(start, 32), min(length, 32))
    return (1 << length) - 1 << start


def _dot_type(op: Op) -> str:
    return "s32" if "s32" in op else "u32"


_SCALAR: dict[str, Callable[[Op], Any]] = {
    "popc": lambda op: (lambda v: v.bit_count(), [op.type], "u32"),
    "clz": lambda op: (lambda v: WIDTH[op.type] - v.bit_length(), [op.type], "u32"),
    "brev": lambda op: (lambda v: int(f"{v:0{WIDTH[op.type]}b}"[::-1], 2), [op.type], op.type),
    "bfind": lambda op: (lambda v: _bfind(v, op.type, "shiftamt" in op), [op.type], "u32"),
    "fns": lambda op: (_fns, ["b32", "b32", "s32"], "b32"),
    "bmsk": lambda op: (lambda a, b: _bmsk(a, b, op), ["u32", "u32"], "u32"),
    "szext": lambda op: (lambda a, b: _szext(a, b, op), ["u32", "u32"], op.type),
    "sad": lambda op: (lambda a, b, c: c + abs(a - b), [op.type] * 3, op.type),
    "dp4a": lambda op: (lambda a, b, c: _dots(op, a, b, c), ["u32", "u32", _dot_type(op)], _dot_type(op)),
    "dp2a": lambda op: (lambda a, b, c: _dots(op, a, b, c), ["u32", "u32", _dot_type(op)], _dot_type(op)),
    "bfe": lambda op: (lambda a, b, c: _bfe(a, b, c, op.type), [op.type, "u32", "u32"], op.type),
    "bfi": lambda op: (lambda a, b, c, d: _bfi(a, b, c, d, op.type), [op.type, op.type, "u32", "u32"], op.type),
    "shf": lambda op: (lambda a, b, c: _shf(op, a, b, c), ["u32"] * 3, "u32"),
    "prmt": lambda op: (
        lambda a, b, c: _prmt(a, b, c, op.mods[-1] if op.mods[-1] != "b32" else ""),
        ["u32"] * 3,
        "u32",
    ),
}
