"""DigitGemm with bf16 digits before weights whose groups of columns have scales: every format, fusions, ragged shapes,
clusters."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from ptxgen import SpecError, generate
from ptxgen.assembler import assemble
from ptxgen.generator import clear_cache
from ptxgen.kernels import DigitGemm, DigitQkvAppend
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
GROUPED = geometry.GROUPED


def tried(spec: DigitGemm, mode: str, rows: int, **more: Any) -> Any:
    return trial(spec, CpuDevice(mode=mode), target=WHERE, rows=rows, **more).require()


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    "fields", [{}, {"split": 2, "bias": True}, {"gated": True, "activation": "silu"}, {"residual": True}], ids=str
)
def test_every_format(name: str, precision: str, fields: dict[str, Any]) -> None:
    tried(DigitGemm(100, 1024, name, precision=precision, **fields), "check", 8, limit=EXACT)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (1, {"n": 1, "k": 256, "weights": "e4m3"}),
        (7, {"n": 37, "k": 512, "bias": True, "activation": "silu", "residual": True, "weights": "q8_0"}),
        (8, {"n": 300, "k": 512, "gated": True, "activation": "gelu_tanh", "indirect": True, "split": 2}),
        (9, {"n": 2400, "k": 256, "programmatic": True, "weights": "int4_g32"}),
        (8, {"n": 70, "k": 8960, "split": 4, "residual": True, "programmatic": True}),  # 35 tiles: one is spare
        (8, {"n": 70, "k": 2304, "split": 4, "weights": "e4m3_block"}),  # 18 tiles: two are spare
        (5, {"n": 128, "k": 1536, "norm": "rms", "eps": 0.1, "weights": "q4_0"}),
        (6, {"n": 72, "k": 768, "bias": True, "weights": "q5_0"}),
    ],
    ids=str,
)
def test_ragged_shapes_and_fusions(mode: str, precision: str, rows: int, fields: dict[str, Any]) -> None:
    tried(DigitGemm(**{"weights": "int4_g128", "precision": precision, **fields}), mode, rows, limit=EXACT)


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    "fields",
    [{"k": 1152, "split": 2, "norm": "rms"}, {"k": 192, "n": 192, "residual": True, "norm_out": True},
     {"k": 960, "n": 64, "gated": True, "activation": "silu", "packed_out": True}],
    ids=str,
)  # fmt: skip
def test_columns_that_are_no_multiple_of_256(name: str, precision: str, fields: dict[str, Any]) -> None:
    k = 384 if name == "int4_g128" and fields["k"] % 128 else fields["k"]
    tried(DigitGemm(**{"n": 40, "weights": name, "precision": precision, **fields, "k": k}), "check", 7)


@pytest.mark.parametrize(
    ("name", "k", "unit"), [("q8_0", 96, 64), ("q5_0", 32, 64), ("int4_g128", 576, 256), ("q5_0", 6976, 128)]
)
def test_x_comes_in_whole_units_and_tiles(name: str, k: int, unit: int) -> None:
    assert not geometry.takes(weight_format(name), k, "exact")
    with pytest.raises(SpecError, match=f"k: must be a multiple of {unit} "):
        DigitGemm(40, k, name, split=4)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (8, {"n": 64, "k": 512, "gated": True, "activation": "silu", "packed_out": True, "split": 2}),
        (11, {"n": 192, "k": 256, "bias": True, "packed_out": True, "programmatic": True, "weights": "e4m3_channel"}),
        (7, {"n": 320, "k": 512, "residual": True, "norm_out": True, "norm_offset": 1.0, "bias": True, "split": 2}),
        (9, {"n": 2304, "k": 256, "norm": "rms", "residual": True, "norm_out": True, "weights": "q8_0", "share": 2}),
    ],
    ids=str,
)
def test_results_are_packed_for_the_next_product(mode: str, precision: str, rows: int, fields: dict[str, Any]) -> None:
    tried(DigitGemm(**{"weights": "int4_g128", "precision": precision, **fields}), mode, rows)


@pytest.mark.parametrize("mode", ["check", "random"])
@pytest.mark.parametrize("shape", [Shape(16, 3), Shape(3, 2), Shape(1, 1)], ids=str)
def test_other_geometries(mode: str, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps that share records, records that share a warp, clusters that are more than there is room for."""
    monkeypatch.setattr(geometry, "OF_GROUPS", shape)
    monkeypatch.setattr(geometry, "OF_SMALL_GROUPS", shape)
    monkeypatch.setitem(SPLITS, 2, 3)
    clear_cache()
    tried(DigitGemm(n=150, k=2560, weights="q8_0", split=2, residual=True), mode, 8, limit=EXACT)
    tried(DigitGemm(n=150, k=1280, weights="e4m3_channel", split=2, residual=True), mode, 8, limit=EXACT)
    clear_cache()


