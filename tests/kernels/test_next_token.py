"""Logits, the likeliest token and the next position in one launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate
from ptxgen.kernels import Gemv, NextToken
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.weights import weight_formats


@pytest.mark.parametrize("name", sorted(weight_formats()))
@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_every_format(device: Device, name: str, target: str) -> None:
    spec = NextToken(1000, 256, name, norm="rms", max_len=64)
    trial(spec, device, target=target).require()


@pytest.mark.parametrize("n", [1, 15, 16, 17, 300, 5000, 40000])
def test_any_vocabulary(device: Device, n: int) -> None:
    trial(NextToken(n, 64, "q8_0"), device, target="sm_90").require()


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_in_any_order_of_threads_and_without_a_finding(mode: str, target: str) -> None:
    spec = NextToken(2100, 256, "q4_k", norm="rms", max_len=64)
    trial(spec, CpuDevice(mode=mode), target=target).require()


def test_logits_are_those_of_the_product(device: Device) -> None:
    spec = NextToken(700, 256, "q6_k", norm="rms")
    given = spec.example(np.random.default_rng(0))
    rows = {name: given[name] for name in ("x", "weight", "norm_weight")}
    alone = trial(Gemv(700, 256, "q6_k", norm="rms"), device, arguments=rows).require().outputs["out"]
    out = trial(spec, device, arguments=given).require().outputs
    assert out["out"].tobytes() == alone.tobytes()
    assert out["token"][0] == np.argmax(alone)


@pytest.mark.parametrize(
    ("changes", "token"),
    [({}, 0), ({77: 1.0, 400: 1.0, 30: 0.5}, 77), ({699: np.inf, 3: 1.0}, 699), ({5: 2.0, 650: np.nan}, 650)],
)
def test_the_lowest_of_equals_and_a_nan(device: Device, changes: dict[int, float], token: int) -> None:
    """Weights of which each row has one value: the logits are what they say."""
    spec = NextToken(700, 16, "f32")
    weight = np.zeros((700, 16), np.float32)
    for row, value in changes.items():
        weight[row, 3] = value
    x = np.zeros((1, 16), np.float32)
    x[0, 3] = 1
    packed = spec.product.kind.pack({"weight": weight}, 700, 16).reshape(spec.product.kind.records(700), -1)
    out = trial(spec, device, arguments={**spec.example(np.random.default_rng(0)), "x": x, "weight": packed}).outputs
    assert out["token"].tolist() == [token]


@pytest.mark.parametrize(("position", "counted"), [(0, 1), (63, 1), (64, 0), (-1, 0)])
def test_positions_are_counted_while_they_are_inside(device: Device, position: int, counted: int) -> None:
    spec = NextToken(40, 16, max_len=64)
    given: dict[str, Any] = spec.example(np.random.default_rng(0))
    given |= {"position": np.array([position], np.int32), "length": np.array([9], np.int32)}
    out = trial(spec, device, arguments=given).outputs
    assert (int(out["position"][0]), int(out["length"][0])) == (position + counted, 9 + counted)


def test_a_launch_leaves_its_workspaces_for_the_next(device: Device) -> None:
    trial(NextToken(3000, 64, "bf16"), device, target="sm_90", repeat=True).require()


def test_an_illegal_spec_is_refused_with_the_reason() -> None:
    for fields, reason in (
        ({"max_len": -1}, "max_len: must be from 0"),
        ({"weights": "q4_k"}, "k: must be a multiple"),
    ):
        with pytest.raises(SpecError) as refused:
            NextToken(**{"n": 40, "k": 40, **fields})
        assert reason in str(refused.value)


def test_weights_are_asked_for_before_the_producer_is_waited_for() -> None:
    text = generate(NextToken(4000, 256, "q4_k", norm="rms", programmatic=True), "sm_90").text
    assert text.index("ld.global.nc.L1::no_allocate") < text.index("griddepcontrol.wait")
