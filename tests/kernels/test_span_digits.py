"""PackDigits and DigitGemm with bf16 digits before K-quants: sums beside digits, fusions, ragged shapes, clusters."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate
from ptxgen.assembler import assemble
from ptxgen.dtypes import bf16
from ptxgen.generator import clear_cache
from ptxgen.kernels import DigitGemm, DigitQkvAppend, PackDigits
from ptxgen.products.digits_bf16 import geometry, layout
from ptxgen.products.digits_s8.geometry import SPLITS, Shape
from ptxgen.runtime.core.device import Device
from ptxgen.runtime.cpu.device import CpuDevice
from ptxgen.runtime.tools.trial import trial
from ptxgen.weights import weight_format
from tests.support.digit_products import assert_same_bits_among_others
from tests.support.marks import needs_assembler

EXACT = 1e-6
WHERE = "sm_90"
SPANS = ("q4_k", "q5_k", "q6_k")
DIGITS = {"exact": 3, "fast": 1}
halves = partial(DigitGemm, halves=True)
pack = partial(layout.pack, sums=True)
unpack = partial(layout.unpack, sums=True)


def tried(spec: DigitGemm | PackDigits, mode: str, rows: int, **more: Any) -> Any:
    return trial(spec, CpuDevice(mode=mode), target=WHERE, rows=rows, **more).require()


def sums_of(packed: np.ndarray, rows: int, digits: int) -> np.ndarray:
    """float64 `[rows, chunks]` of packed tokens."""
    behind = packed[:, :, layout.pairs_bytes(digits, sums=True) // bf16.bytes :].astype(np.float64)
    each = behind.reshape(*packed.shape[:2], layout.SUM_DIGITS, 8, 4, 2, 2).sum(2)  # [tile, unit, g, t, second, first]
    whole: np.ndarray = each.transpose(0, 2, 1, 5, 4, 3).reshape(8 * len(packed), -1)[:rows]
    return whole


@pytest.mark.parametrize(("digits", "error"), [(1, 2.0**-8), (3, 2.0**-24)])
def test_unpacking_undoes_packing_and_sums_are_those_of_the_digits(digits: int, error: float) -> None:
    x = np.random.default_rng(0).standard_normal((13, 700), np.float32)
    packed = pack(x, digits)
    back = unpack(packed, 13, 768, digits)
    assert (np.abs(back[:, :700] - x) <= error * np.abs(x)).all()
    assert not back[:, 700:].any()
    want = back.reshape(13, -1, 16).sum(2)
    assert np.abs(sums_of(packed, 13, digits) - want).max() <= 2.0**-22 * np.abs(want).max()
    assert not unpack(packed, 16, 768, digits)[13:].any()


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (5, {"dim": 256, "halves": 1}),
        (8, {"dim": 8960, "halves": 3, "programmatic": True}),
        (9, {"dim": 4608, "norm": "rms", "norm_offset": 1.0, "indirect": True, "halves": 1}),
        (3, {"dim": 1536, "norm": "rms", "eps": 0.1, "halves": 3}),
    ],
)
def test_rows_become_digits_with_sums(mode: str, rows: int, fields: dict[str, Any]) -> None:
    tried(PackDigits(sums=True, **fields), mode, rows)


@pytest.mark.parametrize("name", SPANS)
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    "fields", [{}, {"split": 2, "bias": True}, {"gated": True, "activation": "silu"}, {"residual": True}], ids=str
)
def test_every_format(name: str, precision: str, fields: dict[str, Any]) -> None:
    tried(halves(100, 1024, name, precision=precision, **fields), "check", 8, limit=EXACT)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (1, {"n": 1, "k": 256}),
        (7, {"n": 37, "k": 512, "bias": True, "activation": "silu", "residual": True, "weights": "q6_k"}),
        (8, {"n": 300, "k": 512, "gated": True, "activation": "gelu_tanh", "indirect": True, "split": 2}),
        (9, {"n": 2400, "k": 256, "programmatic": True, "weights": "q5_k"}),
        (8, {"n": 70, "k": 8960, "split": 4, "residual": True, "programmatic": True}),  # 35 tiles: one is spare
        (5, {"n": 128, "k": 1536, "norm": "rms", "eps": 0.1, "weights": "q6_k"}),
    ],
    ids=str,
)
def test_ragged_shapes_and_fusions(mode: str, precision: str, rows: int, fields: dict[str, Any]) -> None:
    tried(halves(precision=precision, **fields), mode, rows, limit=EXACT)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (8, {"n": 512, "k": 512, "gated": True, "activation": "silu", "packed_out": True, "split": 2}),
        (11, {"n": 256, "k": 256, "bias": True, "packed_out": True, "programmatic": True, "weights": "q6_k"}),
        (7, {"n": 768, "k": 512, "residual": True, "norm_out": True, "norm_offset": 1.0, "bias": True, "split": 2}),
        (9, {"n": 2304, "k": 256, "norm": "rms", "residual": True, "norm_out": True, "weights": "q5_k", "share": 2}),
    ],
    ids=str,
)
def test_results_are_packed_for_the_next_product(mode: str, precision: str, rows: int, fields: dict[str, Any]) -> None:
    tried(halves(precision=precision, **fields), mode, rows)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("shape", [Shape(16, 3), Shape(3, 2), Shape(1, 1)], ids=str)
def test_other_geometries(mode: str, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps that share records, records that share a warp, clusters that are more than there is room for."""
    monkeypatch.setattr(geometry, "OF_SPANS", (shape, shape))
    monkeypatch.setitem(SPLITS, 2, 3)
    clear_cache()
    tried(halves(n=150, k=2304, split=2, residual=True), mode, 8, limit=EXACT)
    tried(halves(n=256, k=512, residual=True, norm_out=True), mode, 8)
    clear_cache()


