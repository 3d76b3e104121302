"""Largest values: of special registers, and of an instruction's result from those of its sources."""

from __future__ import annotations

from collections.abc import Callable

ANY = (1 << 32) - 1
HALF = 1 << 31  # below it a value is the same signed and unsigned

# Largest values (PTX ISA, "Special Registers"; CUDA programming guide, technical specifications).
SPECIAL = {
    "%laneid": 31, "%tid.x": 1023, "%tid.y": 1023, "%tid.z": 63, "%ntid.x": 1024, "%ntid.y": 1024, "%ntid.z": 64,
    "%warpid": 63, "%nwarpid": 64, "%ctaid.y": 65534, "%ctaid.z": 65534, "%nctaid.y": 65535, "%nctaid.z": 65535,
    "%cluster_ctarank": 31, "%cluster_nctarank": 32, "%cluster_ctaid.x": 31, "%cluster_nctaid.x": 32,
}  # fmt: skip

Rule = Callable[[list[int], list[bool]], int]


def _bits(b: list[int], _: list[bool]) -> int:
    """No bit that neither source can have."""
    return int((1 << max(b[0], b[1]).bit_length()) - 1)


def _signed_min(b: list[int], _: list[bool]) -> int:
    return min(b[0], b[1]) if max(b[0], b[1]) < HALF else ANY


def _signed_max(b: list[int], _: list[bool]) -> int:
    """One side that is not negative makes the result so."""
    if max(b[0], b[1]) < HALF:
        return max(b[0], b[1])
    return HALF - 1 if min(b[0], b[1]) < HALF else ANY


RULES: dict[str, Rule] = {
    **dict.fromkeys(("mov.u32", "mov.s32", "mov.b32"), lambda b, _: b[0]),
    **dict.fromkeys(("cvt.u32.u32", "cvt.s32.s32", "shfl.sync.bfly.b32", "shfl.sync.idx.b32"), lambda b, _: b[0]),
    **dict.fromkeys(("add.u32", "add.s32"), lambda b, _: b[0] + b[1]),
    **dict.fromkeys(("mul.lo.u32", "mul.lo.s32"), lambda b, _: b[0] * b[1]),
    **dict.fromkeys(("mad.lo.u32", "mad.lo.s32"), lambda b, _: b[0] * b[1] + b[2]),
    **dict.fromkeys(("and.b32", "min.u32"), lambda b, _: min(b[0], b[1])),
    **dict.fromkeys(("or.b32", "xor.b32"), _bits),
    **dict.fromkeys(("selp.u32", "selp.s32", "selp.b32", "max.u32"), lambda b, _: max(b[0], b[1])),
    **dict.fromkeys(("redux.sync.max.u32", "redux.sync.min.u32"), lambda b, _: b[0]),
    **dict.fromkeys(("shr.u32", "shr.b32"), lambda b, number: b[0] >> min(b[1], 32) if number[1] else b[0]),
    **dict.fromkeys(("popc.b32", "clz.b32"), lambda b, _: 32),
    "min.s32": _signed_min,
    "max.s32": _signed_max,
    "shl.b32": lambda b, _: b[0] << min(b[1], 32),
    "rem.u32": lambda b, _: min(b[0], max(b[1] - 1, 0)),
    "div.u32": lambda b, number: b[0] // max(b[1], 1) if number[1] else b[0],
    "bfe.u32": lambda b, number: min(b[0], (1 << min(b[2], 32)) - 1) if number[2] else b[0],
    "sub.u32": lambda b, _: ANY,
}
LOADED = {"u8": 255, "b8": 255, "u16": 65535, "b16": 65535}
