"""Rows, matrix products, attention: kernels."""

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
def linear_attention(q, k, v, out, length, D: tl.constexpr, B: tl.constexpr):
    row = tl.arange(0, B)
    column = tl.arange(0, D)
    state = tl.zeros((D, D), tl.float32)
    for first in range(0, length, B):
        at = (tl.program_id(0) * length + first + row)[:, None] * D + column[None, :]
        queries, keys, values = tl.load(q + at), tl.load(k + at), tl.load(v + at)
        scores = tl.where(row[:, None] >= row[None, :], tl.dot(queries, tl.trans(keys)), 0.0)
        tl.store(out + at, tl.dot(scores.to(tl.bfloat16), values) + tl.dot(queries, state.to(tl.bfloat16)))
        state += tl.dot(tl.trans(keys), values)
