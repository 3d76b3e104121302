"""Input values of the instruction tests: edge cases and hashed bits by kind. The same on every machine and NumPy."""

from __future__ import annotations

import struct

import numpy as np

WIDTH = {"f16x2": 32, "bf16x2": 32, "bf16": 16, "pred": 32} | {f"{k}{w}": w for k in "busf" for w in (8, 16, 32, 64)}
_F32 = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, -2.5, 3.0, 65504.0, 65520.0, 448.0, -464.0, 57344.0, 61440.0, 2.0**31,
        -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 127.5, 255.5, -128.5, 16777217.0, 0.1, 3.4028235e38,
        -3.4028235e38, 1.17549435e-38, 2.0**-24, 2.0**-25, 6.1e-5, 2.0**-9, 2.0**-10)  # fmt: skip
_F32_BITS = (0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x00000001, 0x807FFFFF, 0x00400000,
             0x3F7FFFFF, 0x3F800001, 0x4B7FFFFF, 0xBEFFFFFF)  # fmt: skip
_F64_BITS = (0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0xFFF800000000ABCD, 1, 0x800FFFFFFFFFFFFF,
             0x0010000000000000, 0x7FEFFFFFFFFFFFFF, 0x3FEFFFFFFFFFFFFF, 0x3FF0000000000001, 0x36A0000000000000,
             0x380FFFFFE0000000, 0x47EFFFFFF0000000, 0x41DFFFFFFFC00000, 0xC1E0000000200000,
             0x43DFFFFFFFFFFFFF)  # fmt: skip
_F16_BITS = (0x0000, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x7D01, 0xFFFF, 0x0001, 0x83FF, 0x0400, 0x7BFF,
             0xFBFF, 0x3800, 0x3E00, 0x5F00, 0xDF40, 0x6400, 0x3BFF)  # fmt: skip
_BF16_BITS = (0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF, 0x0001, 0x807F, 0x0080, 0x7F7F,
              0xFF7F, 0x3F00, 0x3FC0, 0x4F00, 0xDF00, 0x43E0, 0x3F7F)  # fmt: skip
MASK64 = (1 << 64) - 1


def hashed(seed: int, count: int) -> np.ndarray:
    """`count` well-mixed uint64 (the splitmix64 sequence)."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def edges(kind: str) -> list[int]:
    """Raw bits of the values where implementations go wrong."""
    if kind == "f32":
        return [struct.unpack("I", struct.pack("f", v))[0] for v in _F32] + list(_F32_BITS)
    if kind == "f64":
        return [struct.unpack("Q", struct.pack("d", v))[0] for v in _F32] + list(_F64_BITS)
    if kind in ("f16", "bf16"):
        return list(_F16_BITS if kind == "f16" else _BF16_BITS)
    if kind in ("f16x2", "bf16x2"):
        half = edges(kind[:-2])
        return [a | b << 16 for a, b in zip(half, half[7:] + half[:7], strict=True)]
    width = WIDTH[kind]
    top = 1 << width - 1
    values = [0, 1, 2, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2, 7, 0x5A, 127, 128, 255, 256, 32767, 32768,
              65535, (1 << 24) + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, -128, -129, -32768, -32769, -(2**31),
              -(2**31) - 1]  # fmt: skip
    return list(dict.fromkeys(v % (1 << width) for v in values))


def _near_one(kind: str, raw: np.ndarray) -> np.ndarray:
    """Float bits with exponents within a few of one's, so that sums round and cancel."""
    fraction, bias = {"f64": (52, 1023), "f32": (23, 127), "f16": (10, 15), "bf16": (7, 127)}[kind]
    mantissa, sign = raw & np.uint64((1 << fraction) - 1), raw >> np.uint64(63)
    exponent = np.uint64(bias - 3) + (raw >> np.uint64(56)) % np.uint64(7)
    return sign << np.uint64(WIDTH[kind] - 1) | exponent << np.uint64(fraction) | mantissa


def _limited(limit: int, also: tuple[int, ...] = ()):
    def make(seed: int, count: int) -> np.ndarray:
        raw = hashed(seed, count)
        picks = np.array([*range(limit), *also], np.uint64)
        return picks[(raw % np.uint64(picks.size)).astype(int)]

    return make


def _finite(kind: str, low: int, high: int):
    """Floats with hashed mantissa and sign, and exponents from 2**low to 2**high."""

    def make(seed: int, count: int) -> np.ndarray:
        raw = hashed(seed, count)
        fraction, bias = {"f32": (23, 127), "f64": (52, 1023)}[kind]
        exponent = (raw >> np.uint64(54)) % np.uint64(high - low) + np.uint64(bias + low)
        mantissa = raw & np.uint64((1 << fraction) - 1)
        return raw >> np.uint64(63) << np.uint64(WIDTH[kind] - 1) | exponent << np.uint64(fraction) | mantissa

    return make


