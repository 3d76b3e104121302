"""A norm that is divided out of a product's results: what a product leaves for it, and what reads that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.generator import clear_cache
from ptxgen.kernels import DigitGemm, PackDigits
from ptxgen.products.digits_bf16 import geometry, layout
from ptxgen.products.digits_s8.geometry import SPLITS, Shape
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.weights import weight_format
from tests.support.norm_chain import Chain, N, assert_as_exact_as_a_norm_before

WHERE = "sm_90"
EXACT = 1e-6
DIGITS = {"exact": 3, "fast": 1}


def halves(weights: str = "bf16", **fields: Any) -> DigitGemm:
    return DigitGemm(weights=weights, halves=weights != "bf16", **fields)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (8, {"n": 70, "k": 512, "norm": "rms", "programmatic": True}),
        (5, {"n": 128, "k": 1536, "norm": "rms", "eps": 0.1, "gated": True, "activation": "silu", "packed_out": True}),
        (1, {"n": 33, "k": 256, "norm": "rms", "bias": True, "indirect": True}),
        (3, {"n": 64, "k": 256, "residual": True, "norm_out": True}),
        (7, {"n": 192, "k": 512, "residual": True, "norm_out": True, "norm_offset": 1.0, "bias": True, "split": 2}),
        (9, {"n": 2304, "k": 256, "norm": "rms", "residual": True, "norm_out": True, "programmatic": True}),
        (2, {"n": 4224, "k": 256, "residual": True, "norm_out": True, "indirect": True}),
    ],
    ids=str,
)
def test_ragged_shapes_and_fusions(mode: str, precision: str, rows: int, fields: dict[str, Any]) -> None:
    trial(halves(precision=precision, **fields), CpuDevice(mode=mode), target=WHERE, rows=rows).require()


@pytest.mark.parametrize("mode", ["check", "random"])
def test_results_that_a_thread_has_several_of(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They read the residual stream and what is beside it in their turn; a warp has roots in turn, too."""
    monkeypatch.setattr(geometry, "SHAPE", Shape(3, 2))
    monkeypatch.setitem(SPLITS, 1, 2)
    clear_cache()
    spec = halves(n=256, k=256, norm="rms", residual=True, norm_out=True)
    assert spec.runs.results > spec.runs.threads
    trial(spec, CpuDevice(mode=mode), target=WHERE, rows=7).require()
    clear_cache()


def chain(weights: str) -> Chain:
    """Of digits, before K-quants with sums."""
    sums = weights != "bf16"
    return Chain(
        halves, lambda precision: PackDigits(N, norm="rms", halves=DIGITS[precision], sums=sums),
        lambda rows, precision: layout.pack(rows, DIGITS[precision], sums=sums), (1, 8, N // 16), 6, WHERE,
    )  # fmt: skip


@pytest.mark.parametrize(("scale", "shape"), [
    (1e-3, {}), (1.0, {"split": 2}), (1.0, {"share": 2}), (1e9, {}), (1.0, {"weights": "q4_k", "split": 2}),
    (1e9, {"weights": "q5_k"}), (1e-3, {"weights": "q6_k", "share": 2}),
], ids=str)  # fmt: skip
def test_a_norm_divided_out_is_as_exact_as_one_before(device: Device, scale: float, shape: dict[str, Any]) -> None:
    kind = chain(shape.get("weights", "bf16"))
    assert_as_exact_as_a_norm_before(kind, device, scale, {"exact": 5e-7, "fast": 4e-3}, **shape)


def test_tokens_past_the_last_are_zero_digits() -> None:
    spec = halves(n=64, k=256, bias=True, residual=True, norm_out=True)
    out = trial(spec, CpuDevice(mode="check"), target=WHERE, rows=20, n_rows=3).require().outputs
    assert not layout.unpack(out["digits"][:1], 8, 64, 3)[3:].any()
    assert layout.unpack(out["digits"][:1], 8, 64, 3)[:3].all()
    assert not out["out_squares"][0, 3:].any()
    assert np.isnan(out["digits"][1:].astype(np.float32)).all()


def test_no_row_is_a_size_as_others() -> None:
    for more in ({"norm": "rms"}, {"residual": True, "norm_out": True}):
        spec = halves(n=64, k=256, **more)
        trial(spec, CpuDevice(mode="check"), target=WHERE, rows=7, n_rows=0).require()


def test_what_is_not_finite_stays_in_its_row() -> None:
    n, kind, rng = 256, weight_format("bf16"), np.random.default_rng(4)
    weight = kind.pack(kind.quantise(rng.standard_normal((n, n), np.float32)), n, n).reshape(n // 16, -1)
    device = CpuDevice(mode="fast")
    x = np.ones((4, n), np.float32)
    x[1, 3], x[2, 200] = np.nan, np.inf
    stream, squares = device.array(x), device.empty((1, 8, n // 16), "f32")
    digits = device.empty((1, n // 64, 1536), "bf16")
    arrays = {"weight": device.array(weight), "norm_weight": device.array(np.ones(n, np.float32)), "out": stream}
    arrays |= {"digits": digits, "out_squares": squares, "x": device.array(layout.pack(0 * np.ones_like(x), 3))}
    device.load(halves(n=n, k=n, residual=True, norm_out=True), WHERE).bind(**arrays, n_rows=4).launch()
    out = device.empty((4, n), "f32")
    spec = halves(n=n, k=n, norm="rms")
    given = {"x": digits, "weight": arrays["weight"], "squares": squares, "out": out}
    device.load(spec, WHERE).bind(**given, n_rows=4).launch()
    assert np.isfinite(out.numpy()).all(1).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"norm_out": True}, r"norm_out: needs a residual stream \(got residual=False; nearest: residual=True\)"),
        ({"norm": "layer"}, r"norm: must be one of '', rms"),
        ({"n": 40, "norm_out": True, "residual": True}, r"n: must be a multiple of 64"),
        ({"n": 98304, "norm_out": True, "residual": True}, r"n: with norm_out at most 65536 \(got 98304"),
        ({"weights": "q4_k", "norm": "rms"}, r"norm: needs bf16 digits \(got halves=False; nearest: norm=''\)"),
    ],
)
def test_mistakes(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        DigitGemm(**{"n": 64, "k": 256, "weights": "bf16", **fields})
