"""Number formats and correct rounding: exact rationals to any float format in any mode. Slow, and easy to check."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype] = {
    **{f"{k}{w}": np.dtype(f"{n}{w // 8}") for k, n in (("u", "u"), ("b", "u"), ("s", "i")) for w in (8, 16, 32, 64)},
    "pred": np.dtype(bool), "f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
    "bf16": np.dtype(ml_dtypes.bfloat16), "f16x2": np.dtype(np.float16), "bf16x2": np.dtype(ml_dtypes.bfloat16),
    "u16x2": np.dtype(np.uint16), "s16x2": np.dtype(np.int16),
    "tf32": np.dtype(np.float32), "e4m3x2": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2x2": np.dtype(ml_dtypes.float8_e5m2), "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
PAIRS = frozenset({"f16x2", "bf16x2", "u16x2", "s16x2", "e4m3x2", "e5m2x2"})
# Bits of precision (the hidden one too), smallest normal exponent, largest finite value.
FORMATS: dict[str, tuple[int, int, float]] = {
    "f16": (11, -14, 65504.0), "bf16": (8, -126, float.fromhex("0x1.fep127")),
    "f32": (24, -126, float.fromhex("0x1.fffffep127")), "f64": (53, -1022, float.fromhex("0x1.fffffffffffffp1023")),
    "tf32": (11, -126, float.fromhex("0x1.ffcp127")), "e4m3": (4, -6, 448.0), "e5m2": (3, -14, 57344.0),
}  # fmt: skip
NAN_BITS = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "tf32": 0x7FFFE000, "e4m3": 0x7F, "e5m2": 0x7F}


def base(type_: str) -> str:
    """`f16` of `f16x2`."""
    return type_.removesuffix("x2")


def is_float(type_: str) -> bool:
    """Whether the type is a floating-point one."""
    return base(type_) in FORMATS


def to_integer(q: Fraction, mode: str) -> int:
    """A rational to an integer: `rn` ties to even, `rna` ties away, `rz`, `rm` (down), `rp` (up)."""
    floor = q.numerator // q.denominator
    rest = q - floor
    if mode == "rm" or not rest:
        return floor
    if mode == "rp":
        return floor + 1
    if mode == "rz":
        return floor if q >= 0 else floor + 1
    if rest != Fraction(1, 2):
        return floor + (rest > Fraction(1, 2))
    if mode == "rna":
        return floor + (q >= 0)
    return floor + (floor & 1)


def round_to(q: Fraction, format_: str, mode: str = "rn") -> float:
    """A rational to the nearest value of a format (as a Python float, which holds all of them); overflow as IEEE."""
    precision, least, largest = FORMATS[format_]
    if q == 0:
        return 0.0
    size = abs(q)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, least) - precision + 1)
    rounded = to_integer(q / quantum, mode) * quantum
    if abs(rounded) > Fraction(largest):
        stays = mode == "rz" or (mode == "rm" and q > 0) or (mode == "rp" and q < 0)
        return (largest if stays else float("inf")) * (1 if q > 0 else -1)
    return float(rounded) if rounded else (0.0 if q > 0 else -0.0)


def rounded(values: np.ndarray, format_: str, mode: str) -> np.ndarray:
    """Float64 values (exact ones) to a format, as float64; NaN, infinities and what the format holds pass."""
    out = np.asarray(values, np.float64).copy()
    flat = out.reshape(-1)
    with np.errstate(all="ignore"):
        held = flat.astype(DTYPES[format_]).astype(np.float64) == flat if format_ != "tf32" else flat == 0
    for n in np.flatnonzero(np.isfinite(flat) & ~held):
        flat[n] = round_to(Fraction(flat[n]), format_, mode)
    return out


def narrow(values: np.ndarray, type_: str) -> np.ndarray:
    """Float64 values to the NumPy dtype of `type_`, nearest even, with one NaN."""
    with np.errstate(all="ignore"):
        direct = base(type_) in ("f16", "f32", "f64", "tf32")
        out = (values if direct else _odd_single(values)).astype(DTYPES[type_])
    bits = NAN_BITS.get(base(type_))
    if bits is not None:
        raw = out.view(f"u{out.dtype.itemsize}")
        raw[np.isnan(values)] = bits
    return out


def _odd_single(values: np.ndarray) -> np.ndarray:
    """Float64 to float32, rounded to odd: ml_dtypes goes by way of float32, and would round twice."""
    near = values.astype(np.float32)
    even = np.isfinite(near) & (near != values) & (near.view(np.uint32) & 1 == 0)
    stepped = np.nextafter(near, np.where(values > near, np.inf, -np.inf).astype(np.float32))
    return np.where(even, stepped, near)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray, type_: str, mode: str = "rn") -> np.ndarray:
    """a * b + c with one rounding; to 32 bits and less by way of float64 rounded to odd, so that twice is once."""
    if base(type_) == "f64" or mode != "rn":
        return exactly(lambda x, y, z: x * y + z, (a, b, c), type_, mode, lambda x, y, z: x * y + z)
    with np.errstate(all="ignore"):
        x, y, z = (v.astype(np.float64) for v in (a, b, c))
        product = x * y
        total = product + z
        back = total - product
        error = (product - (total - back)) + (z - back)
        bits = total.view(np.int64).copy()
        odd = (error != 0) & np.isfinite(total) & np.isfinite(error) & (bits & 1 == 0)
        away = (error > 0) == (total > 0)
        bits[odd] += np.where(away, 1, -1)[odd]
        return narrow(bits.view(np.float64), type_)


def exactly(exact, args: tuple[np.ndarray, ...], type_: str, mode: str, special, adds: bool = True) -> np.ndarray:
    """`exact` on rationals with one rounding; `special` in float64 where an operand or the result is not a number.

    `adds`: a sum, whose exact zero from terms of unlike sign is -0 when rounding down.
    """
    wide = [np.asarray(v).astype(np.float64) for v in args]
    with np.errstate(all="ignore"):
        out = np.asarray(special(*wide), np.float64).copy()
    flat, flats = out.reshape(-1), [v.reshape(-1) for v in wide]
    for n in np.flatnonzero(np.logical_and.reduce([np.isfinite(v) for v in flats])):
        try:
            q = exact(*(Fraction(float(v[n])) for v in flats))
        except ZeroDivisionError:
            continue
        if q != 0:
            flat[n] = round_to(q, base(type_), mode)
        elif adds and mode == "rm" and _unlike(*(v[n] for v in flats)):
            flat[n] = -0.0
    return narrow(out, type_)


def _unlike(*terms: float) -> bool:
    """Whether an exact zero sum (a + b, or a * b + c) is of terms that are not both +0."""
    left, right = (terms[0], terms[1]) if len(terms) == 2 else (terms[0] * terms[1], terms[2])
    return not (left == 0 and right == 0 and not np.signbit(left) and not np.signbit(right))
