"""The executor against the float64 oracle, on the CPU and on a GPU; a short soak."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ptxgen.errors import CapacityError, CudaError, SpecError
from ptxgen.parity import LIMITS, compare
from ptxgen.runtime import BatchedKvCache, Device, Executor
from ptxgen.runtime.core.backend import MemoryUse
from tests.support.attention.kv_caches import KINDS, spoil
from tests.support.attention.kv_oracle import Oracle, attention
from tests.tools.soak import soak
from tests.tools.soaked.sequence import Sequence

RNG = np.random.default_rng(0)


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def executor(device: Device, kind: str = "f32", **changes: int) -> tuple[Executor, Oracle]:
    shape = {"n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 64, "max_len": 48} | changes
    oracle = Oracle(shape["n_layers"], shape["n_heads"], shape["n_kv_heads"], shape["head_dim"], kind)
    made = Executor(device, **shape, kv_dtype=kind)
    spoil(made.cache)
    return made, oracle


def check(got: np.ndarray, want: np.ndarray, kind: str = "f32") -> None:
    verdict = compare("out", got, want, LIMITS[kind])
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("kind", KINDS)
def test_positions_one_by_one(device: Device, kind: str) -> None:
    ex, oracle = executor(device, kind)
    for step in range(5):
        for layer in range(2):
            q, k, v, out = rand(4, 64), rand(2, 64), rand(2, 64), np.full((4, 64), np.nan, np.float32)
            oracle.append(layer, k, v)
            assert ex.incremental_attention(layer, q, k, v, out) == step + 1
            check(out, oracle.attend(layer, q), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_append_stores_what_the_dtype_holds(device: Device, kind: str) -> None:
    ex, oracle = executor(device, kind, head_dim=80)
    for rows in (1, 9, 2, 1):
        k, v = rand(rows, 2, 80) * 3, rand(rows, 2, 80)
        oracle.append(1, k, v)
        ex.cache.append(1, device.array(k), device.array(v))
    (empty, _), kept = ex.cache.snapshot()
    assert empty.shape == (2, 0, 80)
    for got, want in zip(kept, oracle.layers[1], strict=True):
        assert np.allclose(got, want.swapaxes(0, 1), rtol=1e-6, atol=0), "bit for bit, up to the product with a scale"
    with pytest.raises(SpecError, match=r"append\(k\): must have shape \[1, 2, 80\] \(got \[2, 40\]\)"):
        ex.cache.append(0, device.zeros((2, 40), "f32"), device.zeros((2, 80), "f32"))
    with pytest.raises(CapacityError, match="layer 1 holds 13 of 48 positions, 36 more do not fit"):
        ex.cache.append(1, device.zeros((36, 2, 80), "f32"), device.zeros((36, 2, 80), "f32"))


def test_device_arrays_flat_arrays_and_host_arrays_agree(device: Device) -> None:
    q, k, v = rand(4, 64), rand(2, 64), rand(2, 64)
    outs = []
    for make in (np.array, device.array, np.ravel, lambda x: device.array(np.ravel(x))):
        ex, _ = executor(device)
        out = make(np.full((4, 64), np.nan, np.float32))
        ex.incremental_attention(0, make(q), make(k), make(v), out)
        outs.append((out if isinstance(out, np.ndarray) else out.numpy()).reshape(4, 64))
    mixed, _ = executor(device)
    outs.append(np.zeros((4, 64), np.float32))
    mixed.incremental_attention(0, device.array(q), k, device.array(v), outs[-1])
    for other in outs[1:]:
        assert np.array_equal(outs[0], other)
    check(outs[0], np.repeat(v, 2, axis=0))


@pytest.mark.parametrize("rows", [1, 2, 31, 48])
def test_chunks_of_a_prompt(device: Device, rows: int) -> None:
    ex, oracle = executor(device)
    for start in range(0, 48 - rows + 1, rows):
        q, k, v = rand(rows, 4, 64), rand(rows, 2, 64), rand(rows, 2, 64)
        out = np.full(q.shape, np.nan, np.float32)
        oracle.append(1, k, v)
        assert ex.flash_attention_cached(1, q, k, v, out) == start + rows
        check(out, oracle.attend_chunk(1, q))


@pytest.mark.parametrize("kind", ["e4m3", "s8"])
def test_chunks_over_a_cache_of_8_bits(device: Device, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Where that is faster keys and values become 16-bit ones first, in memory that all layers share, if there is any;
    with the same result."""
    given = [rand(*shape).astype(np.float16) for _ in range(2) for shape in ((31, 4, 64), (31, 2, 64), (31, 2, 64))]

    def outputs(widened: bool) -> list[np.ndarray]:
        ex = Executor(device, 2, 4, 2, 64, 48, kv_dtype=kind, q_dtype="f16")
        outs = [np.zeros((31, 4, 64), np.float16) for _ in range(2)]
        for layer in range(2):
            ex.flash_attention_cached(layer, *given[3 * layer : 3 * layer + 3], outs[layer])
        ex.stream.synchronize()
        room = ex._kernels._arena
        assert (room is not None) == widened
        assert room is None or room.nbytes == 2 * 2 * 48 * 64 * 2, "K and V of one layer"
        return outs

    on_the_way = outputs(False)
    monkeypatch.setattr("ptxgen.kernels.multi_head_attention.is_worth_it", lambda *_: True)
    assert np.array_equal(on_the_way, outputs(device.target.includes_any(("sm_90a",))))
    monkeypatch.setattr(type(device), "memory", lambda _: MemoryUse(1, 1, 0, 0))
    assert np.array_equal(on_the_way, outputs(False))


