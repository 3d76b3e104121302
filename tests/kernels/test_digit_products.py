"""PackDigits and DigitGemm: formats, fusions, ragged shapes, clusters over k, outliers, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate
from ptxgen.assembler import assemble
from ptxgen.generator import clear_cache
from ptxgen.kernels import DigitGemm, PackDigits
from ptxgen.kernels.digit_gemm import FORMATS
from ptxgen.products.digits_bf16 import geometry as bf16_geometry
from ptxgen.products.digits_s8 import geometry, layout
from ptxgen.products.digits_s8.geometry import Shape
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.weights import weight_format
from tests.support.digit_products import assert_same_bits_among_others
from tests.support.marks import needs_assembler

# the others' digits: test_half_digits.py, test_group_digits.py
BYTES = tuple(name for name in FORMATS if name not in bf16_geometry.FORMATS)
EXACT = 1e-6
WHERE = "sm_90"


def tried(spec: DigitGemm | PackDigits, mode: str, rows: int, **more: Any) -> Any:
    return trial(spec, CpuDevice(mode=mode), target=WHERE, rows=rows, limit=EXACT, **more).require()


# -- the layout, PackDigits --------------------------------------------------------------------------------------------


def test_unpacking_undoes_packing_to_23_bits_of_a_unit() -> None:
    x = np.random.default_rng(0).standard_normal((13, 700), np.float32)
    back = layout.unpack(layout.pack(x), 13, 700)
    for row in range(13):
        for first in range(0, 700, layout.UNIT):
            unit = slice(first, first + layout.UNIT)
            most = np.abs(x[row, unit]).max()
            assert np.abs(back[row, unit] - x[row, unit]).max() <= most * 2.0**-22


@pytest.mark.parametrize("value", [1.0, np.nextafter(np.float32(2), np.float32(0)), 1e36, 1e-45, 0.0])
def test_integers_stay_below_two_to_the_22(value: float) -> None:
    x = np.full((1, layout.UNIT), -value, np.float32)
    digits = np.ascontiguousarray(layout.pack(x)[0, 0, : layout.SUMS_AT]).view(np.int8).astype(np.int64)
    lanes = digits.reshape(-1, layout.DIGITS, 8, 4, 16)[:, :, 0]
    whole = (lanes[:, 0] * 256 + lanes[:, 1]) * 256 + lanes[:, 2]
    assert np.abs(whole).max() < 1 << 22
    assert layout.unpack(layout.pack(x), 1, layout.UNIT) == pytest.approx(x.astype(np.float64), rel=2.0**-21, abs=1e-44)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (5, {"dim": 256}),
        (17, {"dim": 8960, "programmatic": True}),
        (9, {"dim": 4608, "norm": "rms", "norm_offset": 1.0, "indirect": True}),
        (8, {"dim": 1536, "norm": "rms", "eps": 0.1}),
        (3, {"dim": 1792, "norm": "rms", "programmatic": True}),
    ],
)
def test_rows_become_digits(mode: str, rows: int, fields: dict[str, Any]) -> None:
    tried(PackDigits(**fields), mode, rows)


@pytest.mark.parametrize("norm", ["", "rms"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_packed_as_the_reference_says(value: float, norm: str) -> None:
    """Bit for bit; its columns unpack to NaN, other rows' and units' do not."""
    spec = PackDigits(dim=512, norm=norm)
    values = spec.example(np.random.default_rng(0), rows=3)
    values["x"][1, 40] = value
    found = trial(spec, CpuDevice(mode="fast"), target=WHERE, arguments=values, rows=3).outputs["out"]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, spec.reference(**values)["out"])
        spoiled = np.isnan(layout.unpack(found, 3, 512))
    assert spoiled[1, :256].all()
    assert spoiled[1, 256:].all() == (norm == "rms" and np.isnan(value))  # an infinite row has the norm 0
    assert not spoiled[[0, 2]].any()


def test_tiles_without_a_row_are_not_written() -> None:
    out = tried(PackDigits(dim=256), "check", 20, n_rows=3).outputs["out"]
    assert not layout.unpack(out[:1], 8, 256)[3:].any()
    assert (out[1:] == out[1, 0, 0]).all()
    out = tried(PackDigits(dim=256), "check", 20, n_rows=0).outputs["out"]
    assert (out == out[0, 0, 0]).all()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_makes_its_unit_nan(bad: float) -> None:
    x = np.ones((2, 512), np.float32)
    x[1, 300] = bad
    device = CpuDevice(mode="check")
    out = device.empty((1, 2, layout.UNIT_BYTES), "u8")
    device.load(PackDigits(dim=512), WHERE).bind(x=device.array(x), out=out, n_rows=2).launch()
    values = layout.unpack(out.numpy(), 2, 512)
    assert np.isnan(values[1, 256:]).all()
    assert (values[0] == 1).all()
    assert (values[1, :256] == 1).all()


# -- DigitGemm ---------------------------------------------------------------------------------------------------------


def test_formats_are_those_whose_tiles_are_units() -> None:
    assert BYTES == ("q4_k", "q5_k", "q6_k")
    with pytest.raises(SpecError, match=r"weights: must be one of bf16, int4_g32, .*, q4_k, q5_k, q6_k \(got f16"):
        DigitGemm(64, 256, "f16")


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize(
    "fields",
    [{}, {"tokens": 16, "split": 2}, {"gated": True, "activation": "silu"}, {"tokens": 32, "residual": True}],
    ids=str,
)
def test_every_format(name: str, fields: dict[str, Any]) -> None:
    tried(DigitGemm(100, 1024, name, **fields), "check", 20)


SHAPES: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {"n": 1, "k": 256}),
    (11, {"n": 37, "k": 512, "bias": True, "activation": "silu", "residual": True}),
    (8, {"n": 300, "k": 512, "gated": True, "activation": "gelu_tanh", "indirect": True}),
    (9, {"n": 2400, "k": 256, "programmatic": True}),
    (30, {"n": 337, "k": 2048, "weights": "q6_k", "tokens": 32, "split": 4, "programmatic": True, "indirect": True}),
    (8, {"n": 150, "k": 1280, "split": 2}),
    (20, {"n": 70, "k": 2560, "weights": "q6_k", "split": 4, "tokens": 24}),
    (7, {"n": 64, "k": 2048, "weights": "q5_k", "split": 8}),
    (8, {"n": 70, "k": 11008, "split": 2}),
)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(("rows", "fields"), SHAPES, ids=str)
def test_ragged_shapes_and_fusions(mode: str, rows: int, fields: dict[str, Any]) -> None:
    tried(DigitGemm(**fields), mode, rows)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("shape", [Shape(16, 3), Shape(3, 2), Shape(1, 1)], ids=str)
def test_other_geometries(mode: str, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps that share records, records that share a warp, clusters that are more than there is room for."""
    monkeypatch.setitem(geometry.SHAPES, 8, (shape, shape))
    monkeypatch.setitem(geometry.SPLITS, 2, 3)
    clear_cache()
    tried(DigitGemm(150, 1280, split=2, residual=True), mode, 9)
    clear_cache()


