"""Floating-point arithmetic and conversions of the oracle (PTX ISA 9.7.3, 9.7.4, 9.7.9 cvt)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tests.evidence.oracle.integer import clamp, integer_binary, integer_mad, wrap
from tests.evidence.oracle.machine import Machine, handles
from tests.evidence.oracle.memory import OracleFault
from tests.evidence.oracle.numbers import (
    DTYPES,
    FORMATS,
    PAIRS,
    base,
    exactly,
    fma,
    is_float,
    narrow,
    round_to,
    rounded,
    to_integer,
)
from tests.evidence.oracle.program import EXTRA_TYPES, WIDTH, Op

# Bits of the fraction.
_FRACTION = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
MODES = ("rn", "rz", "rm", "rp")
TINY = 2.0**-126


def mode_of(op: Op) -> str:
    """The rounding among the modifiers; nearest even when there is none."""
    return next((w for w in op.mods if w in MODES), "rn")


def operand(m: Machine, op: Op, n: int, kind: str) -> np.ndarray:
    """A float operand, subnormals flushed when the instruction says so."""
    value = m.get(op.args[n], kind)
    return flush(value, kind) if "ftz" in op else value


def flush(value: np.ndarray, kind: str) -> np.ndarray:
    """Subnormals to zero of the same sign."""
    least = 2.0 ** FORMATS[base(kind)][1]
    small = (np.abs(value.astype(np.float64)) < least) & ~np.isnan(value.astype(np.float64))
    return np.where(small, np.copysign(0.0, value.astype(np.float64)), value).astype(value.dtype)


def finish(m: Machine, op: Op, kind: str, out: np.ndarray) -> None:
    """Flush, saturate or clamp at zero as the instruction says, and write."""
    if "ftz" in op and not (op.name == "cvt" and kind != "f32"):
        out = flush(out, kind)
    wide = out.astype(np.float64)
    if "sat" in op:
        out = narrow(np.where(np.isnan(wide) | (wide <= 0), 0.0, np.minimum(wide, 1.0)), kind)
    if "relu" in op:
        out = narrow(np.where(np.isnan(wide), np.nan, np.where(wide > 0, wide, 0.0)), kind)
    m.set(op.args[0], kind, out)


def canonical(values: np.ndarray, kind: str) -> np.ndarray:
    """The same values with the one NaN that arithmetic gives."""
    wide = np.isnan(values.astype(np.float64))
    return np.where(wide, narrow(np.array([np.nan]), kind)[0], values).astype(values.dtype) if wide.any() else values


_EXACT = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b}


@handles("add", "sub", "mul", "div", "rem", "min", "max")
def binary(m: Machine, op: Op) -> None:
    """Two operands; integers go to `integer`."""
    kind = op.type
    if not is_float(kind):
        return integer_binary(m, op)
    a, b = operand(m, op, 1, kind), operand(m, op, 2, kind)
    if op.name in ("min", "max"):
        return finish(m, op, kind, _extreme(m, op, kind, a, b))
    mode, compute = mode_of(op), _EXACT[op.name]
    if "ftz" in op and base(kind) == "f16":
        return finish(m, op, kind, _tiny_flushed(compute(a.astype(np.float64), b.astype(np.float64)), kind))
    with np.errstate(all="ignore"):
        if mode != "rn":
            out = exactly(compute, (a, b), kind, mode, compute, op.name in ("add", "sub"))
        elif base(kind) == "f64":
            out = compute(a, b)
        else:
            out = _nearest(compute, a, b, kind)
        if op.name == "div" and "approx" in op:
            out = _large_divisor(a, b, out)
    return finish(m, op, kind, out)


def _large_divisor(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    """div.approx beyond a divisor of 2**126 gives zero, and NaN for an infinite dividend (PTX ISA 9.7.3, div)."""
    large = (np.abs(b) > 2.0**126) & np.isfinite(b) & ~np.isnan(a)
    zero = np.copysign(np.float32(0), np.copysign(1, a) * np.copysign(1, b))
    return np.where(large, np.where(np.isinf(a), narrow(np.array([np.nan]), "f32"), zero), out).astype(np.float32)


def _tiny_flushed(exact: np.ndarray, kind: str) -> np.ndarray:
    """Rounded f16, with what is subnormal before rounding flushed: half-precision .ftz looks before it rounds."""
    return narrow(np.where(np.abs(exact) < 2.0**-14, np.copysign(0.0, exact), exact), kind)


def _nearest(compute, a: np.ndarray, b: np.ndarray, kind: str) -> np.ndarray:
    """Float64 has more than twice the bits of the narrow formats plus two, so rounding twice is rounding once."""
    return narrow(compute(a.astype(np.float64), b.astype(np.float64)), kind)


def _extreme(m: Machine, op: Op, kind: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The other operand where one is NaN (NaN with .NaN); -0 below +0; .xorsign takes the product of the signs."""
    values = [v.astype(np.float64) for v in (a, b)]
    if len(op.args) == 4:
        values.append(operand(m, op, 3, kind).astype(np.float64))
    sign = np.signbit(values[0]) ^ np.signbit(values[1])
    if "xorsign" in op:
        values = [np.abs(v) for v in values]
    out = values[0]
    for v in values[1:]:
        larger = (out > v) | ((out == v) & (np.signbit(v) & ~np.signbit(out)))
        pick = np.where(larger, out, v) if op.name == "max" else np.where(larger, v, out)
        both = np.isnan(out) | np.isnan(v) if "NaN" in op else np.isnan(out) & np.isnan(v)
        out = np.where(np.isnan(out), v, np.where(np.isnan(v), out, pick))
        out = np.where(both, np.nan, out)
    if "xorsign" in op:
        out = np.where(sign, -out, out)
    return narrow(out, kind)


