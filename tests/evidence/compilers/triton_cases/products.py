"""Rows, matrix products, attention: cases of `triton_kernels/products.py`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.evidence.compilers.case import Pointing
from tests.evidence.compilers.triton_cases.kernel import Brain, kernel, softmax
from tests.evidence.corpus.case import Close, Work, floats, ints, poison


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
    return Work([x, poison(1000, "f4"), 5, 200], {1: Close(softmax(x))})


@kernel("online_softmax", "x:*fp32 out:*fp32 columns:i32", 2, BLOCK=128)
def _(rng):
    x = floats(rng, 2, 300)
    return Work([x, poison(600, "f4"), 300], {1: Close(softmax(x))})


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
    return Work(args, {2: Brain(result, 1)})


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
        out = (softmax(scores) @ v.astype(np.float32)).astype(np.float16)
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
        out.append(softmax(keys @ q[n] * 0.25) @ values)
    args = [q, k, v, table, lengths, poison(64, "f4"), np.float32(0.25), 3]
    return Work(args, {5: Close(np.stack(out), 1e-4, 1e-5)})


@kernel("linear_attention", "q:*bf16 k:*bf16 v:*bf16 out:*fp32 length:i32", 2, least="sm_80", D=32, B=32)
def _(rng):
    q, k, v = ((floats(rng, 2, 128, 32) * 0.3).astype(ml_dtypes.bfloat16) for _ in range(3))
    wide = [x.astype(np.float64) for x in (q, k, v)]
    scores = np.tril(wide[0] @ wide[1].transpose(0, 2, 1))
    return Work(
        [q, k, v, poison(2 * 128 * 32, "f4"), 128], {3: Close((scores @ wide[2]).astype(np.float32), 2e-2, 2e-2)}
    )
