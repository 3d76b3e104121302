"""Functions of elements, conversions, shapes, what PTX has of its own: kernels."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def philox(out, uniform, normal, seed, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.randint(seed, at))
    tl.store(uniform + at, tl.rand(seed, at))
    tl.store(normal + at, tl.randn(seed, at))


@triton.jit
def dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.where(tl.rand(seed, at) > p, value / (1 - p), 0.0), mask=at < n)


@triton.jit
def library(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(out + at, libdevice.asin(v))
    tl.store(out + N + at, libdevice.tanh(v))
    tl.store(out + 2 * N + at, libdevice.erf(v))
    tl.store(out + 3 * N + at, libdevice.pow(v + 2, 1.7))
    tl.store(out + 4 * N + at, libdevice.log1p(v))
    tl.store(out + 5 * N + at, libdevice.expm1(v))
    tl.store(out + 6 * N + at, libdevice.cbrt(v))
    tl.store(out + 7 * N + at, libdevice.atan2(v, v + 1.5))
    tl.store(out + 8 * N + at, libdevice.sinh(v))
    tl.store(out + 9 * N + at, libdevice.lgamma(v + 3))
    tl.store(out + 10 * N + at, libdevice.j0(v))
    tl.store(out + 11 * N + at, libdevice.nearbyint(v * 4))


@triton.jit
def library_double(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(out + at, libdevice.sin(v))
    tl.store(out + N + at, libdevice.exp(v))
    tl.store(out + 2 * N + at, libdevice.log(v + 2))
    tl.store(out + 3 * N + at, libdevice.sqrt(v + 2))
    tl.store(out + 4 * N + at, libdevice.erfc(v))


@triton.jit
def elementary(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(out + at, tl.exp(v))
    tl.store(out + N + at, tl.log(v + 2))
    tl.store(out + 2 * N + at, tl.sin(v))
    tl.store(out + 3 * N + at, tl.cos(v))
    tl.store(out + 4 * N + at, tl.sqrt_rn(v + 2))
    tl.store(out + 5 * N + at, tl.div_rn(v, v + 2))
    tl.store(out + 6 * N + at, tl.sigmoid(v))
    tl.store(out + 7 * N + at, tl.floor(v * 3))
    tl.store(out + 8 * N + at, tl.fma(v, v, v))
    tl.store(out + 9 * N + at, tl.erf(v))
    tl.store(out + 10 * N + at, tl.clamp(v, -0.5, 0.5))
    tl.store(out + 11 * N + at, tl.rsqrt(v + 2))


@triton.jit
def integers(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    b = tl.load(y + at)
    tl.store(out + at, a // b)
    tl.store(out + N + at, a % b)
    tl.store(out + 2 * N + at, (a << 3) ^ (b >> 1))
    tl.store(out + 3 * N + at, tl.umulhi(a, b))
    tl.store(out + 4 * N + at, tl.where(a > b, a & b, a | b))
    tl.store(out + 5 * N + at, tl.abs(a))
    tl.store(out + 6 * N + at, (a.to(tl.int64) * b >> 7).to(tl.int32))
    tl.store(out + 7 * N + at, libdevice.popc(a))
    tl.store(out + 8 * N + at, libdevice.clz(a))
    tl.store(out + 9 * N + at, a.to(tl.int8).to(tl.int32))


@triton.jit
def casts(x, halves, brains, e4, e5, back, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(halves + at, v.to(tl.float16))
    tl.store(brains + at, v.to(tl.bfloat16))
    tl.store(e5 + at, v.to(tl.float8e5))
    tl.store(e4 + at, v.to(tl.float8e4nv))
    tl.store(back + at, v.to(tl.float8e4nv).to(tl.float32))


@triton.jit
def casts_old(x, halves, brains, e5, back, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(halves + at, v.to(tl.float16))
    tl.store(brains + at, v.to(tl.bfloat16))
    tl.store(e5 + at, v.to(tl.float8e5))
    tl.store(back + at, v.to(tl.float8e5).to(tl.float32))


@triton.jit
def shapes(x, out, M: tl.constexpr, N: tl.constexpr):
    rows = tl.arange(0, M)
    columns = tl.arange(0, N)
    values = tl.load(x + rows[:, None] * N + columns[None, :])
    turned = tl.trans(values)
    tl.store(out + columns[:, None] * M + rows[None, :], turned)
    left, right = tl.split(tl.reshape(values, [M, N // 2, 2]))
    woven = tl.interleave(right, left)
    tl.store(out + M * N + rows[:, None] * N + columns[None, :], woven)
    tl.store(out + 2 * M * N + rows[:, None] * N + columns[None, :], tl.flip(values, 1))


@triton.jit
def transpose(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (row[:, None] < M) & (column[None, :] < N)
    values = tl.load(x + row[:, None] * N + column[None, :], mask=inside)
    tl.store(out + column[:, None] * M + row[None, :], tl.trans(values), mask=tl.trans(inside))


@triton.jit
def embedding(ids, table, out, D: tl.constexpr):
    token = tl.load(ids + tl.program_id(0))
    dim = tl.arange(0, D)
    tl.store(out + tl.program_id(0) * D + dim, tl.load(table + token * D + dim))


@triton.jit
def cross_entropy(logits, labels, losses, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(logits + row * columns + at, mask=at < columns, other=-float("inf"))
    most = tl.max(values, 0)
    total = tl.log(tl.sum(tl.exp(values - most), 0)) + most
    tl.store(losses + row, total - tl.load(logits + row * columns + tl.load(labels + row)))


@triton.jit
def rope(x, cos, sin, out, HALF: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, HALF)
    c = tl.load(cos + row * HALF + at)
    s = tl.load(sin + row * HALF + at)
    low = tl.load(x + row * 2 * HALF + at)
    high = tl.load(x + row * 2 * HALF + HALF + at)
    tl.store(out + row * 2 * HALF + at, low * c - high * s)
    tl.store(out + row * 2 * HALF + HALF + at, high * c + low * s)


@triton.jit
def swiglu(x, gate, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + at, mask=at < n).to(tl.float32)
    v = tl.load(x + at, mask=at < n).to(tl.float32)
    tl.store(out + at, (g * tl.sigmoid(g) * v).to(tl.bfloat16), mask=at < n)


@triton.jit
def adam(weight, grad, first, second, rate, step, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    g = tl.load(grad + at, mask=inside)
    m = 0.9 * tl.load(first + at, mask=inside) + 0.1 * g
    v = 0.999 * tl.load(second + at, mask=inside) + 0.001 * g * g
    tl.store(first + at, m, mask=inside)
    tl.store(second + at, v, mask=inside)
    change = m / (1 - libdevice.pow(0.9, step)) / (tl.sqrt(v / (1 - libdevice.pow(0.999, step))) + 1e-8)
    tl.store(weight + at, tl.load(weight + at, mask=inside) - rate * change, mask=inside)


@triton.jit
def quantise_rows(x, out, scales, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    scale = tl.max(tl.abs(values), 0) / 127.0
    tl.store(scales + row, scale)
    tl.store(out + row * columns + at, libdevice.rint(values / scale).to(tl.int8), mask=at < columns)


@triton.jit
def dequantise_int4(packed, scales, out, N: tl.constexpr, GROUP: tl.constexpr):
    at = tl.arange(0, N)
    bytes_ = tl.load(packed + at // 2)
    values = ((bytes_ >> ((at % 2) * 4).to(tl.uint8)) & 15).to(tl.float32) - 8.0
    tl.store(out + at, (values * tl.load(scales + at // GROUP)).to(tl.float16))


@triton.jit
def convolve(x, weight, out, n, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(WIDTH):
        from_ = at - tap
        total += tl.load(x + from_, mask=(from_ >= 0) & (at < n), other=0.0) * tl.load(weight + tap)
    tl.store(out + at, total, mask=at < n)


@triton.jit
def collatz(x, out, N: tl.constexpr):
    value = tl.load(x + tl.program_id(0))
    steps = 0
    while value != 1:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        steps += 1
    tl.store(out + tl.program_id(0), steps)


@triton.jit
def mandelbrot(out, W: tl.constexpr, H: tl.constexpr, TURNS: tl.constexpr):
    px = tl.arange(0, W)
    py = tl.program_id(0)
    cx = -2.0 + 3.0 * px.to(tl.float32) / W
    cy = -1.5 + 3.0 * py.to(tl.float32) / H
    zx = tl.zeros([W], tl.float32)
    zy = tl.zeros([W], tl.float32)
    count = tl.zeros([W], tl.int32)
    for _ in range(TURNS):
        inside = zx * zx + zy * zy < 4.0
        new = zx * zx - zy * zy + cx
        zy = tl.where(inside, 2 * zx * zy + cy, zy)
        zx = tl.where(inside, new, zx)
        count += inside.to(tl.int32)
    tl.store(out + py * W + px, count)


@triton.jit
def assembly(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)
    result = tl.inline_asm_elementwise("vabsdiff4.u32.u32.u32.add $0, $1, $2, $3;", "=r,r,r,r",
                                       [tl.load(x + at), tl.load(y + at), at * 0], dtype=tl.int32, is_pure=True,
                                       pack=1)  # fmt: skip
    tl.store(out + at, result)


@triton.jit
def asserts(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    value = tl.load(x + at)
    tl.device_assert(value >= 0, "negative")
    tl.store(out + at, value * 2)


@triton.jit
def prints(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    value = tl.load(x + at)
    tl.device_print("value", value)
    tl.store(out + at, value + 1)


@triton.jit
def doubles(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(out + at, tl.cumsum(v * v - 1.0, 0))
    tl.store(out + N + at, tl.sqrt(tl.abs(v)) / (v + 3.0))


@triton.jit
def described(x, out, total, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    sums = tl.make_tensor_descriptor(total, shape=[BM, BN], strides=[BN, 1], block_shape=[BM, BN])
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    values = source.load([row, column])
    target.store([row, column], values * 2)
    sums.atomic_add([0, 0], values)


@triton.jit
def dependent(x, out, n, BLOCK: tl.constexpr):
    tl.extra.cuda.gdc_wait()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@triton.jit
def clocks(out, N: tl.constexpr):
    before = tl.extra.cuda.globaltimer()
    at = tl.arange(0, N)
    tl.store(out + at, at + tl.extra.cuda.smid() * 0 + (before * 0).to(tl.int32))
