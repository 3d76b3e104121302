"""Functions of elements, conversions, shapes, what PTX has of its own: cases of `triton_kernels/elements.py`."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.evidence.compilers.triton_cases.kernel import Brain, kernel, softmax
from tests.evidence.corpus.case import Close, Unordered, Work, floats, ints, poison


def _philox(counters: np.ndarray, seed: int) -> list[np.ndarray]:
    """Philox 4x32 with ten rounds: the counter is (c, 0, 0, 0), the key the seed's two halves (Salmon et al., 2011)."""
    mask = np.uint64(0xFFFFFFFF)
    c = [counters.astype(np.uint64), *[np.zeros(len(counters), np.uint64) for _ in range(3)]]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(second >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), second & mask,
             (first >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), first & mask]  # fmt: skip
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return [x.astype(np.uint32) for x in c]


def _uniform(bits: np.ndarray) -> np.ndarray:
    """Triton's floats in [0, 1): a negative integer is mirrored, then scaled to just below 1."""
    signed = bits.view(np.int32)
    return np.where(signed < 0, -signed - 1, signed).astype(np.float32) * np.float32(4.6566127342e-10)


def _normal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    u, v = np.maximum(1e-7, _uniform(a)), _uniform(b)
    return np.sqrt(-2.0 * np.log(u)) * np.cos(6.283185307179586 * v)


@kernel("philox", "out:*i32 uniform:*fp32 normal:*fp32 seed:i32", 1, N=128)
def _(rng):
    a, b, *_ = _philox(np.arange(128), 1234)
    args = [poison(128, "i4"), poison(128, "f4"), poison(128, "f4"), 1234]
    return Work(args, {0: a.view(np.int32), 1: Close(_uniform(a)), 2: Close(_normal(a, b), 1e-4, 1e-5)})


@kernel("dropout", "x:*fp32 out:*fp32 n:i32 p:fp32 seed:i32", 2, BLOCK=128)
def _(rng):
    x = floats(rng, 200)
    kept = _uniform(_philox(np.arange(200), 7)[0]) > 0.4
    return Work([x, poison(200, "f4"), 200, np.float32(0.4), 7], {1: Close(np.where(kept, x / np.float32(0.6), 0))})


@kernel("library", "x:*fp32 out:*fp32", 1, N=128)
def _(rng):
    from math import erf, lgamma

    x = rng.uniform(-0.9, 0.9, 128).astype(np.float32)
    w = x.astype(np.float64)
    quarter = np.linspace(0, np.pi, 2001)
    bessel = np.trapezoid(np.cos(w[:, None] * np.sin(quarter)), quarter, axis=1) / np.pi
    rows = [np.arcsin(w), np.tanh(w), [erf(v) for v in w], (w + 2) ** 1.7, np.log1p(w), np.expm1(w), np.cbrt(w),
            np.arctan2(w, w + 1.5), np.sinh(w), [lgamma(v + 3) for v in w], bessel, np.rint(w * 4)]  # fmt: skip
    return Work([x, poison(12 * 128, "f4")], {1: Close(np.array(rows, np.float32), 2e-5, 1e-6)})


@kernel("library_double", "x:*fp64 out:*fp64", 1, N=64)
def _(rng):
    from math import erfc

    x = rng.uniform(-1, 1, 64)
    rows = [np.sin(x), np.exp(x), np.log(x + 2), np.sqrt(x + 2), [erfc(v) for v in x]]
    return Work([x, poison(5 * 64, "f8")], {1: Close(np.array(rows), 1e-12)})


@kernel("elementary", "x:*fp32 out:*fp32", 1, N=128)
def _(rng):
    from math import erf

    x = rng.uniform(-1, 1, 128).astype(np.float32)
    w = x.astype(np.float64)
    rows = [np.exp(w), np.log(w + 2), np.sin(w), np.cos(w), np.sqrt(w + 2), w / (w + 2), 1 / (1 + np.exp(-w)),
            np.floor(w * 3), w * w + w, [erf(v) for v in w], np.clip(w, -0.5, 0.5), 1 / np.sqrt(w + 2)]  # fmt: skip
    return Work([x, poison(12 * 128, "f4")], {1: Close(np.array(rows, np.float32), 1e-4, 1e-6)})


@kernel("integers", "x:*i32 y:*i32 out:*i32", 1, N=64)
def _(rng):
    x = rng.integers(-(2**31), 2**31, 64).astype(np.int32)
    y = (ints(rng, 64, 1, 1000) * rng.choice([-1, 1], 64)).astype(np.int32)
    a, b, u = x.astype(np.int64), y.astype(np.int64), x.astype(np.uint64) & np.uint64(0xFFFFFFFF)
    quotient = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
    high = (u * (b.astype(np.uint64) & np.uint64(0xFFFFFFFF))) >> np.uint64(32)
    bits = [bin(int(v)).count("1") for v in u]
    zeros = [32 - int(v).bit_length() for v in u]
    rows = [quotient, a - quotient * b, (a << 3) ^ (b >> 1), high, np.where(a > b, a & b, a | b), np.abs(a),
            a * b >> 7, bits, zeros, x.astype(np.int8)]  # fmt: skip
    out = np.array([np.asarray(row).astype(np.int64).astype(np.int32) for row in rows])
    return Work([x, y, poison(640, "i4")], {2: out})