@handles("mad")
def mad(m: Machine, op: Op) -> None:
    """mad on integers or floats."""
    (float_fma if is_float(op.type) else integer_mad)(m, op)


@handles("fma")
def float_fma(m: Machine, op: Op) -> None:
    """fma, and mad on floats."""
    kind = op.type
    a, b, c = (operand(m, op, n, kind) for n in (1, 2, 3))
    finish(m, op, kind, fma(a, b, c, kind, mode_of(op)))


@handles("abs", "neg", "copysign", "testp")
def signs(m: Machine, op: Op) -> None:
    """Sign operations, integer and float, and testp."""
    kind = op.type
    if op.name == "testp":
        return m.set(op.args[0], "pred", _test(op.mods[0], m.get(op.args[1], kind)))
    if not is_float(kind):
        value = m.get(op.args[1], kind)
        with np.errstate(all="ignore"):
            return m.set(op.args[0], kind, np.abs(value) if op.name == "abs" else (0 - value).astype(value.dtype))
    value = operand(m, op, 1, kind)
    unsigned = np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}")
    top = unsigned.dtype.type(1 << 8 * value.dtype.itemsize - 1)
    if op.name == "copysign":
        raw = f"b{WIDTH[kind]}"
        return m.set(op.args[0], raw, m.get(op.args[2], raw) & ~top | unsigned & top)
    out = (unsigned & ~top if op.name == "abs" else unsigned ^ top).view(value.dtype)
    nan = np.isnan(value.astype(np.float64))
    return m.set(op.args[0], kind, np.where(nan, value if kind == "f64" else canonical(value, kind), out))


def _test(word: str, v: np.ndarray) -> np.ndarray:
    least = TINY if v.dtype == np.float32 else 2.0**-1022
    normal = np.isfinite(v) & ((np.abs(v) >= least) | (v == 0))
    return {"finite": np.isfinite(v), "infinite": np.isinf(v), "number": ~np.isnan(v), "notanumber": np.isnan(v),
            "normal": normal, "subnormal": np.isfinite(v) & ~normal}[word]  # fmt: skip


