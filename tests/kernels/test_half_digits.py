"""PackDigits and DigitGemm with digits that are bf16 numbers: layout, fusions, clusters over k, packed results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate
from ptxgen.assembler import assemble
from ptxgen.generator import clear_cache
from ptxgen.kernels import DigitGemm, PackDigits
from ptxgen.products.digits_bf16 import geometry, layout
from ptxgen.products.digits_s8.geometry import SPLITS, Shape
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.weights import weight_format
from tests.support.digit_products import assert_same_bits_among_others
from tests.support.marks import needs_assembler

EXACT = 1e-6
DIGIT = 1e-5  # of one digit, where no sum of these seeds lies at a tie
WHERE = "sm_90"
PRODUCTS: tuple[dict[str, Any], ...] = (
    {"n": 14336, "k": 4096, "gated": True, "activation": "silu"},
    {"n": 4096, "k": 14336, "residual": True},
    {"n": 6144, "k": 4096, "bias": True},
    {"n": 128256, "k": 4096},
)


def tried(spec: DigitGemm | PackDigits, mode: str, rows: int, **more: Any) -> Any:
    return trial(spec, CpuDevice(mode=mode), target=WHERE, rows=rows, **{"limit": EXACT, **more}).require()


def halves(**fields: Any) -> DigitGemm:
    return DigitGemm(weights="bf16", **fields)


@pytest.mark.parametrize(("digits", "error"), [(1, 2.0**-8), (3, 2.0**-24)])
def test_unpacking_undoes_packing_to_eight_bits_a_digit(digits: int, error: float) -> None:
    x = np.random.default_rng(0).standard_normal((13, 700), np.float32)
    back = layout.unpack(layout.pack(x, digits), 13, 700, digits)
    assert (np.abs(back - x) <= error * np.abs(x)).all()
    assert layout.unpack(layout.pack(x[:5], digits), 8, 704, digits)[5:].any() == np.False_


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (5, {"dim": 256, "halves": 1}),
        (5, {"dim": 64, "halves": 1}),
        (9, {"dim": 896, "halves": 3, "norm": "rms"}),
        (2, {"dim": 4160, "halves": 3, "norm": "rms"}),  # a second CTA has the last 64 columns
        (8, {"dim": 8960, "halves": 3, "programmatic": True}),
        (9, {"dim": 4608, "norm": "rms", "norm_offset": 1.0, "indirect": True, "halves": 1}),
        (3, {"dim": 1536, "norm": "rms", "eps": 0.1, "halves": 3}),
    ],
)
def test_rows_become_digits(mode: str, rows: int, fields: dict[str, Any]) -> None:
    tried(PackDigits(**fields), mode, rows)


def test_digits_are_none_or_those_of_a_precision() -> None:
    with pytest.raises(SpecError, match=r"halves: must be one of 0, 1, 3 \(got 2"):
        PackDigits(256, halves=2)
    for fields in ({}, {"halves": 3, "sums": True}):
        with pytest.raises(SpecError, match="dim: must be a multiple of 256"):
            PackDigits(576, **fields)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (1, {"n": 1, "k": 256}),
        (5, {"n": 37, "k": 512, "bias": True, "activation": "silu", "residual": True}),
        (8, {"n": 300, "k": 512, "gated": True, "activation": "gelu_tanh", "indirect": True, "split": 2}),
        (9, {"n": 2400, "k": 256, "programmatic": True}),
        (7, {"n": 64, "k": 2048, "split": 8}),
        (6, {"n": 70, "k": 960, "bias": True}),
        (8, {"n": 70, "k": 5632, "split": 4, "residual": True, "programmatic": True}),
    ],
    ids=str,
)
def test_ragged_shapes_and_fusions(mode: str, precision: str, rows: int, fields: dict[str, Any]) -> None:
    tried(halves(precision=precision, **fields), mode, rows)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("shape", [Shape(16, 3), Shape(3, 2), Shape(1, 1)], ids=str)
def test_other_geometries(mode: str, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps that share records, records that share a warp, clusters that are more than there is room for."""
    monkeypatch.setattr(geometry, "SHAPE", shape)
    monkeypatch.setitem(SPLITS, 2, 3)
    clear_cache()
    tried(halves(n=150, k=1280, split=2, residual=True), mode, 8)
    clear_cache()


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (8, {"n": 192, "k": 512, "gated": True, "activation": "silu", "split": 2}),
        (11, {"n": 64, "k": 256, "bias": True, "programmatic": True}),
        (3, {"n": 2112, "k": 256, "gated": True, "activation": "relu2", "indirect": True}),
    ],
    ids=str,
)
def test_results_are_packed_for_the_next_product(mode: str, precision: str, rows: int, fields: dict[str, Any]) -> None:
    packed = halves(precision=precision, packed_out=True, **fields)
    tried(packed, mode, rows, limit=DIGIT if precision == "fast" else EXACT)