@kernel("casts", "x:*fp32 halves:*fp16 brains:*bf16 e4:*fp8e4nv e5:*fp8e5 back:*fp32", 1, least="sm_90", N=128)
def _(rng):
    x = floats(rng, 128) * 50
    e4 = x.astype(ml_dtypes.float8_e4m3fn)
    args = [x, poison(128, "f2"), poison(128, "u2"), poison(128, "u1"), poison(128, "u1"), poison(128, "f4")]
    return Work(args, {1: x.astype(np.float16), 2: x.astype(ml_dtypes.bfloat16).view(np.uint16), 3: e4.view(np.uint8),
                       4: x.astype(ml_dtypes.float8_e5m2).view(np.uint8), 5: e4.astype(np.float32)})  # fmt: skip


@kernel("casts_old", "x:*fp32 halves:*fp16 brains:*bf16 e5:*fp8e5 back:*fp32", 1, least="sm_80", N=128)
def _(rng):
    x = floats(rng, 128) * 50
    e5 = x.astype(ml_dtypes.float8_e5m2)
    args = [x, poison(128, "f2"), poison(128, "u2"), poison(128, "u1"), poison(128, "f4")]
    return Work(args, {1: x.astype(np.float16), 2: x.astype(ml_dtypes.bfloat16).view(np.uint16), 3: e5.view(np.uint8),
                       4: e5.astype(np.float32)})  # fmt: skip


@kernel("shapes", "x:*i32 out:*i32", 1, M=16, N=32)
def _(rng):
    x = ints(rng, (16, 32))
    woven = np.stack([x[:, 1::2], x[:, 0::2]], -1).reshape(16, 32)
    out = np.concatenate([x.T.ravel(), woven.ravel(), x[:, ::-1].ravel()])
    return Work([x, poison(3 * 512, "i4")], {1: out})


@kernel("transpose", "x:*fp16 out:*fp16 M:i32 N:i32", (2, 2), BM=32, BN=32)
def _(rng):
    x = floats(rng, 40, 50).astype(np.float16)
    return Work([x, poison(2000, "f2"), 40, 50], {1: x.T.copy()})


@kernel("embedding", "ids:*i32 table:*fp32 out:*fp32", 5, D=64, warps=2)
def _(rng):
    ids, table = ints(rng, 5, 0, 10), floats(rng, 10, 64)
    return Work([ids, table, poison(320, "f4")], {2: table[ids]})


@kernel("cross_entropy", "logits:*fp32 labels:*i64 losses:*fp32 columns:i32", 4, BLOCK=128)
def _(rng):
    x, labels = floats(rng, 4, 100), rng.integers(0, 100, 4)
    out = -np.log(softmax(x)[np.arange(4), labels])
    return Work([x, labels, poison(4, "f4"), 100], {2: Close(out, 1e-4)})


@kernel("rope", "x:*fp32 cos:*fp32 sin:*fp32 out:*fp32", 3, HALF=32, warps=1)
def _(rng):
    x, angle = floats(rng, 3, 64), floats(rng, 3, 32)
    c, s = np.cos(angle), np.sin(angle)
    out = np.concatenate([x[:, :32] * c - x[:, 32:] * s, x[:, 32:] * c + x[:, :32] * s], 1)
    return Work([x, c, s, poison(192, "f4")], {3: Close(out, 1e-4, 1e-5)})


@kernel("swiglu", "x:*bf16 gate:*bf16 out:*bf16 n:i32", 2, BLOCK=128)
def _(rng):
    x, gate = (floats(rng, 200).astype(ml_dtypes.bfloat16) for _ in range(2))
    g = gate.astype(np.float32)
    out = (g / (1 + np.exp(-g)) * x.astype(np.float32)).astype(ml_dtypes.bfloat16)
    return Work([x.view(np.uint16), gate.view(np.uint16), poison(200, "u2"), 200], {2: Brain(out, 1)})


@kernel("adam", "weight:*fp32 grad:*fp32 first:*fp32 second:*fp32 rate:fp32 step:fp32 n:i32", 2, BLOCK=128)
def _(rng):
    w, g, m, v = (floats(rng, 200) for _ in range(4))
    v = v * v
    m1, v1 = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    new = w - 0.01 * (m1 / (1 - 0.9**3)) / (np.sqrt(v1 / (1 - 0.999**3)) + 1e-8)
    args = [w, g, m, v, np.float32(0.01), np.float32(3), 200]
    return Work(args, {0: Close(new, 1e-3, 1e-4), 2: Close(m1, 1e-5, 1e-6), 3: Close(v1, 1e-5, 1e-6)})


