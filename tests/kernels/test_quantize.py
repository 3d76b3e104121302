"""Quantize and Dequantize: every type, scale and length; bit for bit as NumPy's f32; there and back within a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate, supports
from ptxgen.assembler import assemble
from ptxgen.dtypes import dtype as to_dtype
from ptxgen.kernel import KernelType
from ptxgen.kernels import Dequantize, Quantize
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.trial import trial
from tests.support.cpu_run import MODES
from tests.support.marks import needs_assembler

TYPES = ("f16", "bf16", "e4m3", "s8")
DIMS = (1, 2, 3, 4, 31, 33, 128, 129, 1000, 2049, 8193)
CPU = open_device("cpu")


def same(spec: KernelType, device: Device, target: str | None = None, **more: Any) -> dict[str, np.ndarray]:
    """A run whose every byte is the reference's."""
    done = trial(spec, device, target=target, limit=0.0, repeat=False, **more).require()
    return dict(done.outputs)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", [Quantize, Dequantize])
def test_every_length_of_row(device: Device, kind: type[KernelType], dtype: str, dim: int) -> None:
    same(kind(dim=dim, dtype=dtype), device, rows=3, seed=dim)  # type: ignore[call-arg]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_89"])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["e4m3", "s8"])
def test_groups(dtype: str, group: int, target: str, mode: str) -> None:
    for dim in (group, 3 * group, 2176):
        for kind in (Quantize, Dequantize):
            if dim % group == 0:
                same(kind(dim, dtype, group), open_device("cpu", mode=mode), target, rows=2, seed=dim)


@pytest.mark.parametrize("group", [0, 32])
@pytest.mark.parametrize(("dtype", "step"), [("e4m3", 1 / 16), ("s8", 1 / 254)])
def test_there_and_back_is_within_half_a_step(dtype: str, step: float, group: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, 640)).astype(np.float32) * 100
    made = same(Quantize(640, dtype, group), CPU, arguments={"x": x}, rows=4)
    there = {"x": made["out"], "scales": made["scales"]}
    back = same(Dequantize(640, dtype, group), CPU, arguments=there, rows=4)["out"]
    largest = np.abs(x.reshape(4, -1, group or 640)).max(-1).repeat(group or 640, 1)
    unit = np.abs(x) * step + largest * 2**-9 / 448 if dtype == "e4m3" else largest * step
    assert (np.abs(back - x) <= unit * 1.001).all()
    assert (made["scales"] > 0).all()


@pytest.mark.parametrize("dtype", ["e4m3", "s8"])
def test_zeros_tiny_values_infinities_and_nan(dtype: str) -> None:
    x = np.ones((6, 40), np.float32)
    x[0], x[1] = 0, 1e-37
    x[2, 3], x[3, 3], x[4, 3] = np.nan, np.inf, -3e38
    for group in (0, 32):
        padded = np.concatenate([x, x[:, :24]], 1)
        out = same(Quantize(64, dtype, group), CPU, arguments={"x": padded}, rows=6)
        values, scales = out["out"].astype(np.float32), out["scales"]
        assert not values[:2].any()
        assert not scales[:2].any()
        assert np.isnan(values[2, 3]) if dtype == "e4m3" else values[2, 3] == 0
        assert values[2, 4] == values[5, 4] == (448 if dtype == "e4m3" else 127)
        assert np.isinf(scales[3, 0])


@needs_assembler
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("dtype", TYPES)
def test_nothing_is_spilled(dtype: str, target: str) -> None:
    to = to_dtype(dtype)
    for spec in (Quantize(4096, to), Quantize(100_003, to), Dequantize(4096, to), Dequantize(99, to)):
        ptx = generate(spec, target)
        assert assemble(ptx.text, target).resources[ptx.entry].clean


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dim": 0}, "dim: must be from 1 to"),
        ({"dim": 64, "dtype": "f32"}, "dtype: must be one of f16, bf16, e4m3, s8 (got f32)"),
        ({"dim": 64, "dtype": "s8", "group": 48}, "group: must be one of 0, 32, 64, 128 (got 48)"),
        ({"dim": 64, "group": 32}, "group: must be 0 with dtype f16"),
        ({"dim": 100, "dtype": "s8", "group": 32}, "dim: must be a multiple of group=32 (got 100; nearest: 96)"),
    ],
)
def test_an_illegal_spec_is_refused(fields: dict[str, Any], reason: str) -> None:
    for kind in (Quantize, Dequantize):
        with pytest.raises(SpecError) as error:
            kind(**fields)
        assert reason in str(error.value)


def test_programmatic_needs_sm_90() -> None:
    assert not supports(Quantize(64, programmatic=True), "sm_89")
    text = generate(Quantize(64, programmatic=True), "sm_90").text
    assert text.index("griddepcontrol.wait") < text.index("ld.global")
