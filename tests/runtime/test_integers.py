"""True is no number: where an integer is wanted, a bool is refused with the name of what was given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ptxgen.errors import SpecError
from ptxgen.kernels import IncrementalAttention
from ptxgen.runtime import Device, Executor, open_device
from ptxgen.runtime.core.backend import Geometry
from ptxgen.runtime.core.launches.bound import BoundKernel
from ptxgen.runtime.tools.trial import bind_example, trial

SPEC = IncrementalAttention(max_len=16, head_dim=8, n_heads=2, n_kv_heads=1)


@pytest.fixture(scope="module")
def cpu() -> Device:
    return open_device("cpu")


def bound(device: Device) -> BoundKernel:
    return bind_example(device.load(SPEC), SPEC.example(np.random.default_rng(0), seq_len=3), {"seq_len": 3})[0]


@pytest.mark.parametrize("true", [True, np.bool_(True), np.array(True)])
def test_a_scalar_of_a_launch(cpu: Device, true: object) -> None:
    with pytest.raises(SpecError, match=r"bind\(seq_len\): must be (one s32 value|an integer) .*\(got .*True"):
        bound(cpu).update(seq_len=true)


CALLS: list[tuple[Callable[[Device], object], str]] = [
    (lambda d: trial(SPEC, d, seq_len=True), r"IncrementalAttention.seq_len: must be an int \(got True\)"),
    (lambda d: d.empty(True, "f32"), r"Device.empty: shape must be ints \(got True\)"),
    (lambda d: d.zeros((2, True), "f32"), r"Device.empty: shape must be ints \(got \(2, True\)\)"),
    (lambda d: d.zeros(4, "s32")[True], r"Buffer\[...\]: an index must be an int or a slice \(got True\)"),
    (lambda d: d.zeros(4, "s32").view(2, offset=True), r"Buffer.view: offset must be an int, in bytes \(got True\)"),
    (lambda d: d.zeros(4, "s32").fill(True), r"Buffer.fill: must be one s32 value \(got True\)"),
    (lambda d: Geometry.of(True, 32), r"Geometry.grid: must be an int or up to three ints \(got True\)"),
    (lambda d: Geometry.of(1, 32, True), r"Geometry.shared: must be .* as an int \(got True\)"),
    (lambda d: Geometry.of(1, 32, 0, 0), r"Geometry.cluster: each of one to three values .*\(got 0\)"),
    (lambda d: open_device("cpu", seed=True), r"seed: must be an int ≥ 0 \(got True\)"),
    (lambda d: Executor(d, 1, 2, 1, 8, 16, max_chunks=True), r"Executor.max_chunks: must be an int ≥ 1 \(got True\)"),
    (
        lambda d: IncrementalAttention(max_len=np.array([16]), head_dim=8, n_heads=2, n_kv_heads=1),
        r"IncrementalAttention.max_len: must be an int \(got array\(\[16\]\)\)",
    ),
]


@pytest.mark.parametrize(("call", "says"), CALLS)
def test_other_integers(cpu: Device, call: Callable[[Device], object], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        call(cpu)


def test_numpy_integers_are_taken(cpu: Device) -> None:
    bound(cpu).update(seq_len=np.int64(2)).launch()
    assert cpu.zeros((np.int32(2), 3), "f32")[np.int8(1)].shape == (3,)
