"""Triton kernels of the collection, of our own writing. Needs triton; the tests run the texts it made of them."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def copy_strided(x, out, rows, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    tl.store(out + row * columns + at, tl.load(x + row * stride + at, mask=at < columns), mask=at < columns)


@triton.jit
def softmax(x, out, rows, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * columns + at, powers / tl.sum(powers, axis=0), mask=at < columns)


@triton.jit
def online_softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    largest = tl.full((), -float("inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
        new = tl.maximum(largest, tl.max(values, 0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(values - new), 0)
        largest = new
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
        tl.store(out + row * columns + at, tl.exp(values - largest) / total, mask=at < columns)


@triton.jit
def layer_norm(x, weight, bias, out, mean_out, scale_out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        sums += tl.load(x + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(sums, 0) / columns
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
        value = tl.where(at < columns, value - mean, 0.0)
        squares += value * value
    scale = 1 / tl.sqrt(tl.sum(squares, 0) / columns + eps)
    tl.store(mean_out + row, mean)
    tl.store(scale_out + row, scale)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        value = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(weight + at, mask=inside)
        b = tl.load(bias + at, mask=inside)
        tl.store(out + row * columns + at, (value - mean) * scale * w + b, mask=inside)


@triton.jit
def layer_norm_backward(dx, dy, dw, db, x, weight, mean, scale, lock, columns, GROUP: tl.constexpr,
                        BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    group = row % GROUP
    lock += group
    count = lock + GROUP
    dw += group * columns + at
    db += group * columns + at
    values = tl.load(x + row * columns + at, mask=inside, other=0.0)
    grads = tl.load(dy + row * columns + at, mask=inside, other=0.0)
    w = tl.load(weight + at, mask=inside, other=0.0)
    rate = tl.load(scale + row)
    hat = tl.where(inside, (values - tl.load(mean + row)) * rate, 0.0)
    wdy = tl.where(inside, w * grads, 0.0)
    c1 = tl.sum(hat * wdy, axis=0) / columns
    c2 = tl.sum(wdy, axis=0) / columns
    tl.store(dx + row * columns + at, (wdy - (hat * c1 + c2)) * rate, mask=inside)
    part_w = grads * hat
    part_b = grads
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    seen = tl.load(count)
    if seen == 0:
        tl.atomic_xchg(count, 1)
    else:
        part_w += tl.load(dw, mask=inside)
        part_b += tl.load(db, mask=inside)
    tl.store(dw, part_w, mask=inside)
    tl.store(db, part_b, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def column_sums(parts, out, rows, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, rows, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)
        inside = (row[:, None] < rows) & (at[None, :] < columns)
        total += tl.load(parts + row[:, None] * columns + at[None, :], mask=inside, other=0.0)
    tl.store(out + at, tl.sum(total, axis=0), mask=at < columns)


@triton.jit
def rms_norm(x, weight, out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
    scale = libdevice.rsqrt(tl.sum(value * value, 0) / columns + eps)
    result = value * scale * tl.load(weight + at, mask=at < columns, other=0.0)
    tl.store(out + row * columns + at, result.to(out.dtype.element_ty), mask=at < columns)


@triton.jit
def _grouped(pid, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    in_group = GROUP * tiles_n
    first = (pid // in_group) * GROUP
    size = min(tiles_m - first, GROUP)
    return first + ((pid % in_group) % size), (pid % in_group) // size


@triton.jit
def matmul(a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
           GROUP: tl.constexpr, ACTIVATION: tl.constexpr, ACC: tl.constexpr, TF32: tl.constexpr):  # fmt: skip
    pid_m, pid_n = _grouped(tl.program_id(0), M, N, BM, BN, GROUP)
    rows = (pid_m * BM + tl.arange(0, BM)) % M
    columns = (pid_n * BN + tl.arange(0, BN)) % N
    depth = tl.arange(0, BK)
    at_a = a + (rows[:, None] * sam + depth[None, :] * sak)
    at_b = b + (depth[:, None] * sbk + columns[None, :] * sbn)
    total = tl.zeros((BM, BN), ACC)
    for k in range(tl.cdiv(K, BK)):
        left = tl.load(at_a, mask=depth[None, :] < K - k * BK, other=0.0)
        right = tl.load(at_b, mask=depth[:, None] < K - k * BK, other=0.0)
        total = tl.dot(left, right, total, out_dtype=ACC, input_precision="tf32" if TF32 else "ieee")
        at_a += BK * sak
        at_b += BK * sbk
    if ACTIVATION:
        total = tl.where(total >= 0, total, 0.01 * total)
    result = total.to(c.dtype.element_ty)
    row = pid_m * BM + tl.arange(0, BM)
    column = pid_n * BN + tl.arange(0, BN)
    tl.store(c + scm * row[:, None] + scn * column[None, :], result, mask=(row[:, None] < M) & (column[None, :] < N))


@triton.jit
def matmul_split_k(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr):
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    part = tl.program_id(2)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(part * BK, K, BK * SPLIT):
        depth = k + tl.arange(0, BK)
        left = tl.load(a + row[:, None] * K + depth[None, :])
        right = tl.load(b + depth[:, None] * N + column[None, :])
        total = tl.dot(left, right, total)
    tl.atomic_add(c + row[:, None] * N + column[None, :], total, sem="relaxed")


@triton.jit
def matmul_described(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    left = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    right = tl.make_tensor_descriptor(b, shape=[K, N], strides=[N, 1], block_shape=[BK, BN])
    into = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    row = tl.program_id(0) * BM
    column = tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(left.load([row, k]), right.load([k, column]), total)
    into.store([row, column], total.to(tl.float16))


@triton.jit
def grouped_matmul(pointers, sizes, problems, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tile = tl.program_id(0)
    end = 0
    for g in range(problems):
        M = tl.load(sizes + g * 3)
        N = tl.load(sizes + g * 3 + 1)
        K = tl.load(sizes + g * 3 + 2)
        tiles_n = tl.cdiv(N, BN)
        tiles = tl.cdiv(M, BM) * tiles_n
        while tile >= end and tile < end + tiles:
            a = tl.load(pointers + g * 3).to(tl.pointer_type(tl.float16))
            b = tl.load(pointers + g * 3 + 1).to(tl.pointer_type(tl.float16))
            c = tl.load(pointers + g * 3 + 2).to(tl.pointer_type(tl.float16))
            here = tile - end
            row = (here // tiles_n) * BM + tl.arange(0, BM)
            column = (here % tiles_n) * BN + tl.arange(0, BN)
            total = tl.zeros((BM, BN), tl.float32)
            for k in range(tl.cdiv(K, BK)):
                depth = k * BK + tl.arange(0, BK)
                tl.multiple_of(depth, [16])
                total += tl.dot(tl.load(a + row[:, None] * K + depth[None, :]),
                                tl.load(b + depth[:, None] * N + column[None, :]))  # fmt: skip
            tl.store(c + row[:, None] * N + column[None, :], total.to(tl.float16))
            tile += tl.num_programs(0)
        end += tiles


@triton.jit
def batched_matmul(a, b, c, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, B: tl.constexpr):
    batch = tl.arange(0, B)[:, None, None]
    rows = tl.arange(0, BM)
    columns = tl.arange(0, BN)
    depth = tl.arange(0, BK)
    left = tl.load(a + batch * BM * BK + rows[None, :, None] * BK + depth[None, None, :])
    right = tl.load(b + batch * BK * BN + depth[None, :, None] * BN + columns[None, None, :])
    tl.store(c + batch * BM * BN + rows[None, :, None] * BN + columns[None, None, :], tl.dot(left, right))


@triton.jit
def attention(q, k, v, out, log_sums, scale, positions, CAUSAL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
              D: tl.constexpr):  # fmt: skip
    start = tl.program_id(0) * BM
    head = tl.program_id(1) * positions * D
    row = start + tl.arange(0, BM)
    dim = tl.arange(0, D)
    query = tl.load(q + head + row[:, None] * D + dim[None, :])
    largest = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    result = tl.zeros([BM, D], tl.float32)
    last = start + BM if CAUSAL else positions
    for begin in range(0, last, BN):
        column = begin + tl.arange(0, BN)
        keys = tl.load(k + head + column[None, :] * D + dim[:, None])
        scores = tl.dot(query, keys) * (scale * 1.44269504)
        if CAUSAL:
            scores = tl.where(row[:, None] >= column[None, :], scores, -float("inf"))
        new = tl.maximum(largest, tl.max(scores, 1))
        powers = tl.math.exp2(scores - new[:, None])
        less = tl.math.exp2(largest - new)
        total = total * less + tl.sum(powers, 1)
        values = tl.load(v + head + column[:, None] * D + dim[None, :])
        result = tl.dot(powers.to(tl.float16), values, result * less[:, None])
        largest = new
    tl.store(log_sums + tl.program_id(1) * positions + row, largest + tl.math.log2(total))
    tl.store(out + head + row[:, None] * D + dim[None, :], (result / total[:, None]).to(tl.float16))


@triton.jit
def paged_attention(q, k_pages, v_pages, table, lengths, out, scale, most_pages, PAGE: tl.constexpr,
                    D: tl.constexpr):  # fmt: skip
    sequence = tl.program_id(0)
    dim = tl.arange(0, D)
    slot = tl.arange(0, PAGE)
    query = tl.load(q + sequence * D + dim)
    length = tl.load(lengths + sequence)
    largest = -float("inf")
    total = 0.0
    result = tl.zeros([D], tl.float32)
    for page in range(tl.cdiv(length, PAGE)):
        where = tl.load(table + sequence * most_pages + page).to(tl.int64)
        inside = page * PAGE + slot < length
        keys = tl.load(k_pages + (where * PAGE + slot)[:, None] * D + dim[None, :], mask=inside[:, None], other=0.0)
        scores = tl.where(inside, tl.sum(keys * query[None, :], 1) * scale, -float("inf"))
        new = tl.maximum(largest, tl.max(scores, 0))
        powers = tl.exp(scores - new)
        less = tl.exp(largest - new)
        values = tl.load(v_pages + (where * PAGE + slot)[:, None] * D + dim[None, :], mask=inside[:, None], other=0.0)
        result = result * less + tl.sum(values * powers[:, None], 0)
        total = total * less + tl.sum(powers, 0)
        largest = new
    tl.store(out + sequence * D + dim, result / total)


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
