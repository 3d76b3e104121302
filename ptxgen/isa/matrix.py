"""Rows: warp matrix instructions: mma (dense and block-scaled), ldmatrix, stmatrix, movmatrix."""

from __future__ import annotations

import re

from ptxgen.isa.pattern import Row

_WARP = "Warp Level Matrix Instructions: "
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "e3m2": 8, "e2m3": 8, "e2m1": 8, "s8": 8, "u8": 8,
         "s4": 4, "u4": 4, "b1": 1, "f64": 64}  # fmt: skip


def _fragments(shape: str, bits: int) -> tuple[int, int, int]:
    """Elements a thread of A and B (in 32-bit registers; f64: in 64-bit ones) and of C and D."""
    m, n, k = map(int, re.findall(r"\d+", shape))
    size = 64 if bits == 64 else 32
    return m * k * bits // size // 32, k * n * bits // size // 32, m * n // 32


def _accumulator(type: str, count: int) -> str:
    return f"b32*{count // 2}" if type == "f16" else f"{type}*{count}"


def _mma(shape: str, types: str, sums: str, since: str, flags: str = "", after: str = "", layout: str = "row col",
         raises: str = "") -> list[Row]:  # fmt: skip
    """Rows of one shape: A and B types that may be mixed, and `d.c` accumulator pairs."""
    first = types.split("|")[0]
    a, b, c = _fragments(shape, _BITS[first])
    wide = "f64" if first == "f64" else "b32"
    rows = []
    for pair in sums.split():
        d_type, c_type = pair.split(".")
        operands = f"={_accumulator(d_type, c)} {wide}*{a} {wide}*{b} {_accumulator(c_type, c)}"
        pattern = f"mma sync aligned {shape} {layout} {flags} {d_type} A={types} B={types} {c_type} {after}"
        rows.append(Row(" ".join(pattern.split()), operands, since, raises))
    return rows


_HALVES = "f16.f16 f32.f32 f32.f16 f16.f32"
_PLAIN = "f16.f16 f32.f32"
_F8 = "e4m3|e5m2"
_F8F6F4 = "e4m3|e5m2|e3m2|e2m3|e2m1"
_SM_120 = "8.7 sm_120f"
_BYTES = "8.6 sm_100f|sm_110f|sm_120f"


def _first_generation() -> list[Row]:
    """m8n8k4 of f16: four products a warp, with its own fragment sizes."""
    size = {"f16": "b32*4", "f32": "f32*8"}
    return [
        Row(f"mma sync aligned m8n8k4 row|col row|col {d} f16 f16 {c}", f"={size[d]} b32*2 b32*2 {size[c]}", "6.4")
        for d, c in (("f16", "f16"), ("f32", "f16"), ("f32", "f32"))
    ]


def _dense() -> tuple[Row, ...]:
    integer = "satfinite?"
    return (
        *_first_generation(),
        *_mma("m16n8k8", "f16", _PLAIN, "6.5 sm_75"),
        *_mma("m16n8k16", "f16", _PLAIN, "7.0 sm_80"),
        *_mma("m16n8k8", "bf16", "f32.f32", "7.0 sm_80"),
        *_mma("m16n8k16", "bf16", "f32.f32", "7.0 sm_80"),
        *_mma("m16n8k4", "tf32", "f32.f32", "7.0 sm_80"),
        *_mma("m16n8k8", "tf32", "f32.f32", "7.0 sm_80"),
        *_mma("m16n8k32", _F8, "f32.f32", "8.4 sm_89"),
        *_mma("m16n8k32", _F8, "f16.f16", "8.7 sm_89"),
        *_mma("m16n8k16", _F8, _PLAIN, "8.7 sm_89"),
        *_mma("m16n8k32", _F8F6F4, _PLAIN, _SM_120, flags="kind::f8f6f4"),
        *_mma("m8n8k4", "f64", "f64.f64", "7.0 sm_80"),
        *_mma("m16n8k4", "f64", "f64.f64", "7.8 sm_90"),
        *_mma("m16n8k8", "f64", "f64.f64", "7.8 sm_90"),
        *_mma("m16n8k16", "f64", "f64.f64", "7.8 sm_90"),
        *_mma("m8n8k16", "s8|u8", "s32.s32", "6.5 sm_75", flags=integer),
        *_mma("m16n8k16", "s8|u8", "s32.s32", "7.0 sm_80", flags=integer),
        *_mma("m16n8k32", "s8|u8", "s32.s32", "7.0 sm_80", flags=integer),
        *_mma("m8n8k32", "s4|u4", "s32.s32", "6.5 sm_75", flags=integer),
        *_mma("m16n8k32", "s4|u4", "s32.s32", "7.0 sm_80", flags=integer),
        *_mma("m16n8k64", "s4|u4", "s32.s32", "7.0 sm_80", flags=integer),
        *_mma("m8n8k128", "b1", "s32.s32", "7.0 sm_75", after="xor|and popc", raises="and=7.1,sm_80"),
        *_mma("m16n8k128", "b1", "s32.s32", "7.0 sm_80", after="xor|and popc", raises="and=7.1,sm_80"),
        *_mma("m16n8k256", "b1", "s32.s32", "7.0 sm_80", after="xor|and popc", raises="and=7.1,sm_80"),
    )


def _scaled() -> tuple[Row, ...]:
    tail = "b32:r b16:ri*2 b32:r b16:ri*2"
    fours = f"=f32*4 b32*4 b32*2 f32*4 {tail}"
    head = "mma sync aligned m16n8k64 row col"
    return (
        Row(f"{head} kind::mxf4 block_scale scale_vec::2X? f32 e2m1 e2m1 f32 ue8m0", fours, _SM_120),
        Row(f"{head} kind::mxf4nvf4 block_scale scale_vec::2X f32 e2m1 e2m1 f32 ue8m0", fours, _SM_120),
        Row(f"{head} kind::mxf4nvf4 block_scale scale_vec::4X f32 e2m1 e2m1 f32 ue4m3", fours, _SM_120),
        Row(f"mma sync aligned m16n8k32 row col kind::mxf8f6f4 block_scale scale_vec::1X? f32 A={_F8F6F4} B={_F8F6F4} "
            "f32 ue8m0", fours, _SM_120),
    )  # fmt: skip


SECTIONS: dict[str, tuple[Row, ...]] = {
    f"{_WARP}mma": (*_dense(), *_scaled()),
    f"{_WARP}ldmatrix": (
        Row("ldmatrix sync aligned m8n8 V=x1|x2|x4 trans? S=shared|shared::cta? b16", "=b32*V [S]", "6.5 sm_75"),
        Row("ldmatrix sync aligned m16n16 x1 trans S=shared|shared::cta? b8", "=b32*2 [S]", _BYTES),
    ),
    f"{_WARP}stmatrix": (
        Row("stmatrix sync aligned m8n8 V=x1|x2|x4 trans? S=shared|shared::cta? b16", "[S] b32*V", "7.8 sm_90"),
        Row("stmatrix sync aligned m16n8 V=x1|x2|x4 trans S=shared|shared::cta? b8", "[S] b32*V",
            _BYTES),
    ),
    f"{_WARP}movmatrix": (Row("movmatrix sync aligned m8n8 trans b16", "=b32 b32:r", "7.8 sm_75"),),
}  # fmt: skip