@pytest.mark.parametrize(
    ("rows", "keys", "causal"), [(1, 1, True), (7, 7, True), (7, 7, False), (3, 20, True), (33, 65, False)]
)
def test_flash_attention_without_the_cache(device: Device, rows: int, keys: int, causal: bool) -> None:
    ex, _ = executor(device)
    q, k, v, out = rand(rows, 4, 64), rand(keys, 2, 64), rand(keys, 2, 64), np.full((rows, 4, 64), np.nan, np.float32)
    ex.flash_attention(q, k, v, out, causal=causal)
    seen = [keys - rows + i + 1 if causal else keys for i in range(rows)]
    check(out, np.stack([attention(row, k[:n], v[:n]) for row, n in zip(q, seen, strict=True)]))
    assert ex.cache.length(0) == 0


def test_captured_decoding_equals_eager_bit_for_bit(device: Device) -> None:
    eager, _ = executor(device)
    graphed, _ = executor(device)
    q, k, v = (device.zeros(s, "f32") for s in ((4, 64), (2, 64), (2, 64)))
    outs = [device.zeros((4, 64), "f32") for _ in range(2)]
    with device.graph() as graph:
        for layer in range(2):
            graphed.incremental_attention(layer, q, k, v, outs[layer], graph.stream)
    assert graphed.cache.length(0) == 0
    for step in range(48):
        host = rand(4, 64), rand(2, 64), rand(2, 64)
        for buffer, array in zip((q, k, v), host, strict=True):
            buffer.copy_from(array)
        graphed.step()
        graph.launch(graphed.stream)
        assert graphed.cache.length(1) == step + 1
        for layer in range(2):
            expected = np.empty((4, 64), np.float32)
            eager.incremental_attention(layer, *host, expected)
            assert outs[layer].numpy().tobytes() == expected.tobytes(), f"length {step + 1}"
    with pytest.raises(CapacityError, match="nothing was changed"):
        graphed.step()


@pytest.mark.parametrize("kind", ["f16", "s8"])
def test_flash_decoding_eager_captured_and_explicit(device: Device, kind: str) -> None:
    ex, oracle = executor(device, kind, max_len=300)
    q = rand(4, 64)
    on_device, outs = device.array(q), [device.zeros((4, 64), "f32") for _ in range(2)]
    with device.graph() as captured:
        for layer in range(2):
            ex.flash_decoding(layer, on_device, outs[layer], captured.stream)
    explicit = device.graph()
    for layer in range(2):
        ex.flash_decoding_nodes(explicit, layer, on_device, outs[layer])
    for rows in (0, 1, 126, 1, 1, 100):
        for layer in range(2):
            k, v = rand(rows, 2, 64), rand(rows, 2, 64)
            oracle.append(layer, k, v)
            if rows:
                ex.cache.append(layer, device.array(k), device.array(v))
        eager = []
        for layer in range(2):
            host = np.full((4, 64), np.nan, np.float32)
            ex.flash_decoding(layer, q, host)
            check(host, oracle.attend(layer, q), kind)
            eager.append(host.tobytes())
        ex.lengths.fill(oracle.length(0))
        for graph in (captured, explicit):
            for out in outs:
                out.fill(np.nan)
            graph.launch()
            assert [out.numpy().tobytes() for out in outs] == eager
    ex.cache.free()
    for graph in (captured, explicit):
        with pytest.raises(CudaError, match=r"Graph: cannot be launched: a buffer it uses .* was freed"):
            graph.launch()


