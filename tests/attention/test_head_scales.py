"""Scales of e4m3 caches, per KV head: what is appended over them is attended to times them, whatever reads it."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.errors import SpecError
from ptxgen.kernels import IncrementalAttention, KvCacheScatter, MultiHeadAttention, RopeKvAppend
from ptxgen.runtime.core.device import Device
from tests.support.attention.kv_oracle import attention

HEADS, KV, DIM, LENGTH = 4, 2, 32, 40
SCALES = {"k_scale": np.array([0.02, 3.0], np.float32), "v_scale": np.array([5.0, 0.01], np.float32)}


@pytest.fixture
def rows() -> tuple[np.ndarray, ...]:
    """A query, and keys and values `[positions, heads, dim]` that are e4m3 times their heads' scales."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((HEADS, DIM)).astype(np.float32)
    k, v = (rng.integers(-8, 9, (LENGTH, KV, DIM)).astype(np.float32) / 4 * SCALES[f"{x}_scale"][:, None] for x in "kv")
    return q, k, v


@pytest.mark.parametrize("kernel", ["scatter", "rope"])
def test_appended_and_attended(device: Device, rows: tuple[np.ndarray, ...], kernel: str) -> None:
    q, k, v = rows
    shape = dict(max_len=64, head_dim=DIM, n_kv_heads=KV, kv_dtype="e4m3", head_scales=True)
    caches = {f"{x}_cache": device.zeros((KV, 64, DIM), "e4m3") for x in "kv"}
    scales = {name: device.array(values) for name, values in SCALES.items()}
    given = {"k": device.array(k), "v": device.array(v), **caches, **scales, "position": 0}
    if kernel == "scatter":
        device.load(KvCacheScatter(**shape)).bind(**given).launch()
    else:  # a rotation that turns by nothing
        spec = RopeKvAppend(**shape, n_heads=HEADS, scaling="linear", factor=1e6)
        device.load(spec).bind(q=device.zeros((LENGTH, HEADS, DIM), "f32"), **given).launch()
    wanted = attention(q, k, v)
    spec = IncrementalAttention(**shape, n_heads=HEADS)
    out = device.empty((HEADS, DIM), "f32")
    device.load(spec).bind(q=device.array(q), out=out, seq_len=LENGTH, **caches, **scales).launch()
    size = SCALES["v_scale"].repeat(HEADS // KV)[:, None]
    np.testing.assert_allclose(out.numpy() / size, wanted / size, atol=2e-3)
    decoded = out.numpy()
    spec = MultiHeadAttention(**shape, n_heads=HEADS, q_dtype="f32")
    more = {"k": caches["k_cache"], "v": caches["v_cache"], "q_len": 1, "kv_len": LENGTH, **scales}
    out = device.empty((1, HEADS, DIM), "f32")
    device.load(spec).bind(q=device.array(q[None]), out=out, **more).launch()
    np.testing.assert_allclose(out.numpy()[0] / size, decoded / size, atol=2e-3)


def test_other_elements_have_none() -> None:
    with pytest.raises(SpecError, match=r"head_scales: is of e4m3 caches \(got kv_dtype=f16; nearest: False\)"):
        IncrementalAttention(max_len=64, head_dim=DIM, n_heads=4, n_kv_heads=2, kv_dtype="f16", head_scales=True)