def _sqrt_exact(v: float, kind: str, mode: str) -> float:
    """Square root rounded once: by integer square root of a scaled value, with a sticky bit."""
    from math import isqrt

    q = Fraction(v)
    scale = 2 * 60 + 2 * 1100
    root = isqrt((q.numerator << scale) // q.denominator)
    exact = Fraction(root, 1 << scale // 2)
    if exact * exact != q:
        exact += Fraction(1, 1 << scale // 2 + 1)
    return round_to(exact, kind, mode)


_APPROXIMATE: dict[str, Callable[..., Any]] = {
    "rcp": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    "lg2": np.log2, "ex2": np.exp2, "sqrt": np.sqrt,
}  # fmt: skip


@handles("rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "lg2", "ex2")
def unary(m: Machine, op: Op) -> None:
    """Rounded rcp and sqrt; approximations as the rounded true value."""
    kind = op.type
    a = operand(m, op, 1, kind)
    wide = a.astype(np.float64)
    with np.errstate(all="ignore"):
        if op.name == "rcp" and any(w in op for w in MODES):
            out = exactly(lambda x: 1 / x, (a,), kind, mode_of(op), lambda x: 1 / x)
        elif op.name == "sqrt" and any(w in op for w in MODES):
            out = np.sqrt(wide)
            for n in np.flatnonzero((wide > 0) & np.isfinite(wide)):
                out[n] = _sqrt_exact(wide[n], kind, mode_of(op))
            out = narrow(out, kind)
        else:
            out = narrow(_APPROXIMATE[op.name](wide), kind)
    finish(m, op, kind, out)


@handles("cvt")
def convert(m: Machine, op: Op) -> None:
    """cvt: between integers, between floats (pairs too), and across."""
    kinds = [w for w in op.mods if w in WIDTH or w in EXTRA_TYPES]
    if "pack" in op:
        return _pack(m, op)
    to, of = kinds[0], kinds[1]
    if to in PAIRS and of not in PAIRS:
        return _convert_pair(m, op, to, of)
    if is_float(to) and is_float(of):
        return _float_to_float(m, op, to, of)
    value = m.get(op.args[1], of)
    if is_float(to):
        wide = [round_to(Fraction(int(v)), base(to), mode_of(op)) for v in value]
        return finish(m, op, to, narrow(np.array(wide, np.float64), to))
    if is_float(of):
        return m.set(op.args[0], to, _to_integer(op, flush(value, of) if "ftz" in op else value, to))
    m.set(op.args[0], to, clamp(value, to) if "sat" in op else wrap(value, to))


def _pack(m: Machine, op: Op) -> None:
    """cvt.pack: a and b saturated side by side, b lowest, above them the low bits of c."""
    kind = op.mods[op.mods.index("sat") + 1]
    width = int(kind[1:])
    low, high = (0, (1 << width) - 1) if kind[0] == "u" else (-(1 << width - 1), (1 << width - 1) - 1)
    a, b = ([min(max(int(v), low), high) % (1 << width) for v in m.get(o, "s32")] for o in op.args[1:3])
    c = m.get(op.args[3], "b32").tolist() if len(op.args) > 3 else [0] * len(a)
    m.set(op.args[0], "b32", wrap([z << 2 * width | x << width | y for x, y, z in zip(a, b, c, strict=True)], "b32"))


def _to_integer(op: Op, value: np.ndarray, to: str) -> np.ndarray:
    mode = next(w for w in op.mods if w in ("rni", "rzi", "rmi", "rpi"))[:2]
    info = np.iinfo(DTYPES[to])
    # f32 and narrower to at most 32 bits: zero. Otherwise the top bit, the sign of a signed result.
    top = 1 << WIDTH[to] - 1
    nan = 0 if value.dtype.itemsize < 8 and WIDTH[to] <= 32 else (top if to[0] == "u" else -top)
    out = []
    for v in value.astype(np.float64):
        if np.isnan(v):
            out.append(nan)
        elif np.isinf(v):
            out.append(int(info.max if v > 0 else info.min))
        else:
            out.append(to_integer(Fraction(float(v)), mode))
    return clamp(out, to)


def _float_to_float(m: Machine, op: Op, to: str, of: str) -> None:
    value = m.get(op.args[1], of)
    if "ftz" in op and of == "f32" and to != "f16":
        value = canonical(flush(value, "f32"), "f32")
    wide = value.astype(np.float64)
    integral = next((w for w in op.mods if w in ("rni", "rzi", "rmi", "rpi")), None)
    if integral:
        round_ = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[integral]
        return finish(m, op, to, narrow(round_(wide), to))
    out = _to_format(op, wide, to)
    if "sat" not in op and "relu" not in op:
        out = _moved_nan(op, value, out, of, to)
    if "sat" in op or to == "f32":
        return finish(m, op, to, out)
    m.set(op.args[0], to, out)


def _moved_nan(op: Op, value: np.ndarray, out: np.ndarray, of: str, to: str) -> np.ndarray:
    """NaN keep sign and payload from or to f64, from bf16 to f32, and to tf32 by .rna; elsewhere there is one NaN."""
    nan = np.isnan(value.astype(np.float64))
    raw = np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}").astype(object)
    if to == "tf32":
        kept = [int(v) & 0xFFFFE000 if "rna" in op else 0x7FFFE000 for v in raw]
    elif (of, to) == ("bf16", "f32"):
        kept = [int(v) << 16 for v in raw]
    elif "f64" in (of, to):
        bits, wide = _FRACTION[of], _FRACTION[to]
        width, target = WIDTH[of], WIDTH[to]
        kept = []
        for v in raw:
            payload = int(v) & (1 << bits) - 1
            payload = payload << wide - bits if wide >= bits else payload >> bits - wide
            exponent = (1 << target - 1 - wide) - 1
            kept.append(int(v) >> width - 1 << target - 1 | exponent << wide | 1 << wide - 1 | payload)
    else:
        return out
    image = np.array([k if n else 0 for k, n in zip(kept, nan, strict=True)], f"u{out.dtype.itemsize}")
    return np.where(nan, image.view(out.dtype), out)


def _to_format(op: Op, wide: np.ndarray, to: str) -> np.ndarray:
    """Float64 values rounded to a format, saturated to its largest finite value with .satfinite."""
    mode = "rna" if "rna" in op else mode_of(op)
    name = base(to)
    if "relu" in op:
        wide = np.where(np.isnan(wide), np.nan, np.where(wide > 0, wide, 0.0))
    out = rounded(wide, name, mode)
    if "satfinite" in op:
        largest = FORMATS[name][2]
        out = np.where(np.isnan(out), out, np.clip(out, -largest, largest))
    return narrow(out, to)


def _convert_pair(m: Machine, op: Op, to: str, of: str) -> None:
    """cvt.f16x2.f32 d, a, b: a is the upper half."""
    if len(op.args) != 3:
        raise OracleFault("a packed conversion takes two sources")
    upper, lower = (m.get(o, of).astype(np.float64) for o in op.args[1:3])
    m.set(op.args[0], to, _to_format(op, np.stack([lower, upper], 1), to))