@pytest.mark.parametrize(("seed", "rows", "fields"), [
    *((seed, 5, {"n": 192, "k": 2048, "gated": True, "activation": "gelu", "split": 8}) for seed in range(6)),
    *((seed, 33, {"n": 2112, "k": 2048, "split": 8, "precision": "fast"}) for seed in range(2)),
])  # fmt: skip
def test_a_sum_at_a_tie_is_no_error(seed: int, rows: int, fields: dict[str, Any]) -> None:
    tried(halves(packed_out=True, **fields), "fast", rows, seed=seed, limit=None)


def test_exact_results_are_digits_of_the_rows_that_are_not_packed() -> None:
    fields = {"n": 192, "k": 512, "gated": True, "activation": "silu", "split": 2}
    packed = tried(halves(packed_out=True, **fields), "fast", 7).outputs["out"]
    rows = tried(halves(**fields), "fast", 7).outputs["out"]
    assert (layout.unpack(packed, 7, 192, 3) == rows).all()


def test_no_row_is_a_size_as_others() -> None:
    for spec in (PackDigits(256, halves=3), halves(n=64, k=256, precision="fast", packed_out=True)):
        out = tried(spec, "check", 7, n_rows=0).outputs["out"]
        assert np.isnan(out.astype(np.float32)).all()


def test_packed_tokens_from_the_last_on_are_zero_and_tiles_without_one_not_written() -> None:
    spec = halves(n=64, k=256, bias=True, precision="fast", packed_out=True)
    out = tried(spec, "check", 20, n_rows=3).outputs["out"]
    assert not layout.unpack(out[:1], 8, 64, 1)[3:].any()
    assert layout.unpack(out[:1], 8, 64, 1)[:3].all()
    assert np.isnan(out[1:].astype(np.float32)).all()


def test_a_token_has_the_same_bits_among_others() -> None:
    """Whatever the others are, and however many there are."""
    assert_same_bits_among_others(halves(n=70, k=512, split=2), WHERE, 8, lambda x: layout.pack(x, 3))


def test_what_is_not_finite_stays_in_its_row() -> None:
    spec, rng = halves(n=40, k=256), np.random.default_rng(4)
    kind = weight_format("bf16")
    weight = kind.pack(kind.quantise(rng.standard_normal((40, 256), np.float32)), 40, 256).reshape(3, -1)
    x = np.ones((4, 256), np.float32)
    x[1, 3], x[2, 200] = np.nan, np.inf
    device = CpuDevice(mode="fast")
    digits, out = device.empty((1, 4, 1536), "bf16"), device.empty((4, 40), "f32")
    device.load(PackDigits(256, halves=3), WHERE).bind(x=device.array(x), out=digits, n_rows=4).launch()
    device.load(spec, WHERE).bind(x=digits, weight=device.array(weight), out=out, n_rows=4).launch()
    found = np.isfinite(out.numpy()).all(1)
    assert found.tolist() == [True, False, False, True]
    assert not np.isfinite(out.numpy()[1:3]).any()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n": 40, "k": 256, "tokens": 16}, r"tokens: with bf16 digits they are 8 \(got 16"),
        ({"n": 40, "k": 1280, "split": 8}, r"split: must divide the 20 tiles of k \(got 8; nearest: 4"),
        ({"n": 40, "k": 256, "packed_out": True, "precision": "fast"}, r"n: must be a multiple of 64"),
        ({"n": 64, "k": 256, "packed_out": True, "precision": "fast", "residual": True}, r"residual: a packed result"),
        ({"n": 64, "k": 256, "precision": "e4m3"}, r"precision: must be one of exact, fast"),
        ({"n": 64, "k": 1 << 17}, r"tokens: as many of 131072 inputs do not fit"),
        ({"n": 64, "k": 8192}, r"split: 8192 inputs do not fit in shared memory \(got 1; nearest: 2"),
    ],
)
def test_mistakes(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        halves(**fields)


def test_rounded_tokens_of_few_columns_have_fewer_tiles_on_their_way() -> None:
    found = {
        (precision, k): halves(n=8960, k=k, precision=precision).runs.stages
        for precision in ("exact", "fast")
        for k in (1536, 2048)
    }
    assert found == {("exact", 1536): 5, ("exact", 2048): 5, ("fast", 1536): 4, ("fast", 2048): 5}


@pytest.mark.parametrize(("n", "k"), [(5120, 13824), (32768, 13824), (32768, 23808), (5120, 27648)])
def test_wide_rows_leave_room_for_their_mbarriers(n: int, k: int) -> None:
    """Generating refuses a text with more shared memory than there is."""
    spec = DigitGemm.best(8, n=n, k=k, weights="bf16", precision="fast", residual=True, norm_out=True)
    assert generate(spec, WHERE).launch.shared == spec.runs.shared


@needs_assembler
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_what_steps_take_fits_and_spills_nothing(precision: str) -> None:
    for fields in PRODUCTS:
        spec = DigitGemm.best(8, weights="bf16", precision=precision, programmatic=True, **fields)
        assert spec.runs.fits
        for resources in assemble(generate(spec, WHERE).text, WHERE).resources.values():
            assert resources.spill_stores == resources.stack == 0
