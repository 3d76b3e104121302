"""Cases of Triton's texts: signatures, constants, inputs, and NumPy's results. `kernels_triton.py` has the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tests.evidence.compilers.case import Pointing, case
from tests.evidence.corpus.case import Close, Unordered, Work, floats, ints, poison

Maker = Callable[[np.random.Generator], Work]


def kernel(
    name: str, signature: str, grid: int | tuple[int, ...], *, suffix: str = "", least: str = "sm_75", warps: int = 4,
    stages: int = 3, **constants: Any,
) -> Callable[[Maker], Maker]:  # fmt: skip
    """A case of a kernel of `kernels_triton.py`; `signature` lists the arguments that are no constants."""
    how = dict(kernel=name, signature=signature, warps=warps, stages=stages, constants=constants)
    return case("triton", name + suffix, grid, least=least, **how)


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


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


@kernel("add", "x:*fp32 y:*fp32 out:*fp32 n:i32", 3, BLOCK=128)
def _(rng):
    x, y = floats(rng, 300), floats(rng, 300)
    return Work([x, y, poison(300, "f4"), 300], {2: x + y})


@kernel("add", "x:*fp16 y:*fp16 out:*fp16 n:i32", 2, suffix=" f16", BLOCK=1024)
def _(rng):
    x, y = floats(rng, 1500).astype(np.float16), floats(rng, 1500).astype(np.float16)
    return Work([x, y, poison(1500, "f2"), 1500], {2: x + y})


@kernel("copy_strided", "x:*i8 out:*i8 rows:i32 columns:i32 stride:i32", 3, BLOCK=64)
def _(rng):
    x = ints(rng, (3, 50)).astype(np.int8)
    return Work([x, poison(120, "i1"), 3, 40, 50], {1: x[:, :40].copy()})


@kernel("softmax", "x:*fp32 out:*fp32 rows:i32 columns:i32", 2, BLOCK=256, warps=8)
def _(rng):
    x = floats(rng, 5, 200)
    return Work([x, poison(1000, "f4"), 5, 200], {1: Close(_softmax(x))})


@kernel("online_softmax", "x:*fp32 out:*fp32 columns:i32", 2, BLOCK=128)
def _(rng):
    x = floats(rng, 2, 300)
    return Work([x, poison(600, "f4"), 300], {1: Close(_softmax(x))})


@kernel("layer_norm", "x:*fp16 weight:*fp32 bias:*fp32 out:*fp16 mean_out:*fp32 scale_out:*fp32 columns:i32 eps:fp32",
        3, BLOCK=128)  # fmt: skip
def _(rng):
    x, w, b = floats(rng, 3, 200).astype(np.float16), floats(rng, 200), floats(rng, 200)
    wide = x.astype(np.float32)
    mean, scale = wide.mean(1), 1 / np.sqrt(wide.var(1) + 1e-5)
    out = ((wide - mean[:, None]) * scale[:, None] * w + b).astype(np.float16)
    args = [x, w, b, poison(600, "f2"), poison(3, "f4"), poison(3, "f4"), 200, np.float32(1e-5)]
    return Work(args, {3: Close(out, 2e-3, 2e-3), 4: Close(mean, 1e-4, 1e-5), 5: Close(scale, 1e-4)})


@kernel("layer_norm_backward", "dx:*fp32 dy:*fp32 dw:*fp32 db:*fp32 x:*fp32 weight:*fp32 mean:*fp32 scale:*fp32 "
        "lock:*i32 columns:i32", 6, GROUP=2, BLOCK=128)  # fmt: skip
def _(rng):
    x, dy, w = floats(rng, 6, 100), floats(rng, 6, 100), floats(rng, 100)
    mean, scale = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)
    hat = (x - mean[:, None]) * scale[:, None]
    wdy = w * dy
    dx = (wdy - hat * (hat * wdy).mean(1)[:, None] - wdy.mean(1)[:, None]) * scale[:, None]
    dw, db = ((part[0::2].sum(0), part[1::2].sum(0)) for part in (dy * hat, dy))
    args = [poison(600, "f4"), dy, poison(200, "f4"), poison(200, "f4"), x, w, mean, scale, np.zeros(4, np.int32), 100]
    close = {0: dx, 2: np.stack(dw), 3: np.stack(db)}
    return Work(args, {n: Close(each, 1e-3, 1e-4) for n, each in close.items()})


@kernel("column_sums", "parts:*fp32 out:*fp32 rows:i32 columns:i32", 2, BLOCK_M=16, BLOCK_N=64)
def _(rng):
    x = floats(rng, 20, 100)
    return Work([x, poison(100, "f4"), 20, 100], {1: Close(x.sum(0), 1e-4, 1e-5)})


@kernel("rms_norm", "x:*bf16 weight:*fp32 out:*bf16 columns:i32 eps:fp32", 2, BLOCK=128)
def _(rng):
    x, w = floats(rng, 2, 100).astype(ml_dtypes.bfloat16), floats(rng, 100)
    wide = x.astype(np.float32)
    out = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 1e-6) * w
    result = out.astype(ml_dtypes.bfloat16)
    args = [x.view(np.uint16), w, poison(200, "u2"), 100, np.float32(1e-6)]
    return Work(args, {2: _Brain(result, 1)})


class _Brain(Close):
    """bf16 values that may differ by some units in the last place."""

    def __init__(self, values: np.ndarray, units: int) -> None:
        super().__init__(values.view(np.int16).astype(np.int16), 0, units)


_MATMUL = "a:*{a} b:*{b} c:*{c} M:i32 N:i32 K:i32 sam:i32 sak:1 sbk:i32 sbn:1 scm:i32 scn:1"
_TYPES = {
    "f16": ("fp16", "fp16", "fp16", "fp32"), "bf16": ("bf16", "bf16", "fp32", "fp32"),
    "tf32": ("fp32", "fp32", "fp32", "fp32"), "f32": ("fp32", "fp32", "fp32", "fp32"), "s8": ("i8", "i8", "i32", "i32"),
    "e4m3": ("fp8e4nv", "fp8e4nv", "fp16", "fp32"), "e5m2": ("fp8e5", "fp8e5", "fp32", "fp32"),
    "f16 sums": ("fp16", "fp16", "fp16", "fp16"), "f64": ("fp64", "fp64", "fp64", "fp64"),
}  # fmt: skip
_NUMPY: dict[str, Any] = {
    "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32, "fp64": np.float64, "i8": np.int8,
    "i32": np.int32, "fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2,
}  # fmt: skip
_PLAIN = {2: np.uint16, 1: np.uint8}


def _plain(x: np.ndarray) -> np.ndarray:
    """The same bytes as a type that NumPy has itself."""
    return x if x.dtype.kind in "fiu" and x.dtype.isbuiltin == 1 else x.view(_PLAIN[x.dtype.itemsize])


def _matmul(kind: str, least: str = "sm_75", *, sizes: tuple[int, int, int] = (70, 60, 80), block: str = "64 64 32",
            warps: int = 4, activation: bool = False, suffix: str = "") -> None:  # fmt: skip
    a_type, b_type, c_type, acc = _TYPES[kind]
    m, n, k = sizes
    bm, bn, bk = map(int, block.split())
    tiles = -(-m // bm) * -(-n // bn)

    @kernel("matmul", _MATMUL.format(a=a_type, b=b_type, c=c_type), tiles, suffix=f" {kind}{suffix}", least=least,
            warps=warps, BM=bm, BN=bn, BK=bk, GROUP=2, ACTIVATION=activation, ACC=acc, TF32=kind == "tf32")  # fmt: skip
    def _(rng):
        if kind == "s8":
            a, b = (ints(rng, shape, -128, 128).astype(np.int8) for shape in ((m, k), (k, n)))
            out: Any = a.astype(np.int32) @ b.astype(np.int32)
        else:
            a, b = ((floats(rng, *shape) / 2).astype(_NUMPY[t]) for shape, t in (((m, k), a_type), ((k, n), b_type)))
            result = a.astype(np.float64) @ b.astype(np.float64)
            result = np.where(result >= 0, result, 0.01 * result) if activation else result
            loose = {"tf32": 5e-2, "fp16": 1e-2}.get(kind if kind == "tf32" else c_type, 1e-4)
            out = Close(result.astype(_NUMPY[c_type]), 1e-2 if loose > 1e-3 else 1e-4, loose)
        args = [_plain(a), _plain(b), _plain(np.full((m, n), 0, _NUMPY[c_type])), m, n, k, k, n, n]
        return Work(args, {2: out})


_matmul("f16", activation=True)
_matmul("f16", sizes=(128, 128, 64), block="128 128 32", warps=8, suffix=" 8 warps")
_matmul("f16 sums")
_matmul("bf16", "sm_80")
_matmul("tf32", "sm_80")
_matmul("f32")
_matmul("s8", "sm_80")
_matmul("e4m3", "sm_90")
_matmul("e5m2", "sm_80")
_matmul("f64", "sm_80", sizes=(20, 18, 40), block="16 16 16")


@kernel("matmul_split_k", "a:*fp16 b:*fp16 c:*fp32 M:i32 N:i32 K:i32", (1, 1, 2), BM=32, BN=32, BK=32, SPLIT=2)
def _(rng):
    a, b = floats(rng, 32, 128).astype(np.float16), floats(rng, 128, 32).astype(np.float16)
    out = a.astype(np.float32) @ b.astype(np.float32)
    return Work([a, b, np.zeros((32, 32), np.float32), 32, 32, 128], {2: Close(out, 1e-3, 1e-3)})


@kernel("matmul_described", "a:*fp16 b:*fp16 c:*fp16 M:i32 N:i32 K:i32", (2, 1), BM=64, BN=64, BK=64)
def _(rng):
    a, b = floats(rng, 128, 128).astype(np.float16), floats(rng, 128, 64).astype(np.float16)
    out = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    return Work([a, b, poison(128 * 64, "f2"), 128, 64, 128], {2: Close(out, 1e-2, 1e-1)})


@kernel("grouped_matmul", "pointers:*i64 sizes:*i32 problems:i32", 2, BM=32, BN=32, BK=32)
def _(rng):
    sizes = np.array([[32, 64, 64], [64, 32, 32]], np.int32)
    hidden, expected = [], {}
    for g, (m, n, k) in enumerate(sizes):
        a, b = floats(rng, m, k).astype(np.float16), floats(rng, k, n).astype(np.float16)
        hidden += [a, b, poison(m * n, "f2")]
        out = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
        expected[3 + 3 * g + 2] = Close(out, 1e-2, 5e-2)
    return Pointing([np.zeros(6, np.int64), sizes, 2], expected, hidden, pointers={0: (6, 0)})


@kernel("batched_matmul", "a:*fp16 b:*fp16 c:*fp32", 1, BM=16, BN=16, BK=16, B=2)
def _(rng):
    a, b = (floats(rng, 2, 16, 16).astype(np.float16) for _ in range(2))
    out = a.astype(np.float32) @ b.astype(np.float32)
    return Work([a, b, poison(512, "f4")], {2: Close(out, 1e-3, 1e-3)})


def _attention(causal: bool) -> None:
    @kernel("attention", "q:*fp16 k:*fp16 v:*fp16 out:*fp16 log_sums:*fp32 scale:fp32 positions:i32", (2, 2),
            suffix=" causal" if causal else "", CAUSAL=causal, BM=64, BN=32, D=32, stages=2)  # fmt: skip
    def _(rng):
        q, k, v = (floats(rng, 2, 128, 32).astype(np.float16) for _ in range(3))
        scores = q.astype(np.float32) @ k.astype(np.float32).transpose(0, 2, 1) * 0.2
        if causal:
            scores = np.where(np.tril(np.ones((128, 128), bool)), scores, -np.inf)
        out = (_softmax(scores) @ v.astype(np.float32)).astype(np.float16)
        sums = np.log2(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1)) + scores.max(-1) * 1.44269504
        args = [q, k, v, poison(2 * 128 * 32, "f2"), poison(256, "f4"), np.float32(0.2), 128]
        return Work(args, {3: Close(out, 1e-2, 1e-2), 4: Close(sums, 1e-2, 1e-2)})


_attention(False)
_attention(True)


@kernel("paged_attention", "q:*fp32 k_pages:*fp32 v_pages:*fp32 table:*i32 lengths:*i32 out:*fp32 scale:fp32 "
        "most_pages:i32", 2, PAGE=16, D=32, warps=2)  # fmt: skip
def _(rng):
    q, k, v = floats(rng, 2, 32), floats(rng, 6, 16, 32), floats(rng, 6, 16, 32)
    table = rng.permutation(6).astype(np.int32).reshape(2, 3)
    lengths = np.array([37, 9], np.int32)
    out = []
    for n in range(2):
        keys, values = (x[table[n]].reshape(-1, 32)[: lengths[n]] for x in (k, v))
        out.append(_softmax(keys @ q[n] * 0.25) @ values)
    args = [q, k, v, table, lengths, poison(64, "f4"), np.float32(0.25), 3]
    return Work(args, {5: Close(np.stack(out), 1e-4, 1e-5)})


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
    out = -np.log(_softmax(x)[np.arange(4), labels])
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
    return Work([x.view(np.uint16), gate.view(np.uint16), poison(200, "u2"), 200], {2: _Brain(out, 1)})


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
