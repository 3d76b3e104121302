"""RmsNorm, LayerNorm, Activation, ResidualAdd: every length of row, tails, what the arithmetic promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate, supports
from ptxgen.assembler import assemble
from ptxgen.idioms import activation
from ptxgen.kernel import KernelType
from ptxgen.kernels import Activation, LayerNorm, ResidualAdd, RmsNorm
from ptxgen.runtime import Device, open_device
from ptxgen.runtime.tools.trial import trial
from tests.support.cpu_run import MODES
from tests.support.marks import needs_assembler

# Around a vector, a warp, two and four vectors a thread, 512 threads, a second pass.
DIMS = (1, 2, 3, 4, 5, 31, 32, 33, 127, 128, 129, 256, 257, 1000, 2049, 4096, 8192, 8196, 16385)
KINDS: tuple[type[KernelType], ...] = (RmsNorm, LayerNorm, Activation, ResidualAdd)
TARGETS = ("sm_75", "sm_80", "sm_90", "sm_120")


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_length_of_row(device: Device, kind: type[KernelType], dim: int) -> None:
    trial(kind(dim=dim), device, rows=3, seed=dim).require()  # type: ignore[call-arg]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "spec",
    [
        RmsNorm(100, residual=True, offset=1.0), RmsNorm(64, heads=5), RmsNorm(9001, residual=True),
        RmsNorm(100, added=True, offset=1.0), RmsNorm(64, heads=5, added=True), RmsNorm(9001, added=True),
        LayerNorm(100, residual=True), LayerNorm(64, bias=False, heads=5), LayerNorm(9001, residual=True),
        Activation(300, "gelu", gated=True), Activation(301, gated=True, apart=True), Activation(2500, "gelu_tanh"),
        ResidualAdd(2501, scale=-0.5),
    ],
    ids=str,
)  # fmt: skip
def test_options_in_every_mode_of_the_executor(spec: KernelType, mode: str) -> None:
    trial(spec, open_device("cpu", mode=mode), rows=2, seed=3).require()


def test_a_norm_is_added_to_the_stream_or_the_stream_is_normed() -> None:
    with pytest.raises(SpecError, match=r"added: needs residual=False \(got added=True, residual=True; nearest: False"):
        RmsNorm(64, residual=True, added=True)


@needs_assembler
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dim", [1, 4096, 100_003])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_spilled(kind: type[KernelType], dim: int, target: str) -> None:
    ptx = generate(kind(dim=dim), target)  # type: ignore[call-arg]
    assert assemble(ptx.text, target).resources[ptx.entry].clean


@pytest.mark.parametrize("kind", [RmsNorm, LayerNorm])
def test_out_may_be_the_input(kind: type[KernelType]) -> None:
    device = open_device("cpu", mode="check")
    for dim in (300, 9001):
        spec = kind(dim=dim)  # type: ignore[call-arg]
        values: dict[str, Any] = spec.example(np.random.default_rng(0), rows=2)
        want = spec.reference(**values)["out"]
        bound = {name: device.array(value) for name, value in values.items() if name != "out"}
        device.load(spec).bind(**bound, out=bound["x"]).launch()
        device.synchronize()
        np.testing.assert_allclose(bound["x"].numpy(), want, rtol=1e-4, atol=1e-5)


def test_the_variance_survives_a_large_mean() -> None:
    rng = np.random.default_rng(0)
    x = (1000 + rng.standard_normal((2, 9001)) * 0.5).astype(np.float32)
    for dim in (500, 9001):
        done = trial(LayerNorm(dim), open_device("cpu"), arguments={"x": x[:, :dim].copy()}, limit=2e-4)
        done.require()


def test_a_row_of_zeros_stays_zero() -> None:
    for spec in (RmsNorm(40), LayerNorm(40, bias=False)):
        done = trial(spec, open_device("cpu"), arguments={"x": np.zeros((2, 40), np.float32)}).require()
        assert not done.outputs["out"].any()


def test_a_nan_spoils_its_row_alone() -> None:
    x = np.ones((3, 40), np.float32)
    x[1, 7] = np.nan
    for spec in (RmsNorm(40), LayerNorm(40)):
        out = trial(spec, open_device("cpu"), arguments={"x": x}, rows=3).outputs["out"]
        assert np.isnan(out).all(1).tolist() == [False, True, False]


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    device, rng = open_device("cpu"), np.random.default_rng(1)
    x, weight = rng.standard_normal((5, 777)).astype(np.float32), np.ones(777, np.float32)
    together = trial(RmsNorm(777), device, arguments={"x": x, "weight": weight}, rows=5).outputs["out"]
    alone = trial(RmsNorm(777), device, arguments={"x": x[3:4], "weight": weight}, rows=1).outputs["out"]
    assert alone.tobytes() == together[3:4].tobytes()


@pytest.mark.parametrize("kind", activation.KINDS)
def test_activations_over_the_whole_range(device: Device, kind: str) -> None:
    x = np.concatenate([np.linspace(-30, 30, 4001), [0.0, -0.0, 1e-30, -1e-30, 80, -80, 1e10, -1e10, 3e38, -3e38]])
    x = x.astype(np.float32)[None]
    if kind == "relu2":
        x = x[np.abs(x) < 1e19][None]
    done = trial(Activation(x.shape[1], kind), device, arguments={"x": x}, rows=1)
    want = activation.reference(kind, x)
    np.testing.assert_allclose(done.outputs["out"], want, rtol=3e-5, atol=3e-7)
    assert np.isinf(
        trial(Activation(2, kind), device, arguments={"x": np.float32([[np.inf, 1]])}, rows=1).outputs["out"][0, 0]
    )


@pytest.mark.parametrize("kind", activation.KINDS)
def test_a_nan_stays_one(device: Device, kind: str) -> None:
    x = np.float32([[np.nan, 1.0, -1.0, -np.nan]])
    out = trial(Activation(4, kind), device, arguments={"x": x}, rows=1).outputs["out"]
    assert np.isnan(out).tolist() == [[True, False, False, True]]


def test_a_gate_apart_may_be_where_its_result_goes(device: Device) -> None:
    """As an activation without a gate may; not x with both halves, which is twice as large."""
    spec, rng = Activation(300, "silu", gated=True, apart=True), np.random.default_rng(2)
    assert spec.may_alias == {"out": "x"} == Activation(300).may_alias
    assert not Activation(300, gated=True).may_alias
    x, up = rng.standard_normal((2, 3, 300)).astype(np.float32)
    bound = {name: device.array(value) for name, value in (("x", x), ("up", up))}
    device.load(spec).bind(**bound, out=bound["x"]).launch()
    device.synchronize()
    np.testing.assert_allclose(bound["x"].numpy(), spec.reference(x=x, up=up)["out"], rtol=3e-5, atol=3e-7)


def test_relu2_of_infinities(device: Device) -> None:
    x = np.float32([[np.inf, -np.inf]])
    assert trial(Activation(2, "relu2"), device, arguments={"x": x}, rows=1).outputs["out"].tolist() == [[np.inf, 0.0]]


def test_few_rows_keep_many_ctas_busy() -> None:
    ptx = generate(Activation(14336, gated=True), "sm_90")
    assert ptx.launch.at({"rows": 1}).grid == (1, 1, 7)
    assert generate(RmsNorm(128, heads=8), "sm_90").launch.at({"rows": 5}).grid == (5, 8, 1)


@pytest.mark.parametrize("spec", [RmsNorm(512, programmatic=True), LayerNorm(512, programmatic=True)], ids=str)
def test_weights_are_asked_for_before_the_wait_for_the_kernel_ahead(spec: KernelType) -> None:
    text = generate(spec, "sm_90").text
    assert text.index("ld.global") < text.index("griddepcontrol.wait")
    assert not supports(spec, "sm_89")


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        (RmsNorm, {"dim": 0}, "dim: must be from 1 to"),
        (RmsNorm, {"dim": 8, "eps": 0.0}, "eps: must be from"),
        (LayerNorm, {"dim": 8, "heads": -1}, "heads: must be from 0 to"),
        (Activation, {"dim": 8, "kind": "tanh"}, "kind: must be one of silu, gelu, gelu_tanh, relu2 (got tanh)"),
        (ResidualAdd, {"dim": 8, "scale": float("nan")}, "scale: must be from"),
    ],
)
def test_an_illegal_spec_is_refused(kind: type[KernelType], fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError) as error:
        kind(**fields)
    assert reason in str(error.value)
