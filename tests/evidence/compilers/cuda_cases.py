"""Cases of NVRTC's and nvcc's texts: launches, inputs, and NumPy's results. `cuda/kernels.cu` has the kernels."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, gamma
from typing import Any

import ml_dtypes
import numpy as np

from tests.evidence.compilers.case import case
from tests.evidence.corpus.case import Close, Unordered, Work, floats, ints, poison


def kernel(*given: Any, **how: Any) -> Callable[[Any], Any]:
    """Registers a case for both compilers."""

    def register(make: Any) -> Any:
        return case("nvcc", *given, **how)(case("nvrtc", *given, **how)(make))

    return register


@kernel("saxpy", 2, 128)
def _(rng):
    x, y = floats(rng, 200), floats(rng, 200)
    return Work([np.float32(2.5), x, y, 200], {2: Close(2.5 * x + y, 1e-6, 1e-6)})


@kernel("transpose_tile", (3, 2), (16, 16))
def _(rng):
    x = floats(rng, 30, 40)
    return Work([x, poison(1200, "f4"), 30, 40], {1: x.T.copy()})


@kernel("cub_block_reduce", 3, 128)
def _(rng):
    x = ints(rng, (3, 128))
    return Work([x, poison(3, "i4")], {1: x.sum(1).astype(np.int32)})


@kernel("cub_block_scan", 1, 64)
def _(rng):
    x = ints(rng, 128)
    return Work([x, poison(128, "i4")], {1: (np.cumsum(x) - x).astype(np.int32)})


@kernel("cub_radix_sort", 1, 64)
def _(rng):
    x = rng.integers(0, 1 << 32, 128, dtype=np.uint32)
    return Work([x], {0: np.sort(x)})


@kernel("cub_warp_reduce", 1, 64)
def _(rng):
    x = floats(rng, 2, 32)
    return Work([x, poison(2, "f4")], {1: Close(x.sum(1), 1e-4, 1e-4)})


@kernel("cub_merge_sort", 1, 64)
def _(rng):
    x = ints(rng, 128)
    return Work([x], {0: np.sort(x)})


@kernel("cub_histogram", 1, 64)
def _(rng):
    x = rng.integers(0, 16, 128).astype(np.uint8)
    return Work([x, poison(16, "u4")], {1: np.bincount(x, minlength=16).astype(np.uint32)})


@kernel("cooperative_reduce", 1, 128)
def _(rng):
    x = ints(rng, 128)
    want = np.concatenate([[x.sum()], x.reshape(16, 8).max(1)]).astype(np.int32)
    return Work([x, np.concatenate([np.zeros(1, "i4"), poison(16, "i4")])], {1: want})


@kernel("cooperative_grid", 4, 64)
def _(rng):
    return Work([poison(256, "i4"), poison(256, "i4")], {1: ((np.arange(256, dtype=np.int32) + 37) % 256) * 3})


@kernel("cooperative_coalesced", 1, 128)
def _(rng):
    x = ints(rng, 128, 0, 100)
    kept = x[x % 3 == 0]
    out = np.full(128, -1, np.int32)
    return Work([x, np.zeros(1, np.int32), out], {2: Unordered(np.concatenate([kept, out[len(kept) :]]))})


@kernel("labeled_partition", 1, 32)
def _(rng):
    x = ints(rng, 32, 0, 100)
    out = np.array([x[: n + 1][(x[: n + 1] & 3) == (x[n] & 3)].sum() for n in range(32)], np.int32)
    return Work([x, poison(32, "i4")], {1: out})


@kernel("cuda_barrier", 1, 64)
def _(rng):
    x = ints(rng, 64)
    want = x.copy()
    for _ in range(4):
        want = want + np.roll(want, -1)
    return Work([x], {0: want})


@kernel("cuda_pipeline", 1, 64)
def _(rng):
    x = ints(rng, (5, 64))
    return Work([x, poison(64, "i4"), 5], {1: x.sum(0)[::-1].astype(np.int32)})


@kernel("cuda_atomic_ref", 2, 64)
def _(rng):
    return Work([np.zeros(2, np.int32), poison(128, "i4")],
                {0: np.array([128, 63], "i4"), 1: np.arange(128, dtype=np.int32)})  # fmt: skip


@kernel("spin_turns", 6, 32)
def _(rng):
    return Work([np.zeros(1, np.int32), poison(6, "i4")], {0: np.array([6], "i4"), 1: np.arange(6, dtype=np.int32)})


@kernel("halves", 1, 32)
def _(rng):
    x, y = (floats(rng, 64).astype(np.float16) for _ in range(2))
    fused = (x.astype(np.float64) * y + (x + y).astype(np.float64)).astype(np.float16)
    mixed = np.stack([x[0::2] * np.float16(0.5), y[1::2]], 1).ravel()
    out = np.concatenate([fused, np.maximum(x, y), np.sqrt(np.abs(x)), mixed, (x > y).astype(np.float16)])
    return Work([x, y, poison(320, "f2"), 32], {2: Close(out, 1e-3, 1e-3)})


@kernel("brains", 1, 32)
def _(rng):
    x, y = (floats(rng, 64).astype(ml_dtypes.bfloat16) for _ in range(2))
    a, b = x.astype(np.float32), y.astype(np.float32)
    rows = np.concatenate([a * b, np.maximum(a, b), a + b, np.stack([a[0::2] * 0.5, b[1::2]], 1).ravel()])
    return Work([x.view(np.uint16), y.view(np.uint16), poison(256, "u2"), 32],
                {2: rows.astype(ml_dtypes.bfloat16).view(np.uint16)})  # fmt: skip


@kernel("quarters", 1, 64)
def _(rng):
    x = floats(rng, 64) * 20
    e4, e5 = x.astype(ml_dtypes.float8_e4m3fn), x.astype(ml_dtypes.float8_e5m2)
    back = np.stack([e4.astype(np.float32), e5.astype(np.float32)], 1)
    return Work([x, poison(64, "u1"), poison(64, "u1"), poison(128, "f4")],
                {1: e4.view(np.uint8), 2: e5.view(np.uint8), 3: back})  # fmt: skip


@kernel("wmma_f16", 1, 32)
def _(rng):
    a, b, c = floats(rng, 16, 32).astype(np.float16), floats(rng, 16, 32).astype(np.float16), floats(rng, 16, 16)
    d = 2 * (a.astype(np.float32) @ b.astype(np.float32).T + c)
    return Work([a, b, c, poison(256, "f4")], {3: Close(d.T.copy(), 1e-4, 1e-3)})


@kernel("wmma_shapes", 1, 32)
def _(rng):
    a, b = floats(rng, 512).astype(np.float16), floats(rng, 512).astype(np.float16)

    def product(m: int, n: int) -> np.ndarray:
        left, right = a[: 16 * m].reshape(16, m).T, b[: 16 * n].reshape(16, n)
        return (left.astype(np.float32) @ right.astype(np.float32) + 1).ravel()

    wide = np.concatenate([product(8, 32), product(32, 8)])
    half = np.concatenate([product(16, 16), product(8, 32), product(32, 8)]).astype(np.float16)
    return Work([a, b, poison(512, "f4"), poison(768, "f2")], {2: Close(wide, 1e-4, 1e-3), 3: Close(half, 1e-2, 2e-2)})


@kernel("wmma_s8", 1, 32)
def _(rng):
    a, b = (ints(rng, (16, 16), -128, 128).astype(np.int8) for _ in range(2))
    return Work([a, b, poison(256, "i4")], {2: a.astype(np.int32) @ b.astype(np.int32)})


@kernel("wmma_tf32", 1, 32, least="sm_80")
def _(rng):
    a, b = floats(rng, 16, 8), floats(rng, 16, 8)
    x, y = rng.standard_normal((8, 4)), rng.standard_normal((8, 4))
    args = [a, b, poison(256, "f4"), x, y, poison(64, "f8")]
    return Work(args, {2: Close(a @ b.T, 1e-2, 2e-2), 5: Close(x @ y.T, 1e-12, 1e-12)})


@kernel("simd_in_word", 1, 64)
def _(rng):
    x, y = (rng.integers(0, 1 << 32, 64, dtype=np.uint32) for _ in range(2))

    def parts(kind: str) -> tuple[np.ndarray, np.ndarray]:
        return tuple(v.view(kind).reshape(64, -1).astype(np.int64) for v in (x, y))

    (a, b), (s, t), (h, g), (p, q) = parts("u1"), parts("i1"), parts("u2"), parts("i2")
    rows = [np.abs(a - b).astype("u1"), (a + b).astype("u1"), np.maximum(s, t).astype("i1"),
            np.where(h > g, 0xFFFF, 0).astype("u2"), np.abs(a - b).sum(1).astype("u4"),
            np.clip(p + q, -32768, 32767).astype("i2"), ((s * t).sum(1) + 7).astype("i4"),
            ((a + b + 1) >> 1).astype("u1")]  # fmt: skip
    out = np.concatenate([np.ascontiguousarray(row).view(np.uint32).ravel() for row in rows])
    return Work([x, y, poison(512, "u4"), 64], {2: out})


@kernel("prints", 1, 32)
def _(rng):
    return Work([ints(rng, 32), poison(2, "i4")], {1: np.array([3, 3], np.int32)})


@kernel("heap", 2, 32)
def _(rng):
    x = ints(rng, 32)
    count = np.arange(32) % 4 + 1
    return Work([x, poison(32, "i4")], {1: (count * (x + 2) + count * (count - 1) // 2).astype(np.int32)})


@kernel("news", 1, 64)
def _(rng):
    n = np.arange(64, dtype=np.int32)
    return Work([poison(64, "i4")], {0: np.where(n % 2 == 1, n * n, 3 * n)})


@kernel("recursion", 1, 32)
def _(rng):
    def ackermann(m: int, n: int) -> int:
        return n + 1 if m == 0 else ackermann(m - 1, 1 if n == 0 else ackermann(m, n - 1))

    out = [ackermann(n % 3, n % 4) + 1000 * (n % 2 == 0) for n in range(32)]
    return Work([poison(32, "i4")], {0: np.array(out, np.int32)})


@kernel("local_arrays", 1, 32)
def _(rng):
    x = ints(rng, 32)
    out = [np.sort(x[(n + np.arange(16)) % 32])[x[n] & 15] for n in range(32)]
    return Work([x, poison(32, "i4")], {1: np.array(out, np.int32)})


@kernel("statics", 1, 32)
def _(rng):
    return Work([poison(33, "i4")], {0: np.array([(3, 1, 4, 1)[n % 4] + 7 for n in range(32)] + [5], np.int32)})


@kernel("math", 1, 64)
def _(rng):
    x = rng.uniform(-1, 1, 64).astype(np.float32)
    w = x.astype(np.float64)
    rows = [np.sin(w), np.exp(w), np.log(w + 2), (w + 2) ** 1.5, [erf(v) for v in w], [gamma(v + 3) for v in w],
            1 / np.sqrt(w + 2), np.fmod(x, np.float32(0.3)), np.arctan2(w, 0.5), np.cbrt(w)]  # fmt: skip
    return Work([x, poison(640, "f4"), 64], {1: Close(np.array(rows, np.float32).ravel(), 1e-5, 1e-6)})


@kernel("shuffles", 1, 32)
def _(rng):
    x, n = ints(rng, 32, 0, 100), np.arange(32)
    match = [sum(1 << int(m) for m in n if x[m] & 3 == x[k] & 3) for k in n]
    ballot = sum(1 << int(m) for m in n if x[m] & 1)
    rows = [x[np.where(n < 3, n, n - 3)], x[n ^ 5], [ballot] * 32, match, [32] * 32, [1] * 32]
    return Work([x, poison(192, "i4"), 32], {1: np.array(rows, np.int64).astype(np.uint32).view(np.int32).ravel()})


@kernel("histogram_shared", 2, 64, shared=128)
def _(rng):
    x = rng.integers(0, 256, 300).astype(np.uint8)
    return Work([x, np.zeros(32, np.uint32), 300], {1: np.bincount(x % 32, minlength=32).astype(np.uint32)})


@kernel("bulk_copy", 1, 32, least="sm_90")
def _(rng):
    x = ints(rng, 256)
    return Work([x, poison(256, "i4")], {1: x[::-1].copy()})


@kernel("cluster_sum", 2, 64, least="sm_90")
def _(rng):
    x = ints(rng, 128)
    return Work([x, poison(2, "i4")], {1: np.full(2, x.sum(), np.int32)})


@case("nvrtc", "cooperative_tiles_of_warps", 1, 128)
def _(rng):
    x = ints(rng, 128)
    return Work(
        [x, poison(128, "i4")], {1: (np.repeat(x.reshape(2, 64).sum(1), 64) + np.arange(128) % 64).astype("i4")}
    )
