"""Rings of layers with a window: the bytes of full caches, around the end and back; their memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ptxgen import CapacityError, SpecError
from ptxgen.kernels import IncrementalAttention, RopeKvAppend
from ptxgen.runtime import BatchedKvCache, Device, Executor, KvCache, open_device
from ptxgen.runtime.kv.snapshot import Snapshot
from ptxgen.spec.cache_fields import ring_rows

WINDOW, APPENDED, MAX_LEN = 20, 8, 200
HEADS = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 8}
RING = 64


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("cpu")


def executors(device: Device, **options: object) -> tuple[Executor, Executor]:
    """Two layers, the first with a window: with a ring, and with a full cache a layer (one executor a window)."""
    ring = Executor(device, 2, **HEADS, max_len=MAX_LEN, windows=(WINDOW, 0), appended=APPENDED, **options)
    return ring, Executor(device, 1, **HEADS, max_len=MAX_LEN, window=WINDOW, **options)


def rows(rng: np.random.Generator, n: int, kind: str = "float32") -> dict[str, np.ndarray]:
    shapes = {"q": (n, 4, 8), "k": (n, 2, 8), "v": (n, 2, 8), "out": (n, 4, 8)}
    return {name: rng.standard_normal(shape).astype(kind) for name, shape in shapes.items()}


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert first["out"].tobytes() == second["out"].tobytes()


@pytest.mark.parametrize("dtype", ["f16", "s8"])
def test_a_ring_gives_the_bytes_of_a_full_cache(device: Device, dtype: str) -> None:
    """Steps, chunks, a chunk longer than the ring takes, split attention; more than twice around."""
    rng = np.random.default_rng(0)
    ring, full = executors(device, kv_dtype=dtype)
    assert ring.cache.rings.sizes == (RING, 0)
    length = 0
    for n in (8, 1, 1, 50, 1, 3, 1, 90, 1, 1):
        given = rows(rng, n)
        pair = given, {name: array.copy() for name, array in given.items()}
        for executor, arrays in zip((ring, full), pair, strict=True):
            one = {name: array[0] for name, array in arrays.items()} if n == 1 else arrays
            reached = executor.incremental_attention(0, **one) if n == 1 else executor.flash_attention_cached(0, **one)
        length += n
        assert reached == ring.cache.length(0) == length
        if n <= APPENDED:
            same(*pair)
        np.testing.assert_allclose(pair[0]["out"], pair[1]["out"], rtol=0, atol=1e-6)
        if length > WINDOW:
            split = [{"q": given["q"][-1], "out": np.zeros((4, 8), np.float32)} for _ in range(2)]
            for executor, arrays in zip((ring, full), split, strict=True):
                executor.flash_decoding(0, **arrays)
            same(*split)
    assert ring.cache.peek(0, "k", length - 1).tobytes() == full.cache.peek(0, "k", length - 1).tobytes()
    with pytest.raises(CapacityError, match=rf"a ring that holds positions from {length - RING} on \(got 3\)"):
        ring.cache.peek(0, "k", 3)


def test_a_ring_goes_back_as_far_as_it_holds(device: Device, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ring, full = executors(device)
    for n in (8,) * 18:
        given = rows(rng, n)
        for executor in (ring, full):
            executor.flash_attention_cached(0, **{name: array.copy() for name, array in given.items()})
    ring.cache.snapshot().save(tmp_path / "kept.npz")
    kept = Snapshot.load(tmp_path / "kept.npz")
    assert (kept.layers[0].first, kept.layers[0].seq_len) == (144 - RING, 144)
    for executor in (ring, full):
        executor.cache.rollback(110)
    pair = given, {name: array.copy() for name, array in given.items()}
    for executor, arrays in zip((ring, full), pair, strict=True):
        executor.flash_attention_cached(0, **arrays)
    same(*pair)
    back = ring.cache.snapshot()
    with pytest.raises(CapacityError, match=r"rollback: the ring of layer 0 holds 64 positions up to 144, and those"):
        ring.cache.rollback(90)
    assert ring.cache.length(0) == 118
    ring.cache.restore(kept)
    assert ring.cache.length(0) == 144
    ring.cache.restore(back)
    whole = full.cache.snapshot()
    assert np.array_equal(back.layers[0].k[:, -WINDOW:], whole.layers[0].k[:, -WINDOW:])
    ring.cache.rollback(0)
    assert ring.cache.length(0) == 0


@pytest.mark.parametrize("layout", ["", "hnd", "nhd"])
def test_batches_keep_rings_too(device: Device, layout: str) -> None:
    """Contiguous, and in pages that come again: the bytes of full caches, from a prompt on and around the end."""
    rng = np.random.default_rng(2)
    page, outs = (16 if layout else 0), []
    prompt, later = rows(rng, 70), [rows(rng, 3) for _ in range(40)]
    for windows in ((WINDOW,), None):
        single = KvCache(device, 1, 4, 2, 8, MAX_LEN, "f16", windows=windows, appended=APPENDED)
        single.append(0, device.array(prompt["k"]), device.array(prompt["v"]))
        batch = BatchedKvCache(single, 3, page_size=page, page_layout=layout or "hnd")
        batch.scatter_from(single, 1, 70)
        assert batch.peek(0, "v", 1, 60, head=1).tobytes() == single.peek(0, "v", 60, head=1).tobytes()
        ring = 0 if windows is None else RING
        options = {"page_size": page, "page_layout": layout} if layout else {"ring": ring}
        spec = IncrementalAttention(
            max_len=MAX_LEN, **HEADS, kv_dtype="f16", window=WINDOW, batched=True, **options
        )  # fmt: skip
        out = device.empty((3, 4, 8), "f32")
        bound = device.load(spec).bind(
            q=device.array(later[0]["q"]), out=out, seq_lens=batch.lengths, **batch.buffers(0)
        )
        found = []
        for given in later:
            batch.step()
            batch.append(0, device.array(given["k"]), device.array(given["v"]))
            bound.update(q=device.array(given["q"])).launch()
            found.append(out.numpy())
        outs.append(np.stack(found))
        if windows:
            assert batch.nbytes == 3 * RING * 2 * 2 * 8 * 2
            with pytest.raises(CapacityError, match="the ring of layer 0"):
                batch.rollback(1, 60)
    assert outs[0].tobytes() == outs[1].tobytes()


@pytest.mark.parametrize("page_size", [0, 16])
def test_a_slot_knows_what_the_ring_it_was_copied_from_has_lost(device: Device, page_size: int) -> None:
    """A cache that was rolled back holds rows of positions behind its length; a slot takes them as they are."""

    def cache(length: int) -> KvCache:
        made = KvCache(device, 1, 1, 1, 8, 512, windows=[64], appended=64)
        for _ in range(0, length, 32):
            made.append(0, *(device.zeros((32, 1, 8), "f32") for _ in "kv"))
        return made

    long, short = cache(320), cache(64)
    long.rollback(270)
    batch = BatchedKvCache(long, 2, page_size)
    batch.scatter_from(long, 0, 270)
    for gone in (lambda: long.rollback(240), lambda: batch.rollback(0, 240)):
        with pytest.raises(CapacityError, match="holds 128 positions up to 320, and those from 177 on are needed"):
            gone()
    batch.rollback(0, 260)
    assert batch.length(0) == 260
    batch.scatter_from(short, 0, 64)  # all of the slot is another sequence's now
    batch.rollback(0, 3)
    assert batch.length(0) == 3


def test_a_window_longer_than_the_cache_is_none(device: Device) -> None:
    """As of a model whose configuration has windows of 4096, opened for short texts."""
    given = rows(np.random.default_rng(2), MAX_LEN)
    found = []
    for windows in ((4096, WINDOW), (MAX_LEN, WINDOW), None):
        executor = Executor(device, 2, **HEADS, max_len=MAX_LEN, windows=windows, appended=MAX_LEN)
        assert executor.cache.rings.sizes == (0, 0)
        arrays = {name: array.copy() for name, array in given.items()}
        executor.flash_attention_cached(0, **arrays)
        executor.flash_decoding(0, arrays["q"][0], one := np.zeros((4, 8), np.float32))
        found.append((arrays["out"].tobytes(), one.tobytes()))
    assert found[0] == found[1] == found[2]


def test_what_rings_cannot_be_is_said(device: Device) -> None:
    for windows in ((1,), (-1, 0), ("a", 0), (True, 0), 64, {1: 2, 3: 4}, {5, 6}, b"ab"):
        with pytest.raises(SpecError, match=r"KvCache\.windows: must be an int ≥ 0 for each of 2 layers"):
            KvCache(device, 2, 4, 2, 8, MAX_LEN, windows=windows)
    cache = KvCache(device, 1, 4, 2, 8, MAX_LEN, windows=(WINDOW,))
    with pytest.raises(SpecError, match=r"page_size: must divide the rings of 128 rows \(got 256\)"):
        BatchedKvCache(cache, 2, page_size=256)
    with pytest.raises(SpecError, match=r"page_layout: must be one of hnd, nhd, the first without pages \(got 'nhd'\)"):
        BatchedKvCache(cache, 2, page_layout="nhd")
    with pytest.raises(SpecError, match=r"Executor\.windows: goes without window"):
        Executor(device, 1, **HEADS, max_len=64, window=3, windows=(3,))
    base = dict(max_len=200, head_dim=8, n_heads=1, n_kv_heads=1)
    for wrong in ({"ring": 64}, {"ring": 64, "window": 65}, {"ring": 65, "window": 2}):
        with pytest.raises(SpecError, match="ring: must"):
            IncrementalAttention(**base, **wrong)
    with pytest.raises(SpecError, match="ring: pages that come again"):
        RopeKvAppend(**base, ring=64, page_size=16)


def test_a_ring_is_the_window_and_what_joins_it_rounded_up() -> None:
    assert [ring_rows(w, a, 4096) for w, a in ((1024, 1), (1024, 2), (1024, 64), (1, 1), (0, 64), (20, 0))] \
        == [1024, 1088, 1088, 64, 0, 0]  # fmt: skip
    assert ring_rows(4096, 1, 4096) == 0
