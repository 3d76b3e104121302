"""Conversions: every pair of cvt with every rounding and saturation, packed ones, cvt.pack (PTX ISA 9.7.9.21)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.evidence.instructions.form import Form

INTS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
MODES = ("rn", "rz", "rm", "rp")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")
BYTES = ("u8", "s8")


def _held(t: str) -> str:
    """The register type of a value: 8-bit integers live in 16 bits."""
    return {"u8": "u16", "s8": "s16"}.get(t, t)


def _holds(to: str, of: str) -> bool:
    """Whether every value of one integer type is one of another (then .sat is not allowed)."""
    bits = int(to[1:]) - (to[0] == "s"), int(of[1:]) - (of[0] == "s")
    return bits[0] >= bits[1] and (to[0] == "s" or of[0] == "u")


def cvt(name: str, to: str, of: str, two: bool = False) -> Form:
    """`name d0, s0`; narrow integers in wider registers, whose upper bits must be ignored, or extended into."""
    sources = (_held(of),) * (2 if two else 1)
    result = {"u8": "u32", "s8": "s32", "e4m3x2": "b16", "e5m2x2": "b16", "tf32": "b32"}.get(to, to)
    source = {"e4m3x2": "b16", "e5m2x2": "b16"}.get(of)
    sources = (source,) if source else sources
    return Form(name, f"{name} d0, s0{', s1' if two else ''};", sources, (result,))


def integers() -> Iterator[Form]:
    """Between integers, and between integers and floats."""
    for to in INTS:
        for of in INTS:
            yield cvt(f"cvt.{to}.{of}", to, of)
            if not _holds(to, of):
                yield cvt(f"cvt.sat.{to}.{of}", to, of)
        for of in ("f16", "bf16", "f32", "f64"):
            if of == "bf16" and to in BYTES:
                continue
            for mode in INTEGRAL:
                for extra in ("", ".ftz") if of == "f32" else ("",):
                    yield cvt(f"cvt.{mode}{extra}.{to}.{of}", to, of)
            if of in ("f32", "f64", "f16"):
                yield cvt(f"cvt.rzi.sat.{to}.{of}", to, of)
    for to in ("f16", "bf16", "f32", "f64"):
        for of in INTS:
            if to == "bf16" and of in BYTES:
                continue
            for mode in MODES:
                yield cvt(f"cvt.{mode}.{to}.{of}", to, of)
            if to in ("f32", "f16"):
                yield cvt(f"cvt.rn.sat.{to}.{of}", to, of)


def floats() -> Iterator[Form]:
    """Between float formats, and to whole floats."""
    for to, of in (("f32", "f16"), ("f64", "f16"), ("f64", "f32"), ("f32", "bf16"), ("f64", "bf16")):
        yield cvt(f"cvt.{to}.{of}", to, of)
    for mode in MODES:
        for to, of in (("f16", "f64"), ("f32", "f64"), ("bf16", "f64"), ("bf16", "f32"), ("f16", "f32"),
                       ("f16", "bf16"), ("bf16", "f16")):  # fmt: skip
            yield cvt(f"cvt.{mode}.{to}.{of}", to, of)
        yield cvt(f"cvt.{mode}.ftz.f32.f64", "f32", "f64")
        yield cvt(f"cvt.{mode}.ftz.f16.f32", "f16", "f32")
        yield cvt(f"cvt.{mode}.sat.f32.f64", "f32", "f64")
    for mode in INTEGRAL:
        for t in ("f16", "bf16", "f32", "f64"):
            yield cvt(f"cvt.{mode}.{t}.{t}", t, t)
        yield cvt(f"cvt.{mode}.ftz.f32.f32", "f32", "f32")
        yield cvt(f"cvt.{mode}.sat.f32.f32", "f32", "f32")
    for t in ("f16", "f32", "f64"):
        yield cvt(f"cvt.sat.{t}.{t}", t, t)
    yield cvt("cvt.ftz.f32.f32", "f32", "f32")
    yield cvt("cvt.ftz.sat.f32.f32", "f32", "f32")
    yield cvt("cvt.ftz.f32.f16", "f32", "f16")
    yield cvt("cvt.ftz.f64.f32", "f64", "f32")
    for to in ("f16", "bf16"):
        for mode in ("rn", "rz"):
            yield cvt(f"cvt.{mode}.relu.{to}.f32", to, "f32")
            yield cvt(f"cvt.{mode}.{to}x2.f32", f"{to}x2", "f32", two=True)
            yield cvt(f"cvt.{mode}.relu.{to}x2.f32", f"{to}x2", "f32", two=True)
    for mode in ("rna", "rn", "rz", "rn.relu", "rz.relu"):
        yield cvt(f"cvt.{mode}.tf32.f32", "tf32", "f32")


def eights() -> Iterator[Form]:
    """fp8 pairs, and integers packed with saturation."""
    for t in ("e4m3x2", "e5m2x2"):
        for extra in ("", ".relu"):
            yield cvt(f"cvt.rn.satfinite{extra}.{t}.f32", t, "f32", two=True)
            yield cvt(f"cvt.rn.satfinite{extra}.{t}.f16x2", t, "f16x2")
            yield cvt(f"cvt.rn{extra}.f16x2.{t}", "f16x2", t)
    for to in ("u16", "s16"):
        yield cvt(f"cvt.pack.sat.{to}.s32", "b32", "s32", two=True)
    for to in ("u8", "s8", "u4", "s4", "u2", "s2"):
        name = f"cvt.pack.sat.{to}.s32.b32"
        yield Form(name, f"{name} d0, s0, s1, s2;", ("s32", "s32", "b32"), ("b32",))


def forms() -> Iterator[Form]:
    """All of this module."""
    for part in (integers, floats, eights):
        yield from part()