@kernel("quantise_rows", "x:*fp32 out:*i8 scales:*fp32 columns:i32", 2, BLOCK=128)
def _(rng):
    x = floats(rng, 2, 100)
    scales = np.abs(x).max(1) / np.float32(127)
    out = np.rint(x / scales[:, None]).astype(np.int8)
    return Work([x, poison(200, "i1"), poison(2, "f4"), 100], {1: Close(out, 0, 1), 2: Close(scales, 1e-6)})


@kernel("dequantise_int4", "packed:*u8 scales:*fp32 out:*fp16", 1, N=128, GROUP=32)
def _(rng):
    packed, scales = rng.integers(0, 256, 64).astype(np.uint8), floats(rng, 4)
    values = np.stack([packed & 15, packed >> 4], 1).ravel().astype(np.float32) - 8
    return Work([packed, scales, poison(128, "f2")], {2: (values * np.repeat(scales, 32)).astype(np.float16)})


@kernel("convolve", "x:*fp32 weight:*fp32 out:*fp32 n:i32", 2, WIDTH=4, BLOCK=128)
def _(rng):
    x, w = floats(rng, 200), floats(rng, 4)
    return Work([x, w, poison(200, "f4"), 200], {2: Close(np.convolve(x, w)[:200], 1e-4, 1e-5)})


@kernel("collatz", "x:*i32 out:*i32", 4, N=1, warps=1)
def _(rng):
    return Work([np.array([1, 6, 7, 27], "i4"), poison(4, "i4")], {1: np.array([0, 8, 16, 111], "i4")})


@kernel("mandelbrot", "out:*i32", 4, W=32, H=4, TURNS=20, warps=1)
def _(rng):
    px, py = np.meshgrid(np.arange(32), np.arange(4))
    cx = np.float32(-2) + np.float32(3) * px.astype(np.float32) / np.float32(32)
    cy = np.float32(-1.5) + np.float32(3) * py.astype(np.float32) / np.float32(4)
    zx, zy, count = np.zeros_like(cx), np.zeros_like(cx), np.zeros(cx.shape, np.int32)
    for _ in range(20):
        inside = zx * zx + zy * zy < 4
        new, zy = zx * zx - zy * zy + cx, np.where(inside, 2 * zx * zy + cy, zy)
        zx, count = np.where(inside, new, zx), count + inside
    return Work([poison(128, "i4")], {0: count.astype(np.int32)})


@kernel("assembly", "x:*i32 y:*i32 out:*i32", 1, N=64, warps=2)
def _(rng):
    x, y = (rng.integers(-(2**31), 2**31, 64).astype(np.int32) for _ in range(2))
    a, b = (v.view(np.uint8).reshape(-1, 4).astype(np.int32) for v in (x, y))
    return Work([x, y, poison(64, "i4")], {2: np.abs(a - b).sum(1).astype(np.int32)})


@kernel("asserts", "x:*i32 out:*i32", 1, N=64, warps=2)
def _(rng):
    x = ints(rng, 64, 0, 100)
    return Work([x, poison(64, "i4")], {1: x * 2})


@kernel("prints", "x:*i32 out:*i32", 1, N=32, warps=1)
def _(rng):
    x = ints(rng, 32)
    return Work([x, poison(32, "i4")], {1: x + 1})


@kernel("doubles", "x:*fp64 out:*fp64", 1, N=64)
def _(rng):
    x = rng.standard_normal(64)
    out = np.concatenate([np.cumsum(x * x - 1), np.sqrt(np.abs(x)) / (x + 3)])
    return Work([x, poison(128, "f8")], {1: Close(out, 1e-10, 1e-12)})


@kernel("described", "x:*fp32 out:*fp32 total:*fp32 M:i32 N:i32", (2, 2), BM=16, BN=32)
def _(rng):
    x = ints(rng, (32, 64)).astype(np.float32)
    total = x.reshape(2, 16, 2, 32).sum((0, 2))
    return Work([x, poison(2048, "f4"), np.zeros((16, 32), np.float32), 32, 64], {1: x * 2, 2: total})


@kernel("dependent", "x:*fp32 out:*fp32 n:i32", 2, least="sm_90", BLOCK=128)
def _(rng):
    x = floats(rng, 200)
    return Work([x, poison(200, "f4"), 200], {1: x + 1})


@kernel("clocks", "out:*i32", 1, N=64)
def _(rng):
    return Work([poison(64, "i4")], {0: np.arange(64, dtype=np.int32)})


__all__ = ["Unordered"]
