"""numba-cuda's kernels of the collection, of our own writing: plain functions. Needs numba-cuda to be compiled."""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, int32


def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


def matrix_product(a, b, c):
    left = cuda.shared.array((8, 8), float32)
    right = cuda.shared.array((8, 8), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for step in range(cuda.gridDim.x):
        left[ty, tx] = a[y, tx + step * 8]
        right[ty, tx] = b[ty + step * 8, x]
        cuda.syncthreads()
        for k in range(8):
            total += left[ty, k] * right[k, tx]
        cuda.syncthreads()
    c[y, x] = total


def strided(x, out):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        out[j, i] = x[i, j] * 2


def block_sum(x, out):
    room = cuda.shared.array(64, int32)
    i = cuda.threadIdx.x
    room[i] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = 32
    while step > 0:
        if i < step:
            room[i] += room[i + step]
        cuda.syncthreads()
        step //= 2
    if i == 0:
        out[cuda.blockIdx.x] = room[0]


def dynamic_shared(x, out):
    room = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    room[i] = x[i]
    cuda.syncthreads()
    out[i] = room[cuda.blockDim.x - 1 - i]


def atomics(x, sums, most, least):
    i = cuda.grid(1)
    cuda.atomic.add(sums, x[i] % 4, x[i])
    cuda.atomic.max(most, 0, x[i])
    cuda.atomic.min(least, 0, x[i])
    cuda.atomic.add(sums, 4, 1)


def atomic_floats(x, sums, most):
    i = cuda.grid(1)
    cuda.atomic.add(sums, i % 2, x[i])
    cuda.atomic.max(most, 0, x[i])


def compare_and_swap(cells, out):
    i = cuda.grid(1)
    out[i] = cuda.atomic.cas(cells, i % 8, -1, i)


def mutex(lock, total):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


def warp_shuffles(x, out):
    i = cuda.laneid
    value = x[i]
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, step)
    out[i] = value
    out[32 + i] = cuda.shfl_up_sync(0xFFFFFFFF, x[i], 1)


def warp_votes(x, out):
    i = cuda.laneid
    out[i] = cuda.ballot_sync(0xFFFFFFFF, x[i] > 0)
    out[32 + i] = cuda.match_any_sync(0xFFFFFFFF, x[i] & 3)
    out[64 + i] = cuda.popc(x[i])
    out[96 + i] = cuda.clz(x[i])
    out[128 + i] = cuda.brev(x[i])
    out[160 + i] = cuda.ffs(x[i])


def mathematics(x, out):
    i = cuda.grid(1)
    v = x[i]
    out[0, i] = math.sin(v)
    out[1, i] = math.exp(v)
    out[2, i] = math.log(v + 2)
    out[3, i] = math.pow(v + 2, 1.5)
    out[4, i] = math.erf(v)
    out[5, i] = math.gamma(v + 3)
    out[6, i] = math.atan2(v, 0.5)
    out[7, i] = math.hypot(v, 2.0)
    out[8, i] = math.tanh(v)
    out[9, i] = math.floor(v * 3)
    out[10, i] = math.fmod(v, 0.3)


def complex_numbers(x, out):
    i = cuda.grid(1)
    out[i] = x[i] * x[i] + abs(x[i])


def local_array(x, out):
    room = cuda.local.array(8, int32)
    i = cuda.grid(1)
    for k in range(8):
        room[k] = x[i] * k
    total = 0
    for k in range(8):
        total += room[(x[i] + k) & 7] * k
    out[i] = total


CONSTANT = np.array([2, 7, 1, 8], np.int32)


def constants(out):
    table = cuda.const.array_like(CONSTANT)
    i = cuda.grid(1)
    out[i] = table[i & 3]


def grid_stride(x, out, factor):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = x[i] * factor


def selection(x, out):
    i = cuda.grid(1)
    out[i] = cuda.selp(x[i] > 0, 1, -1)
    out[i] += cuda.fma(2.0, 3.0, 1.0)


def prints(x, out):
    i = cuda.grid(1)
    if i == 0:
        print("value", x[0], 2.5)
    out[i] = x[i]


def mandelbrot(out):
    x, y = cuda.grid(2)
    c = complex(-2.0 + 3.0 * x / out.shape[1], -1.5 + 3.0 * y / out.shape[0])
    z = 0j
    count = 0
    for _ in range(20):
        if z.real * z.real + z.imag * z.imag >= 4:
            break
        z = z * z + c
        count += 1
    out[y, x] = count


def bubble_sort(x):
    room = cuda.shared.array(32, int32)
    i = cuda.threadIdx.x
    room[i] = x[i]
    for turn in range(32):
        cuda.syncthreads()
        j = 2 * i + (turn & 1)
        if j + 1 < 32 and room[j] > room[j + 1]:
            room[j], room[j + 1] = room[j + 1], room[j]
    cuda.syncthreads()
    x[i] = room[i]


def integer_division(a, b, out):
    i = cuda.grid(1)
    out[0, i] = a[i] // b[i]
    out[1, i] = a[i] % b[i]
    out[2, i] = a[i] << 2
    out[3, i] = a[i] >> 1
