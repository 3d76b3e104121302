"""KV caches without attention: lengths, copies, snapshots, slots, pages, sizes; the recording driver will do, too."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import numpy as np
import pytest

from ptxgen.errors import CapacityError, CudaError, SpecError
from ptxgen.runtime import BatchedKvCache, Device, KvCache, Snapshot, open_device
from tests.fake_cuda import fake_device

KINDS = ["f32", "f16", "bf16", "e4m3", "s8"]


@pytest.fixture(params=["fake", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    """No kernel runs here, so that a driver that only copies will do."""
    return fake_device()[0] if request.param == "fake" else open_device(request.param)


def made(device: Device, dtype: str = "f32", **changes: int) -> KvCache:
    shape = {"n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 40, "max_len": 48} | changes
    return KvCache(device, dtype=dtype, **shape)


def filled(cache: KvCache, lengths: tuple[int, ...] = (7, 5), seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Random bytes (no NaN) everywhere, written by plain copies; lengths set. What was written, per layer."""
    rng = np.random.default_rng(seed)
    written = []
    for layer, length in enumerate(lengths):
        written.append({})
        for name, buffer in cache.buffers(layer).items():
            values = rng.integers(-90, 90, buffer.shape).astype(np.float32)
            written[-1][name] = (values if cache.dtype.name == "s8" else values / 8).astype(buffer.dtype.numpy)
            buffer.copy_from(written[-1][name])
        cache.set_length(layer, length)
    return written


def as_float(arrays: dict[str, np.ndarray], kind: str) -> np.ndarray:
    values = arrays[f"{kind}_cache"].astype(np.float32)
    if f"{kind}_scales" not in arrays:
        return values
    return values * np.repeat(arrays[f"{kind}_scales"].astype(np.float32), 32, -1)[..., : values.shape[-1]]


