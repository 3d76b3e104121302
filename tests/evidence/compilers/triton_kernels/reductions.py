"""Reductions, scans, sorts, atomics: kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def reduce_all(x, sums, most, where, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-1e30)
    tl.store(most + row, tl.max(values, 0))
    tl.store(where + row, tl.argmax(values, 0))
    tl.store(sums + row, tl.sum(tl.where(at < columns, values, 0.0), 0))


@triton.jit
def reduce_integers(x, out, BLOCK: tl.constexpr):
    values = tl.load(x + tl.arange(0, BLOCK))
    tl.store(out, tl.sum(values, 0))
    tl.store(out + 1, tl.min(values, 0))
    tl.store(out + 2, tl.max(values, 0))
    tl.store(out + 3, tl.xor_sum(values, 0))
    tl.store(out + 4, tl.argmin(values, 0))


@triton.jit
def reduce_axis(x, out0, out1, M: tl.constexpr, N: tl.constexpr):
    rows = tl.arange(0, M)
    columns = tl.arange(0, N)
    values = tl.load(x + rows[:, None] * N + columns[None, :])
    tl.store(out0 + columns, tl.sum(values, 0))
    tl.store(out1 + rows, tl.max(values, 1))


@triton.jit
def _welford(mean_a, square_a, count_a, mean_b, square_b, count_b):
    delta = mean_b - mean_a
    count = count_a + count_b
    ratio = tl.where(count == 0.0, 0.0, count_b / count)
    return mean_a + delta * ratio, square_a + square_b + delta * delta * count_a * ratio, count


@triton.jit
def welford(x, out, N: tl.constexpr):
    values = tl.load(x + tl.arange(0, N))
    mean, square, count = tl.reduce((values, tl.zeros([N], tl.float32), tl.full([N], 1.0, tl.float32)), 0, _welford)
    tl.store(out, mean)
    tl.store(out + 1, square / count)


@triton.jit
def scan(x, sums, products, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    values = tl.load(x + at)
    tl.store(sums + at, tl.cumsum(values, axis=1))
    tl.store(products + at, tl.cumprod(values, axis=0))


@triton.jit
def _linear(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def recurrence(a, b, out, N: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.arange(0, N)
    _, state = tl.associative_scan((tl.load(a + at), tl.load(b + at)), 0, _linear, reverse=REVERSE)
    tl.store(out + at, state)


@triton.jit
def scan_chained(x, out, flags, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    sums = tl.cumsum(tl.load(x + at), 0)
    total = tl.sum(tl.load(x + at), 0)
    before = 0
    if block > 0:
        state = tl.atomic_add(flags + block - 1, 0)
        while state == 0:
            state = tl.atomic_add(flags + block - 1, 0)
        before = state - 1
    tl.atomic_xchg(flags + block, before + total + 1)
    tl.store(out + at, sums + before)


@triton.jit
def sort(x, out, M: tl.constexpr, N: tl.constexpr, DOWN: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.sort(tl.load(x + at), dim=1, descending=DOWN))


@triton.jit
def top_k(x, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row = tl.arange(0, M)[:, None]
    values = tl.load(x + row * N + tl.arange(0, N)[None, :])
    tl.store(out + row * K + tl.arange(0, K)[None, :], tl.topk(values, K))


@triton.jit
def gather(x, where, out, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.gather(tl.load(x + at), tl.load(where + at), axis=1))


@triton.jit
def histogram(x, out, N: tl.constexpr, BINS: tl.constexpr):
    values = tl.load(x + tl.arange(0, N))
    tl.store(out + tl.arange(0, BINS), tl.histogram(values, BINS))


@triton.jit
def atomics(x, out, floats, halves, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    values = tl.load(x + at)
    tl.atomic_add(out + at % 4, values)
    tl.atomic_max(out + 4 + at % 4, values)
    tl.atomic_min(out + 8 + at % 4, values)
    tl.atomic_and(out + 12 + at * 0, values)
    tl.atomic_or(out + 13 + at * 0, values)
    tl.atomic_xor(out + 14 + at * 0, values)
    tl.atomic_add(floats + at % 8, values.to(tl.float32))
    tl.atomic_add(halves + at % 8, tl.full([N], 1.0, tl.float16))


@triton.jit
def atomic_returns(counter, out, N: tl.constexpr):
    at = tl.arange(0, N)
    first = tl.atomic_add(counter + at * 0, tl.full([N], 1, tl.int32))
    tl.store(out + first, first)


@triton.jit
def atomic_extremes(x, out, N: tl.constexpr):
    values = tl.load(x + tl.program_id(0) * N + tl.arange(0, N))
    tl.atomic_max(out, tl.max(values, 0))
    tl.atomic_min(out + 1, tl.min(values, 0))


@triton.jit
def spin_lock(lock, counter, total, turns):
    for _ in range(turns):
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
        tl.store(counter, tl.load(counter) + 1)
        tl.debug_barrier()
        tl.atomic_xchg(lock, 0)
    tl.atomic_add(total, 1)


@triton.jit
def last_block_sums(x, parts, ticket, out, BLOCKS: tl.constexpr, N: tl.constexpr):
    block = tl.program_id(0)
    tl.store(parts + block, tl.sum(tl.load(x + block * N + tl.arange(0, N)), 0))
    tl.debug_barrier()
    if tl.atomic_add(ticket, 1) == BLOCKS - 1:
        tl.store(out, tl.sum(tl.load(parts + tl.arange(0, BLOCKS), volatile=True), 0))


@triton.jit
def hadamard(x, out, N: tl.constexpr, STEPS: tl.constexpr):
    values = tl.load(x + tl.arange(0, N))
    for step in tl.static_range(STEPS):
        pairs = tl.permute(tl.reshape(values, [N >> (step + 1), 2, 1 << step]), [0, 2, 1])
        left, right = tl.split(pairs)
        values = tl.reshape(tl.permute(tl.join(left + right, left - right), [0, 2, 1]), [N])
    tl.store(out + tl.arange(0, N), values)


@triton.jit
def grid_barrier(x, meet, doubled, out, programs, N: tl.constexpr):
    program = tl.program_id(0)
    at = tl.arange(0, N)
    tl.store(doubled + program * N + at, tl.load(x + program * N + at) * 2)
    tl.debug_barrier()
    tl.atomic_add(meet, 1, sem="acq_rel")
    while tl.atomic_add(meet, 0, sem="acquire") < programs:
        pass
    tl.debug_barrier()
    after = (program + 1) % programs
    tl.store(out + program * N + at, tl.load(doubled + after * N + at, volatile=True))


@triton.jit
def nearest_centre(x, centres, labels, counts, sums, n, K: tl.constexpr, D: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0) * B + tl.arange(0, B)
    column = tl.arange(0, D)
    inside = row < n
    points = tl.load(x + row[:, None] * D + column[None, :], mask=inside[:, None], other=0.0)
    middle = tl.load(centres + tl.arange(0, K)[:, None] * D + column[None, :])
    away = points[:, None, :] - middle[None, :, :]
    label = tl.argmin(tl.sum(away * away, 2), 1)
    tl.store(labels + row, label, mask=inside)
    tl.atomic_add(counts + label, 1, mask=inside)
    tl.atomic_add(sums + label[:, None] * D + column[None, :], points, mask=inside[:, None])
