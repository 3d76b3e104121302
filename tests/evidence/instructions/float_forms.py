"""Floating-point forms: arithmetic in every format and rounding, and the approximations (PTX ISA 9.7.3 to 9.7.5)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.evidence.instructions.form import Form
from tests.evidence.instructions.integer_forms import simple

MODES = ("rn", "rz", "rm", "rp")
HALVES = ("f16", "f16x2", "bf16", "bf16x2")


def single() -> Iterator[Form]:
    """Forms of add, sub, mul, fma and such in f32 and f64, with every rounding."""
    for op, n in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)):
        for mode in MODES:
            for extra in ("", ".ftz", ".sat", ".ftz.sat"):
                yield simple(f"{op}.{mode}{extra}.f32", "f32", *["f32"] * n)
            yield simple(f"{op}.{mode}.f64", "f64", *["f64"] * n)
    for op in ("add", "sub", "mul"):
        yield simple(f"{op}.f32", "f32", "f32", "f32")
        yield simple(f"{op}.f64", "f64", "f64", "f64")
    yield simple("mad.rn.f32", "f32", "f32", "f32", "f32")
    yield simple("mad.rz.f64", "f64", "f64", "f64", "f64")
    for mode in MODES:
        for t in ("f32", "ftz.f32", "f64"):
            kind = t[-3:]
            yield simple(f"div.{mode}.{t}", kind, kind, kind)
            yield simple(f"rcp.{mode}.{t}", kind, kind)
            yield simple(f"sqrt.{mode}.{t}", kind, kind)
    for op in ("min", "max"):
        for t in ("f32", "ftz.f32", "NaN.f32", "ftz.NaN.f32", "xorsign.abs.f32", "NaN.xorsign.abs.f32", "f64"):
            yield simple(f"{op}.{t}", t[-3:], t[-3:], t[-3:])
    for op in ("abs", "neg"):
        for t in ("f32", "ftz.f32", "f64"):
            yield simple(f"{op}.{t}", t[-3:], t[-3:])
    for t in ("f32", "f64"):
        yield simple(f"copysign.{t}", t, t, t)
        for word in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            yield Form(f"testp.{word}.{t}", f"testp.{word}.{t} d0, s0;", (t,), ("pred",))


def half() -> Iterator[Form]:
    """f16, bf16 and their pairs."""
    for t in HALVES:
        extras = ("", ".ftz", ".sat", ".ftz.sat") if t.startswith("f16") else ("",)
        for op in ("add", "sub", "mul"):
            for extra in extras:
                yield simple(f"{op}{extra}.{t}", t, t, t)
            yield simple(f"{op}.rn.{t}", t, t, t)
        for extra in (*extras, ".relu", *((".ftz.relu",) if t.startswith("f16") else ())):
            yield simple(f"fma.rn{extra}.{t}", t, t, t, t)
        for op in ("min", "max"):
            ftz = ("", ".ftz") if t.startswith("f16") else ("",)
            for extra in [f + e for f in ftz for e in ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs")]:
                yield simple(f"{op}{extra}.{t}", t, t, t)
        for op in ("abs", "neg"):
            yield simple(f"{op}.{t}", t, t)
            if t.startswith("f16"):
                yield simple(f"{op}.ftz.{t}", t, t)


def _approximate(name: str, kind: str, **more) -> Form:
    result = name.rsplit(".", 1)[1]
    return simple(name, result, kind, exact=False, threads=2048, **more)


def approximations() -> Iterator[Form]:
    """The .approx forms, over many inputs; their bounds are in `bounds.py`."""
    for op in ("rcp", "rsqrt", "sqrt", "lg2"):
        for ftz in ("", ".ftz"):
            yield _approximate(f"{op}.approx{ftz}.f32", "wide_f32")
            special = simple(f"{op}.approx{ftz}.f32", "f32", "f32", exact=False)
            yield Form(special.name + " edges", special.text, special.sources, special.results, exact=False)
    for op in ("sin", "cos"):
        for ftz in ("", ".ftz"):
            yield _approximate(f"{op}.approx{ftz}.f32", "angle")
    for ftz in ("", ".ftz"):
        yield _approximate(f"ex2.approx{ftz}.f32", "moderate")
        yield Form(f"ex2.approx{ftz}.f32 edges", f"ex2.approx{ftz}.f32 d0, s0;", ("f32",), ("f32",), exact=False)
        for op in ("approx", "full"):
            name = f"div.{op}{ftz}.f32"
            yield Form(name, f"{name} d0, s0, s1;", ("moderate", "moderate"), ("f32",), exact=False, threads=2048)
            yield Form(f"{name} edges", f"{name} d0, s0, s1;", ("f32", "f32"), ("f32",), exact=False)
    for t in ("f16", "f16x2"):
        yield _approximate(f"ex2.approx.{t}", t)
    for t in ("bf16", "bf16x2"):
        yield _approximate(f"ex2.approx.ftz.{t}", t)
    yield _approximate("tanh.approx.f32", "moderate")
    for t in HALVES:
        yield _approximate(f"tanh.approx.{t}", t)
    for op in ("rcp", "rsqrt"):
        yield _approximate(f"{op}.approx.ftz.f64", "wide_f64")
    yield _approximate("rsqrt.approx.f64", "wide_f64")


def forms() -> Iterator[Form]:
    """All of this module."""
    for part in (single, half, approximations):
        yield from part()
