"""What is wrong with an argument is said in the same words on every device, and nothing has changed after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import CudaError, ModuleLoadError, SpecError, TargetError
from ptxgen.kernels import IncrementalAttention, KvCacheScatter
from ptxgen.parity import LIMITS, compare
from ptxgen.runtime import BatchedKvCache, Device, Executor, KvCache, open_device
from ptxgen.runtime.core.launches.bound import BoundKernel
from ptxgen.runtime.core.memory.buffer import Buffer
from ptxgen.runtime.kv.strided import Blocks
from tests.support.attention.kv_caches import spoil
from tests.support.attention.kv_oracle import attention

SHAPE = {"max_len": 16, "n_kv_heads": 2, "head_dim": 64}


def given(device: Device) -> dict[str, Buffer]:
    rows = {n: device.array(np.ones((1, 2, 64), np.float32)) for n in "kv"}
    return rows | {n: device.zeros((2, 16, 64), "f16") for n in ("k_cache", "v_cache")}


def bound(device: Device, **changes: object) -> BoundKernel:
    kernel = device.load(KvCacheScatter(kv_dtype="f16", **SHAPE))
    return kernel.bind(**{**given(device), "position": 3, **changes})


def misaligned(device: Device) -> Buffer:
    return device.zeros(2 * 16 * 64 + 8, "f16").view((2, 16, 64), offset=2)


@pytest.mark.parametrize(
    ("name", "make", "says"),
    [
        ("k", lambda d: d.zeros((1, 2, 32), "f32"), r"bind\(k\): must have shape \[.*2, 64\] \(got \[1, 2, 32\]\)"),
        ("k_cache", lambda d: d.zeros((2, 15, 64), "f16"), r"bind\(k_cache\): must have shape .*\(got \[2, 15, 64\]\)"),
        ("v_cache", lambda d: d.zeros((2, 16, 64), "bf16"), r"bind\(v_cache\): must be f16 \(got bf16"),
        ("v_cache", misaligned, r"bind\(v_cache\): must be aligned to \d+ bytes \(got address 0x[0-9a-f]+\)"),
        ("k_cache", lambda d: 0x1002, r"bind\(k_cache\): must be aligned to \d+ bytes \(got address 0x1002\)"),
        ("k", lambda d: open_device("cpu").zeros((1, 2, 64), "f32"), r"bind\(k\): must be on (cpu|cuda:0) \(got Buf"),
        ("k", lambda d: None, r"bind\(k\): must be a Buffer, or have __dlpack__.* \(got NoneType\)"),
        ("k", lambda d: np.ones((1, 2, 64)) > 0, r"bind\(k\): "),
        ("position", lambda d: 1.5, r"bind\(position\): must be an integer within .* \(got 1.5\)"),
        ("speed", lambda d: 1, r"kv_cache_scatter\.bind: takes k, v, .* \(got speed\)"),
    ],
)
def test_wrong_arguments(device: Device, name: str, make: object, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        bound(device, **{name: make(device)})  # type: ignore[operator]


BIG_ENDIAN = np.arange(4, dtype=">f4")
READ_ONLY = np.frombuffer(bytes(16), np.float32)


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda d, x: d.array(BIG_ENDIAN), r"native byte order \(got dtype\('>f4'\)\)"),
        (lambda d, x: x.copy_from(BIG_ENDIAN), "native byte order"),
        (lambda d, x: x.numpy(BIG_ENDIAN.copy()), "native byte order"),
        (lambda d, x: x.numpy(READ_ONLY), r"Buffer\.numpy\(out\): must be writable"),
        (lambda d, x: Blocks(x, 0, 16, 1, 16).read(READ_ONLY), r"Blocks\.read: must be writable"),
        (lambda d, x: x.numpy([0] * 4), r"numpy\(out\): must be a NumPy array \(got list\)"),
        (lambda d, x: x.fill([1, 2]), r"Buffer\.fill: must be one f32 value \(got \[1, 2\]\)"),
        (lambda d, x: x.fill(1 << 128), r"fill: must be a number that f32 has, or inf or nan \(got 340282366920938463"),
        (lambda d, x: d.empty(2, "e4m3").fill(np.inf), r"fill: must be a number that e4m3 has, or nan \(got inf\)"),
        (lambda d, x: x.fill(1e39), r"Buffer\.fill: must be a number that f32 has, or inf or nan \(got 1e\+39\)"),
        (lambda d, x: d.empty(4, "f16").fill(65520), r"a number that f16 has, .* \(got 65520\)"),
        (lambda d, x: d.empty(4, "e4m3").fill(500), r"a number that e4m3 has, .* \(got 500\)"),
        (lambda d, x: d.empty(4, "u8").fill(300), r"an integer within 0 … 255 \(got 300\)"),
        (lambda d, x: d.empty(4, "s32").fill(1.5), r"an integer within .* \(got 1.5\)"),
        (lambda d, x: d.empty(4, "s32").fill(float("nan")), r"an integer within .* \(got nan\)"),
        (lambda d, x: x[1.5], r"an index must be an int or a slice \(got 1.5\)"),
        (lambda d, x: x[...], r"an index must be an int or a slice \(got Ellipsis\)"),
        (lambda d, x: x.copy_from(x.numpy(), "first"), r"must be a stream .*\(got 'first'"),
        (lambda d, x: x.fill(0, "first"), r"must be a stream .*\(got 'first'"),
        (lambda d, x: d.empty(4, "f32", "first"), r"must be a stream .*\(got 'first'"),
    ],
)
def test_wrong_uses_of_buffers(device: Device, use: Callable[[Device, Buffer], object], says: str) -> None:
    x = device.array(np.arange(4, dtype=np.float32))
    with pytest.raises(SpecError, match=says):
        use(device, x)
    assert x.numpy().tolist() == [0, 1, 2, 3]
    assert not READ_ONLY.any()


def test_arrays_in_another_byte_order_are_not_wrapped() -> None:
    with pytest.raises(SpecError, match="native byte order"):
        open_device("cpu").wrap(BIG_ENDIAN)


def test_two_cpu_devices_are_told_apart() -> None:
    here, there = open_device("cpu"), open_device("cpu")
    with pytest.raises(SpecError, match=r"wrap: must be on cpu \(got Buffer\(.*\), of another device object\)"):
        here.wrap(there.zeros(4, "f32"))


def test_a_wrong_update_leaves_the_arguments_as_they_were(device: Device) -> None:
    arguments = given(device)
    kernel = device.load(KvCacheScatter(kv_dtype="f16", **SHAPE)).bind(**arguments, position=3)
    with pytest.raises(SpecError, match=r"bind\(k\): must be f32 \(got f16"):
        kernel.update(position=7, k=device.zeros((1, 2, 64), "f16"))
    kernel.launch()
    filled = arguments["k_cache"].numpy()[:, :, 0].astype(np.float32)
    assert filled.nonzero()[1].tolist() == [3, 3], "all or nothing"


def test_a_geometry_that_is_none_is_said_with_its_capacities(device: Device) -> None:
    empty = {n: device.zeros((0, 2, 64), "f32") for n in "kv"}
    with pytest.raises(SpecError, match=r"kv_cache_scatter\.bind: rows=0 cannot be launched: Geometry\.grid: .*"):
        bound(device, **empty)


def test_missing_arguments_are_listed(device: Device) -> None:
    kernel = device.load(KvCacheScatter(kv_dtype="f16", **SHAPE))
    with pytest.raises(SpecError, match=r"kv_cache_scatter\.bind: needs v, k_cache, v_cache, position"):
        kernel.bind(k=given(device)["k"])


def test_workspaces_are_exact(device: Device) -> None:
    """One element less, or more, is refused."""
    spec = IncrementalAttention(max_len=8192, n_heads=8, n_kv_heads=1, head_dim=64, kv_dtype="f16", q_dtype="f16")
    kernel = device.load(spec)
    spaces = [p for p in kernel.params if p.access == "workspace"]
    assert spaces, "a spec that splits its sequence"
    arguments = {n: device.empty((1, 8192, 64), "f16") for n in ("k_cache", "v_cache")}
    arguments |= {n: device.empty((8, 64), "f16") for n in ("q", "out")}
    for param in spaces:
        *outer, last = param.shape
        for change in (-1, 1):
            wrong = device.zeros((*outer, last + change), param.dtype)
            with pytest.raises(SpecError, match=rf"bind\({param.name}\): must have shape"):
                kernel.bind(**arguments, seq_len=5, **{param.name: wrong})
    kernel.bind(**arguments, seq_len=5, **{p.name: device.zeros(p.shape, p.dtype) for p in spaces})


def test_out_of_memory_says_what_was_asked_what_is_free_and_what_fits(device: Device) -> None:
    says = r"out of memory: asked for [\d,]{20,} bytes, [\d,]+ .*free.*up to about [\d,]+ would fit"
    with pytest.raises(CudaError, match=says):
        device.empty(1 << 50, "u8")
    assert device.zeros(4, "f32").numpy().tolist() == [0, 0, 0, 0]


def test_targets_and_strict_mode(device: Device) -> None:
    spec = KvCacheScatter(kv_dtype="f16", **SHAPE)
    with pytest.raises(TargetError, match="sm_9000"):
        device.load(spec, "sm_9000")
    kernel = device.load(spec)
    device.strict = True
    try:
        assert device.load(spec) is kernel
        with pytest.raises(ModuleLoadError, match=r"is strict: KvCacheScatter\(max_len=17.* warm it up first"):
            device.load(KvCacheScatter(kv_dtype="f16", **SHAPE | {"max_len": 17}))
    finally:
        device.strict = False


# the executor and its cache ---------------------------------------------------------------------------------------
def rand(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def read_only(*shape: int) -> np.ndarray:
    made = np.ones(shape, np.float32)
    made.flags.writeable = False
    return made


def test_a_result_that_cannot_be_written_is_found_before_anything_is_done(device: Device) -> None:
    ex = Executor(device, 2, 4, 2, 64, 48)
    spoil(ex.cache)
    q, k, v = rand(3, 4, 64), rand(3, 2, 64), rand(3, 2, 64)
    chunk, one = (q, k, v, read_only(3, 4, 64)), (q[0], k[0], v[0], read_only(4, 64))
    calls = {
        "incremental_attention": ("out", lambda: ex.incremental_attention(0, *one)),
        "flash_attention_cached": ("out", lambda: ex.flash_attention_cached(0, *chunk)),
        "flash_attention": ("out", lambda: ex.flash_attention(*chunk)),
        "flash_decoding": ("out", lambda: ex.flash_decoding(0, q[0], one[3])),
        "rope": ("k", lambda: ex.rope(q[0], read_only(2, 64))),
    }
    before = ex.cache.k(0).numpy().tobytes(), q.tobytes()
    for name, (argument, call) in calls.items():
        with pytest.raises(SpecError, match=rf"^{argument}: must be writable \(got a read-only array\)"):
            call()
        assert (ex.cache.k(0).numpy().tobytes(), q.tobytes()) == before, name
    assert ex.cache.length(0) == 0
    ex.incremental_attention(0, read_only(4, 64), read_only(2, 64), read_only(2, 64), np.zeros((4, 64), np.float32))


def test_wrong_arguments_are_named(device: Device) -> None:
    ex = Executor(device, 2, 4, 2, 64, 48)
    q, k, v, out = rand(3, 4, 64), rand(3, 2, 64), rand(3, 2, 64), np.zeros((3, 4, 64), np.float32)
    one = q[0], k[0], v[0], out[0]
    none = {n: x[:0] for n, x in (("q", q), ("k", k), ("v", v), ("out", out))}
    wrong: dict[str, Callable[[], Any]] = {
        r"^q: must be a Buffer, or have __dlpack__": lambda: ex.incremental_attention(0, [1.0], k[0], v[0], out[0]),
        r"^q: must be C-contiguous": lambda: ex.incremental_attention(0, np.asfortranarray(q[0]), k[0], v[0], out[0]),
        r"layer must be an int within 0 … 1 \(got 0.0\)": lambda: ex.incremental_attention(0.0, *one),
        r"layer must be within 0 … 1 \(got 2\)": lambda: ex.flash_decoding(2, q[0], out[0]),
        r"^q: must have shape \[rows ≥ 1, heads, head_dim\] \(got \[1\]\)": lambda: ex.flash_attention([1], k, v, out),
        r"^q: must have shape \[rows ≥ 1, .* \(got shape \[4, 64\]\)": lambda: ex.flash_attention(q[0], k, v, out),
        r"^k: must have shape \[rows ≥ 1, .* \(got shape \[0, 2, 64\]\)": lambda: ex.flash_attention(q, k[:0], v, out),
        r"^q: must have shape \[rows ≥ 1, .* \(got shape \[0,": lambda: ex.flash_attention_cached(0, **none),
        r"^q: must be a Buffer, or have": lambda: ex.rope([1.0]),
        r"^append\(k\): must be a Buffer": lambda: ex.cache.append(0, [1.0], [1.0]),
        r"^append\(v\): must be a Buffer": lambda: ex.cache.append(0, device.array(k), None),
        r"^append\(k\): must have at least one row": lambda: ex.cache.append(0, *[device.zeros((0, 2, 64), "f32")] * 2),
        r"causal, q must have at most as many rows as k, 2 \(got 3\)": lambda: ex.flash_attention(q, k[:2], v[:2], out),
    }
    for says, call in wrong.items():
        with pytest.raises(SpecError, match=says):
            call()
    assert ex.cache.length(0) == 0
    ex.flash_attention(q, k[:2], v[:2], out, causal=False)
    want = np.stack([attention(row, k[:2], v[:2]) for row in q])
    assert compare("out", out, want, LIMITS["f32"]).ok, "without a causal mask any number of rows is fine"


def test_caches_are_made_of_what_they_need(device: Device) -> None:
    shape = (1, 2, 64, 16)
    wrong = {
        r"KvCache.device: must be a Device, .* \(got 'cpu'\)": lambda: Executor("cpu", 1, 2, 2, 64, 16),
        r"BatchedKvCache.cache: must be a KvCache \(got None\)": lambda: BatchedKvCache(None, 2),
        r"free_bytes must be an int ≥ 0 \(got 1000.0\)": lambda: KvCache.max_batch(1e3, *shape),
        r"reserve must be an int ≥ 0 \(got -1\)": lambda: KvCache.max_batch(1000, *shape, reserve=-1),
    }
    for says, use in wrong.items():
        with pytest.raises(SpecError, match=says):
            use()


def test_indices_lengths_and_nodes_are_what_they_say(device: Device) -> None:
    ex, buffer, graph = Executor(device, 2, 4, 2, 64, 48), device.zeros((4, 4), "f32"), device.graph()
    batched, node = BatchedKvCache(ex.cache, 2), graph.add(bound(device))
    both = device.zeros((2, 2, 64), "f32")
    q, out = device.zeros((4, 64), "f32"), device.zeros((4, 64), "f32")
    wrong = {
        r"layer must be an int within 0 … 1 \(got True\)": lambda: ex.cache.length(True),
        r"room: rows must be an int ≥ 0 \(got 'x'\)": lambda: ex.cache.room(0, "x"),
        r"blocks: length must be within 0 … 48 \(got 49\)": lambda: ex.cache.blocks(0, 49),
        r"BatchedKvCache: layer must be an int within 0 … 1 \(got \[1\]\)": lambda: batched.append([1], both, both),
        r'pointers: kind must be "k" or "v" \(got \[\]\)': lambda: batched.pointers(0, []),
        r"Buffer.view: offset must be an int, in bytes \(got None\)": lambda: buffer.view(4, offset=None),
        r"Buffer.reshape: shape must be ints \(got \(None,\)\)": lambda: buffer.reshape(None),
        r"Device.empty: shape must be ints \(got \(1.5,\)\)": lambda: device.empty((1.5,), "f32"),
        r"Graph.add: must be a bound kernel on .* \(got None\)": lambda: graph.add(None),
        r"Graph.add\(after\): must be nodes of this graph \(got 1\)": lambda: graph.add(node.bound, after=1),
        r"Graph.add\(after\): must be nodes of this graph \(got \[1\]\)": lambda: graph.add(node.bound, after=[1]),
        r"Graph.update: must be a node of this graph \(got None\)": lambda: graph.update(None),
        r"graph must be a Graph, device.graph\(\) \(got None\)": lambda: ex.flash_decoding_nodes(None, 0, q, out),
    }
    for says, use in wrong.items():
        with pytest.raises(SpecError, match=says):
            use()


# what is no kernel, device or text --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [0, 1, True, b"cpu", ["cpu"]])
def test_a_device_has_a_name(name: object) -> None:
    with pytest.raises(SpecError, match=r'open_device: name must be "cuda", "cuda:<index>", "cpu" or None \(got'):
        open_device(name)


def test_what_is_no_spec_or_text_is_refused(device: Device) -> None:
    spec = KvCacheScatter(kv_dtype="f16", **SHAPE)
    ptx = device.load(spec).ptx
    entry = device.module(ptx.text)[ptx.entry]
    wrong = {
        r"load: must be a spec, .* \(got <class": lambda: device.load(KvCacheScatter),
        r"Device.array: must be an array, or numbers .* inhomogeneous": lambda: device.array([[1], [1, 2]]),
        r"Device.array: must be an array, or numbers .* 'x'": lambda: device.array(["x"], "f32"),
        r"load: must be a spec, .* \(got None\)": lambda: device.load(None),
        r"load: must be a spec, .* fields \(got \[\]\)": lambda: device.load([]),
        r"warmup: must be a spec, .*; make_spec makes one .* \(got \{'dim': 4\}\)": lambda: device.warmup([{"dim": 4}]),
        r"load: .* fields; device.module\(text\) loads a PTX text \(got '\.v": lambda: device.load(".version 8.0"),
        r"warmup.workers: must be an int ≥ 1, or None \(got -1\)": lambda: device.warmup([spec], workers=-1),
        r"warmup.workers: must be an int ≥ 1, or None \(got 0\)": lambda: device.warmup([spec], workers=0),
        r"warmup: must be several specs \(got KvCacheScatter": lambda: device.warmup(spec),
        r"Device.pointers: must be a list of buffers \(got None\)": lambda: device.pointers(None),
        r"takes \d arguments \(got None\)": lambda: entry.bind(1, 32, None),
        r"takes \d arguments \(got 0\)": lambda: entry.bind(1, 32),
        r"Device.module: must be PTX text, a str \(got None\)": lambda: device.module(None),
        r"Device.module: must be PTX text, a str \(got b'": lambda: device.module(b".version"),
    }
    for says, use in wrong.items():
        with pytest.raises(SpecError, match=says):
            use()
