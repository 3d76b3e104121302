"""Rows: wmma.load, wmma.store and wmma.mma, the older warp matrix instructions that CUDA C++'s nvcuda::wmma gives."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from ptxgen.isa.pattern import Row

_SECTION = "Warp Level Matrix Instructions: "
_SPACE = "S=global|shared|shared::cta?"


class _Kind(NamedTuple):
    """Input types of some shapes: registers of A and B, and the accumulators `d.c` with their registers."""

    shapes: str
    types: str
    a: str
    b: str
    sums: dict[str, str]
    since: str
    layouts: str = "row|col row|col"
    ops: str = ""


_F32 = {"f32": "f32*8"}
_S32 = {"s32": "s32*8"}
_KINDS = (
    _Kind("m16n16k16|m8n32k16|m32n8k16", "f16", "f16x2*8", "f16x2*8", {"f16": "f16x2*4", "f32": "f32*8"}, ""),
    _Kind("m16n16k16", "bf16", "b32*4", "b32*4", _F32, "7.0 sm_80"),
    _Kind("m8n32k16", "bf16", "b32*2", "b32*8", _F32, "7.0 sm_80"),
    _Kind("m32n8k16", "bf16", "b32*8", "b32*2", _F32, "7.0 sm_80"),
    _Kind("m16n16k8", "tf32", "b32*4", "b32*4", _F32, "7.0 sm_80"),
    _Kind("m8n8k4", "f64", "f64*1", "f64*1", {"f64": "f64*2"}, "7.0 sm_80"),
    _Kind("m16n16k16", "s8|u8", "b32*2", "b32*2", _S32, "6.3 sm_72"),
    _Kind("m8n32k16", "s8|u8", "b32*1", "b32*4", _S32, "6.3 sm_72"),
    _Kind("m32n8k16", "s8|u8", "b32*4", "b32*1", _S32, "6.3 sm_72"),
    _Kind("m8n8k32", "s4|u4", "b32*1", "b32*1", {"s32": "s32*2"}, "6.3 sm_75", "row col"),
    _Kind("m8n8k128", "b1", "b32*1", "b32*1", {"s32": "s32*2"}, "6.3 sm_75", "row col", "xor|and popc"),
)


def _own_sums(kind: _Kind) -> list[tuple[str, str]]:
    """Accumulators to load and store; those of bf16 are the same as f16's."""
    return [] if kind.types == "bf16" else list(kind.sums.items())


def _loads(kind: _Kind) -> list[Row]:
    a_layout, b_layout = kind.layouts.split()
    head = "wmma load {} sync aligned {} {} {} {}"
    rows = []
    for matrix, layout, registers in (("a", a_layout, kind.a), ("b", b_layout, kind.b)):
        types = kind.types
        rows.append(Row(head.format(matrix, layout, kind.shapes, _SPACE, types), f"={registers} [S] u32?", kind.since))
    for type, registers in _own_sums(kind):
        rows.append(Row(head.format("c", "row|col", kind.shapes, _SPACE, type), f"={registers} [S] u32?", kind.since))
    return rows


def _stores(kind: _Kind) -> list[Row]:
    head = f"wmma store d sync aligned row|col {kind.shapes} {_SPACE}"
    return [Row(f"{head} {type}", f"[S] {registers} u32?", kind.since) for type, registers in _own_sums(kind)]


def _products(kind: _Kind) -> list[Row]:
    flags = "satfinite?" if kind.types in ("f16", "s8|u8", "s4|u4") else ""
    head = f"wmma mma {kind.ops} sync aligned {kind.layouts} {kind.shapes}"
    raises = "and=7.1,sm_80" if kind.ops else ""
    rows = []
    pairs = product(kind.types.split("|"), kind.sums.items(), kind.sums.items())
    for type, (d, d_registers), (c, c_registers) in pairs:
        types = {"f16": f"{d} {c}", "f64": "rn|rz|rm|rp? f64 f64 f64 f64"}.get(type, f"{d} {type} {type} {c}")
        operands = f"={d_registers} {kind.a} {kind.b} {c_registers}"
        rows.append(Row(f"{head} {types} {flags}", operands, kind.since, raises))
    return rows


SECTIONS: dict[str, tuple[Row, ...]] = {
    f"{_SECTION}wmma.load": tuple(row for kind in _KINDS for row in _loads(kind)),
    f"{_SECTION}wmma.store": tuple(row for kind in _KINDS for row in _stores(kind)),
    f"{_SECTION}wmma.mma": tuple(row for kind in _KINDS for row in _products(kind)),
}