def test_layout_and_size(device: Device) -> None:
    cache = made(device)
    assert cache.k(1).shape == cache.v(0).shape == (2, 48, 40)
    assert cache.nbytes == 2 * 2 * 2 * 48 * 40 * 4 == KvCache.bytes_per_sequence(2, 2, 40, 48)
    quantised = made(device, "s8")
    assert quantised.buffers(0)["k_scales"].shape == (2, 48, 2)
    assert quantised.nbytes == KvCache.bytes_per_sequence(2, 2, 40, 48, "s8") == 2 * 2 * 2 * 48 * (40 + 4)
    assert {cache.k(layer).pointer for layer in (0, 1)} == {cache.k(layer).pointer for layer in (0, 1)}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_layers": 0}, r"KvCache.n_layers: must be an int ≥ 1 \(got 0\)"),
        ({"max_len": -1}, r"KvCache.max_len"),
        ({"n_heads": 5}, r"KvCache.n_heads: must be a multiple of n_kv_heads 2 \(got 5\)"),
        ({"dtype": "f64"}, r"KvCache.dtype: must be one of f32, f16, bf16, e4m3, s8 \(got f64\)"),
    ],
)
def test_impossible_dimensions(device: Device, changes: dict, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        made(device, **changes)


def test_lengths_rollback_and_reset(device: Device) -> None:
    cache = made(device)
    filled(cache)
    cache.rollback(6)
    assert [cache.length(i) for i in (0, 1)] == [6, 5]
    cache.rollback(40)
    assert [cache.length(i) for i in (0, 1)] == [6, 5], "never lengthens"
    cache.set_length(1, 48)
    for wrong in (-1, 49):
        with pytest.raises(SpecError, match=rf"must be within 0 … 48 \(got {wrong}\)"):
            cache.set_length(1, wrong)
    with pytest.raises(SpecError, match=r"layer must be within 0 … 1 \(got 2\)"):
        cache.length(2)
    with pytest.raises(SpecError, match=r"position must be ≥ 0 \(got -1\)"):
        cache.rollback(-1)
    before = cache.k(0).numpy()
    cache.reset()
    assert [cache.length(i) for i in (0, 1)] == [0, 0]
    assert np.array_equal(cache.k(0).numpy(), before), "reset keeps the bytes"
    cache.zero()
    assert not cache.k(0).numpy().any()


def test_room_is_checked_and_nothing_changes(device: Device) -> None:
    cache = made(device)
    cache.set_length(0, 47)
    assert cache.room(0, 1) == 47
    with pytest.raises(CapacityError, match="layer 0 holds 47 of 48 positions, 2 more do not fit; nothing was changed"):
        cache.room(0, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_peek_and_fingerprint(device: Device, kind: str) -> None:
    cache = made(device, kind)
    written = filled(cache)
    assert np.array_equal(cache.peek(1, "v", 4, 1), as_float(written[1], "v")[1, 4])
    assert np.array_equal(cache.peek(0, "k", 0, 0, 3), as_float(written[0], "k")[0, 0, :3])
    sums = as_float(written[0], "k")[0, :7].sum(axis=1, dtype=np.float32)
    assert np.allclose(cache.fingerprint(0, 7), sums, rtol=1e-6)
    assert cache.fingerprint(0, 0).shape == (0,)
    wrong = {"position": (0, "k", 7), "head": (0, "k", 0, 2), "kind": (0, "x", 0), "n": (0, "k", 0, 0, 41)}
    for name, arguments in wrong.items():
        with pytest.raises(SpecError, match=rf"{name} must be"):
            cache.peek(*arguments)
    with pytest.raises(SpecError, match=r"within 0 … 7 \(got 8\)"):
        cache.fingerprint(0, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_snapshot_restores_bits_and_lengths(device: Device, kind: str, tmp_path: Path) -> None:
    cache = made(device, kind)
    written = filled(cache)
    snapshot = cache.snapshot()
    assert [layer.k.shape for layer in snapshot.layers] == [(2, 7, 40), (2, 5, 40)], "only what is filled"
    for (k, v), arrays, length in zip(snapshot, written, (7, 5), strict=True):
        assert np.array_equal(k, as_float(arrays, "k")[:, :length])
        assert np.array_equal(v, as_float(arrays, "v")[:, :length])
    snapshot.save(tmp_path / "cache.npz")
    other = made(device, kind, max_len=10)
    filled(other, (1, 2), seed=1)
    other.restore(Snapshot.load(tmp_path / "cache.npz"))
    assert [other.length(i) for i in (0, 1)] == [7, 5]
    for layer, arrays, length in zip((0, 1), written, (7, 5), strict=True):
        for name, buffer in other.buffers(layer).items():
            assert buffer.numpy()[:, :length].tobytes() == arrays[name][:, :length].tobytes()


def test_snapshots_that_do_not_fit_change_nothing(device: Device, tmp_path: Path) -> None:
    cache = made(device)
    filled(cache)
    snapshot = cache.snapshot()
    small = made(device, max_len=6)
    filled(small, (3, 3))
    before = small.k(1).numpy()
    with pytest.raises(CapacityError, match="layer 0 has 7 positions, the cache takes 6; nothing was changed"):
        small.restore(snapshot)
    assert np.array_equal(small.k(1).numpy(), before)
    assert small.length(0) == 3
    for other, says in ((made(device, "f16"), "2 layers of f16"), (made(device, n_layers=3), "3 layers of f32")):
        with pytest.raises(SpecError, match=rf"must have {says} \(got 2 of f32\)"):
            other.restore(snapshot)
    with pytest.raises(SpecError, match=r"layer 0 k must be \[4, seq_len, 40\] \(got \[2, 7, 40\]\)"):
        made(device, n_kv_heads=4).restore(snapshot)
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(SpecError, match="must be a snapshot file"):
        Snapshot.load(tmp_path / "other.npz")


def test_free_and_use_after_free(device: Device) -> None:
    cache = made(device)
    k = cache.k(0)
    cache.free()
    assert not cache.allocated
    for use in (lambda: cache.k(0), cache.snapshot, lambda: k.numpy(), lambda: cache.peek(0, "k", 0)):
        with pytest.raises((CudaError, SpecError), match=r"freed|must be within"):
            use()
    cache.free()


# several sequences ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "page"), list(itertools.product(KINDS, (0, 16))))
def test_scatter_copies_the_filled_positions_of_every_head(device: Device, kind: str, page: int) -> None:
    cache = made(device, kind)
    written = filled(cache, (37, 33))
    batched = BatchedKvCache(cache, 3, page_size=page)
    batched.zero()
    batched.scatter_from(cache, 1, 33)
    assert [batched.length(slot) for slot in range(3)] == [0, 33, 0]
    for layer, which in itertools.product((0, 1), "kv"):
        expected = as_float(written[layer], which)
        for head, position in itertools.product((0, 1), (0, 15, 16, 32)):
            assert np.array_equal(batched.peek(layer, which, 1, position, head), expected[head, position])
    if page == 0:
        rest = batched.buffers(0)["k_cache"].numpy()
        assert not rest[0].astype(np.float32).any(), "other slots"
        assert not rest[1, :, 33:].astype(np.float32).any(), "later positions"


def test_scatter_of_one_layer_and_of_nothing(device: Device) -> None:
    cache = made(device)
    written = filled(cache, (37, 33))
    batched = BatchedKvCache(cache, 2)
    batched.zero()
    batched.scatter_from(cache, 0, 0)
    assert batched.length(0) == 0
    batched.scatter_from(cache, 0, 35, layer=0)
    assert np.array_equal(batched.peek(0, "k", 0, 34, 1), written[0]["k_cache"][1, 34])
    assert not batched.buffers(1)["k_cache"].numpy().any()


def test_scatter_checks_slot_length_and_dimensions(device: Device) -> None:
    cache = made(device)
    filled(cache, (37, 33))
    batched = BatchedKvCache(cache, 2)
    for slot in (-1, 2):
        with pytest.raises(SpecError, match=rf"slot must be within 0 … 1 \(got {slot}\)"):
            batched.scatter_from(cache, slot, 3)
    for length in (-1, 34):
        with pytest.raises(SpecError, match=rf"seq_len must be within 0 … 33 \(got {length}\)"):
            batched.scatter_from(cache, 0, length)
    with pytest.raises(SpecError, match="must have the same dimensions"):
        batched.scatter_from(made(device, head_dim=48), 0, 0)


def test_only_growth_changes_addresses_and_says_so(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    batched = BatchedKvCache(made(device), 4)
    where = batched.buffers(0)["k_cache"].pointer
    lengths = batched.lengths.pointer
    assert batched.resize(2) is False
    assert batched.buffers(0)["k_cache"].shape == (2, 2, 48, 40)
    assert batched.resize(4) is False
    assert (batched.buffers(0)["k_cache"].pointer, batched.lengths.pointer) == (where, lengths)
    old = batched.buffers(0)["k_cache"]
    with caplog.at_level(logging.INFO, "ptxgen.runtime"):
        assert batched.resize(6) is True
    assert "graphs of the old addresses are invalid" in caplog.text
    assert batched.generation == 1
    with pytest.raises(CudaError, match="was freed"):
        _ = old.pointer
    with pytest.raises(SpecError, match=r"batch: must be an int ≥ 1 \(got 0\)"):
        batched.resize(0)


def test_pointers_are_where_sequences_begin(device: Device) -> None:
    batched = BatchedKvCache(made(device), 3)
    listed = batched.pointers(1, "v")
    buffer = batched.buffers(1)["v_cache"]
    assert listed.numpy().tolist() == [buffer[i].pointer for i in range(3)]
    assert batched.pointers(1, "v").pointer == listed.pointer, "one buffer per layer and kind"
    with pytest.raises(SpecError, match="no contiguous sequences"):
        BatchedKvCache(made(device), 3, page_size=16).pointers(0, "k")


def test_a_step_counts_and_tells_the_device(device: Device) -> None:
    batched = BatchedKvCache(made(device), 3)
    batched.set_length(0, 5)
    batched.set_length(2, 47)
    batched.step([0, 2])
    assert batched.positions.numpy().tolist() == [5, -1, 47]
    assert batched.lengths.numpy().tolist() == [6, 0, 48]
    with pytest.raises(CapacityError, match="slot 2 holds all 48 positions; nothing was changed"):
        batched.step()
    assert [batched.length(slot) for slot in range(3)] == [6, 0, 48]
    batched.rollback(2, 3)
    batched.step()
    assert batched.positions.numpy().tolist() == [6, 0, 3]


def test_pages_are_taken_and_given_back(device: Device) -> None:
    batched = BatchedKvCache(made(device), 3, page_size=16, n_pages=4)
    assert batched.pages is not None
    for _ in range(17):
        batched.step([1])
    batched.step([0])
    assert batched.buffers(0)["page_table"].numpy().tolist() == [[2, -1, -1], [0, 1, -1], [-1, -1, -1]]
    assert batched.pages.free_pages == 1
    batched.set_length(2, 16)
    said = "2 pages of 16 positions are needed and 0 of 4 are free; nothing was changed"
    with pytest.raises(CapacityError, match=said):
        batched.set_length(0, 48)
    with pytest.raises(CapacityError, match=r"1 pages"):
        batched.step([2])
    assert batched.length(2) == 16
    batched.rollback(1, 16)
    assert batched.pages.free_pages == 1
    batched.reset()
    assert batched.pages.free_pages == 4
    batched.step([2])
    assert batched.buffers(0)["page_table"].numpy().tolist() == [[-1, -1, -1], [-1, -1, -1], [0, -1, -1]]


def test_page_size_is_checked(device: Device) -> None:
    for wrong in (8, 24):
        with pytest.raises(SpecError, match=rf"a power of two from 16 on, or 0 \(got {wrong}\)"):
            BatchedKvCache(made(device), 2, page_size=wrong)
    with pytest.raises(SpecError, match="needs a page_size"):
        BatchedKvCache(made(device), 2, n_pages=4)


# sizes ------------------------------------------------------------------------------------------------------------
def test_max_batch_has_no_clamp_and_counts_everything() -> None:
    shape = (32, 8, 128, 4096, "f16")
    one = KvCache.bytes_per_sequence(*shape)
    assert one == 2 * 32 * 8 * 4096 * 128 * 2
    batch = KvCache.max_batch(100 * one, *shape)
    assert batch == 99, "lengths and pointers take the rest"
    assert KvCache.max_batch(100 * one, *shape, reserve=10 * one) == 89


def test_max_batch_counts_what_attention_needs() -> None:
    from ptxgen.kernels import IncrementalAttention

    spec = IncrementalAttention(
        max_len=4096, head_dim=128, n_heads=32, n_kv_heads=8, q_dtype="f16", kv_dtype="f16", batched=True
    )
    shape = (1, 8, 128, 4096, "f16")
    one = KvCache.bytes_per_sequence(*shape)
    work = {p.name: p.nbytes({"batch": 50}) for p in spec.params() if not p.name.endswith("_cache")}
    fits = 50 * one + sum(work.values()) + 4096
    assert KvCache.max_batch(fits, *shape, attention=spec) == 50
    assert KvCache.max_batch(fits - sum(work.values()), *shape, attention=spec) < 50


def test_max_batch_warns_when_nothing_fits(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ptxgen.runtime"):
        assert KvCache.max_batch(1000, 2, 2, 64, 128) == 0
    assert "none fits: one sequence of 128 positions needs" in caplog.text