@pytest.mark.parametrize("name", ["int4_g128", "e4m3_channel", "q8_0"])
def test_exact_results_are_digits_of_the_rows_that_are_not_packed(name: str) -> None:
    fields = {"n": 128, "k": 512, "gated": True, "activation": "silu", "split": 2, "weights": name}
    packed = tried(DigitGemm(packed_out=True, **fields), "fast", 7).outputs["out"]
    rows = tried(DigitGemm(**fields), "fast", 7).outputs["out"]
    assert (layout.unpack(packed, 7, 128, 3) == rows).all()


def test_all_codes() -> None:
    """Every code times every exponent of x comes out: numbers of e4m3 below its normal ones, zero points, signs."""
    bytes_of = np.arange(256, dtype=np.uint8)
    finite = np.where(bytes_of & 127 == 127, 0, bytes_of)
    blocks = [np.tile(np.uint8([0, 60]), (16, 8, 1)), np.tile(bytes_of.reshape(8, 32), (16, 1, 1))]  # scales of 1
    zeros = np.uint8(np.arange(128).reshape(16, 8) % 17)
    sources = {
        "e4m3_channel": {"weight": np.tile(finite, (16, 1)), "scale": np.float32(np.linspace(0.5, 2, 16))},
        "q8_0": {"blocks": np.concatenate(blocks, 2).reshape(16, -1)},
        "int4_g32": {
            "qweight": np.tile(bytes_of & 15, (16, 1)),
            "scales": np.full((16, 8), 0.5, np.float16),
            "zeros": zeros,
        },
    }
    device, x = CpuDevice(mode="check"), np.zeros((8, 256), np.float32)
    for name, source in sources.items():
        kind = weight_format(name)
        packed = kind.pack(source, 16, 256)
        values = kind.values(packed, 16, 256).astype(np.float64)
        weight, out = device.array(packed.reshape(1, -1)), device.empty((8, 16), "f32")
        for first in range(0, 256, 8):  # one column a token
            x[:] = 0
            x[np.arange(8), first + np.arange(8)] = 1 + np.float32(2.0**-20)
            arrays = {"x": device.array(layout.pack(x, 3)), "weight": weight}
            device.load(DigitGemm(16, 256, name), WHERE).bind(**arrays, out=out, n_rows=8).launch()
            want = x.astype(np.float64) @ values.T
            assert (np.abs(out.numpy() - want) <= 2.0**-22 * np.abs(want)).all(), (name, first)


def test_an_outlier_costs_nobody_anything(device: Device) -> None:
    if not device.target.name.startswith("sm_90"):
        pytest.skip(f"runs on sm_90 alone (this is {device.target})")
    rng = np.random.default_rng(1)
    for name in GROUPED:
        kind = weight_format(name)
        packed = kind.pack(kind.quantise(rng.standard_normal((64, 512), np.float32)), 64, 512)
        x = rng.standard_normal((8, 512), np.float32)
        x[:, 7] = 1e5
        out = device.empty((8, 64), "f32")
        given = {"x": device.array(layout.pack(x, 3)), "weight": device.array(packed.reshape(4, -1)), "out": out}
        device.load(DigitGemm(64, 512, name), WHERE).bind(**given, n_rows=8).launch()
        want = x.astype(np.float64) @ kind.values(packed, 64, 512).astype(np.float64).T
        assert np.linalg.norm(out.numpy() - want) <= EXACT * np.linalg.norm(want), name


