"""Every way to record attention, captured once and replayed at lengths from 1 to the largest: bit for bit as eager.

Lengths, positions and pages come from device memory; the launch tuple depends on capacities alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ptxgen.kernels import ArgMax, IncrementalAttention, KvCacheScatter, RopeKvAppend
from ptxgen.runtime import BatchedKvCache, Device, Executor, Graph, KvCache, Stream
from ptxgen.runtime.core.launches.bound import BoundKernel
from ptxgen.runtime.core.memory.buffer import Buffer
from tests.support.attention.kv_caches import KINDS, spoil

MOST = 33  # positions of a small cache: more than two pages and two tiles
HEADS = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 32}


class Tokens:
    """One step's q, k and v on the device, `[batch, heads, head_dim]`, new ones for every step."""

    def __init__(self, device: Device, batch: int) -> None:
        self.rng = np.random.default_rng(0)
        self.q, self.k, self.v = (device.zeros((batch, heads, 32), "f32") for heads in (4, 2, 2))

    def next(self) -> None:
        for buffer in (self.q, self.k, self.v):
            buffer.copy_from(self.rng.standard_normal(buffer.shape, np.float32))


def bytes_of(outs: list[Buffer]) -> list[bytes]:
    found = [out.numpy() for out in outs]
    for array in found:
        assert np.isfinite(array.astype(np.float32)).all()
    return [array.tobytes() for array in found]


def spoiled(outs: list[Buffer]) -> None:
    for out in outs:
        out.fill(np.nan if out.dtype.is_float else -7)


Way = tuple[Callable[[Stream], None], Callable[[], None], list[Buffer]]


def both(device: Device, make: Callable[[Tokens], Way], steps: int, batch: int) -> None:
    """Two caches of the same kind: one decodes eagerly, the other by replays of one capture; outputs must agree.

    `make(tokens)` gives what launches a step on a stream, what prepares it (lengths), and the outputs.
    """
    tokens = Tokens(device, batch)
    eager, captured = make(tokens), make(tokens)
    stream = device.stream()
    with device.graph() as graph:
        captured[0](graph.stream)
    for step in range(1, steps + 1):
        tokens.next()
        for launch, prepare, outs in (eager, captured):
            spoiled(outs)
            prepare()
            device.synchronize()
            if launch is eager[0]:
                launch(stream)
            else:
                graph.launch(stream)
            device.synchronize()
        assert bytes_of(eager[2]) == bytes_of(captured[2]), f"step {step}"


# batches ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_contiguous_and_paged(device: Device, kind: str, page: int) -> None:
    single = KvCache(device, n_layers=2, max_len=MOST, dtype=kind, **HEADS)
    spec = IncrementalAttention(max_len=MOST, kv_dtype=kind, batched=True, page_size=page, **HEADS)

    def make(tokens: Tokens) -> Way:
        cache = BatchedKvCache(single, 3, page_size=page)
        spoil(cache)
        outs = [device.zeros((3, 4, 32), "f32") for _ in range(2)]
        attend = [
            device.load(spec).bind(q=tokens.q, out=out, seq_lens=cache.lengths, **cache.buffers(layer))
            for layer, out in enumerate(outs)
        ]
        appends = [cache._append(layer, tokens.k, tokens.v) for layer in range(2)]

        def launch(stream: Stream) -> None:
            for layer in range(2):
                appends[layer].launch(stream)
                attend[layer].launch(stream)

        steps = iter(range(MOST))

        def prepare() -> None:
            step = next(steps)  # the second slot starts later, the third stops for a while
            cache.step([0, *([1] if step >= 5 else []), *([2] if step % 8 < 6 else [])])

        return launch, prepare, outs

    both(device, make, MOST, batch=3)