def test_overflow_and_wrong_arguments_change_nothing(device: Device) -> None:
    ex, _ = executor(device, max_len=2)
    q, k, v, out = rand(4, 64), rand(2, 64), rand(2, 64), np.zeros((4, 64), np.float32)
    for _ in range(2):
        ex.incremental_attention(0, q, k, v, out)
    before = ex.cache.k(0).numpy()
    with pytest.raises(CapacityError, match="layer 0 holds 2 of 2 positions, 1 more do not fit"):
        ex.incremental_attention(0, q, rand(2, 64), v, out)
    wrong = {
        "q": (rand(4, 32), r"q: must have shape \[4, 64\] \(got \[4, 32\]\)"),
        "k": (rand(4, 64), r"k: must have shape \[2, 64\] \(got \[4, 64\]\)"),
        "v": (rand(2, 64).astype(np.float64), r"v: must be f32 \(got float64"),
        "out": (np.zeros((4, 64, 1), np.float32), r"out: must have shape"),
    }
    good = {"q": q, "k": k, "v": v, "out": out}
    for name, (array, says) in wrong.items():
        with pytest.raises(SpecError, match=says):
            ex.incremental_attention(1, **good | {name: array})
        with pytest.raises(SpecError, match=says.replace("float64", "f64")):
            ex.incremental_attention(1, **good | {name: device.array(array)})
    with pytest.raises(SpecError, match=r"layer must be within 0 … 1 \(got 2\)"):
        ex.incremental_attention(2, **good)
    assert [ex.cache.length(i) for i in (0, 1)] == [2, 0]
    assert np.array_equal(ex.cache.k(0).numpy(), before)


def test_an_append_without_a_step_writes_nothing(device: Device) -> None:
    ex, _ = executor(device, n_layers=1)
    ex.flash_attention_cached(0, rand(3, 4, 64), rand(3, 2, 64), rand(3, 2, 64), np.zeros((3, 4, 64), np.float32))
    for page in (0, 16):
        batched = BatchedKvCache(ex.cache, 2, page_size=page)
        batched.zero()
        batched.step()
        batched.scatter_from(ex.cache, 0, 3)
        batched.set_length(1, 0)
        before = {name: buffer.numpy().tobytes() for name, buffer in batched.buffers(0).items()}
        batched.append(0, *[device.array(rand(2, 2, 64))] * 2)
        assert {name: buffer.numpy().tobytes() for name, buffer in batched.buffers(0).items()} == before


def test_a_replay_after_eager_work_attends_over_what_was_published(device: Device) -> None:
    """Eager appends, a rollback and a restore leave the lengths on the device as they were."""
    ex, oracle = executor(device)
    q, out = device.array(rand(4, 64)), device.zeros((4, 64), "f32")
    graph = device.graph()
    ex.flash_decoding_nodes(graph, 0, q, out)
    k, v = rand(10, 2, 64), rand(10, 2, 64)
    ex.flash_attention_cached(0, rand(10, 4, 64), k, v, np.zeros((10, 4, 64), np.float32))
    for row in zip(k, v, strict=True):
        oracle.append(0, *row)
    for length in (10, 7):
        ex.cache.rollback(length)
        oracle.rollback(length)
        ex.publish()
        graph.launch()
        check(out.numpy(), oracle.attend(0, q.numpy()))
        assert ex.cache.length(0) == length
    with device.graph() as recorded:
        out.fill(0, recorded.stream)
        with pytest.raises(CudaError, match="publish"):
            ex.publish(recorded.stream)


class Refusing:
    """A bound kernel whose launch fails."""

    def launch(self, stream: object) -> None:
        raise CudaError("forced")