@pytest.mark.parametrize("name", BYTES)
def test_the_largest_sums_fit(name: str) -> None:
    """Codes and integers as large as they can be, of either sign."""
    kind = weight_format(name)
    for weights, x in ((1.0, 1.0), (-1.0, 1.0), (1.0, -1.0)):
        values = np.full((16, 256), weights, np.float32)
        values[:, ::5] *= -1
        tokens = np.full((8, 256), x * np.nextafter(np.float32(2), np.float32(0)), np.float32)
        packed = kind.pack(kind.quantise(values), 16, 256)
        device = CpuDevice(mode="check")
        out = device.empty((8, 16), "f32")
        given = {"x": device.array(layout.pack(tokens)), "weight": device.array(packed.reshape(1, -1))}
        device.load(DigitGemm(16, 256, name), WHERE).bind(**given, out=out, n_rows=8).launch()
        want = tokens.astype(np.float64) @ kind.values(packed, 16, 256).astype(np.float64).T
        assert np.abs(out.numpy() - want).max() <= 1e-6 * np.abs(want).max()


def test_a_token_has_the_same_bits_among_others() -> None:
    """Whatever the others are, and however many there are."""
    assert_same_bits_among_others(DigitGemm(70, 512), WHERE, 11, layout.pack)


def test_rows_from_the_last_on_are_not_written() -> None:
    out = tried(DigitGemm(40, 256), "check", 9, n_rows=4).outputs["out"]
    assert np.isnan(out[4:]).all()


def test_an_outlier_costs_its_unit_alone() -> None:
    """A value a thousand times as large as the others takes ten bits of theirs, in its 256 columns."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((8, 4096), np.float32)
    x[:, 7] = 1000
    back = layout.unpack(layout.pack(x), 8, 4096)
    others = np.arange(256, 4096)
    assert np.linalg.norm(back[:, others] - x[:, others]) <= 3e-7 * np.linalg.norm(x[:, others])
    assert np.linalg.norm(back - x) <= 2e-6 * np.linalg.norm(x)


@pytest.mark.parametrize("rows", [2, 8, 9, 16, 24, 32])
def test_best_is_legal_and_takes_all_tokens_together_where_they_fit(rows: int) -> None:
    for n, k in ((4096, 4096), (4096, 14336), (2048, 5632), (1536, 8960), (128256, 4096), (2048, 11008), (64, 57344)):
        for name in BYTES:
            spec = DigitGemm.best(rows, n=n, k=k, weights=name)
            assert spec.runs.fits
            assert spec.tokens <= -(-rows // 8) * 8


@needs_assembler
@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("tokens", [8, 16, 24, 32])
def test_nothing_is_spilled(name: str, tokens: int) -> None:
    for fields in ({"n": 14336, "k": 4096, "gated": True, "activation": "silu"}, {"n": 4096, "k": 14336}):
        spec = DigitGemm.best(tokens, weights=name, **fields)
        for resources in assemble(generate(spec, WHERE).text, WHERE).resources.values():
            assert resources.spill_stores == resources.stack == 0
