"""The KV cache of one sequence, without attention: lengths, copies, snapshots, sizes; the recording driver will do."""

from __future__ import annotations

import gc
import logging
from pathlib import Path

import numpy as np
import pytest

from ptxgen.dtypes import dtype
from ptxgen.errors import CapacityError, CudaError, SpecError
from ptxgen.runtime import Device, Executor, KvCache, Snapshot, open_device
from ptxgen.runtime.kv.snapshot import Layer
from tests.support.attention.kv_caches import KINDS, as_float, filled, made
from tests.support.fake_cuda import fake_device


@pytest.fixture(params=["fake", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    """No kernel runs here, so that a driver that only copies will do."""
    return fake_device()[0] if request.param == "fake" else open_device(request.param)


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
        ({"dtype": "f64"}, r"KvCache.dtype: must be one of f32, f16, bf16, e4m3, s8 \(got 'f64'\)"),
    ],
)
def test_impossible_dimensions(device: Device, changes: dict, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        made(device, **changes)


def test_dimensions_may_be_numpys_integers(device: Device) -> None:
    sizes = np.array([2, 4, 2, 40, 48])
    cache = KvCache(device, *sizes)
    held = (cache.n_layers, cache.n_heads, cache.n_kv_heads, cache.head_dim, cache.max_len)
    assert held == (2, 4, 2, 40, 48)
    assert {type(n) for n in held} == {int}
    executor = Executor(device, *sizes)
    assert {type(n) for n in (executor.n_layers, executor.n_heads, executor.n_kv_heads, executor.head_dim)} == {int}


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
    with pytest.raises(SpecError, match=r"position must be an int ≥ 0 \(got -1\)"):
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


def test_snapshots_that_do_not_fit_change_nothing(device: Device) -> None:
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


def test_a_snapshot_with_wrong_arrays_changes_nothing(device: Device) -> None:
    def arrays(length: int, kind: str, width: int = 40) -> np.ndarray:
        return np.ones((2, length, width), dtype(kind).numpy)

    good = Layer(arrays(6, "f16"), arrays(6, "f16"))
    wrong = {
        r"layer 1 v must be an array of f16 \(got float32\)": Layer(good.k, arrays(6, "f32")),
        r"layer 1 k must be an array of f16 \(got int16\)": Layer(arrays(6, "s16"), good.v),
        r"layer 1 v must be \[2, seq_len, 40\] \(got \[2, 5, 40\]\)": Layer(good.k, arrays(5, "f16")),
        r"layer 1 k must be \[2, seq_len, 40\] \(got \[40\]\)": Layer(good.k[0, 0], good.v),
    }
    cache = made(device, "f16")
    filled(cache)
    before = cache.k(0).numpy().tobytes()
    for says, layer in wrong.items():
        with pytest.raises(SpecError, match=f"KvCache.restore: {says}"):
            cache.restore(Snapshot(cache.dtype, (good, layer)))
    with pytest.raises(SpecError, match=r"KvCache.restore: must be a Snapshot \(got None\)"):
        cache.restore(None)
    assert cache.k(0).numpy().tobytes() == before
    assert [cache.length(i) for i in (0, 1)] == [7, 5]
    quantised = made(device, "s8")
    plain = Layer(arrays(3, "s8"), arrays(3, "s8"))
    with pytest.raises(SpecError, match=r"layer 0 k_scales must be an array of f16 \(got none\)"):
        quantised.restore(Snapshot(quantised.dtype, (plain, plain)))


def test_only_snapshots_are_loaded(device: Device, tmp_path: Path) -> None:
    cache = made(device)
    filled(cache)
    path = tmp_path / "cache.npz"
    cache.snapshot().save(path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    head = np.array('{"ptxgen_snapshot": 1, "dtype": "f32", "layers": 1}')
    wrong = {"cut": whole[: len(whole) // 2], "flipped": bytes(flipped), "text": b"hello", "empty": b""}
    for name, data in wrong.items():
        (tmp_path / name).write_bytes(data)
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "headless.npz", a=np.zeros(3))
    np.savez(tmp_path / "future.npz", head=np.array('{"ptxgen_snapshot": 2}'))
    np.savez(tmp_path / "no_json.npz", head=np.array("{"))
    np.savez(tmp_path / "layerless.npz", head=head)
    np.savez(tmp_path / "flat.npz", **{"head": head, "0.k": np.zeros(3, "u4"), "0.v": np.zeros(3, "u4")})
    names = [*wrong, "array.npy", "headless.npz", "future.npz", "no_json.npz", "layerless.npz", "flat.npz"]
    for name in names:
        with pytest.raises(SpecError, match=rf"{name}: must be a snapshot file \("):
            Snapshot.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Snapshot.load(tmp_path / "missing.npz")


def test_a_snapshot_that_cannot_be_written_leaves_the_old_one(device: Device, tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    cache = made(device)
    filled(cache)
    cache.snapshot().save(tmp_path / "cache.npz")
    before = (tmp_path / "cache.npz").read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space left"):
        made(device, n_layers=1).snapshot().save(tmp_path / "cache.npz")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("cache.npz", before)]


def test_lengths_and_layers_are_whole_numbers(device: Device) -> None:
    cache = made(device)
    filled(cache)
    wrong = {
        r"KvCache: layer must be an int within 0 … 1 \(got 1.0\)": lambda: cache.length(1.0),
        r"KvCache: layer must be an int within 0 … 1 \(got 'k'\)": lambda: cache.length("k"),
        r"set_length: must be an int within 0 … 48 \(got 2.7\)": lambda: cache.set_length(0, 2.7),
        r"rollback: position must be an int ≥ 0 \(got 2.5\)": lambda: cache.rollback(2.5),
        r"peek: position must be an int within 0 … 6 \(got 1.5\)": lambda: cache.peek(0, "k", 1.5),
    }
    for says, use in wrong.items():
        with pytest.raises(SpecError, match=says):
            use()
    cache.set_length(np.int64(0), np.int32(3))
    assert [cache.length(i) for i in (0, 1)] == [3, 5]


def test_free_and_use_after_free(device: Device) -> None:
    cache = made(device)
    k = cache.k(0)
    cache.free()
    assert not cache.allocated
    for use in (lambda: cache.k(0), cache.snapshot, lambda: k.numpy(), lambda: cache.peek(0, "k", 0), cache.zero,
                lambda: cache.set_length(0, 3)):  # fmt: skip
        with pytest.raises((CudaError, SpecError), match=r"freed|must be within"):
            use()
    cache.free()


def test_memory_in_use_is_what_the_device_allocated(device: Device) -> None:
    gc.collect()
    device.synchronize()
    before = device.memory()
    cache = made(device)
    assert device.memory().used - before.used >= cache.nbytes
    if device.kind == "cpu":
        wrapped = device.wrap(np.zeros(1 << 20, np.uint8))
        assert device.memory().used - before.used < cache.nbytes + wrapped.nbytes, "an array of others is theirs"
    assert before.available == before.free + before.reserved - before.used
    cache.free()
    device.synchronize()
    assert device.memory().used == before.used


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
