"""Reductions, scans, sorts, atomics: cases of `triton_kernels/reductions.py`."""

from __future__ import annotations

import numpy as np

from tests.evidence.compilers.triton_cases.kernel import kernel
from tests.evidence.corpus.case import Close, Work, floats, ints, poison


@kernel("reduce_all", "x:*fp32 sums:*fp32 most:*fp32 where:*i32 columns:i32", 3, BLOCK=256)
def _(rng):
    x = floats(rng, 3, 200)
    args = [x, poison(3, "f4"), poison(3, "f4"), poison(3, "i4"), 200]
    return Work(args, {1: Close(x.sum(1), 1e-4, 1e-4), 2: x.max(1), 3: x.argmax(1).astype(np.int32)})


@kernel("reduce_integers", "x:*i32 out:*i32", 1, BLOCK=256)
def _(rng):
    x = rng.permutation(256).astype(np.int32)
    out = np.array([x.sum(), x.min(), x.max(), np.bitwise_xor.reduce(x), x.argmin()], np.int32)
    return Work([x, poison(5, "i4")], {1: out})


@kernel("reduce_axis", "x:*fp16 out0:*fp16 out1:*fp16", 1, M=32, N=64)
def _(rng):
    x = ints(rng, (32, 64), -8, 8).astype(np.float16)
    return Work([x, poison(64, "f2"), poison(32, "f2")], {1: x.sum(0), 2: x.max(1)})


@kernel("welford", "x:*fp32 out:*fp32", 1, N=512)
def _(rng):
    x = floats(rng, 512) + 3
    return Work([x, poison(2, "f4")], {1: Close(np.array([x.mean(), x.var()], np.float32), 1e-4)})


@kernel("scan", "x:*fp32 sums:*fp32 products:*fp32", 1, M=16, N=64)
def _(rng):
    x = floats(rng, 16, 64)
    return Work([x, poison(1024, "f4"), poison(1024, "f4")],
                {1: Close(np.cumsum(x, 1), 1e-3, 1e-4), 2: Close(np.cumprod(x, 0), 1e-3, 1e-6)})  # fmt: skip


def _recurrence(reverse: bool) -> None:
    @kernel("recurrence", "a:*fp32 b:*fp32 out:*fp32", 1, suffix=" reversed" if reverse else "", N=128, REVERSE=reverse)
    def _(rng):
        a, b = rng.uniform(0.2, 1, 128).astype(np.float32), floats(rng, 128)
        out, state = np.zeros(128), 0.0
        for n in reversed(range(128)) if reverse else range(128):
            state = out[n] = float(a[n]) * state + float(b[n])
        return Work([a, b, poison(128, "f4")], {2: Close(out.astype(np.float32), 1e-4, 1e-4)})


_recurrence(False)
_recurrence(True)


@kernel("scan_chained", "x:*i32 out:*i32 flags:*i32", 4, BLOCK=64)
def _(rng):
    x = ints(rng, 256, 0, 50)
    return Work([x, poison(256, "i4"), np.zeros(4, np.int32)], {1: np.cumsum(x).astype(np.int32)})


@kernel("sort", "x:*fp32 out:*fp32", 1, M=2, N=64, DOWN=False)
def _(rng):
    x = floats(rng, 2, 64)
    return Work([x, poison(128, "f4")], {1: np.sort(x, 1)})


@kernel("sort", "x:*i32 out:*i32", 1, suffix=" down", M=1, N=256, DOWN=True)
def _(rng):
    x = ints(rng, (1, 256))
    return Work([x, poison(256, "i4")], {1: -np.sort(-x, 1)})


@kernel("top_k", "x:*fp32 out:*fp32", 1, M=4, N=64, K=8)
def _(rng):
    x = floats(rng, 4, 64)
    return Work([x, poison(32, "f4")], {1: -np.sort(-x, 1)[:, :8]})


@kernel("gather", "x:*fp32 where:*i32 out:*fp32", 1, M=8, N=64)
def _(rng):
    x, where = floats(rng, 8, 64), ints(rng, (8, 64), 0, 64)
    return Work([x, where, poison(512, "f4")], {2: np.take_along_axis(x, where, 1)})