@pytest.mark.parametrize("name", SPANS)
def test_exact_results_are_digits_of_the_rows_that_are_not_packed(name: str) -> None:
    fields = {"n": 256, "k": 512, "gated": True, "activation": "silu", "split": 2, "weights": name}
    packed = tried(halves(packed_out=True, **fields), "fast", 7).outputs["out"]
    rows = tried(halves(**fields), "fast", 7).outputs["out"]
    assert (unpack(packed, 7, 256, 3) == rows).all()
    want = rows.astype(np.float64).reshape(7, -1, 16).sum(2)
    assert np.abs(sums_of(packed, 7, 3) - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.parametrize("name", SPANS)
def test_the_largest_codes_and_scales(name: str) -> None:
    """Of either sign, with mins."""
    kind, device = weight_format(name), CpuDevice(mode="check")
    for weights, x in ((1.0, 1.0), (-1.0, 1.0), (1.0, -3.0)):
        values = np.full((16, 256), weights, np.float32)
        values[:, ::5] *= -1
        tokens = np.full((8, 256), x * np.nextafter(np.float32(2), np.float32(0)), np.float32)
        packed = kind.pack(kind.quantise(values), 16, 256)
        out = device.empty((8, 16), "f32")
        given = {"x": device.array(pack(tokens, 3)), "weight": device.array(packed.reshape(1, -1))}
        device.load(halves(16, 256, name), WHERE).bind(**given, out=out, n_rows=8).launch()
        want = tokens.astype(np.float64) @ kind.values(packed, 16, 256).astype(np.float64).T
        assert np.abs(out.numpy() - want).max() <= EXACT * np.abs(want).max()


def test_an_outlier_costs_nobody_anything(device: Device) -> None:
    """Where a unit of bytes has one power of two, every value has its own exponent here."""
    if not device.target.name.startswith("sm_90"):
        pytest.skip(f"runs on sm_90 alone (this is {device.target})")
    rng, kind = np.random.default_rng(1), weight_format("q4_k")
    packed = kind.pack(kind.quantise(rng.standard_normal((64, 512), np.float32)), 64, 512)
    x = rng.standard_normal((8, 512), np.float32)
    x[:, 7] = 1e5
    out = device.empty((8, 64), "f32")
    given = {"x": device.array(pack(x, 3)), "weight": device.array(packed.reshape(4, -1)), "out": out, "n_rows": 8}
    device.load(halves(64, 512), WHERE).bind(**given).launch()
    values = kind.values(packed, 64, 512).astype(np.float64)
    want = x.astype(np.float64) @ values.T
    assert np.linalg.norm(out.numpy() - want) <= EXACT * np.linalg.norm(want)


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2304, "k": 1536, "norm": "rms", "residual": True, "norm_out": True, "share": 2},
        {"n": 512, "k": 8960, "weights": "q6_k", "residual": True, "norm_out": True, "split": 4},
        {
            "n": 2560,
            "k": 1536,
            "weights": "q5_k",
            "gated": True,
            "activation": "silu",
            "packed_out": True,
            "norm": "rms",
        },
        {"n": 1000, "k": 2048, "bias": True, "programmatic": True},
    ],
    ids=str,
)
def test_what_devices_make_of_it(device: Device, precision: str, fields: dict[str, Any]) -> None:
    if not device.target.name.startswith("sm_90"):
        pytest.skip(f"runs on sm_90 alone (this is {device.target})")
    spec = halves(precision=precision, **fields)
    outputs = [trial(spec, device, target=WHERE, rows=7).require().outputs for _ in range(2)]
    for name, first in outputs[0].items():
        assert first.tobytes() == outputs[1][name].tobytes(), name


def test_a_token_has_the_same_bits_among_others() -> None:
    """Whatever the others are, and however many there are."""
    assert_same_bits_among_others(halves(n=70, k=512, split=2), WHERE, 8, lambda x: pack(x, 3))


def test_packed_tokens_from_the_last_on_are_zero_and_tiles_without_one_not_written() -> None:
    for spec, name in (
        (halves(n=256, k=256, bias=True, precision="fast", packed_out=True), "out"),
        (halves(n=256, k=256, bias=True, precision="fast", residual=True, norm_out=True), "digits"),
    ):
        out = tried(spec, "check", 20, n_rows=3).outputs[name]
        assert not unpack(out[:1], 8, 256, 1)[3:].any()
        assert not sums_of(out[:1], 8, 1)[3:].any()
        assert unpack(out[:1], 8, 256, 1)[:3].all()
        assert np.isnan(out[1:].astype(np.float32)).all()


