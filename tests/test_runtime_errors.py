"""What is wrong with an argument is said in the same words on every device, and nothing has changed after it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ptxgen.errors import CudaError, ModuleLoadError, SpecError, TargetError
from ptxgen.kernels import IncrementalAttention, KvCacheScatter
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.blocks import Blocks
from ptxgen.runtime.bound import BoundKernel
from ptxgen.runtime.buffer import Buffer

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
        ("k", lambda d: open_device("cpu").zeros((1, 2, 64), "f32"), r"must be on (cpu|cuda:0) \(got Buffer"),
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


def test_a_wrong_update_leaves_the_arguments_as_they_were(device: Device) -> None:
    arguments = given(device)
    kernel = device.load(KvCacheScatter(kv_dtype="f16", **SHAPE)).bind(**arguments, position=3)
    with pytest.raises(SpecError, match=r"bind\(k\): must be f32 \(got f16"):
        kernel.update(position=7, k=device.zeros((1, 2, 64), "f16"))
    kernel.launch()
    filled = arguments["k_cache"].numpy()[:, :, 0].astype(np.float32)
    assert filled.nonzero()[1].tolist() == [3, 3], "all or nothing"


def test_missing_arguments_are_listed(device: Device) -> None:
    kernel = device.load(KvCacheScatter(kv_dtype="f16", **SHAPE))
    with pytest.raises(SpecError, match=r"kv_cache_scatter\.bind: needs v, k_cache, v_cache, position"):
        kernel.bind(k=given(device)["k"])


def test_workspaces_are_exact(device: Device) -> None:
    """R-e2: one element less, or more, is refused."""
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