@kernel("histogram", "x:*i32 out:*i32", 1, N=512, BINS=32)
def _(rng):
    x = ints(rng, 512, 0, 32)
    return Work([x, poison(32, "i4")], {1: np.bincount(x, minlength=32).astype(np.int32)})


@kernel("atomics", "x:*i32 out:*i32 floats:*fp32 halves:*fp16", 2, N=128)
def _(rng):
    x = ints(rng, 256)
    out = np.array([0] * 4 + [-1000] * 4 + [1000] * 4 + [-1, 0, 0], np.int32)
    want, at, eighth = out.copy(), np.arange(256) % 4, np.arange(256) % 8
    for ufunc, first in ((np.add, 0), (np.maximum, 4), (np.minimum, 8)):
        ufunc.at(want, first + at, x)
    want[12:] = np.bitwise_and.reduce(x), np.bitwise_or.reduce(x), np.bitwise_xor.reduce(x)
    sums = np.bincount(eighth, x, 8).astype(np.float32)
    args = [x, out, np.zeros(8, np.float32), np.zeros(8, np.float16)]
    return Work(args, {1: want, 2: sums, 3: np.full(8, 32, np.float16)})


@kernel("atomic_returns", "counter:*i32 out:*i32", 1, N=128)
def _(rng):
    return Work(
        [np.zeros(1, np.int32), poison(128, "i4")], {0: np.array([128], np.int32), 1: np.arange(128, dtype="i4")}
    )


@kernel("atomic_extremes", "x:*fp32 out:*fp32", 3, N=64)
def _(rng):
    x = floats(rng, 192)
    start = np.array([-np.inf, np.inf], np.float32)
    return Work([x, start], {1: np.array([x.max(), x.min()], np.float32)})


@kernel("spin_lock", "lock:*i32 counter:*i32 total:*i32 turns:i32", 6, warps=2)
def _(rng):
    zeros = [np.zeros(1, np.int32) for _ in range(3)]
    return Work([*zeros, 3], {0: np.array([0], "i4"), 1: np.array([18], "i4"), 2: np.array([6], "i4")})


@kernel("last_block_sums", "x:*fp32 parts:*fp32 ticket:*i32 out:*fp32", 4, BLOCKS=4, N=128)
def _(rng):
    x = floats(rng, 4, 128)
    args = [x, poison(4, "f4"), np.zeros(1, np.int32), poison(1, "f4")]
    return Work(args, {3: Close(x.sum(keepdims=True).reshape(1), 1e-4, 1e-4)})


@kernel("hadamard", "x:*fp32 out:*fp32", 1, warps=2, N=64, STEPS=6)
def _(rng):
    x, matrix = floats(rng, 64), np.ones((1, 1), np.float64)
    step = np.array([[1.0, 1.0], [1.0, -1.0]])
    for _ in range(6):
        matrix = np.kron(step, matrix)
    return Work([x, poison(64, "f4")], {1: Close((matrix @ x).astype(np.float32), 1e-4, 1e-4)})


@kernel("grid_barrier", "x:*fp32 meet:*i32 doubled:*fp32 out:*fp32 programs:i32", 4, N=128)
def _(rng):
    x = floats(rng, 4, 128)
    args = [x, np.zeros(1, np.int32), poison(512, "f4"), poison(512, "f4"), 4]
    return Work(args, {3: np.roll(x * 2, -1, 0)})


@kernel("nearest_centre", "x:*fp32 centres:*fp32 labels:*i32 counts:*i32 sums:*fp32 n:i32", 4, K=16, D=8, B=32)
def _(rng):
    x, centres = rng.integers(-20, 20, (100, 8)).astype(np.float32), floats(rng, 16, 8) * 10
    label = ((x[:, None] - centres[None]) ** 2).sum(2).argmin(1)
    sums = np.zeros((16, 8), np.float32)
    np.add.at(sums, label, x)
    args = [x, centres, poison(100, "i4"), np.zeros(16, np.int32), np.zeros((16, 8), np.float32), 100]
    counts = np.bincount(label, minlength=16).astype(np.int32)
    return Work(args, {2: label.astype(np.int32), 3: counts, 4: Close(sums, 1e-5, 1e-5)})