# one sequence -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_one_sequence_through_the_executor(device: Device, kind: str) -> None:
    """Eager launches have their length as a scalar, recorded ones read it: two kernels, one result."""
    eager, graphed = (Executor(device, 2, max_len=MOST, kv_dtype=kind, **HEADS) for _ in range(2))
    for made in (eager, graphed):
        spoil(made.cache)
    tokens = Tokens(device, 1)
    given = [b.reshape(*b.shape[1:]) for b in (tokens.q, tokens.k, tokens.v)]
    outs = [device.zeros((4, 32), "f32") for _ in range(4)]
    with device.graph() as graph:
        for layer in range(2):
            graphed.incremental_attention(layer, *given, outs[layer], graph.stream)
            graphed.flash_decoding(layer, given[0], outs[2 + layer], graph.stream)
    for length in range(1, MOST + 1):
        tokens.next()
        spoiled(outs)
        graphed.step()
        graph.launch(graphed.stream)
        want = []
        for layer in range(2):
            got = np.empty((2, 4, 32), np.float32)
            assert eager.incremental_attention(layer, *given, got[0]) == length
            eager.flash_decoding(layer, given[0], got[1])
            want.append(got)
        expected = [want[i % 2][i // 2].tobytes() for i in range(4)]
        assert bytes_of(outs) == expected, f"length {length}"


def explicit(graph: Graph, kernels: list[BoundKernel], programmatic: bool) -> None:
    for number, bound in enumerate(kernels):
        graph.add(bound, programmatic=programmatic and number > 0 and bound.geometry.programmatic)


def decode_step(device: Device, tokens: Tokens, programmatic: bool) -> tuple[list[BoundKernel], Buffer, list[Buffer]]:
    """RoPE with append, attention, argmax over the output: kernels, the length, the outputs."""
    cache = KvCache(device, n_layers=1, max_len=MOST, dtype="f16", **HEADS)
    spoil(cache)
    counts = device.zeros((2, 1), "s32")  # position, length
    turned, out, best = device.zeros((1, 4, 32), "f32"), device.zeros((4, 32), "f32"), device.zeros(4, "s32")
    rope = RopeKvAppend(max_len=MOST, kv_dtype="f16", in_place=False, indirect=True, programmatic=programmatic, **HEADS)
    attend = IncrementalAttention(max_len=MOST, kv_dtype="f16", indirect=True, programmatic=programmatic, **HEADS)
    names = {p.name for p in rope.params()}
    given = {"q": tokens.q, "k": tokens.k, "v": tokens.v, "q_out": turned, "position": counts[0], **cache.buffers(0)}
    kernels = [
        device.load(rope).bind(**{n: b for n, b in given.items() if n in names}),
        device.load(attend).bind(q=turned.reshape(4, 32), out=out, seq_len=counts[1], **cache.buffers(0)),
        device.load(ArgMax(n=32)).bind(x=out, out=best),
    ]
    return kernels, counts, [out, best]


@pytest.mark.parametrize("programmatic", [False, True])
def test_explicit_nodes_of_a_decode_step(device: Device, programmatic: bool) -> None:
    tokens = Tokens(device, 1)
    eager, counts, want = decode_step(device, tokens, programmatic)
    nodes, other_counts, got = decode_step(device, tokens, programmatic)
    graph = device.graph()
    explicit(graph, nodes, programmatic)
    for length in range(1, MOST + 1):
        tokens.next()
        for buffer in (counts, other_counts):
            buffer.copy_from(np.array([[length - 1], [length]], np.int32))
        spoiled([*want, *got])
        device.synchronize()
        for bound in eager:
            bound.launch()
            device.synchronize()
        graph.launch()
        device.synchronize()
        assert bytes_of(want) == bytes_of(got), f"length {length}"


# long caches: clusters, splits and the merge ------------------------------------------------------------------------
def lengths(most: int) -> Iterator[int]:
    yield from (n for n in (1, 2, 63, 64, 65, 127, 129, 255, 257, 1000, 1025, 4095, 4097, 9999) if n < most)
    yield from (most - 1, most)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "most"), [((32, 8, 128), 8192), ((12, 2, 128), 20_000), ((32, 32, 80), 4096)])
def test_long_caches_on_a_gpu(gpu: Device, heads: tuple[int, int, int], most: int, kind: str) -> None:
    n_heads, n_kv_heads, head_dim = heads
    shape = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
    ex = Executor(gpu, 1, max_len=most, kv_dtype=kind, q_dtype="f16", **shape)
    rng = np.random.default_rng(1)
    for name, buffer in ex.cache.buffers(0).items():
        if buffer.dtype.name == "s8":
            buffer.copy_from(rng.integers(-127, 127, buffer.shape, np.int8))
        else:
            scale = 0.01 if name.endswith("scales") else 1
            buffer.copy_from((rng.standard_normal(buffer.shape, np.float32) * scale).astype(buffer.dtype.numpy))
    rows = (n_heads, n_kv_heads, n_kv_heads)
    q, k, v = (gpu.array(rng.standard_normal((n, head_dim)).astype(np.float16)) for n in rows)
    outs = [gpu.zeros((n_heads, head_dim), "f16") for _ in range(3)]
    with gpu.graph() as graph:
        ex.incremental_attention(0, q, k, v, outs[0], graph.stream)
        ex.flash_decoding(0, q, outs[1], graph.stream)
    nodes = gpu.graph()
    ex.flash_decoding_nodes(nodes, 0, q, outs[2])
    for length in lengths(most):
        ex.cache.set_length(0, length - 1)
        ex.step()
        spoiled(outs)
        gpu.synchronize()
        graph.launch(ex.stream)
        nodes.launch(ex.stream)
        captured = bytes_of(outs)
        ex.cache.set_length(0, length - 1)
        eager = [gpu.empty((n_heads, head_dim), "f16") for _ in range(2)]
        ex.incremental_attention(0, q, k, v, eager[0])
        ex.flash_decoding(0, q, eager[1])
        assert captured == [*bytes_of(eager), eager[1].numpy().tobytes()], f"length {length}"


# geometry ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_the_launch_tuple_depends_on_capacity_alone(device: Device, kind: str) -> None:
    """Grid, block, cluster, shared memory and workspaces are those of the capacity, whatever the length."""
    spec = IncrementalAttention(max_len=4096, n_heads=8, n_kv_heads=2, head_dim=64, kv_dtype=kind)
    kernel = device.load(spec)
    caches = {n: device.empty((2, 4096, 64), kind) for n in ("k_cache", "v_cache")}
    q, out = (device.empty((8, 64), "f32") for _ in range(2))
    found = {
        (bound.geometry, tuple(sorted(a.nbytes for a in bound.allocations())))
        for length in (1, 4096)
        for bound in [kernel.bind(q=q, out=out, seq_len=length, **caches)]
    }
    assert len(found) == 1
    append = device.load(KvCacheScatter(max_len=4096, n_kv_heads=2, head_dim=64, kv_dtype=kind))
    row = device.empty((1, 2, 64), "f32")
    assert len({append.bind(k=row, v=row, position=p, **caches).geometry for p in (0, 4095)}) == 1