def test_no_row_is_a_size_as_others() -> None:
    for spec in (PackDigits(256, halves=3, sums=True), halves(n=256, k=256, packed_out=True)):
        out = tried(spec, "check", 7, n_rows=0).outputs["out"]
        assert np.isnan(out.astype(np.float32)).all()


def test_what_is_not_finite_stays_in_its_row() -> None:
    spec, rng, kind = halves(n=40, k=256), np.random.default_rng(4), weight_format("q4_k")
    weight = kind.pack(kind.quantise(rng.standard_normal((40, 256), np.float32)), 40, 256).reshape(3, -1)
    x = np.ones((4, 256), np.float32)
    x[1, 3], x[2, 200] = np.nan, np.inf
    device = CpuDevice(mode="fast")
    digits, out = device.empty((1, 1, layout.unit_bytes(3, sums=True) // 2), "bf16"), device.empty((4, 40), "f32")
    device.load(PackDigits(256, halves=3, sums=True), WHERE).bind(x=device.array(x), out=digits, n_rows=4).launch()
    device.load(spec, WHERE).bind(x=digits, weight=device.array(weight), out=out, n_rows=4).launch()
    assert np.isfinite(out.numpy()).all(1).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tokens": 16}, r"tokens: with bf16 digits they are 8 \(got 16"),
        ({"k": 2304, "split": 4}, r"split: must divide a number from 9, the tiles of k, to 10 \(got 4; nearest: 2"),
        ({"n": 64, "packed_out": True}, r"n: must be a multiple of 256"),
        ({"k": 8960}, r"split: 8960 inputs do not fit in shared memory \(got 1; nearest: 4"),
        ({"halves": False, "precision": "fast"}, r"precision: digits of bytes are exact \(got 'fast'; nearest: exact"),
        ({"halves": False, "packed_out": True}, r"packed_out: needs bf16 digits \(got halves=False"),
        ({"halves": False, "share": 2}, r"share: needs bf16 digits"),
        ({"n": 16, "share": 2}, r"share: needs .* an even number of CTAs \(got 2; nearest: 1\)"),
        ({"n": 0, "share": 2}, r"n: must be from 1 to"),
        ({"k": 0, "share": 2}, "k: must be a multiple of 256"),
        ({"split": 3, "share": 2}, "split: must be one of 1, 2, 4, 8"),
    ],
)
def test_mistakes(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        halves(**{"n": 256, "k": 256, **fields})
    with pytest.raises(SpecError, match=r"sums: units of bytes have them anyway \(got sums=True, halves=0"):
        PackDigits(256, sums=True)


def test_warps_are_as_many_as_save_a_turn() -> None:
    """Of rounded tokens; of three digits, and before Q6_K, registers are too few for the most."""
    found = {
        (n, k, name, precision): halves(n=n, k=k, weights=name, precision=precision, split=split).runs.warps
        for n, k, split, name in ((2560, 2048, 1, "q4_k"), (1536, 8960, 1, "q4_k"), (2560, 2048, 1, "q6_k"))
        for precision in ("exact", "fast")
        if precision == "fast" or k < 8960
    }
    assert found == {
        (2560, 2048, "q4_k", "exact"): 12, (2560, 2048, "q4_k", "fast"): 16, (1536, 8960, "q4_k", "fast"): 12,
        (2560, 2048, "q6_k", "exact"): 12, (2560, 2048, "q6_k", "fast"): 12,
    }  # fmt: skip


@needs_assembler
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(("dim", "hidden"), [(1536, 8960), (4096, 14336)])
def test_what_steps_take_fits_and_spills_nothing(precision: str, dim: int, hidden: int) -> None:
    best = partial(DigitGemm.best, 8, halves=True, precision=precision, programmatic=True)
    specs: list[DigitGemm | DigitQkvAppend] = [
        best(n=hidden, k=dim, weights="q4_k", gated=True, activation="silu", packed_out=True, norm="rms"),
        best(n=dim, k=hidden, weights="q6_k", residual=True, norm_out=True),
        best(n=dim, k=hidden, weights="q5_k", residual=True, norm_out=True),
        best(n=dim, k=dim, weights="q4_k", residual=True, norm_out=True),
    ]
    fields = {"max_len": 4096, "head_dim": 128, "n_heads": dim // 128, "n_kv_heads": dim // 512, "k": dim}
    for name, heads in (("q4_k", "qk"), ("q6_k", "v")):
        chosen = best(n=dim, k=dim, weights=name)
        more = {"weights": name, "heads": heads, "split": chosen.split, "norm": "rms", "precision": precision}
        specs.append(DigitQkvAppend(**fields, **more, programmatic=True))
    for spec in specs:
        for resources in assemble(generate(spec, WHERE).text, WHERE).resources.values():
            assert resources.spill_stores == resources.stack == 0, spec
