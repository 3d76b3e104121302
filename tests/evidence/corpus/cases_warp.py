"""Cases of reduce.cu, scan.cu, warp.cu and atomics.cu."""

from __future__ import annotations

import numpy as np

from tests.evidence.corpus.case import Close, Unordered, Work, case, floats, ints, poison


@case("reduce", 4, 128)
def warp_sum(rng):
    x = floats(rng, 500)
    padded = np.concatenate([x, np.zeros(12, np.float32)])
    return Work([x, poison(16, "f4"), np.int32(500)], {1: Close(padded.reshape(16, 32).sum(1), 1e-5, 1e-5)})


@case("reduce", 5, 192)
def block_sum(rng):
    x = floats(rng, 3001)
    padded = np.zeros(4 * 960, np.float32)
    padded[:3001] = x
    expected = padded.reshape(4, 5, 192).astype(np.float64).sum((0, 2))
    return Work([x, poison(5, "f4"), np.int32(3001)], {1: Close(expected.astype(np.float32), 1e-5, 1e-4)})


@case("reduce", 3, 128)
def tree_max(rng):
    x = ints(rng, 384, -(2**31), 2**31 - 1)
    return Work([x, poison(3, "i4")], {1: x.reshape(3, 128).max(1)})


@case("reduce", 1, 64)
def redux_all(rng):
    x = ints(rng, 64, -(2**30), 2**30)
    rows = x.reshape(2, 32)
    reduced = [np.add, np.minimum, np.maximum, np.bitwise_and, np.bitwise_or, np.bitwise_xor]
    expected = np.stack([f.reduce(rows, axis=1, dtype=np.int32) for f in reduced], axis=1)
    return Work([x, poison(12, "i4")], {1: expected})


@case("reduce", 4, 96)
def block_votes(rng):
    x = ints(rng, 4 * 96)
    x[:96] = np.clip(x[:96], -80, 80)
    rows = x.reshape(4, 96)
    expected = np.stack([(rows > 0).sum(1), (rows > 90).any(1), (rows > -90).all(1)], 1).astype(np.int32)
    return Work([x, poison(12, "i4")], {1: expected})


@case("reduce", 6, 64)
def single_launch_sum(rng):
    x = ints(rng, 2000, 0, 50).astype(np.float32)
    return Work([x, poison(6, "f4"), poison(1, "f4"), np.int32(2000)], {2: np.array([x.sum()], np.float32)})


@case("scan", 3, 160)
def inclusive_scan(rng):
    x = ints(rng, 480)
    return Work([x, poison(480, "i4")], {1: x.reshape(3, 160).cumsum(1, dtype=np.int32)})


@case("scan", 7, 128)
def lookback_scan(rng):
    x = ints(rng, 870)
    args = [x, poison(870, "i4"), np.zeros(8, np.uint64), np.int32(870)]
    return Work(args, {1: x.cumsum(dtype=np.int32)})


@case("warp", 5, 96)
def compact(rng):
    x = ints(rng, 450)
    kept = x[x >= 0]
    out = np.full(450, -7, np.int32)
    expected = np.concatenate([kept, out[kept.size :]])
    return Work([x, out, np.zeros(1, np.int32), np.int32(450)],
                {1: Unordered(expected), 2: np.array([kept.size], np.int32)})  # fmt: skip


@case("warp", 3, 128)
def match_histogram(rng):
    keys = ints(rng, 384, 0, 10)
    return Work([keys, np.zeros(10, np.uint32)], {1: np.bincount(keys, minlength=10).astype(np.uint32)})


