"""A norm that is divided out of a product's results: what a product leaves for it, and what reads that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError
from ptxgen.generator import clear_cache
from ptxgen.kernels import DigitGemm, PackDigits
from ptxgen.products.bytes.geometry import SPLITS, Shape
from ptxgen.products.few import geometry, layout
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.weights import weight_format

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


def chain(
    device: Device, precision: str, scale: float, *, left: bool, weights: str = "bf16", **shape: Any
) -> tuple[np.ndarray, np.ndarray]:
    """x + A·u, normed, then B·; results of kernels, and of float64. `left`: what the norm takes is left by the first
    product; else `PackDigits` makes it."""
    rng, kind, n, sums = np.random.default_rng(5), weight_format(weights), 512, weights != "bf16"
    first, second = (rng.standard_normal((n, n), np.float32) * np.float32(n**-0.5) for _ in "ab")
    packed = [kind.pack(kind.quantise(each), n, n).reshape(n // 16, -1) for each in (first, second)]
    first, second = (kind.values(each.reshape(-1), n, n).astype(np.float64) for each in packed)
    u, x = rng.standard_normal((6, n), np.float32), scale * rng.standard_normal((6, n), np.float32)
    gain = rng.uniform(0.1, 3.0, n).astype(np.float32)
    digits = DIGITS[precision]
    fields: dict[str, Any] = {"n": n, "k": n, "precision": precision, "weights": weights, **shape}
    stream, out = device.array(x.astype(np.float32)), device.empty((6, n), "f32")
    between = device.empty(layout.pack(x, digits, sums=sums).shape, "bf16")
    given = {
        "x": device.array(layout.pack(u, digits, sums=sums)),
        "weight": device.array(packed[0]),
        "out": stream,
        "n_rows": 6,
    }
    more: dict[str, Any] = {}
    if left:
        squares = device.empty((1, 8, n // 16), "f32")
        given |= {"norm_weight": device.array(gain), "digits": between, "out_squares": squares}
        more = {"squares": squares}
    device.load(halves(**fields, residual=True, norm_out=left), WHERE).bind(**given).launch()
    if not left:
        pack = PackDigits(n, norm="rms", halves=digits, sums=sums)
        device.load(pack, WHERE).bind(x=stream, norm_weight=device.array(gain), out=between, n_rows=6).launch()
    spec = halves(**fields, norm="rms" if left else "")
    device.load(spec, WHERE).bind(x=between, weight=device.array(packed[1]), out=out, n_rows=6, **more).launch()
    rows = x.astype(np.float32).astype(np.float64) + u.astype(np.float64) @ first.T
    rows = rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-6) * gain
    return out.numpy().astype(np.float64), rows @ second.T


@pytest.mark.parametrize(("scale", "shape"), [
    (1e-3, {}), (1.0, {"split": 2}), (1.0, {"share": 2}), (1e9, {}), (1.0, {"weights": "q4_k", "split": 2}),
    (1e9, {"weights": "q5_k"}), (1e-3, {"weights": "q6_k", "share": 2}),
], ids=str)  # fmt: skip
def test_a_norm_divided_out_is_as_exact_as_one_before(device: Device, scale: float, shape: dict[str, Any]) -> None:
    for precision, limit in (("exact", 5e-7), ("fast", 4e-3)):
        found = {}
        for left in (True, False):
            got, want = chain(device, precision, scale, left=left, **shape)
            found[left] = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert found[True] < limit, (precision, found)
        assert found[True] < 1.5 * found[False], (precision, found)


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
