"""What LLVM type a PTX type is computed in, and literals of it. Owns no registers."""

from __future__ import annotations

import struct

from ptxgen import nodes
from ptxgen.errors import IsaError
from ptxgen.runtime.cpu.native.ir import vec

# element type in LLVM; the floats below 32 bits stay integers, their families convert
_ELEMENT = {
    "pred": "i1", "b8": "i8", "u8": "i8", "s8": "i8", "b16": "i16", "u16": "i16", "s16": "i16", "f16": "i16",
    "bf16": "i16", "b32": "i32", "u32": "i32", "s32": "i32", "f32": "float", "tf32": "i32", "f16x2": "<2 x i16>",
    "bf16x2": "<2 x i16>", "u16x2": "<2 x i16>", "s16x2": "<2 x i16>", "b64": "i64", "u64": "i64", "s64": "i64",
    "f64": "double", "b128": "i128", "e4m3": "i8", "e5m2": "i8", "e4m3x2": "i16", "e5m2x2": "i16",
}  # fmt: skip
_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "float": 32, "i64": 64, "double": 64, "i128": 128}

SIGNED = frozenset({"s8", "s16", "s32", "s64"})


def element_of(kind: str) -> str:
    """LLVM type of one lane of a PTX type."""
    found = _ELEMENT.get(kind)
    if found is None:
        raise IsaError(f"type .{kind} is not supported by the CPU executor")
    return found


def vector_of(kind: str) -> str:
    """LLVM type of a register: `f32` → `<32 x float>`; pairs have 64 elements."""
    element = element_of(kind)
    if element.startswith("<2 x "):
        return vec(element[5:-1], 64)
    return vec(element)


def integer_vector(bits: int) -> str:
    """`<32 x iN>`."""
    return vec(f"i{bits}")


def element_bits(vector: str) -> int:
    """Bits of a lane of a 32- or 64-element vector type (64 elements count in pairs)."""
    count, _, element = vector[1:-1].partition(" x ")
    return _BITS[element] * (2 if count == "64" else 1)


def literal(immediate: nodes.Immediate, kind: str) -> str:
    """A literal of a PTX type as a constant vector. An integer where a float is read is its bits: PTX takes none there,
    so it has come from a register that `mov` filled."""
    element = element_of(kind)
    value = immediate.value
    if element.startswith("<2 x "):
        pattern = _pattern(immediate)
        both = (int(value) if pattern is None else pattern) & 0xFFFFFFFF
        return f"bitcast ({vec('i32')} splat (i32 {both}) to {vector_of(kind)})"
    if element in ("float", "double"):
        return _float_literal(immediate, element)
    if kind == "f16" and (isinstance(value, float) or immediate.is_float):
        return f"splat (i16 {int.from_bytes(struct.pack('<e', value), 'little')})"
    bits = _BITS[element]
    if isinstance(value, float):
        pattern = _pattern(immediate)
        value = int.from_bytes(struct.pack("<d", value), "little") if pattern is None else pattern
    number = int(value) & ((1 << bits) - 1)
    return f"splat ({element} {number})" if bits > 1 else f"splat (i1 {'true' if number else 'false'})"


def _float_literal(immediate: nodes.Immediate, element: str) -> str:
    size, bits = {"float": ("f", 32), "double": ("d", 64)}[element]
    pattern = _pattern(immediate) if immediate.text.lower().lstrip("-").startswith("0" + size) else None
    if pattern is None and not immediate.is_float:
        pattern = int(immediate.value) & (1 << bits) - 1
    elif pattern is None:
        pattern = int.from_bytes(struct.pack("<" + size, immediate.value), "little")
    return f"bitcast ({vec(f'i{bits}')} splat (i{bits} {pattern}) to {vec(element)})"


def _pattern(immediate: nodes.Immediate) -> int | None:
    """The bits of `0f3F800000` or `0d3FF0000000000000`; None for other literals."""
    low = immediate.text.lower()
    digits = low.lstrip("-")
    if digits[:2] not in ("0f", "0d"):
        return None
    sign = 31 if digits[1] == "f" else 63
    return int(digits[2:], 16) ^ (low.startswith("-") << sign)


def splat_float(value: float, element: str = "float") -> str:
    """A floating constant in every lane, exactly rounded to the element type."""
    size, bits = {"float": ("f", 32), "double": ("d", 64)}[element]
    pattern = int.from_bytes(struct.pack("<" + size, value), "little")
    return f"bitcast ({vec(f'i{bits}')} splat (i{bits} {pattern}) to {vec(element)})"