def _small_floats(kind: str, limit: int):
    """Whole numbers within ±limit, packed: products and sums of them are exact in any order."""

    def make(seed: int, count: int) -> np.ndarray:
        import ml_dtypes

        dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn,
                 "e5m2": ml_dtypes.float8_e5m2, "f32": np.float32, "f64": np.float64}[kind]  # fmt: skip
        width = np.dtype(dtype).itemsize
        per = max(4 // width, 1)
        values = (hashed(seed, count * per) % np.uint64(2 * limit + 1)).astype(np.int64) - limit
        return values.astype(dtype).view(f"u{width * per}").astype(np.uint64)

    return make


def _spread_floats(kind: str):
    """Values like a normal distribution's, packed (a sum of hashed bits, divided exactly by a power of two)."""

    def make(seed: int, count: int) -> np.ndarray:
        import ml_dtypes

        dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn,
                 "e5m2": ml_dtypes.float8_e5m2, "f32": np.float32, "f64": np.float64}[kind]  # fmt: skip
        width = np.dtype(dtype).itemsize
        per = max(4 // width, 1)
        raw = hashed(seed, count * per)
        parts = sum(((raw >> np.uint64(16 * n)) & np.uint64(0xFFFF)).astype(np.float64) for n in range(4))
        return ((parts - 2 * 65535) / 37837).astype(dtype).view(f"u{width * per}").astype(np.uint64)

    return make


# Kinds that are not simply a type: (register type, maker).
SPECIAL = {
    "shift": ("u32", _limited(70, (127, 128, 255, 256, 0xFFFFFFFF, 0x80000000, 0x101))),
    "field": ("u32", _limited(34, (63, 64, 65, 255, 256, 0x120))),
    "lane": ("u32", _limited(32)), "few": ("u32", _limited(4)), "few64": ("u64", _limited(3)),
    "bytes": ("u32", hashed), "three": ("u32", _limited(3)), "bool": ("u32", _limited(2)),
    "angle": ("f32", _finite("f32", -20, 6)), "wide_f32": ("f32", _finite("f32", -126, 127)),
    "moderate": ("f32", _finite("f32", -12, 5)), "wide_f64": ("f64", _finite("f64", -1000, 1000)),
    "start": ("u32", _limited(32)), "offset": ("s32", _limited(33, (0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFF0))),
}  # fmt: skip
SPECIAL |= {f"whole_{k}": (r, _small_floats(k, n)) for k, r, n in (
    ("f16", "b32", 8), ("bf16", "b32", 8), ("e4m3", "b32", 8), ("e5m2", "b32", 3), ("f32", "f32", 15),
    ("f64", "f64", 999))}  # fmt: skip
SPECIAL |= {f"normal_{k}": (r, _spread_floats(k)) for k, r in (
    ("f16", "b32"), ("bf16", "b32"), ("e4m3", "b32"), ("e5m2", "b32"), ("f32", "f32"), ("f64", "f64"))}  # fmt: skip


def register_type(kind: str) -> str:
    """The register type that holds a kind."""
    if kind.startswith("divisor_"):
        return kind[8:]
    return SPECIAL[kind][0] if kind in SPECIAL else kind


def make(kind: str, seed: int, count: int) -> np.ndarray:
    """uint64 `[count]` of raw bits: a quarter edges, a quarter any bits, for floats half near one."""
    if kind in SPECIAL:
        return SPECIAL[kind][1](seed, count)
    base = register_type(kind)
    raw, where = hashed(seed, count), hashed(seed + 77, count)
    width = np.uint64(WIDTH[base])
    out = raw & np.uint64(MASK64 >> 64 - int(width))
    single = base.removesuffix("x2")
    if single in ("f16", "bf16", "f32", "f64"):
        near = _near_one(single, raw)
        if single != base:
            near |= _near_one(single, hashed(seed + 5, count)) << np.uint64(16)
        out = np.where(where % np.uint64(4) >= np.uint64(2), near, out)
    else:
        narrow = raw >> (where >> np.uint64(8)) % width
        signed = np.where(where >> np.uint64(40) & np.uint64(1), narrow, ~narrow + np.uint64(1))
        out = np.where(where % np.uint64(4) >= np.uint64(2), signed & np.uint64(MASK64 >> 64 - int(width)), out)
    special = np.array(edges(base), np.uint64)
    picks = special[(where >> np.uint64(20)).astype(np.int64) % special.size]
    out = np.where(where % np.uint64(4) == 0, picks, out)
    if kind.startswith("divisor_"):
        all_ones = np.uint64(MASK64 >> 64 - int(width))
        out = np.where((out == 0) | (out == all_ones), np.uint64(3), out)
    return out