@case("warp", 1, 64)
def votes(rng):
    x = ints(rng, 64, -10, 10)
    x[32:] = 7
    rows, bit = x.reshape(2, 32), 1 << np.arange(32, dtype=np.uint64)
    same = (rows == rows[:, :1]).all(1)
    table = [((rows > 0) * bit).sum(1), (rows > -5).all(1), (rows > 5).any(1), same * 0xFFFFFFFF, same]
    out = np.full(192, 0xABCD, np.uint32)
    expected = out.copy()
    expected[:10] = np.stack(table, 1).astype(np.uint32).ravel()
    lanes = np.arange(64)
    expected[64::2] = x[(lanes & ~7) | (lanes + 3) & 7]
    odd = ((rows & 2 != 0) * (lanes[:32] & 1) * bit).sum(1)
    expected[65::2] = np.where(lanes & 1, odd[lanes >> 5], 0)
    return Work([x, out], {1: expected})


@case("atomics", 4, 96)
def histogram(rng):
    x = rng.integers(0, 256, 5000, dtype=np.uint8)
    bins = ints(rng, 256, 0, 9).astype(np.uint32)
    expected = bins + np.bincount(x, minlength=256).astype(np.uint32)
    return Work([x, bins, np.int32(5000)], {1: expected})


@case("atomics", 1, 192)  # one CTA: atomicAdd_block counts within one only
def every_atomic(rng):
    x = ints(rng, 192, -(2**31), 2**31 - 1)
    out = ints(rng, 8, -(2**31), 2**31 - 1)
    uout = np.array([77, 5, 3, 4, 10, 20], np.uint32)
    wide = rng.integers(0, 2**63, 5, dtype=np.uint64)
    wide[4] = np.float64(0.5).view(np.uint64)
    sums = np.array([1.5, 0.0], np.float32)
    sums[1:].view(np.float16)[:] = [3, 4]
    u, low = x.view(np.uint32), (x & 15).astype(np.float64)
    e_out, e_uout, e_wide, e_sums = out.copy(), uout.copy(), wide.copy(), sums.copy()
    total = x.sum(dtype=np.int32)
    e_out[:7] = [out[0] + total, out[1] - total, min(out[2], x.min()), max(out[3], x.max()),
                 out[4] & np.bitwise_and.reduce(x), out[5] | np.bitwise_or.reduce(x),
                 out[6] ^ np.bitwise_xor.reduce(x)]  # fmt: skip
    e_uout[:2] = min(77, u.min()), max(5, u.max())
    for _ in range(192):
        e_uout[2] = 0 if e_uout[2] >= 6 else e_uout[2] + 1
        e_uout[3] = 9 if e_uout[3] == 0 or e_uout[3] > 9 else e_uout[3] - 1
    e_uout[4:] += (u & 3).sum(dtype=np.uint32)
    shifted = u.astype(np.uint64) << np.uint64(20)
    e_wide[0] += shifted.sum(dtype=np.uint64)
    e_wide[1] = max(wide[1], shifted.max())
    e_wide[2] = np.int64(min(int(wide[2].view(np.int64)), int(x.min()) * 1000003)).view(np.uint64)
    e_wide[3] ^= np.bitwise_xor.reduce(u.astype(np.uint64) * np.uint64(0x100000001))
    e_wide[4] = np.float64(0.5 + low.sum()).view(np.uint64)
    e_sums[0] += low.sum()
    e_sums[1:].view(np.float16)[:] = [3 + (x & 1).sum(), 4 + 192]
    return Work([x, out, uout, wide, sums], {1: e_out, 2: e_uout, 3: e_wide, 4: e_sums.view(np.uint32)})


@case("atomics", 1, 64)
def cas_product(rng):
    x = rng.choice(np.array([0.5, 2.0, -1.0], np.float32), 64)
    return Work([x, np.array([3.0], np.float32)], {1: np.float32([3.0 * np.prod(x)])})


@case("atomics", 2, 40)
def lane_lock(_rng):
    args = [np.zeros(1, np.int32), np.zeros(1, np.int32), poison(80, "i4")]
    return Work(args, {1: np.array([80], np.int32), 2: Unordered(np.arange(80, dtype=np.int32))})
