"""Kernels of the tests of the Triton driver. Needs triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def racy(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at))
    tl.store(out + (N - 1 - at), tl.load(out + at) + 1)


@triton.jit
def scaled(x, out, factor, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at) * factor)


@triton.jit
def through(pointers, out, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(pointers).to(tl.pointer_type(tl.float32))
    tl.store(out + at, tl.load(x + at))


@triton.jit
def counted(x, sums, COUNT: tl.constexpr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.atomic_add(sums + at % COUNT, tl.load(x + at))
