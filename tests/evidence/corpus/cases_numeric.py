"""Cases of numeric.cu, library.cu, gemm_tiled.cu, gemm_mma.cu and gemm_ldmatrix.cu."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.evidence.corpus.case import Close, Work, case, floats, ints, poison

bf16 = ml_dtypes.bfloat16


@case("numeric", 1, 64)
def doubles(rng):
    x, y = rng.standard_normal((2, 64)) * 10
    parts = [x + y, x * y - 1, x / y, np.sqrt(abs(x)), x * y + 0.5, np.fmin(x, y), np.fmax(x, y), np.floor(x),
             np.ceil(y), np.trunc(x * y), np.rint(x), x.astype(np.float32), np.trunc(x * 1e6), np.trunc(y), x + y,
             x * y]  # fmt: skip
    return Work([x, y, poison(1024, "f8")], {2: Close(np.stack(parts, 1).astype(np.float64), 1e-13, 1e-14)})


@case("numeric", 1, 64)
def halves(rng):
    x, y = rng.standard_normal((2, 64, 2)).astype(np.float16)
    a, b = x.astype(np.float64), y.astype(np.float64)
    scaled = x[:, 0].astype(np.float32) * np.float32(1.001)
    toward_zero = scaled.astype(np.float16)
    over = abs(toward_zero.astype(np.float32)) > abs(scaled)
    toward_zero[over] = np.nextafter(toward_zero[over], np.float16(0))
    mixed = np.stack([toward_zero, x[:, 1] - y[:, 1]], 1)
    last = np.stack([np.floor(x[:, 0]), np.where(x[:, 1] > y[:, 0], x[:, 1], y[:, 0])], 1)
    parts = [a + b, a * b, a * b + a, np.fmax(x, y), np.fmin(x, -y), np.fmax(a * b + b, 0), mixed, last]
    expected = np.stack([p.astype(np.float16) for p in parts], 1)
    return Work([x, y, poison(64 * 16, "f2")], {2: expected})


@case("numeric", 1, 64)
def bfloats(rng):
    x, y = rng.standard_normal((2, 64, 2)).astype(bf16)
    a, b = x.astype(np.float64), y.astype(np.float64)
    wide = np.stack([x[:, 0].astype(np.float32) * np.float32(1.01), y[:, 1].astype(np.float32) + np.float32(0.3)], 1)
    parts = [a * b + a, np.fmax(a, b), np.fmin(a, b), wide, (a + b).astype(np.float32), abs(a)]
    expected = np.stack([p.astype(bf16) for p in parts], 1)
    return Work([x, y, poison(64 * 12, "u2")], {2: expected.view(np.uint16)})


@case("numeric", 1, 96)
def fp8(rng):
    x = floats(rng, 96) * np.float32(2) ** rng.integers(-12, 12, 96).astype(np.float32)
    e4m3 = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    e5m2 = np.clip(x, -57344, 57344).astype(ml_dtypes.float8_e5m2)
    back = np.stack([e4m3, e5m2.astype(np.float32)], 1).astype(np.float32)
    return Work([x, poison(96, "u1"), poison(96, "u1"), poison(192, "f4")],
                {1: e4m3.view(np.uint8), 2: e5m2.view(np.uint8), 3: back})  # fmt: skip


@case("numeric", 1, 64)
def dot_products(rng):
    x, y = ints(rng, (2, 64), -(2**31), 2**31 - 1)
    s8 = [v.view(np.int8).reshape(64, 4).astype(int) for v in (x, y)]
    u8 = [v.view(np.uint8).reshape(64, 4).astype(int) for v in (x, y)]
    s16 = x.view(np.int16).reshape(64, 2).astype(int)
    low, high = (s16 * s8[1][:, :2]).sum(1) + 5, (s16 * s8[1][:, 2:]).sum(1) + 5
    expected = np.stack([(s8[0] * s8[1]).sum(1) + 100, (u8[0] * u8[1]).sum(1) + 7, low, high], 1)
    return Work([x, y, poison(256, "i4")], {2: expected.astype(np.int32)})


def _bits(a: int, b: int) -> list[int]:
    sa, sb = a - (a >> 31 << 32), b - (b >> 31 << 32)
    wide, pair = a << 32 | b, (b << 32 | a).to_bytes(8, "little")
    permuted = bytes(pair[n] for n in (5, 1, 7, 3))
    s24 = ((sa << 8) % 2**32 >> 8, (sb << 8) % 2**32 >> 8)
    mul24 = (s24[0] - (s24[0] >> 23 << 24)) * (s24[1] - (s24[1] >> 23 << 24))
    reverse = int(f"{a:032b}"[::-1], 2)
    first = (a & -a).bit_length()
    return [32 - a.bit_length(), a.bit_count(), reverse, first, int.from_bytes(permuted, "little"),
            ((b << 32 | a) << (b & 31)) >> 32, (b << 32 | a) >> min(b & 63, 32), a * b >> 32, sa * sb >> 32, mul24,
            abs(a - b) + 9, 64 - wide.bit_length(), wide.bit_count(), int(f"{wide:064b}"[::-1], 2) >> 7,
            (a >> (b & 15)) & 0xFF, (sa + sb) >> 1]  # fmt: skip


@case("numeric", 1, 64)
def bit_tricks(rng):
    x, y = rng.integers(0, 2**32, (2, 64), dtype=np.uint32)
    x[:4], y[:2] = [0, 1, 0xFFFFFFFF, 0x80000000], [0, 0xFFFFFFFF]
    expected = [[v & 0xFFFFFFFF for v in _bits(int(a), int(b))] for a, b in zip(x, y, strict=True)]
    return Work([x, y, poison(1024, "u4")], {2: np.array(expected, np.uint32)})


def _quotients(a: int, b: int) -> list[int]:
    def divide(n: int, d: int) -> int:
        return abs(n) // abs(d) * (1 if (n < 0) == (d < 0) else -1)

    ua, ub, la, lb = a % 2**32, b % 2**32, a * 77777 + b, b << 3 | 1
    return [divide(a, b), a - divide(a, b) * b, ua // ub, ua % ub, divide(la, lb), la - divide(la, lb) * lb,
            divide(a, 7), ua % 10]  # fmt: skip


@case("numeric", 1, 64)
def divisions(rng):
    x = ints(rng, 64, -(2**31), 2**31 - 1)
    y = ints(rng, 64, -(2**31), 2**31 - 1) >> rng.integers(0, 31, 64).astype(np.int32)
    x[0] = -(2**31) + 1
    expected = [_quotients(int(a), int(b) | 1) for a, b in zip(x, y, strict=True)]
    return Work([x, y, poison(512, "i8")], {2: np.array(expected, np.int64)})


@case("numeric", 1, 128)
def math_library(rng):
    from math import erf

    x = floats(rng, 128) * np.float32(20)
    x[:2] = [3000.0, 1e9]
    a = x.astype(np.float64)
    p = (abs(x) + np.float32(1e-3)).astype(np.float64)
    thousand, tenth = (x * np.float32(1000)).astype(np.float64), (x * np.float32(0.1)).astype(np.float64)
    with np.errstate(over="ignore"):
        parts = [np.sin(a), np.cos(thousand), np.exp(tenth), np.log(p), p ** np.float64(np.float32(1.7)), np.tanh(a),
                 1 / np.sqrt(p), 1 / p, a / p, np.sqrt(p), [erf(v) for v in tenth],
                 np.exp2((x * np.float32(0.2)).astype(np.float64))]  # fmt: skip
        expected = np.stack(parts, 1).astype(np.float32)
    return Work([x, poison(128 * 12, "f4")], {1: Close(expected, 2e-6, 2e-7)})


@case("numeric", 1, 64)
def fast_math(rng):
    x = floats(rng, 64)
    a = x.astype(np.float64)
    p = abs(a) + 1e-3
    parts = [np.sin(a), np.cos(a), np.exp(a * 0.1), np.log(p), a / p, 1 / np.sqrt(p), p**0.7, np.clip(a, 0, 1)]
    return Work([x, poison(512, "f4")], {1: Close(np.stack(parts, 1).astype(np.float32), 3e-6, 1e-6)})


@case("numeric", 3, 32)
def softmax_layernorm(rng):
    x = floats(rng, 3, 100) * np.float32(4)
    a = x.astype(np.float64)
    e = np.exp(a - a.max(1, keepdims=True))
    norm = (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5)
    return Work([x, poison(300, "f4"), poison(300, "f4"), np.int32(100)],
                {1: Close((e / e.sum(1, keepdims=True)).astype(np.float32), 1e-5, 1e-7),
                 2: Close(norm.astype(np.float32), 1e-4, 1e-5)})  # fmt: skip


@case("gemm_tiled", (3, 3), (16, 16))
def gemm_tiled(rng):
    m, n, k = 37, 45, 29
    a, b, c = floats(rng, m, k), floats(rng, k, n), floats(rng, m, n)
    expected = c + a.astype(np.float64) @ b.astype(np.float64)
    return Work([a, b, c, np.int32(m), np.int32(n), np.int32(k)], {2: Close(expected.astype(np.float32), 1e-5, 1e-5)})


@case("gemm_mma", (3, 2), 128)
def gemm_mma(rng):
    n, k = 96, 96
    a, b = floats(rng, 64, k).astype(np.float16), floats(rng, n, k).astype(np.float16)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    return Work([a, b, poison(64 * n, "f4"), np.int32(n), np.int32(k)], {2: Close(expected, 1e-4, 1e-4)})


@case("gemm_ldmatrix", (3, 2), 32)
def gemm_ldmatrix(rng):
    n, k = 48, 80
    a, b = floats(rng, 32, k).astype(bf16), floats(rng, k, n).astype(bf16)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    return Work([a, b, poison(32 * n, "f4"), np.int32(n), np.int32(k)], {2: Close(expected, 1e-4, 1e-4)})


@case("gemm_ldmatrix", 3, 32)
def transpose_8x8(rng):
    x = rng.integers(0, 2**16, (3, 8, 8), dtype=np.uint16)
    return Work([x, poison(192, "u2")], {1: x.transpose(0, 2, 1).copy()})


@case("library", 1, 64)
def half_functions(rng):
    x = (rng.uniform(0.05, 2, (64, 2)) * rng.choice([-1, 1], (64, 2))).astype(np.float16)
    a = x.astype(np.float64)
    b = abs(a)
    parts = [np.exp(a), 2**a, np.log(b), 1 / b, np.sqrt(b), 1 / np.sqrt(b), np.rint(a), 10**a]
    return Work([x, poison(64 * 16, "f2")], {1: Close(np.stack(parts, 1).astype(np.float16), 2e-3, 2e-4)})


@case("library", 1, 64)
def bfloat_functions(rng):
    x = (rng.uniform(0.05, 2, (64, 2)) * rng.choice([-1, 1], (64, 2))).astype(bf16)
    a = x.astype(np.float64)
    expected = np.stack([np.exp(a), np.log2(abs(a)), np.sqrt(abs(a)), np.rint(a)], 1).astype(bf16)
    near = expected.view(np.uint16).astype(np.int64)
    return Work([x, poison(64 * 8, "u2")], {1: Close(near.astype(np.uint16), 0, 1)})  # the next bfloat16 will do


@case("library", 1, 32)
def wide_division(rng):
    x = rng.integers(1, 2**64, (32, 3), dtype=np.uint64)
    x[::3, 0] = 0
    rows = []
    for lane, (high, low, factor) in enumerate(x.tolist()):
        quotient, rest = divmod(high << 64 | low, (factor << lane % 64) + 1)
        rows.append([n >> shift & 2**64 - 1 for n in (quotient, rest) for shift in (0, 64)])
    return Work([x, poison(128, "u8")], {1: np.array(rows, np.uint64)})


@case("library", 1, 64)
def insertion_sort(rng):
    n = 50
    x = ints(rng, n)
    lanes, places = np.arange(64)[:, None], np.arange(37)
    ordered = np.sort(x[(lanes + places) % n], axis=1)
    expected = np.take_along_axis(ordered, (places * 5 + lanes) % 37, 1)
    return Work([x, poison(64 * 37, "i4"), np.int32(n)], {1: expected.astype(np.int32)})