@pytest.mark.parametrize("name", ["int4_g128", "e4m3"])
def test_a_token_has_the_same_bits_among_others(name: str) -> None:
    """Whatever the others are, and however many there are."""
    assert_same_bits_among_others(DigitGemm(n=70, k=512, weights=name, split=2), WHERE, 8, lambda x: layout.pack(x, 3))


def test_what_is_not_finite_stays_in_its_row() -> None:
    spec, rng, kind = DigitGemm(n=40, k=256, weights="q8_0"), np.random.default_rng(4), weight_format("q8_0")
    weight = kind.pack(kind.quantise(rng.standard_normal((40, 256), np.float32)), 40, 256).reshape(3, -1)
    x = np.ones((4, 256), np.float32)
    x[1, 3], x[2, 200] = np.nan, np.inf
    device = CpuDevice(mode="fast")
    out, given = device.empty((4, 40), "f32"), {"x": device.array(layout.pack(x, 3)), "weight": device.array(weight)}
    device.load(spec, WHERE).bind(**given, out=out, n_rows=4).launch()
    assert np.isfinite(out.numpy()).all(1).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tokens": 16}, r"tokens: with bf16 digits they are 8 \(got 16"),
        ({"k": 2304, "split": 8}, r"split: must divide a number from 18, the tiles of k, to 20 \(got 8; nearest: 4"),
        ({"split": 0}, r"split: must be one of 1, 2, 4, 8 \(got 0\)"),
        ({"n": 32, "packed_out": True}, r"n: must be a multiple of 64"),
        ({"k": 8960}, r"split: 8960 inputs do not fit in shared memory \(got 1; nearest: 2"),
        ({"weights": "f16"}, r"weights: must be one of bf16, int4_g32, int4_g64, int4_g128, q8_0, q4_0, q5_0, e4m3"),
    ],
)  # fmt: skip
def test_mistakes(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        DigitGemm(**{"n": 256, "k": 256, "weights": "e4m3_channel", **fields})


def test_three_digits_before_groups_of_32_columns_have_fewer_warps() -> None:
    found = {
        (name, precision): DigitGemm(14336, 4096, name, precision=precision).runs.warps
        for name in ("int4_g32", "int4_g64", "e4m3") for precision in ("exact", "fast")
    }  # fmt: skip
    assert [warps for (name, _), warps in found.items() if name == "int4_g32"] == [8, 16]
    assert {warps for (name, _), warps in found.items() if name != "int4_g32"} == {16}


@needs_assembler
@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_what_steps_take_fits_and_spills_nothing(name: str, precision: str) -> None:
    best = partial(DigitGemm.best, 8, weights=name, precision=precision, programmatic=True)
    specs: list[DigitGemm | DigitQkvAppend] = []
    for dim, hidden in ((1536, 8960), (2048, 8192), (4096, 14336)):
        specs.append(best(n=hidden, k=dim, gated=True, activation="silu", packed_out=True, norm="rms"))
        specs.append(best(n=dim, k=hidden, residual=True, norm_out=True))
        specs.append(best(n=dim, k=dim, residual=True, norm_out=True))
        fields = {"max_len": 4096, "head_dim": 128, "n_heads": dim // 128, "n_kv_heads": dim // 512, "k": dim}
        more = {"weights": name, "split": specs[-1].split, "norm": "rms", "precision": precision}
        specs.append(DigitQkvAppend(**fields, **more, programmatic=True))
    for spec in specs:
        for resources in assemble(generate(spec, WHERE).text, WHERE).resources.values():
            assert resources.spill_stores == resources.stack == 0, spec
