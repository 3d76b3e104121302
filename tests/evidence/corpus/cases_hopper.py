"""Cases of cluster.cu, pipeline.cu, tensor.cu (sm_90) and wgmma.cu (sm_90a)."""

from __future__ import annotations

import numpy as np

from tests.evidence.corpus.case import Close, MapOf, Work, case, floats, ints, poison


@case("cluster", 8, 96, cluster=(4, 1, 1))
def cluster_histogram(rng):
    x = rng.integers(0, 256, 3000, dtype=np.uint8)
    return Work([x, np.zeros(256, np.uint32), np.int32(3000)], {1: np.bincount(x, minlength=256).astype(np.uint32)})


def _ring(rng, cluster: int, blocks: int):
    x = ints(rng, (blocks, 64))
    received = np.roll(x.reshape(-1, cluster, 2, 32).sum(2, dtype=np.int32), 1, axis=1)
    return Work([x, poison(blocks * 32, "i4")], {1: received.reshape(blocks, 32)})


@case("cluster", 6, 64, entry="cluster_ring", suffix="_of_2", cluster=(2, 1, 1))
def cluster_ring_of_2(rng):
    return _ring(rng, 2, 6)


@case("cluster", 8, 64, entry="cluster_ring", suffix="_of_8", cluster=(8, 1, 1))
def cluster_ring_of_8(rng):
    return _ring(rng, 8, 8)


@case("cluster", 4, 64, cluster=(2, 1, 1))
def cluster_push(rng):
    x = ints(rng, (2, 2, 32, 2))  # cluster, sender, slot, receiver
    inbox = x.transpose(0, 3, 1, 2)
    sums = inbox.sum((2, 3), dtype=np.int32)
    return Work([x, poison(256, "i4"), poison(4, "i4")], {1: inbox.copy(), 2: sums.reshape(4)})


@case("pipeline", 2, 160)
def bulk_pipeline(rng):
    tiles = 8
    x, y = floats(rng, 2, 2, tiles, 256)
    expected = (x.astype(np.float64) * y).sum(1).astype(np.float32)
    return Work([x, y, poison(512, "f4"), np.int32(tiles)], {2: Close(expected, 1e-5, 1e-5)})


@case("pipeline", 1, 64)
def token_pipeline(rng):
    x = ints(rng, (5, 64, 4))
    return Work([x, poison(5 * 256, "i4"), np.int32(5)], {1: x[:, ::-1].copy()})


def _product(a: np.ndarray, b: np.ndarray) -> Close:
    return Close(a.astype(np.float32) @ b.astype(np.float32), 1e-4, 1e-4)


@case("wgmma", 1, 128)
def wgmma_swizzled(rng):
    a, b = floats(rng, 2, 64, 128).astype(np.float16)
    return Work([a, b, poison(4096, "f4"), np.int32(128)], {2: _product(a, b.T)})


@case("wgmma", 1, 128)
def wgmma_transposed(rng):
    a, b = floats(rng, 64, 128).astype(np.float16), floats(rng, 128, 64).astype(np.float16)
    return Work([a, b, poison(4096, "f4"), np.int32(128)], {2: _product(a, b)})


@case("wgmma", 1, 128)
def wgmma_registers(rng):
    a, b = floats(rng, 2, 64, 16).astype(np.float16)
    return Work([a, b, poison(4096, "f4")], {2: _product(a, b.T)})


@case("tensor", (2, 3), 128)
def tensor_transpose(rng):
    x = floats(rng, 72, 52)  # neither is a multiple of the tile
    maps = [MapOf(2, (32, 32), {"swizzle": 128}), MapOf(3, (32, 32), {"swizzle": 128, "l2_promotion": 128})]
    return Work(maps, {3: x.T.copy()}, [x, poison(52 * 72, "f4").reshape(52, 72)])


@case("tensor", 3, 32)
def tensor_sum(rng):
    planes, total = ints(rng, (15, 7, 16)), ints(rng, (7, 16))
    expected = total + planes.sum(0, dtype=np.int32)
    return Work([MapOf(3, (1, 8, 16)), MapOf(4, (8, 16)), np.int32(5)], {4: expected}, [planes, total])


@case("tensor", 4, 128, cluster=(2, 1, 1))
def tensor_multicast(rng):
    x = ints(rng, (8, 32))
    expected = np.repeat(x.reshape(2, 1, 128), 2, 1) + np.arange(2, dtype=np.int32)[None, :, None]
    return Work([MapOf(2, (4, 32)), poison(512, "i4")], {1: expected.reshape(512)}, [x])


@case("async_variants", 1, 32)
def copy_sizes(rng):
    x = rng.integers(0, 256, (32, 32), dtype=np.uint8)
    valid = rng.integers(0, 17, 32).astype(np.uint32)
    valid[:4] = [0, 16, 4, 8]
    tile = np.full((32, 32), 0, np.uint8)
    tile[:, 4:8] = np.frombuffer(np.uint32(0xDEADBEEF).tobytes(), np.uint8)
    for t, n in enumerate(valid.astype(int)):
        for start, size in ((0, 4), (8, 8), (16, 16)):
            tile[t, start : start + min(n, size)] = x[t, start : start + min(n, size)]
    return Work([x, valid, poison(256, "u4")], {2: tile[np.arange(32) ^ 1].view(np.uint32)})


@case("async_variants", 6, 64, cluster=(2, 1, 1))
def multicast(rng):
    x = ints(rng, (3, 64)).astype(np.float32)
    out = ints(rng, 64).astype(np.float32)
    return Work([x, out], {1: out + 3 * x.sum(0)})


@case("async_variants", 1, 32)
def arrival_counts(_rng):
    return Work([poison(3, "u4")], {0: np.array([40, 33, 1], np.uint32)})


@case("async_variants", 4, 32, cluster=(2, 1, 1))
def remote_stores(rng):
    x = rng.integers(0, 2**20, (2, 2, 32, 4), dtype=np.uint32)
    theirs = x[:, ::-1]
    wide = (theirs[..., 0].astype(np.uint64) << np.uint64(32) | theirs[..., 1])[..., ::-1]
    count = np.full((2, 2), 32 % 21, np.uint32)
    counters = np.stack([count, np.minimum(1000, theirs[..., 0].min(2)), np.bitwise_xor.reduce(theirs[..., 1], 2)], 2)
    return Work([x, poison(512, "u4"), poison(128, "u8"), poison(12, "u4")],
                {1: theirs.copy(), 2: wide.copy(), 3: counters})  # fmt: skip