def test_a_launch_that_fails_leaves_the_lengths(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    ex, _ = executor(device)
    for rows in (1, 3):
        given = [rand(rows, 4, 64), rand(rows, 2, 64), rand(rows, 2, 64), np.zeros((rows, 4, 64), np.float32)]
        ex.flash_attention_cached(0, *given)
        before = ex.cache.length(0)
        with monkeypatch.context() as patch:
            for name in ("step", "chunk"):
                patch.setattr(ex._kernels, name, lambda *_: Refusing())
            with pytest.raises(CudaError, match="forced"):
                ex.flash_attention_cached(0, *given)
        assert ex.cache.length(0) == before
        ex.flash_attention_cached(0, *given)
        assert ex.cache.length(0) == before + rows


def test_unknown_options_and_impossible_shapes(device: Device) -> None:
    for options in ({"sofft_cap": 3.0}, {"alibi": True}, {"programmatic": True}):
        with pytest.raises(SpecError, match=rf"Executor.options: must be of scale, .* \(got {next(iter(options))}\)"):
            Executor(device, 1, 4, 2, 64, 16, **options)
    with pytest.raises(SpecError, match="soft_cap"):
        Executor(device, 1, 4, 2, 64, 16, soft_cap=-1.0)
    with pytest.raises(SpecError, match="head_dim"):
        Executor(device, 1, 4, 2, 63, 16)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_past_the_length_are_never_trusted(device: Device, kind: str) -> None:
    ex, oracle = executor(device, kind)
    assert np.isnan(ex.cache.buffers(0)["k_scales" if kind == "s8" else "k_cache"].numpy().astype(np.float32)).all()
    for _ in range(3):
        q, k, v, out = rand(4, 64), rand(2, 64), rand(2, 64), np.zeros((4, 64), np.float32)
        oracle.append(0, k, v)
        ex.incremental_attention(0, q, k, v, out)
        check(out, oracle.attend(0, q), kind)
    ex.cache.rollback(1)
    oracle.rollback(1)
    k, v = rand(2, 64), rand(2, 64)
    oracle.append(0, k, v)
    ex.incremental_attention(0, q, k, v, out)
    check(out, oracle.attend(0, q), kind)


def test_a_graph_takes_device_arrays_only(device: Device) -> None:
    ex, _ = executor(device)
    q, k, out, rows, keys = rand(4, 64), rand(2, 64), rand(4, 64), rand(3, 4, 64), rand(3, 2, 64)
    kept, turned = out.copy(), q.copy()
    position = ex.positions[0]
    with device.graph() as graph:
        for call in (
            lambda: ex.incremental_attention(0, q, k, k, out, graph.stream),
            lambda: ex.flash_decoding(0, q, out, graph.stream),
            lambda: ex.flash_attention(rows, keys, keys, rows, stream=graph.stream),
            lambda: ex.rope(q, k, position, graph.stream),
        ):
            with pytest.raises(CudaError, match="device arrays only"):
                call()
        device.zeros(1, "f32").fill(0, graph.stream)
    assert (out.tobytes(), q.tobytes()) == (kept.tobytes(), turned.tobytes())


def test_what_a_replay_could_not_count_is_not_recorded(device: Device) -> None:
    ex, _ = executor(device)
    batch = BatchedKvCache(ex.cache, 2)
    rows, keys = device.array(rand(3, 4, 64)), device.array(rand(3, 2, 64))
    ex.cache.append(0, keys, keys)
    with device.graph() as graph:
        for call in (
            lambda: ex.flash_attention_cached(0, rows, keys, keys, rows, graph.stream),
            lambda: ex.rope(rows, keys, 3, graph.stream),
            lambda: ex.step(graph.stream),
            lambda: ex.cache.append(0, keys, keys, graph.stream),
            lambda: ex.cache.zero(graph.stream),
            lambda: batch.step(stream=graph.stream),
            lambda: batch.scatter_from(ex.cache, 0, 2, 0, graph.stream),
            lambda: batch.zero(graph.stream),
        ):
            with pytest.raises(CudaError, match="is not possible while capturing"):
                call()
        rows.fill(0, graph.stream)
    assert (ex.cache.length(0), batch.length(0)) == (3, 0)


def test_recorded_rope_turns_by_the_position_of_the_step(device: Device) -> None:
    ex, _ = executor(device)
    q, k = rand(4, 64), rand(2, 64)
    turned = [device.array(x) for x in (q, k)]
    with device.graph() as graph:
        ex.rope(*turned, ex.positions[1], graph.stream)
    for position in range(3):
        for buffer, host in zip(turned, (q, k), strict=True):
            buffer.copy_from(host)
        ex.step()
        graph.launch()
        want = q.copy(), k.copy()
        ex.rope(*want, position)
        assert [b.numpy().tobytes() for b in turned] == [w.tobytes() for w in want], f"position {position}"
    with pytest.raises(SpecError, match=r"position: must have shape \[1\] \(got \[2\]\)"):
        ex.rope(*turned, ex.positions)


def test_recorded_whole_sequences_replay_with_what_the_arrays_hold(device: Device) -> None:
    ex, _ = executor(device)
    q, k, v, out = (device.array(rand(3, n, 64)) for n in (4, 2, 2, 4))
    with device.graph() as graph:
        ex.flash_attention(q, k, v, out, stream=graph.stream)
    k.copy_from(rand(3, 2, 64))
    graph.launch()
    want = device.zeros((3, 4, 64), "f32")
    ex.flash_attention(q, k, v, want)
    assert out.numpy().tobytes() == want.numpy().tobytes()


@pytest.mark.parametrize(("kind", "page"), list(itertools.product(["f32", "f16", "s8"], [0, 16])))
def test_batched_steps(device: Device, kind: str, page: int) -> None:
    from ptxgen.kernels import IncrementalAttention

    ex, oracle = executor(device, kind, n_layers=1)
    for _ in range(17):
        k, v, out = rand(2, 64), rand(2, 64), np.zeros((4, 64), np.float32)
        oracle.append(0, k, v)
        ex.incremental_attention(0, rand(4, 64), k, v, out)
    batched = BatchedKvCache(ex.cache, 3, page_size=page)
    spoil(batched)
    batched.scatter_from(ex.cache, 1, 15)
    batched.scatter_from(ex.cache, 2, 17)
    oracles = [Oracle(1, 4, 2, 64, kind) for _ in range(3)]
    for slot, length in ((1, 15), (2, 17)):
        oracles[slot].layers = [[x[:length] for x in oracle.layers[0]]]
    spec = IncrementalAttention(
        max_len=48, head_dim=64, n_heads=4, n_kv_heads=2, kv_dtype=kind, batched=True, page_size=page
    )
    for active in ([0, 1, 2], [0, 2], [1]):
        q, k, v = rand(3, 4, 64), rand(3, 2, 64), rand(3, 2, 64)
        batched.step(active)
        batched.append(0, device.array(k), device.array(v))
        out = device.empty((3, 4, 64), "f32").fill(np.nan)
        device.load(spec).bind(q=device.array(q), out=out, seq_lens=batched.lengths, **batched.buffers(0)).launch()
        for slot in range(3):
            if slot in active:
                oracles[slot].append(0, k[slot], v[slot])
                check(out.numpy()[slot], oracles[slot].attend(0, q[slot]), kind)
            else:
                assert not out.numpy()[slot].any(), "a slot that takes no part gives zeros"


def test_rope_in_place_and_on_host_arrays(device: Device) -> None:
    ex, _ = executor(device)
    q, k = rand(4, 64), rand(2, 64)
    rotated = q.copy(), device.array(k)
    ex.rope(*rotated, position=5, theta=10000.0, style="neox")
    angle = 5 * 10000.0 ** (-np.arange(32) / 32)
    for got, x in zip((rotated[0], rotated[1].numpy()), (q, k), strict=True):
        a, b = x[:, :32].astype(np.float64), x[:, 32:].astype(np.float64)
        want = np.hstack([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)])
        check(got, want)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_short_soak(device: Device, seed: int) -> None:
    steps = 60 if device.kind == "cpu" else 1000
    report = soak(device, steps, seed, per_life=30 if device.kind == "cpu" else 125)
    assert sum(report["steps"].values()) == steps
    assert {name.partition(".")[0] for name in report["steps"]} == {"Sequence", "Batch"}


def test_a_soak_notices_memory_that_is_not_given_back(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    class Leaky(Sequence):
        def peek(self) -> None:
            kept.append(self.device.zeros(3, "u8"))

    monkeypatch.setattr("tests.tools.soak.LIVES", (Leaky,))
    monkeypatch.setattr(Leaky, "CHANCES", {"peek": 1})
    with pytest.raises(AssertionError, match=r"bytes of shape 0 were not given back"):
        soak(device, 1, 0)
